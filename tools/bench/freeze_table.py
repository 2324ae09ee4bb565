#!/usr/bin/env python3
"""What freezing saves where a model pages: the time of a step, and what it reads from the drive and
writes to it.

    python3 tools/bench/freeze_table.py build/release/pagoda [TEXT] --dir DIR --raw FOLDER
        [--tiny] [--rounds N]

One run with all parameters, one with frozen routers and one with frozen experts, all with the
budgets that make the first page; they take turns. A model with random weights and the runs lie in a
folder of their own in DIR and are removed. FOLDER keeps the metrics.jsonl of every run. Without
TEXT one is made of which experts get about equal parts.

A drive's wear is what is written. With frozen experts that must be nothing but what the dense parts
of layers write, and that is asserted: less than a tenth of what the first run writes.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from pagoda_runs import LAYERS, Bench, Shape, fail, write_even_text
from table_text import others_text, print_machine, print_rows, spread

SHAPES = {"full": Shape(256, 512, 2048, 256, 9, 7), "tiny": Shape(64, 96, 256, 16, 4, 1)}
EXPERTS = {"full": 48, "tiny": 8}
NOTHING, ROUTER, ALL_EXPERTS = "nothing", "routers", "experts"


def freeze(bench, experts):
    paged = bench.paged(experts, {})
    race = bench.race("freeze", {NOTHING: paged, ROUTER: paged | {"train.freeze": "router"},
                                 ALL_EXPERTS: paged | {"train.freeze": "experts"}})
    race.expect_paged(NOTHING, ROUTER)
    written = {name: race.gigabytes(name, "write_back_bytes") for name in race.runs}
    if written[ALL_EXPERTS] >= 0.1 * written[NOTHING]:
        fail(f"frozen experts are written: {written}")
    print(f"{LAYERS} layers of {experts} experts, device {paged['memory.device']}, host "
          f"{paged['memory.host']}; s and GB a step, ratios to a run that trains everything")
    print_rows(
        ["frozen", "s [least .. most]", "ratio", "read", "ratio", "written", "ratio"],
        [[name, spread(race.seconds(name)), f"{race.ratio(name, NOTHING):.3f}",
          *(cell for field in ("fetch_bytes", "write_back_bytes") for cell in
            (f"{race.gigabytes(name, field):.3f}",
             f"{race.gigabytes(name, field) / race.gigabytes(NOTHING, field):.3f}"))]
         for name in race.runs])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, help="the pagoda binary")
    parser.add_argument("text", type=Path, nargs="?", help="text to train on; none: one is made")
    parser.add_argument("--dir", type=Path, required=True, help="where models and runs may lie")
    parser.add_argument("--raw", type=Path, required=True, help="keeps the metrics of every run")
    parser.add_argument("--rounds", type=int, help="in place of the scale's own")
    parser.add_argument("--tiny", action="store_true", help="tries the program, measures nothing")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the scratch folder is removed
    scale = "tiny" if arguments.tiny else "full"
    shape = SHAPES[scale]
    if arguments.rounds:
        shape.rounds = arguments.rounds
    arguments.raw.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    print_machine(program, shape, scale)
    with tempfile.TemporaryDirectory(prefix="freeze-", dir=arguments.dir) as folder:
        text = arguments.text.resolve() if arguments.text else Path(folder) / "even.txt"
        if not arguments.text:
            write_even_text(text)
        bench = Bench(program, text, Path(folder), arguments.raw, shape)
        began = time.monotonic()
        freeze(bench, EXPERTS[scale])
        print(f"it took {time.monotonic() - began:.0f} s{others_text(bench)}")


if __name__ == "__main__":
    main()
