#!/usr/bin/env python3
"""Attacks the program as an outsider would: kills it at any moment, damages and forges its files,
feeds it hostile inputs, takes its surroundings away and plants links where it writes.

    attack.py --pagoda PATH                       every class, some minutes
    attack.py --pagoda PATH --class NAME --count N --seed S
    attack.py --pagoda PATH --minutes M           as many cases as the time allows
    attack.py --pagoda PATH --historic            as many as there were when it began, some hours
    attack.py --pagoda PATH --only ID             one case again, by its id
    attack.py --pagoda PATH --quick               some cases of every class, within a minute
    attack.py --pagoda PATH --self-test           programs that are broken on purpose are caught

Prints a line a failure and a table, exit 1 if there were any. A case is known by class, seed and
index, and depends on nothing else. The standard library only. It changes nothing outside of a
folder that it makes in --dir and removes."""

import argparse
import collections
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

import broken_programs
import corruption
import environments
import forgery
import hostile_inputs
import kill_points
import laboratory
import lost_ranks
import planted_links

CLASSES = {"kill_points": kill_points, "corruption": corruption, "forgery": forgery,
           "hostile_inputs": hostile_inputs, "environments": environments,
           "planted_links": planted_links, "lost_ranks": lost_ranks}

Verdict = collections.namedtuple("Verdict", "id what failures skipped seconds")


def run_case(lab, name, seed, index, keep=False):
    began = time.monotonic()
    case = laboratory.Case(lab, name, seed, index)
    try:
        CLASSES[name].attack(case)
    except Exception as error:  # one broken case must not end the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        case.fail("a case that runs", f"{type(error).__name__}: {error} at "
                                      f"{pathlib.Path(where.filename).name}:{where.lineno}")
    case.end(keep)
    return Verdict(case.id, case.what, case.failures, case.skipped, time.monotonic() - began)


def work(task):
    return run_case(*task)


def one_line(value):
    return ascii(str(value))[1:-1][:400]


def tell(verdict, tell_all=False):
    for expected, got in verdict.failures:
        print(f"FAIL {verdict.id}: {one_line(verdict.what)}: expected {one_line(expected)}; "
              f"got {one_line(got)}", flush=True)
    if tell_all and not verdict.failures:
        print(f"{'skip' if verdict.skipped else 'ok'} {verdict.id}: {one_line(verdict.what)} "
              f"{one_line(verdict.skipped)}", flush=True)


def attack_class(lab, name, options, pool, table):
    module = CLASSES[name]
    count = options.count or (module.QUICK if options.quick else
                              module.HISTORIC if options.historic else module.DEFAULT)
    end = time.monotonic() + options.minutes * 60 / len(options.names) if options.minutes else None
    if end is not None and not options.count:
        count = module.HISTORIC * 100

    def tasks():
        for index in range(options.first, options.first + count):
            if end is not None and time.monotonic() > end:
                return
            yield lab, name, options.seed, index

    began = time.monotonic()
    row = table[name]
    results = (pool.imap_unordered(work, tasks()) if end is None else
               paced(pool, tasks(), options.jobs))
    for verdict in results:
        row["cases"] += 1
        row["skipped"] += bool(verdict.skipped) and not verdict.failures
        row["failed"] += bool(verdict.failures)
        tell(verdict, options.verbose)
    row["seconds"] = time.monotonic() - began


def paced(pool, tasks, jobs):
    """Hands out a task only when one has ended, so that time is looked at before each."""
    waiting = collections.deque()
    for task in tasks:
        waiting.append(pool.apply_async(work, (task,)))
        if len(waiting) > jobs:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()


def show(table):
    head = ("class", "cases", "passed", "skipped", "failed", "seconds")
    rows = [(name, r["cases"], r["cases"] - r["failed"] - r["skipped"], r["skipped"], r["failed"],
             f"{r['seconds']:.0f}") for name, r in table.items()]
    total = [sum(r[k] for r in table.values()) for k in ("cases", "skipped", "failed")]
    seconds = sum(r["seconds"] for r in table.values())
    rows.append(("all", total[0], total[0] - total[1] - total[2], total[1], total[2],
                 f"{seconds:.0f}"))
    for row in (head, *rows):
        print(f"{row[0]:<16}" + "".join(f"{cell:>9}" for cell in row[1:]))


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--pagoda", required=True, help="the program")
    parser.add_argument("--class", dest="names", action="append", choices=CLASSES,
                        help="one class; repeat for several (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0, help="cases of each class")
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--minutes", type=float, default=0, help="for all classes together")
    parser.add_argument("--historic", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", metavar="ID", help="CLASS-SEED-INDEX")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a program may take")
    parser.add_argument("--default-times", action="store_true",
                        help="lost ranks: with the program's own heartbeat and deadline")
    parser.add_argument("--dir", default=None, help="where the folder of the attack is made")
    parser.add_argument("--keep", action="store_true", help="with --only: leave the case's folder")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every case")
    options = parser.parse_args()
    options.names = options.names or list(CLASSES)
    return options


def attack_all(lab, options):
    table = {name: collections.defaultdict(int) for name in options.names}
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=200) as pool:
        for name in options.names:
            attack_class(lab, name, options, pool, table)
    show(table)
    return 1 if any(row["failed"] for row in table.values()) else 0


def attack_only(lab, options):
    name, seed, index = options.only.rsplit("-", 2)
    verdict = run_case(lab, name, int(seed), int(index), options.keep)
    tell(verdict, tell_all=True)
    if options.keep:
        print(f"kept: {lab.path('cases') / options.only}")
    return 1 if verdict.failures else 0


def main():
    options = read_options()
    sys.stdout.reconfigure(line_buffering=True)
    folder = tempfile.mkdtemp(prefix="pagoda-attack-", dir=options.dir)
    try:
        lab = laboratory.Laboratory(folder, options.pagoda, options.timeout,
                                    options.default_times)
        lab.prepare()
        if options.self_test:
            return broken_programs.self_test(lab, run_case)
        return attack_only(lab, options) if options.only else attack_all(lab, options)
    finally:
        if not (options.only and options.keep):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
