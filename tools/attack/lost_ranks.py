"""Lost ranks: one of several processes of a run is killed, stands still, lives but comes no
further, or is cut off from the others at any moment, in some runs when experts exchange homes
behind each step, in others with a part of every expert on each of two devices. The others end soon
and say who was lost, nothing is left behind, and the run goes on, with any number of processes, to
the bytes of an unbroken run of one."""

import contextlib
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import kill_points
import laboratory
import program

# Not among the quick ones: before the heartbeat begins, others wait a minute for a rank that stands
# still, and tests of processes lose ranks too.
DEFAULT, QUICK, HISTORIC = 60, 0, 300

DEADLINE_S, WORK_S, BEAT_S, JOIN_S = 3.0, 4.0, 0.5, 60.0
DEFAULT_DEADLINE_S, NOTICED_S = 60.0, 10.0  # the program's own, with which a loss is noticed soon
# Open MPI's own variables: any user, more processes than cores, nothing bound, and some seconds to
# say why they end for processes that it ends.
VARIABLES = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
             "OMPI_MCA_rmaps_base_oversubscribe": "1",
             "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_pml": "ob1",
             "OMPI_MCA_btl": "^openib,usnic,tcp,ofi", "OMPI_MCA_odls_base_sigkill_timeout": "3",
             "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
FILES = kill_points.FILES + ["MOVING", "checkpoints/room", "store/pages-*"]
POLL_S = 0.0005

# A network of the run's own, where a process is cut off by rules of routing. Addresses of the
# machine come behind these. Needs root.
CUT, FROZEN = "cut", "frozen"
NETWORK = ["unshare", "--net", "sh", "-c", "ip link set lo up && "
           'ip rule add pref 10 lookup local && ip rule del pref 0 && exec "$0" "$@"']
OVER_TCP = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
CONNECTED, LISTENS = 1, 10  # states in /proc/net/tcp


def can_cut():
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run([*NETWORK, "true"], capture_output=True).returncode == 0


def tcp_sockets(process):
    """State, own port and other port of a process's connections (IPv4)."""
    own = set()
    for file in glob.glob(f"/proc/{process}/fd/*"):
        try:
            own.add(os.readlink(file))
        except OSError:
            continue
    rows = pathlib.Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    for words in (row.split() for row in rows):
        if f"socket:[{words[9]}]" in own:
            ports = [int(address.rsplit(":", 1)[1], 16) for address in words[1:3]]
            yield int(words[3], 16), ports[0], ports[1]


def cut_off(ranks, lost):
    """From here on nothing passes between a rank and the others, which are not told."""
    others = {port for rank, process in ranks.items() if rank != lost
              for _, port, _ in tcp_sockets(process)}
    rules = []
    for state, own, other in tcp_sockets(ranks[lost]):
        if state == LISTENS:
            rules.append(f"dport {own}")
        elif state == CONNECTED and other in others:
            rules += [f"sport {own} dport {other}", f"sport {other} dport {own}"]
    batch = "".join(f"rule add pref 1 blackhole ipproto tcp {rule}\n" for rule in rules)
    subprocess.run(["nsenter", "--net", "--target", str(ranks[lost]), "ip", "-batch", "-"],
                   input=batch, text=True, capture_output=True, check=True)


def rank_processes(launcher):
    """The ranks that a launcher has started, and their process ids."""
    found = {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            parent = int(pathlib.Path(stat).read_text().rsplit(") ", 1)[1].split()[1])
            if parent != launcher:
                continue
            words = pathlib.Path(stat).with_name("environ").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            continue
        for word in words:
            if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(word.split(b"=")[1])] = int(os.path.basename(os.path.dirname(stat)))
    return found


class Loss:
    """A rank that is lost, how and when."""

    def __init__(self, case, moves):
        draw = case.random
        self.moved_step = draw.randint(1, laboratory.STEPS - 1) if moves else 0
        self.ranks = draw.randint(2, 4)
        self.lost = draw.randrange(self.ranks)
        ways = [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, CUT]
        # With the program's own times one that lives has four hours for work of its own.
        self.way = draw.choice(ways + [FROZEN] * (not case.lab.default_times))
        if self.way == CUT and not can_cut():
            self.way = signal.SIGKILL
        self.pattern = draw.choice(FILES + [""] * len(FILES))  # "": by time
        self.tracer = None
        self.count = draw.randint(1, 2)
        self.delay_s = draw.random() ** 2 * 0.02 if self.pattern else draw.random() * 1.2
        if moves:
            self.delay_s = draw.random() ** 2 * 0.03  # a move takes some milliseconds

    def __str__(self):
        at = f"{self.pattern} x{self.count}" if self.pattern else "the start"
        at = f"step {self.moved_step}" if self.moved_step else at
        way = self.way if self.way in (CUT, FROZEN) else signal.Signals(self.way).name
        return f"{way} of rank {self.lost} of {self.ranks} {self.delay_s * 1e3:.1f} ms after {at}"

    def strike(self, process, run, last_s):
        """Returns whether the rank was there to be struck."""
        if self.moved_step:
            self._await_step(process, last_s)
        else:
            self._await_file(process, run, last_s)
        process.ended(self.delay_s)
        while not process.ended() and time.monotonic() < last_s:
            found = rank_processes(process.pid)
            if self.lost in found and (self.way != CUT or len(found) == self.ranks):
                try:
                    if self.way == CUT:
                        cut_off(found, self.lost)
                    elif self.way == FROZEN:
                        return self._freeze(found[self.lost])
                    else:
                        os.kill(found[self.lost], self.way)
                except (OSError, subprocess.CalledProcessError):
                    return False
                return True
            time.sleep(0.01)
        return False

    def _await_step(self, process, last_s):
        """Experts move as soon as the step has been told."""
        told = f"step {self.moved_step}/"
        while told not in process.so_far() and not process.ended(POLL_S):
            if time.monotonic() > last_s:
                break

    def _freeze(self, process):
        words = [sys.executable, str(pathlib.Path(__file__).with_name("freeze.py")), str(process)]
        self.held = process
        self.tracer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return self.tracer.stdout.readline() == b"frozen\n"

    def release(self):
        """Ends a process whose thread is still held, as its launcher has not."""
        if self.tracer is not None and self.tracer.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.held, signal.SIGKILL)
            self.tracer.wait()

    def _await_file(self, process, run, last_s):
        left, there = self.count if self.pattern else 0, False
        while left > 0 and not process.ended() and time.monotonic() < last_s:
            before, there = there, bool(glob.glob(f"{run}/{self.pattern}"))
            left -= there and not before
            time.sleep(POLL_S)


def start(case, words, ranks, way=None):
    if ranks == 1:
        return case.start(words)
    launcher = NETWORK * (way == CUT) + ["mpirun", "-n", str(ranks)]
    limits = case.limits(address_bytes=None, timeout_s=case.lab.timeout_s + JOIN_S)
    variables = VARIABLES | (OVER_TCP if way == CUT else {})
    return case.start(words, limits, wrapped=launcher, env=os.environ | variables)


def outlived(process, last_s):
    """Waits for the end; kills a launcher that outlives its last rank by ten seconds, and tells.
    Open MPI 4.1.4's may: its PMIx_server_finalize() waits for a lock for ever, once in some dozens
    of runs that lost a rank; or it ends of SIGSEGV."""
    while not process.ended(1.0) and time.monotonic() < last_s:
        if rank_processes(process.pid) or process.ended(10.0) or rank_processes(process.pid):
            continue
        process.send(signal.SIGKILL)
        return True
    return False


def said(text):
    return [line for line in text.split("\n") if line.startswith("pagoda: ")]


def noticed(process, last_s):
    """Waits until somebody says that a rank is silent or lost, or all has ended; returns after how
    long."""
    began = time.monotonic()
    while not process.ended(0.1) and time.monotonic() < last_s:
        text = process.so_far()
        if said(text) or " has been silent for " in text:
            break
    return time.monotonic() - began


def attack(case):
    if shutil.which("mpirun") is None:
        case.skipped = "there is no mpirun"
        return
    draw, lab, run = case.random, case.lab, case.path("run")
    flags = {"train.save_steps": draw.choice([1, 2]), "train.optimizer_threads": 1}
    if not lab.default_times:
        flags |= {"parallel.deadline_s": DEADLINE_S, "parallel.work_s": WORK_S,
                  "parallel.heartbeat_s": BEAT_S}
    moves = draw.random() < 0.4
    model = lab.path("skewed") if moves else lab.path("model")
    if moves:
        flags |= {"parallel.migrate_steps": 1, "train.devices": "cpu/8"}
    parts = not moves and draw.random() < 0.25
    if parts:
        flags |= laboratory.PARTS
    losses = [Loss(case, moves) for _ in range(draw.randint(1, 3))]
    case.what = f"train with {flags}: {', then '.join(map(str, losses))}"
    saved = -1
    for loss in losses:
        resumes = kill_points.has_checkpoint(run)
        if not case.expect(resumes or saved < 0, f"step {saved}, which was reported as saved",
                           "no checkpoint at all"):
            return
        words = lab.train(run, flags, model) + ["--resume"] * resumes
        process = start(case, words, loss.ranks, loss.way)
        struck = loss.strike(process, run, time.monotonic() + lab.timeout_s / 2)
        began = time.monotonic()
        beats = "data: " in process.so_far()  # the heartbeat began before
        after_s = noticed(process, began + lab.timeout_s) if struck and beats else 0.0
        hangs = struck and outlived(process, began + lab.timeout_s)
        outcome = process.wait()
        loss.release()
        took_s = time.monotonic() - began
        _, now = kill_points.reported(run, outcome.text())
        judge(case, loss, struck, hangs, outcome, took_s, now)
        if lab.default_times and not outcome.timed_out:  # judge() has told what may not end
            case.expect(after_s <= NOTICED_S, f"a line within {NOTICED_S:.0f} s of the loss",
                        f"{after_s:.1f} s")
        saved = max(saved, now)
        found = re.search(r"resuming from step (\d+)", outcome.text())
        if found:
            case.expect(int(found.group(1)) >= 0, "a step to go on from", found.group(1))
    reference = lab.reference
    expected = reference.exported, reference.losses
    if moves:
        expected = reference.skewed_exported, reference.skewed_losses
    if parts:
        expected = reference.parted_exported, reference.parted_losses
    finish(case, run, flags, saved, model, expected)


def judge(case, loss, struck, hangs, outcome, took_s, saved):
    text = outcome.text()
    # Behind the last save ranks part, and one that is lost then is missed by nobody.
    done = "done: " in text or "steps were done before" in text or saved == laboratory.STEPS
    if outcome.timed_out:
        # Launchers wait for a process that stands still when it has left MPI and the run is done.
        if not done or loss.way not in (signal.SIGSTOP, FROZEN):
            case.fail("the others to end", "no end")
        return
    case.expect(not outcome.orphans, "no process left behind", "one")
    unsafe = program.unsafe_bytes(outcome.err)
    case.expect(unsafe is None, "what a terminal may be given", unsafe)
    if not struck:
        case.expect(outcome.code == 0, "an end of a run that nobody struck", outcome.ended())
        return
    # Ranks join within a minute, and agree on the deadline before they open their data.
    deadline_s = DEFAULT_DEADLINE_S if case.lab.default_times else WORK_S
    most_s = deadline_s + 10 + (0 if "data: " in text else JOIN_S)
    took_s -= 10 if hangs else 0
    if hangs or (outcome.code == -signal.SIGSEGV and "(PMIx_server_finalize+" in text):
        outcome.code = 137  # what the ranks ended with is not known
    case.expect(took_s <= most_s, f"an end within {most_s:.0f} s of the loss", f"{took_s:.1f} s")
    # 255: Open MPI itself ends a process that it cannot send from, or that it lost while it joined.
    case.expect(outcome.code in (0, 1, 9, 75, 137, 143, 255), "75, or a launcher's own code",
                outcome.ended())
    # Before that the launcher alone knows of the rank; behind the last step it may be done.
    together = "data: " in text and not done
    if together and outcome.code != 0:
        # One that is cut off has lost the others, and may be the first to say so.
        who = "rank " if loss.way == CUT else f"rank {loss.lost} on "
        lines = said(outcome.text())
        named = any(who in line or "gone" in line for line in lines)
        case.expect(named, f"a line that names rank {loss.lost}", lines)


def finish(case, run, flags, saved, model, expected):
    """`expected`: the hash of an export, and the losses."""
    ranks, lab = case.random.randint(1, 4), case.lab
    resumes = kill_points.has_checkpoint(run)
    if not case.expect(resumes or saved < 0, f"step {saved}, which was reported as saved",
                       "no checkpoint at all"):
        return
    outcome = start(case, lab.train(run, flags, model) + ["--resume"] * resumes, ranks).wait()
    if not case.expect(outcome.code == 0, f"{ranks} ranks to go on to the end", outcome.ended()):
        return
    found = re.search(r"resuming from step (\d+)", outcome.text())
    if found:
        case.expect(int(found.group(1)) >= saved, f"to go on from step {saved} or later",
                    found.group(1))
    out = case.path("exported")
    made = case.run(["export", "--checkpoint", run, "--model", model, "--out", out])
    exported, losses = expected
    if case.expect(made.code == 0, "an export of the finished run", made.ended()):
        case.expect(laboratory.sha256_of_folder(out) == exported,
                    "the exported bytes of an unbroken run", "others")
    case.expect(laboratory.losses_of(run) == losses,
                "every step's loss of an unbroken run", laboratory.losses_of(run))
    verified = case.run(["ckpt", "verify", run])
    case.expect(verified.code == 0, "a checkpoint that verifies", verified.ended())
