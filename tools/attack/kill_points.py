"""Kill points: SIGKILL, SIGTERM and SIGINT at moments of time, of files that appear and of system
calls. Whatever the moment, the run goes on to the bytes of an unbroken one, from what it reported
as saved."""

import glob
import os
import re
import shutil
import signal
import time

import laboratory
import program

DEFAULT, QUICK, HISTORIC = 70, 4, 620

# What appears in a run's folder, in about this order. A pattern without a match never comes.
FILES = ["STARTING", "tokens.bin.tmp", "tokens.bin", "store", "store/pages-*", "checkpoints",
         "checkpoints/*.tmp", "checkpoints/*.tmp/pages.bin", "checkpoints/*.tmp/MANIFEST",
         "checkpoints/step-*[0-9]", "checkpoints/step-*[0-9]/MANIFEST", "checkpoints/LATEST",
         "metrics.jsonl", "resolved.toml.tmp", "resolved.toml"]
# Calls of the kernel that change what is on the disk, and how many of them a run makes at most.
CALLS = {"mkdir": 6, "openat": 120, "fdatasync": 10, "fsync": 20, "rename": 6, "unlink": 12,
         "rmdir": 4, "ftruncate": 2, "fallocate": 2, "pwrite64": 12, "write": 40, "flock": 4,
         "io_uring_enter": 60, "io_uring_setup": 1, "clone3": 6, "close": 120}
POLL_S = 0.0002


def can_trace(case):
    if shutil.which("strace") is None:
        return False
    done = program.Running(["strace", "-qq", "-o", "/dev/null", "true"]).wait()
    return done.code == 0


class Moment:
    """When a kill comes, and how it is told to people."""

    def __init__(self, case):
        draw, self.case = case.random, case
        self.signal = draw.choice([signal.SIGKILL] * 6 + [signal.SIGTERM] * 2 + [signal.SIGINT])
        self.twice = self.signal != signal.SIGKILL and draw.random() < 0.25
        kind = draw.choice(["time", "file", "call"])
        if kind == "call" and not can_trace(case):
            kind = "file"
        self.kind = kind
        self.delay_s = draw.random() * case.lab.reference.run_s * 1.1
        self.pattern, self.count = draw.choice(FILES), draw.randint(1, 3)
        self.call = draw.choice(sorted(CALLS))
        self.nth = draw.randint(1, CALLS[self.call])
        if kind == "file":
            self.delay_s = draw.random() ** 2 * 0.003
        if kind == "time" and draw.random() < 0.3:
            self.delay_s /= 8  # the start is crowded

    def __str__(self):
        at = {"time": f"after {self.delay_s * 1e3:.1f} ms",
              "file": f"{self.delay_s * 1e6:.0f} us after {self.pattern} x{self.count}",
              "call": f"at {self.call} {self.nth}"}[self.kind]
        return f"{signal.Signals(self.signal).name}{' twice' if self.twice else ''} {at}"

    def wrap(self):
        if self.kind != "call":
            return ()
        return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={self.call}", "-e",
                f"inject={self.call}:signal={self.signal}:when={self.nth}")

    def strike(self, process, run):
        """Waits for the moment and sends the signal; the tracer sends it by itself."""
        if self.kind == "time":
            process.ended(self.delay_s)
        if self.kind == "file":
            self._await_file(process, run)
        if self.kind != "call":
            process.send(self.signal)
            if self.twice:
                process.ended(self.delay_s / 4)
                process.send(self.signal)

    def _await_file(self, process, run):
        last, left = time.monotonic() + self.case.lab.timeout_s, self.count
        there = False
        while left > 0 and not process.ended() and time.monotonic() < last:
            before, there = there, bool(glob.glob(f"{run}/{self.pattern}"))
            left -= there and not before
            time.sleep(POLL_S)
        process.ended(self.delay_s)


def allowed_codes(moment):
    number = int(moment.signal)
    if number == signal.SIGKILL:
        return {0, -number, 128 + number}
    # A signal before the handlers are there ends any program.
    return {0, program.STOPPED, 128 + number, -number}


def reported(run, text):
    """The newest step done, and the newest reported as saved or -1."""
    objects = laboratory.metrics_of(run)
    done = [o["step"] for o in objects if o["type"] == "step"]
    saved = [o["step"] for o in objects if o["type"] == "checkpoint"]
    saved += [int(step) for step in re.findall(r"saved step (\d+)", text)]
    return max(done, default=0), max(saved, default=-1)


def has_checkpoint(run):
    return bool(glob.glob(f"{run}/checkpoints/step-*[0-9]/MANIFEST"))


class Attempts:
    """A run that is killed and goes on, and what must hold between two of its processes."""

    def __init__(self, case, save_steps, flags):
        self.case, self.save_steps, self.flags = case, save_steps, flags
        self.run = case.path("run")
        self.done, self.saved = 0, -1
        self.exact = False      # stopped with its last step saved
        self.resumes = False

    def words(self):
        self.resumes = has_checkpoint(self.run)
        if not self.resumes:
            self.case.expect(self.saved < 0, f"step {self.saved}, which was reported as saved",
                             "no checkpoint at all")
        return self.case.lab.train(self.run, self.flags) + ["--resume"] * self.resumes

    def check_start(self, outcome):
        """Where the process that has just ended began."""
        found = re.search(r"resuming from step (\d+)", outcome.text())
        if not self.resumes or found is None:
            return
        step = int(found.group(1))
        case = self.case
        case.expect(step >= self.saved, f"to go on from step {self.saved} or later", step)
        case.expect(self.done - step <= self.save_steps,
                    f"at most {self.save_steps} steps lost", f"from {self.done} back to {step}")
        if self.exact:
            case.expect(step == self.done, f"the step that was saved, {self.done}", step)

    def strike(self, moment):
        process = self.case.start(self.words(), wrapped=moment.wrap())
        moment.strike(process, self.run)
        outcome = self.case.judge(process.wait(), allowed_codes(moment),
                                  heard=not moment.twice)
        self.check_start(outcome)
        done, saved = reported(self.run, outcome.text())
        self.done, self.saved = done, max(self.saved, saved)
        self.exact = outcome.code == program.STOPPED
        return outcome

    def remains(self, outcome):
        """Where the killed process was done but for removing the checkpoint before it, nothing
        is saved any more that would remove it, or what is left of it."""
        if "were done before" not in outcome.text():
            return []
        last = f"step-{laboratory.STEPS:08d}"
        steps = (self.run / "checkpoints").glob("step-*[0-9]")
        return [f"checkpoints/{p.name}/{name}" for p in steps if p.name < last
                for name in ("MANIFEST", "pages.bin")]

    def finish(self):
        outcome = self.case.run(self.words())
        self.check_start(outcome)
        if self.case.expect(outcome.code == 0, "the run to go on to its end", outcome.ended()):
            self.case.expect_run(self.run, may_lie=self.remains(outcome))


def kill_training(case):
    draw = case.random
    save_steps = draw.choice([1, 2, 2, 3])
    flags = dict(draw.choice([laboratory.PAGED, laboratory.RESIDENT]))
    flags |= {"train.save_steps": save_steps, "memory.io": draw.choice(["auto", "threads"]),
              "train.threads": draw.choice([1, 2])}
    attempts = Attempts(case, save_steps, flags)
    moments = [Moment(case) for _ in range(draw.randint(1, 3))]
    case.what = f"train with {flags}: {', then '.join(map(str, moments))}"
    for moment in moments:
        if attempts.strike(moment).code == 0:
            break
    if not has_checkpoint(attempts.run) and draw.random() < 0.3:
        refused = case.run(case.lab.train(attempts.run, flags) + ["--resume"])
        case.expect(refused.code in (66, 81), "66 or 81 without a checkpoint", refused.ended())
    attempts.finish()


def kill_writer(case):
    """init and export take away what they wrote when they are asked to stop."""
    moment = Moment(case)
    if moment.kind == "file":
        moment.pattern, moment.count = case.random.choice(["*", "*.tmp", "config.json"]), 1
    elif moment.kind == "time":
        moment.delay_s = case.random.random() * 0.05
    out, lab = case.path("out"), case.lab
    export = case.random.random() < 0.5
    words = (["export", "--checkpoint", lab.path("whole"), "--out", out] if export else
             ["init", "--config", lab.path("config.json"), "--seed", 1, "--out", out])
    case.what = f"{words[0]}: {moment}"
    process = case.start(words, wrapped=moment.wrap())
    moment.strike(process, out)
    outcome = case.judge(process.wait(), allowed_codes(moment), heard=not moment.twice)
    if outcome.code not in (0, -moment.signal, 128 + moment.signal):
        case.fail("no exit 75 of what cannot be resumed", outcome.ended())
    handled = outcome.code == 128 + moment.signal != 128 + signal.SIGKILL and not moment.twice
    if handled:
        case.expect(not out.exists(), "that what it wrote is removed", sorted(os.listdir(
            out)) if out.is_dir() else "a file")
    if outcome.code != 0:
        shutil.rmtree(out, ignore_errors=True)
        again = case.run(words)
        if not case.expect(again.code == 0, f"{words[0]} to work again", again.ended()):
            return
    expected = lab.reference.exported if export else laboratory.sha256_of_folder(lab.path("model"))
    case.expect(laboratory.sha256_of_folder(out) == expected, "the bytes of before", "others")


def kill_reader(case):
    """generate and eval leave no scratch that the next of them does not remove."""
    moment = Moment(case)
    disk, lab = case.path("scratch"), case.lab
    if moment.kind == "file":
        moment.pattern, moment.count = case.random.choice(["*", "*/*"]), 1
    elif moment.kind == "time":
        moment.delay_s = case.random.random() * 0.08
    run, name = case.path("half"), case.random.choice(["eval", "generate"])
    case.copy("half")
    words = lab.evaluate(run) if name == "eval" else lab.generate(run)
    words = words + [f"--memory.disk={disk}"]
    case.what = f"{name}: {moment}"
    process = case.start(words, wrapped=moment.wrap())
    moment.strike(process, disk)
    outcome = case.judge(process.wait(), allowed_codes(moment), heard=not moment.twice)
    if outcome.code != 0:
        case.expect(outcome.code != program.STOPPED, "no exit 75 of what cannot be resumed", "75")
        again = case.run(words)
        expected = lab.reference.evaluated if name == "eval" else lab.reference.generated
        case.expect(again.code == 0 and again.out == expected, "the answer of before",
                    again.ended())
    left = os.listdir(disk) if disk.is_dir() else []
    case.expect(not left, "no scratch left", left)
    case.expect(laboratory.files_of(run) == laboratory.files_of(lab.path("half")),
                "the run as it was", laboratory.files_of(run))


def attack(case):
    draw = case.random.random()
    if draw < 0.7:
        kill_training(case)
    elif draw < 0.85:
        kill_writer(case)
    else:
        kill_reader(case)
