"""What the program may be started in: limits, variables, streams, file systems, users."""

import os
import resource
import shutil
import signal
import socket

import program

KIB, MIB = 1 << 10, 1 << 20
NOBODY = 65534
# What must work in surroundings that take nothing away that it needs.
EVERYTHING = ("train", "resume", "export", "eval", "generate", "init", "verify", "inspect", "plan",
              "doctor")


def limit(what, value, **more):
    number = getattr(resource, f"RLIMIT_{what}")
    return lambda case: {"limits": case.limits(others=((number, value),)), **more}


def address(value):
    """Where the loader itself has no room, nothing of ours has begun."""
    return lambda case: {"limits": case.limits(address_bytes=value), "loader": True}


def file_size(value):
    """Also of the files that keep what the program says."""
    return lambda case: {"limits": case.limits(file_bytes=value), "heard": value > 5000,
                         "spoken": value > 5000}


def variables(**given):
    """None takes one away."""
    def make(case):
        wanted = {**os.environ, **given}
        return {"env": {k: v for k, v in wanted.items() if v is not None}, "must": EVERYTHING}
    return make


def only(**given):
    return lambda case: {"env": given, "must": EVERYTHING}


def closed(*numbers):
    def close():
        for number in numbers:
            os.close(number)
    return lambda case: {"before": close, "heard": 2 not in numbers, "spoken": 1 not in numbers}


def device(path, *names, must=()):
    """Standard streams that are a file of the system."""
    def make(case):
        opened = {name: os.open(path, os.O_RDWR) for name in names}
        return {**opened, "close": list(opened.values()), "must": must,
                "heard": "stderr" not in opened, "spoken": "stdout" not in opened}
    return make


def broken_pipe(name):
    def make(case):
        ours, theirs = os.pipe()
        os.close(ours)
        return {name: theirs, "close": [theirs], "heard": name != "stderr",
                "spoken": name != "stdout"}
    return make


def broken_socket(case):
    ours, theirs = socket.socketpair()
    ours.close()
    number = theirs.detach()
    return {"stdout": number, "close": [number], "spoken": False}


def in_namespace(script, whole_disk=False):
    """Behind mounts of its own; `script` is given the case's folder as $0."""
    def make(case):
        tried = program.Running(["unshare", "-m", "true"]).wait() if shutil.which(
            "unshare") else None
        if tried is None or tried.code != 0:
            return {"skipped": "this system lets us not have mounts of our own"}
        return {"wrapped": ("unshare", "-m", "sh", "-c", f'{script}\nexec "$@"', case.folder)}
    return make


def cover(path):
    return in_namespace(f"mount -t tmpfs -o ro,size=4k none {path} || exit 66")


def small_disk(size):
    """A disk of its own for run, out and scratch."""
    return in_namespace(f'mkdir -p "$0/disk" && mount -t tmpfs -o size={size} none "$0/disk"')


def read_only(name, **more):
    mounted = in_namespace(f'at="$0/{name}"; mount --bind "$at" "$at" && '
                           'mount -o remount,ro,bind "$at" && cd "$0"')
    return lambda case: {**mounted(case), **more}


def deleted_folder(case):
    gone = case.path("gone")
    gone.mkdir()
    def before():
        os.chdir(gone)
        os.rmdir(gone)
    return {"before": before}


def mask(value):
    return lambda case: {"before": lambda: os.umask(value),
                         "must": EVERYTHING if value & 0o700 == 0 else ()}


def ignoring(*numbers):
    def before():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    return lambda case: {"before": before, "restore_signals": False, "must": EVERYTHING}


def blocking(case):
    return {"before": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
            "must": EVERYTHING}


def as_nobody(processes=None, unreadable=""):
    """Another user, who owns the case's folder but for what is `unreadable`."""
    def make(case):
        if os.geteuid() != 0:
            return {"skipped": "only root can be somebody else"}
        for folder, _, files in os.walk(case.folder):
            for name in [folder, *(os.path.join(folder, f) for f in files)]:
                os.chown(name, NOBODY, NOBODY)
        if unreadable:
            (case.folder / unreadable).exists() and os.chmod(case.folder / unreadable, 0)
        def before():
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            if processes is not None:
                resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        return {"before": before}
    return make


def one_core(case):
    core = min(os.sched_getaffinity(0))
    return {"before": lambda: os.sched_setaffinity(0, {core}), "must": EVERYTHING}


def niced(case):
    return {"before": lambda: os.nice(19), "must": EVERYTHING}


ALL = {
    "stack 64 KiB": limit("STACK", 64 * KIB, loader=True),
    "stack 256 KiB": limit("STACK", 256 * KIB),
    "stack 1 MiB": limit("STACK", MIB),
    "stack 512 MiB": limit("STACK", 512 * MIB, must=EVERYTHING),
    "stack without limit": limit("STACK", resource.RLIM_INFINITY, must=EVERYTHING),
    **{f"{n} files open": limit("NOFILE", n, loader=n < 6)
       for n in (4, 6, 7, 8, 9, 10, 12, 16, 32)},
    "many files open": limit("NOFILE", resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
    **{f"files up to {n} bytes": file_size(n) for n in (0, 1, 4096, 70000, MIB, 5 * MIB)},
    **{f"address space of {n} MiB": address(n * MIB) for n in (32, 64, 100, 128, 160, 200, 300, 500,
                                                                 1000)},
    "data of 16 MiB": limit("DATA", 16 * MIB),
    "data of 200 MiB": limit("DATA", 200 * MIB),
    "no locked memory": limit("MEMLOCK", 0),
    "no message queues": limit("MSGQUEUE", 0, must=EVERYTHING),
    "no HOME": variables(HOME=None),
    "HOME nowhere": variables(HOME="/nonexistent", TMPDIR="/nonexistent"),
    "no variables": only(),
    "only LANG": only(LANG="de_DE.UTF-8", LC_ALL="de_DE.UTF-8"),
    **{f"LC_ALL {name}": variables(LC_ALL=name, LANG=name, LC_NUMERIC=name)
       for name in ("C", "C.UTF-8", "tr_TR.UTF-8", "de_DE", "ar_EG.UTF-8", "xx_XX.y", "\x1b[31m",
                    "../../..", "a" * 4000)},
    **{f"TZ {name}": variables(TZ=name) for name in (":/dev/zero", "Pacific/Kiritimati", "x" * 999,
                                                     "UTC+99999", "")},
    "terminal of no size": variables(COLUMNS="0", LINES="-1", TERM="xterm\x1b"),
    "no colour": variables(NO_COLOR="1", TERM="dumb", CLICOLOR_FORCE="1"),
    "odd threads": variables(OMP_NUM_THREADS="-1", OPENBLAS_NUM_THREADS="x", DNNL_VERBOSE="0"),
    "odd GPUs": variables(CUDA_VISIBLE_DEVICES="99,-1,x", NVIDIA_VISIBLE_DEVICES="void"),
    "as if launched by mpirun": variables(OMPI_COMM_WORLD_SIZE="x", OMPI_COMM_WORLD_RANK="-1",
                                          PMI_RANK="9", SLURM_PROCID="7", SLURM_NTASKS="0"),
    "many variables": variables(**{f"V{i}": "x" * 1000 for i in range(60)}),
    **{f"{name} closed": closed(*numbers) for name, numbers in {
        "stdin": (0,), "stdout": (1,), "stderr": (2,), "stdin and stdout": (0, 1),
        "all streams": (0, 1, 2), "stdin and stderr": (0, 2)}.items()},
    "stdout full": device("/dev/full", "stdout"),
    "stderr full": device("/dev/full", "stderr"),
    "all full": device("/dev/full", "stdin", "stdout", "stderr"),
    "endless stdin": device("/dev/zero", "stdin", must=EVERYTHING),
    "stdout to nowhere": device("/dev/null", "stdout", must=EVERYTHING),
    "nobody reads stdout": broken_pipe("stdout"),
    "nobody reads stderr": broken_pipe("stderr"),
    "stdout is a socket that was closed": broken_socket,
    "no /proc": cover("/proc"),
    "no /sys": cover("/sys"),
    "no /dev/shm": cover("/dev/shm"),
    "no /etc": cover("/etc"),
    **{f"disk of {size}": small_disk(size)
       for size in ("16k", "200k", "1m", "3m", "5m", "6m", "7m")},
    "read-only disk": read_only("."),
    "read-only run": read_only("half", must=("export", "verify", "eval", "generate", "inspect",
                                             "init", "train", "plan")),
    "read-only model and text": read_only("model", must=EVERYTHING),
    "folder deleted": deleted_folder,
    **{f"umask {value:03o}": mask(value) for value in (0o777, 0o000, 0o077, 0o200)},
    "signals ignored": ignoring(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD,
                                signal.SIGHUP, signal.SIGXFSZ),
    "signals blocked": blocking,
    "somebody else": as_nobody(),
    "no more processes": as_nobody(processes=0),
    "3 processes": as_nobody(processes=3),
    "text not readable": as_nobody(unreadable="text.txt"),
    "run not readable": as_nobody(unreadable="half"),
    "model not readable": as_nobody(unreadable="model"),
    "one core": one_core,
    "nice 19": niced,
}
