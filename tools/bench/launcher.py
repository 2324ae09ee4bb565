"""Starts several processes of a program on this machine. Standard library only.

    python3 tools/bench/launcher.py COUNT PROGRAM [ARGUMENT ...]

exits as mpirun does, and with 69 if there is none.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Open MPI's variables: any user, more processes than cores, nothing bound, and no seconds of grace
# when one of them fails, which Open MPI would sleep through though all have ended.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
          "OMPI_MCA_odls_base_sigkill_timeout": "0"}
ALONE_S = 10  # how long a launcher may live behind its processes


def has_children(process):
    """Whether a process has children that have not ended."""
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            states = [Path(f"/proc/{child}/stat").read_text().rsplit(") ", 1)[1][0]
                      for child in tasks.read_text().split()]
        except OSError:
            return True  # one goes at the moment
        if any(state != "Z" for state in states):
            return True
    return False


def under_mpirun(count, command):
    """What subprocess.run returns, of so many processes. Open MPI 4.1.4's mpirun may outlive
    processes that failed for ever: it is killed then."""
    command = ["mpirun", "-n", str(count), *command]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | MPIRUN) as launcher:
            alone_since = None
            while launcher.poll() is None:
                if has_children(launcher.pid):
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > ALONE_S:
                    launcher.kill()
                time.sleep(0.05)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, launcher.returncode, out.read(), err.read())


def main(words):
    if shutil.which("mpirun") is None:
        print("SKIPPED, there is no mpirun")
        return 69
    done = under_mpirun(int(words[0]), words[1:])
    print(done.stdout, end="", flush=True)
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
