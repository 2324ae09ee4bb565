#!/usr/bin/env python3
"""All-to-alls between machines in one: a process in each network namespace, whose two devices share
its network card, and a network whose rate is set at both ends of each wire (machine_spaces.py), and
whose latency is only that of this machine. The program exchange_ranks executes and times them
there: orders flat, HALO, rounds, shortest first and random; counts even, random, skewed and
recorded; 1 KiB to 4 MiB a parcel. See exchange_ranks.cc for what its columns are. Beside each table
stands how many bytes the wires counted, of how many that the processes sent, and how many packets
were dropped before them. It fails if the wires counted fewer than were sent: MPI would have found
another way then.

  exchange_machines.py EXCHANGE_RANKS [--nodes 2 4] [--mbit 200] [--counts even ...] [--rounds 3]
      [--tiny] [--dir DIR]

Variables OMPI_MCA_... of Open MPI's options reach the processes and are printed. --tiny shows in
seconds that it works. It says SKIPPED where it may not make namespaces."""

import argparse
import os
import re
import sys

import machine_spaces

COUNTS = ("even", "random", "skewed", "recorded")
BURST = "20kb"  # two frames: small exchanges go at the wires' rate too


def table(machines, counts, words):
    """Prints the times of these counts. Whether all bytes went over the wires."""
    counted, dropped = sum(machines.sent_bytes()), machines.dropped()
    printed = machines.mpirun([machines.program.name, "--counts", counts, *words])
    counted = sum(machines.sent_bytes()) - counted
    sent = int(re.search(r"^sent (\d+) bytes", printed, re.MULTILINE).group(1))
    print("\n".join(line for line in printed.splitlines() if line.startswith("  ")))
    print(f"  the wires counted {counted / 1e6:.1f} MB of {sent / 1e6:.1f} MB "
          f"({100 * (counted / sent - 1):+.1f} %); {machines.dropped() - dropped} packets dropped",
          flush=True)
    return counted >= sent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("exchange_ranks")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mbit", type=int, nargs="+", default=[200])
    parser.add_argument("--counts", choices=COUNTS, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    if lacking := machine_spaces.lacks():
        print(f"SKIPPED: {lacking}")
        return 0
    words = ["--rounds", args.rounds, *(["--tiny"] if args.tiny else [])]
    options = "".join(f", {name}={value}" for name, value in sorted(os.environ.items())
                      if name.startswith("OMPI_MCA_"))
    good = []
    for nodes in args.nodes:
        with machine_spaces.machines(args.exchange_ranks, nodes, args.dir) as machines:
            for mbit in args.mbit:
                machines.set_rate(mbit, BURST)
                print(f"\n{nodes} nodes x 2 devices, {mbit} Mb/s{options}; rounds: "
                      f"{1 if args.tiny else args.rounds}; in parentheses: times the bound")
                good += [table(machines, counts, words) for counts in args.counts]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
