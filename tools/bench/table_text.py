"""What programs that print tables of runs have in common: their scales, rows, and the machine they
ran on. Standard library only."""

import os
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

from pagoda_runs import WARM_STEPS


def add_scales(parser):
    """Adds the flags that choose a scale, which is "full" without them."""
    flags = parser.add_mutually_exclusive_group()
    flags.add_argument("--small", dest="scale", action="store_const", const="small",
                       default="full", help="smaller models and steps, where products are slow")
    flags.add_argument("--tiny", dest="scale", action="store_const", const="tiny",
                       help="tries the program, measures nothing")


def spread(seconds):
    return f"{statistics.median(seconds):.3f} [{min(seconds):.3f} .. {max(seconds):.3f}]"


def print_rows(header, rows):
    widths = [max(len(str(row[i])) for row in [header] + rows) for i in range(len(header))]
    for row in [header] + rows:
        cells = [str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def verdict(value, relation, bound):
    """A figure beside what it should be, and whether it is: relation is "<=" or ">="."""
    held = value <= bound if relation == "<=" else value >= bound
    return f"{value:.3f}, {'held' if held else 'NOT HELD'} ({relation} {bound:.2f})"


def first_line(path, pattern):
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found.group(1) if found else "unknown"


def commit():
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def print_machine(program, shape, name):
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(f"{version.strip()}, commit {commit()}")
    print(f"{first_line('/proc/cpuinfo', '^model name.*: (.*)$')}, "
          f"{len(os.sched_getaffinity(0))} cores, {memory_bytes / 2**30:.1f} GiB, Linux "
          f"{platform.release()}, {time.strftime('%Y-%m-%d %H:%M')}")
    print(f"{name}: medians of {shape.rounds} rounds, {shape.steps - WARM_STEPS} steps each "
          f"after {WARM_STEPS}", flush=True)


def others_text(bench):
    if not bench.other_cores:
        return ""
    return (f"; others had {statistics.median(bench.other_cores):.1f} cores during a run, "
            f"{max(bench.other_cores):.1f} at most")
