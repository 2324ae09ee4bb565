"""Holds the first thread of a process, as a debugger does, until that process has ended; its other
threads go on. Says "frozen" when it stands. Usage: freeze.py PROCESS"""

import ctypes
import os
import sys

# Numbers of ptrace() and waitpid().
SEIZE, INTERRUPT, ALL_KINDS = 0x4206, 0x4207, 0x40000000


def main():
    process = int(sys.argv[1])
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (SEIZE, INTERRUPT):
        if ptrace(request, process, None, None) != 0:
            sys.exit(f"ptrace: {os.strerror(ctypes.get_errno())}")
    while True:
        _, state = os.waitpid(process, ALL_KINDS)
        if not os.WIFSTOPPED(state):
            return
        print("frozen", flush=True)


if __name__ == "__main__":
    main()
