"""Environments: limits, variables, streams, file systems, users, names, and company. Each command
ends with its result or refuses with a code of the table; what it refused works where there is
nothing odd."""

import os
import shutil
import signal

import laboratory
import program
import surroundings

DEFAULT, QUICK, HISTORIC = 230, 16, 230

NAMES = ["a b", "a\nb", "\u00e9\u4e2d\U0001f600", "-rf", "a'b\"c", "$HOME", "*", "a\\b", "x" * 240,
         "/".join(["y" * 200] * 17), "a=b", "#c", "[d]", " e ", "\u202ef", "%s", "\xe9".encode(
             "latin-1").decode("utf-8", "surrogateescape")]
MODEL_ROOM = ["--memory.device=8MiB", "--memory.host=8MiB"]
LOADER_CODES = {127, -signal.SIGSEGV, -signal.SIGKILL}  # the system could not even start it


class Commands:
    """What is asked of the program in the case's folder, and what its answer must be."""

    def __init__(self, case):
        self.case, self.lab = case, case.lab
        self.disk = case.path("disk")   # where results go; a disk of its own in some cases
        self.run, self.out = self.disk / "run", self.disk / "out"

    def train(self):
        flags = self.case.random.choice([laboratory.PAGED, laboratory.RESIDENT])
        return self.lab.train(self.run, flags, self.case.path("model"), self.case.path("text.txt"))

    def resume(self):
        return self.lab.train(self.case.path("half"), laboratory.PAGED, self.case.path("model"),
                              self.case.path("text.txt")) + ["--resume"]

    def export(self):
        return ["export", "--checkpoint", self.case.path("half"), "--model",
                self.case.path("model"), "--out", self.out]

    def eval(self):
        return [*self.lab.evaluate(self.case.path("half"), self.case.path("text.txt")),
                f"--memory.disk={self.disk}"]

    def generate(self):
        return [*self.lab.generate(self.case.path("half")), f"--memory.disk={self.disk}"]

    def init(self):
        return ["init", "--config", self.case.path("model") / "config.json", "--seed", 1, "--out",
                self.out]

    def verify(self):
        return ["ckpt", "verify", self.case.path("half")]

    def inspect(self):
        return ["data", "inspect", "--model.path", self.case.path("model"), "--data.path",
                self.case.path("text.txt"), "--data.sequence_len", 64]

    def plan(self):
        return ["plan", "--model.path", self.case.path("model"), "--data.sequence_len", 64,
                "--train.tokens_per_step", 256, "--train.micro_batch_tokens", 256]

    def doctor(self):
        return ["doctor", "--dir", self.case.folder]

    def check(self, name, outcome, spoken=True):
        """Checks that a finished command did what it does in plain surroundings."""
        case, reference = self.case, self.lab.reference
        if name == "train":
            case.expect_run(self.run)
        elif name == "resume":
            case.expect_run(case.path("half"))
        elif name in ("export", "init"):
            of = (reference.half_exported if name == "export" else
                  laboratory.sha256_of_folder(self.lab.path("model")))
            got = laboratory.sha256_of_folder(self.out)
            case.expect(got == of, "the bytes of before", "others")
        elif spoken and name in ("eval", "generate"):
            of = reference.evaluated if name == "eval" else reference.generated
            case.expect(outcome.out == of, "the answer of before", outcome.out[:80])


NAMED = ["train", "train", "resume", "resume", "export", "eval", "generate", "init", "verify",
         "inspect", "plan", "doctor"]


def run_again(case, commands, name, words):
    """What was refused works where nothing is odd, and gives what it gives elsewhere."""
    if name == "resume" and not list((case.path("half") / "checkpoints").glob("step-*[0-9]")):
        case.fail("the checkpoint of before", "none")
        return
    for path in filter(os.path.exists, map(case.path, ("text.txt", "half", "model"))):
        os.chmod(path, 0o700)
    if name in ("export", "init") and commands.out.exists():
        case.fail("no folder of what failed", sorted(os.listdir(commands.out)))
        shutil.rmtree(commands.out)
    if name == "train" and list(commands.run.glob("checkpoints/step-*[0-9]/MANIFEST")):
        words = words + ["--resume"]
    again = case.run(words)
    if case.expect(again.code == 0, "the same to work in plain surroundings", again.ended()):
        commands.check(name, again)


def attack_surroundings(case):
    """One command in surroundings that a caller may have."""
    place = list(surroundings.ALL)[case.index % len(surroundings.ALL)]
    commands, name = Commands(case), case.random.choice(NAMED)
    case.what = f"{name} with {place}"
    case.copy("half", "model", "text.txt")
    commands.disk.mkdir()
    given = surroundings.ALL[place](case)
    case.skipped = given.pop("skipped", "")
    if case.skipped:
        return
    to_close, heard = given.pop("close", []), given.pop("heard", True)
    spoken, loader = given.pop("spoken", True), given.pop("loader", False)
    must = given.pop("must", ())
    words = getattr(commands, name)()
    on_own_disk = "disk of" in place
    outcome = case.start(words, **given).wait()
    for number in to_close:
        os.close(number)
    if loader and outcome.code in LOADER_CODES:
        case.what += ", which the loader refused"
    else:
        case.judge(outcome, heard=heard)
    case.expect(outcome.code == 0 or name not in must, "to work all the same", outcome.ended())
    if outcome.code != 0:
        run_again(case, commands, name, words)
    elif not on_own_disk:
        commands.check(name, outcome, spoken)


def attack_name(case):
    """A run in a folder of any name ends as it does elsewhere, wherever it is named from."""
    name = case.random.choice(NAMES)
    case.what = f"folder {name[:60]!r}"
    run = case.path("at") / name / "run"
    relative = case.random.random() < 0.5
    flags = case.random.choice([laboratory.PAGED, laboratory.RESIDENT])
    place = os.path.relpath(run, case.folder) if relative else run
    outcome = case.run(case.lab.train(place, flags))
    if outcome.code == 0:
        case.expect_run(run)
    else:
        case.expect(outcome.code in (2, 73), "2 or 73 for a name that cannot be", outcome.ended())


def attack_pair(case):
    """Two at once: each ends as if alone, or one is told that the other is there."""
    commands, draw = Commands(case), case.random
    case.copy("half", "model", "text.txt")
    commands.disk.mkdir()
    names = draw.choice([("train", "train"), ("resume", "resume"), ("resume", "export"),
                         ("resume", "verify"), ("resume", "eval"), ("generate", "generate"),
                         ("eval", "generate"), ("export", "verify")])
    case.what = f"{' beside '.join(names)}"
    words = [getattr(commands, name)() for name in names]
    first = case.start(words[0])
    first.ended(draw.random() * case.lab.reference.run_s * draw.choice([0, 0, 1]))
    second = case.start(words[1])
    ended = [case.judge(first.wait()), case.judge(second.wait())]
    case.expect(any(o.code == 0 for o in ended), "one of both to finish",
                " and ".join(o.ended() for o in ended))
    for name, outcome in zip(names, ended):
        if outcome.code == 0 and name in ("eval", "generate"):
            if names[0] != "resume":
                commands.check(name, outcome)
        elif outcome.code == 0 and name in ("train", "resume"):
            commands.check(name, outcome)
        elif outcome.code != 0:
            # 82 and 81: a resume that began behind the other's end.
            case.expect(outcome.code in (73, 82, 81, 74) if name != "train" else
                        outcome.code == 73, "to be told of the other", outcome.ended())


def attack_pause(case):
    """Stopped and continued, or asked to stop by a signal that is not of a terminal."""
    commands, draw = Commands(case), case.random
    case.copy("model", "text.txt")
    commands.disk.mkdir()
    words = commands.train()
    number = draw.choice([signal.SIGSTOP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGHUP,
                          signal.SIGQUIT, signal.SIGWINCH, signal.SIGPIPE, signal.SIGALRM])
    case.what = f"train and {signal.Signals(number).name}"
    process = case.start(words)
    process.ended(draw.random() * case.lab.reference.run_s)
    process.send(number)
    process.ended(0.05)
    process.send(signal.SIGCONT)
    outcome = case.judge(process.wait(), program.DOCUMENTED | {-number, 128 + number})
    if outcome.code != 0:
        run_again(case, commands, "train", words)
    else:
        commands.check("train", outcome)


def take_away(path, how):
    """Removes, replaces or shortens what a run is using."""
    if how == "renamed":
        os.rename(path, f"{path}.away")
    elif os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif how == "cut":
        os.truncate(path, os.path.getsize(path) // 2)
    elif how == "replaced":
        path.unlink()
        path.write_bytes(b"somebody else's" * 1000)
    else:
        path.unlink()


def attack_files_in_use(case):
    """What is taken away from a run under way is missed, or is not needed: no success is told of
    a run that is lost."""
    commands, draw, run = Commands(case), case.random, case.path("disk") / "run"
    case.copy("model", "text.txt")
    commands.disk.mkdir()
    process = case.start(commands.train())
    process.ended(draw.random() * case.lab.reference.run_s)
    there = [p for pattern in ("store", "store/pages-*", "store/pages-*", "checkpoints",
                               "checkpoints/step-*", "checkpoints/step-*/MANIFEST",
                               "metrics.jsonl", "tokens.bin", "resolved.toml")
             for p in run.glob(pattern)]
    path = draw.choice(sorted(there) + [case.path("text.txt"), case.path("model"), run])
    how = draw.choice(["removed", "renamed", "cut", "replaced"])
    case.what = f"{os.path.relpath(path, case.folder)} {how} under a run"
    under_way = len(laboratory.losses_of(run)) < laboratory.STEPS - 1
    try:
        take_away(path, how)
    except OSError:  # the run was faster
        case.what += ", too late"
    outcome = case.judge(process.wait())
    if outcome.code != 0 or not under_way:
        return
    out = case.path("exported")
    made = case.run(["export", "--checkpoint", run, "--model", case.lab.path("model"), "--out",
                     out])
    if case.expect(made.code == 0, "no success of a run that is lost", made.ended()):
        case.expect(laboratory.sha256_of_folder(out) == case.lab.reference.exported,
                    "the exported bytes of an unbroken run", "others")


def attack(case):
    count = len(surroundings.ALL)
    turn = case.index % (count + 32)
    if turn < count:
        case.index = turn
        attack_surroundings(case)
    else:
        [attack_name, attack_pair, attack_pause, attack_files_in_use][turn % 4](case)
