"""Runs the program under attack: its own session, hard limits, everything it says kept, and the
rules that hold for whatever it was given."""

import ctypes
import dataclasses
import os
import re
import resource
import select
import signal
import subprocess
import time

# src/base/status.h. 70 is documented as a fault of the program's own, so only what says so allows
# it; 128 + n is allowed where a signal was sent.
OK, INTERNAL, STOPPED = 0, 70, 75
DOCUMENTED = frozenset({0, 2, 3, 65, 66, 69, 71, 72, 73, 74, 75, 80, 81, 82})

MIB = 1 << 20
ADDRESS_BYTES = 6 << 30     # what a program may map; a count taken on trust fails instead of paging
PEAK_BYTES = 1 << 30        # what one of these tiny runs may hold at its fullest
FILE_BYTES = 256 * MIB      # what a file may grow to
KEPT_BYTES = 4 * MIB        # the rest of each output is not looked at
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

# Control characters but newline and tab, those of C1, and what changes the direction of writing.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclasses.dataclass
class Limits:
    """Limits of one run. None leaves the system's."""
    timeout_s: float = 60.0
    address_bytes: int | None = ADDRESS_BYTES
    file_bytes: int | None = FILE_BYTES
    others: tuple = ()           # of (resource.RLIMIT_X, value)
    peak_bytes: int = PEAK_BYTES


@dataclasses.dataclass
class Outcome:
    command: str                 # train, eval and so on
    result: bool = False         # standard output is a model's text, given on as it is
    code: int = 0                # negative: ended by that signal
    out: bytes = b""
    err: bytes = b""
    seconds: float = 0.0
    peak_bytes: int = 0
    timed_out: bool = False
    orphans: bool = False

    def text(self):
        return self.err.decode("utf-8", "replace")

    def last_line(self):
        lines = [line for line in self.text().split("\n") if line]
        return ascii(lines[-1][:300]) if lines else "nothing on standard error"

    def ended(self):
        if self.timed_out:
            return "was still running when its time was up"
        how = f"signal {-self.code}" if self.code < 0 else f"exit {self.code}"
        return f"{how}, {self.last_line()}"


class Running:
    """A started program. wait() must be called once."""

    def __init__(self, words, limits=None, folder=None, before=None, wrapped=(), **popen):
        """`before` is called in the child, behind the limits; `wrapped` is a command that runs
        `words`; `popen` as of subprocess.Popen."""
        self.limits = limits or Limits()
        words = [os.fspath(word) for word in words]
        self._command = os.fsdecode(words[1]) if len(words) > 1 else "nothing"
        self._result = self._command == "generate" and "--json" not in words
        self._files = {}
        for name in ("stdout", "stderr"):
            if name not in popen:
                file = os.memfd_create(name)
                self._files[name], popen[name] = file, file
        popen.setdefault("stdin", subprocess.DEVNULL)
        limits = self.limits

        def prepare():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            pairs = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, limits.address_bytes),
                     (resource.RLIMIT_FSIZE, limits.file_bytes), *limits.others]
            for what, value in pairs:
                if value is not None:
                    resource.setrlimit(what, (value, value))
            if before is not None:
                before()

        self._began = time.monotonic()
        self._process = subprocess.Popen([*wrapped, *words], cwd=folder, start_new_session=True,
                                         preexec_fn=prepare, **popen)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def ended(self, wait_s=0.0):
        return bool(select.select([self._pidfd], [], [], wait_s)[0])

    def send(self, number):
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass

    def so_far(self):
        """What it has said on standard error, if that is not read by the caller."""
        return os.pread(self._files["stderr"], KEPT_BYTES, 0).decode("utf-8", "replace")

    def wait(self):
        left = self._began + self.limits.timeout_s - time.monotonic()
        outcome = Outcome(self._command, self._result, timed_out=not self.ended(max(0.0, left)))
        if outcome.timed_out:
            self._end_group()
        _, status, usage = os.wait4(self.pid, 0)
        outcome.seconds = time.monotonic() - self._began
        self._process.returncode = outcome.code = os.waitstatus_to_exitcode(status)
        outcome.peak_bytes = usage.ru_maxrss * 1024
        outcome.orphans = not outcome.timed_out and self._left_behind()
        self._end_group()
        os.close(self._pidfd)
        for name, file in self._files.items():
            content = os.pread(file, KEPT_BYTES, 0)
            setattr(outcome, "out" if name == "stdout" else "err", content)
            os.close(file)
        return outcome

    def _end_group(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def _left_behind(self):
        """Whether processes of its session outlive it by more than the system needs to end them."""
        for _ in range(200):
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return False
            time.sleep(0.01)
        return True


def unsafe_bytes(content):
    """The first thing in an output that a terminal must not get, or None."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        # The end may have been cut where what is kept of it ends.
        if len(content) < KEPT_BYTES or error.start < KEPT_BYTES - 4:
            return f"invalid UTF-8 at byte {error.start}: {content[error.start:][:8]!r}"
        text = content[:error.start].decode("utf-8")
    found = UNSAFE.search(text)
    if found is None:
        return None
    around = text[max(0, found.start() - 20):found.end() + 20]
    return f"U+{ord(found.group()):04X} in {ascii(around)}"


def broken_rules(outcome, codes=DOCUMENTED, limits=None, heard=True):
    """What of the rules for every run this one broke, as (expected, got). `heard`: its standard
    error was read, so a failure must have its one line."""
    limits = limits or Limits()
    if outcome.timed_out:
        yield f"an end within {limits.timeout_s:.0f} s", "none"
        return
    if outcome.code not in codes:
        yield "an exit code of the table", outcome.ended()
    if outcome.orphans:
        yield "no process left behind", "one"
    if outcome.peak_bytes > limits.peak_bytes:
        yield f"at most {limits.peak_bytes // MIB} MiB", f"{outcome.peak_bytes // MIB} MiB taken"
    out = b"" if outcome.result else outcome.out
    for name, content in (("standard output", out), ("standard error", outcome.err)):
        unsafe = unsafe_bytes(content)
        if unsafe is not None:
            yield f"a {name} that a terminal may be given", unsafe
    if heard and outcome.code in DOCUMENTED and outcome.code != OK:
        lines = [l for l in outcome.text().split("\n") if l.startswith("pagoda: ")]
        if len(lines) != 1:
            yield "one line that begins with \"pagoda: \"", f"{len(lines)}; {outcome.ended()}"
