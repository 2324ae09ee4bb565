"""Planted links: symbolic and hard links, FIFOs, devices, sockets and folders at every name that
pagoda writes, reads back or removes. Nothing outside changes, nothing is waited for."""

import os
import pathlib
import socket
import stat

import laboratory

DEFAULT, QUICK, HISTORIC = 180, 15, 540

PRECIOUS = b"a file of somebody else\n" * 500
KINDS = ["link", "link to nothing", "link to a folder", "link to itself", "hard link",
         "FIFO", "socket", "folder", "full folder", "device", "link to a device", "file"]

# Names in the folder of a run that is resumed (half), of one that begins (run, that is empty or
# was killed at its start), of what export and init write (out) and of what they make beside it.
OF_RESUME = ["checkpoints", "checkpoints/LATEST", "checkpoints/LATEST.tmp", "metrics.jsonl",
             "checkpoints/step-00000004", "checkpoints/step-00000004/MANIFEST",
             "checkpoints/step-00000004/pages.bin", "checkpoints/step-00000004/more",
             "checkpoints/step-00000006", "checkpoints/step-00000006.tmp",
             "checkpoints/step-00000006.tmp/MANIFEST", "checkpoints/step-00000002",
             "checkpoints/step-00000002.tmp", "checkpoints/step-00000009", "resolved.toml",
             "resolved.toml.tmp", "tokens.bin", "tokens.bin.tmp", "store", "store/STORE",
             "trace.json", "trace.json.tmp", "routing.csv", "STARTING"]
OF_START = ["", "STARTING", "store", "checkpoints", "tokens.bin", "tokens.bin.tmp", "metrics.jsonl",
            "resolved.toml", "resolved.toml.tmp", "trace.json", "store/pages-0.0"]
OF_OUTPUT = ["", "config.json", "model.safetensors", "model.safetensors.tmp", "tokenizer.json.tmp"]
OF_PAGE = ["page.html", "page.html.tmp"]
OF_SCRATCH = ["", "pagoda-scratch-PID", "pagoda-scratch-1"]


class Outside:
    """Files of somebody else, which must stay as they are."""

    def __init__(self, case):
        self.case, self.folder = case, case.path("outside")
        self.precious, self.moved = self.folder / "precious", self.folder / "moved"
        (self.folder / "inner").mkdir(parents=True)
        for name in ("precious", "inner/deeper", "MANIFEST", "pages.bin", "LATEST", "config.json",
                     "pages-theirs"):
            (self.folder / name).write_bytes(PRECIOUS)
        self.device = pathlib.Path("/dev/null")
        if os.geteuid() == 0:  # root could replace the system's
            self.device = self.folder / "null"
            os.mknod(self.device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.before = {}

    def look(self):
        seen = {}
        for folder, folders, files in os.walk(self.folder):
            for name in folders + files:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                content = open(path, "rb").read() if stat.S_ISREG(status.st_mode) else b""
                seen[os.path.relpath(path, self.folder)] = (status.st_mode, content)
        return seen

    def check(self, may_change=None):
        """`may_change`: what lies there is the run's own, put there by its user."""
        after = self.look()
        for name in sorted(set(self.before) | set(after)):
            if self.before.get(name) != after.get(name) and name.split("/")[0] != may_change:
                how = ("written to or changed" if name in self.before and name in after else
                       "removed" if name in self.before else "new")
                self.case.fail("files outside as they were", f"{name} {how}")


def bind_socket(path):
    """The name of a socket may be short only, so that of its folder is a number."""
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def plant(outside, kind, path):
    """What was at `path` moves outside, where a symbolic link leads to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = outside.folder if kind == "link to a folder" else outside.precious
    if os.path.lexists(path):
        was_folder = path.is_dir()
        os.rename(path, outside.moved)
        if kind == "link" or (kind == "link to a folder" and was_folder):
            target = outside.moved
    if kind in ("link", "link to a folder"):
        path.symlink_to(target)
    elif kind == "link to nothing":
        path.symlink_to(outside.folder / "nothing")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "hard link":
        os.link(outside.precious, path)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        bind_socket(path)
    elif kind in ("folder", "full folder"):
        path.mkdir()
        if kind == "full folder":
            (path / "theirs").write_bytes(PRECIOUS)
    elif kind == "device" and os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    elif kind == "file":
        path.write_bytes(PRECIOUS)
    else:
        path.symlink_to(outside.device)


def trap(case, kind, path):
    outside = Outside(case)
    plant(outside, kind, path)
    outside.before = outside.look()
    return outside


def flags_with_all_outputs(run):
    return {"train.trace_steps": "5:6" if run.name == "half" else "1:2",
            "train.trace_routing": run / "routing.csv"}


def attack_resume(case, name, kind):
    run = case.path("half")
    case.copy("half")
    store = next((run / "store").iterdir()).name
    outside = trap(case, kind, run / name.replace("STORE", store))
    case.what = f"{kind} at {name} of a run that is resumed"
    flags = dict(case.random.choice([laboratory.PAGED, laboratory.RESIDENT]))
    if case.random.random() < 0.5:
        flags |= flags_with_all_outputs(run)
    outcome = case.run(case.lab.train(run, flags) + ["--resume"])
    # Somebody may keep these two on another disk, behind a link.
    outside.check(may_change="moved" if name in ("store", "checkpoints") else None)
    if outcome.code == 0:
        check_weights(case, run)


def check_weights(case, run):
    out = case.path("exported")
    made = case.run(["export", "--checkpoint", run, "--out", out])
    if case.expect(made.code == 0, "an export of the finished run", made.ended()):
        case.expect(laboratory.sha256_of_folder(out) == case.lab.reference.exported,
                    "the exported bytes of an unbroken run", "others")


def attack_start(case, name, kind):
    """A folder that is empty but for the trap, or looks as if its start had been killed."""
    run, draw = case.path("run"), case.random
    outside = trap(case, kind, run / name if name else run)
    killed = bool(name) and name != "STARTING" and draw.random() < 0.6
    if killed:
        listed = draw.choice(["", outside.precious, outside.folder / "pages-theirs"])
        (run / "STARTING").write_text(f"{listed}\n")
    how = "starts over" if killed else "starts"
    case.what = f"{kind} at {name or 'the run'} of a run that {how}"
    outcome = case.run(case.lab.train(run, flags_with_all_outputs(run)))
    # A user may put a run's folder behind a link, to a folder that is empty; this one is not.
    outside.check()
    if outcome.code == 0:
        check_weights(case, run)


def attack_output(case, name, kind):
    out, lab = case.path("out"), case.lab
    outside = trap(case, kind, out / name if name else out)
    export = case.random.random() < 0.5
    words = (["export", "--checkpoint", lab.path("whole"), "--out", out] if export else
             ["init", "--config", lab.path("config.json"), "--seed", 1, "--out", out])
    case.what = f"{kind} at {name or 'the folder'} that {words[0]} writes"
    outcome = case.run(words)
    outside.check()
    if outcome.code == 0:
        of = lab.path("tuned") if export else lab.path("model")
        case.expect(laboratory.sha256_of_folder(out) == laboratory.sha256_of_folder(of),
                    "the bytes of before", "others")


def attack_page(case, name, kind):
    outside = trap(case, kind, case.path(name))
    mode = os.lstat(case.path(name)).st_mode
    case.what = f"{kind} at {name} that plan writes"
    outcome = case.run(["plan", "--model.path", case.lab.path("model"), "--data.sequence_len=64",
                        "--train.tokens_per_step=256", "--train.micro_batch_tokens=256",
                        "--html", case.path("page.html")])
    # A link that its user named may be followed; a file that is there is replaced.
    followed = kind == "link" and name == "page.html"
    outside.check(may_change="precious" if followed else None)
    if name == "page.html" and not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        after = os.lstat(case.path(name)).st_mode
        case.expect(stat.S_IFMT(after) == stat.S_IFMT(mode), f"the {kind} as it was", "a file")
    case.expect(outcome.code in (0, 65, 73, 74), "a page or its refusal", outcome.ended())


def attack_scratch(case, name, kind):
    """The scratch of eval and generate, at names that can be known beforehand."""
    disk, lab = case.path("disk"), case.lab
    evaluate = case.random.random() < 0.5
    words = lab.evaluate(lab.path("half")) if evaluate else lab.generate(lab.path("half"))
    words = words + [f"--memory.disk={disk}"]
    case.what = f"{kind} at {name or 'the folder'} for scratch of {words[0]}"
    outside = Outside(case)
    outside.before = outside.look()

    def plant_it():  # in the child, whose number is that of the program
        plant(outside, kind, disk / name.replace("PID", str(os.getpid())))

    outcome = case.run(words, before=plant_it)
    outside.check()
    if outcome.code == 0:
        of = lab.reference.evaluated if evaluate else lab.reference.generated
        case.expect(outcome.out == of, "the answer of before", outcome.out[:80])


PLACES = [(attack, name) for attack, names in (
    (attack_resume, OF_RESUME), (attack_start, OF_START), (attack_output, OF_OUTPUT),
    (attack_page, OF_PAGE), (attack_scratch, OF_SCRATCH)) for name in names]


def attack(case):
    """Every kind comes to every place in turn; a round of all places has all kinds."""
    turn, place = divmod(case.index, len(PLACES))
    method, name = PLACES[place]
    kind = KINDS[(place + turn) % len(KINDS)]
    method(case, name, kind)
