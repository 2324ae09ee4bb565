#!/usr/bin/env python3
"""Experts that read rows where attention left them, beside experts that read copies of them
(HEXA-MoE 3.2, plan.in_place), on one CPU device with all its cores and room for everything.

    python3 tools/bench/row_copies.py build/release/pagoda --dir DIR --raw FOLDER
        [--rounds N] [--small | --tiny]

Both ways take turns on the same models and must give the same losses. Beside the ratio of their
times stands what the copies cost by themselves: the share of a traced step of the copied way that
its dispatches take, as one device does one task after the other. Below the table stands for each
row whether in place takes no longer than copied, and where the copies cost at least 5 % whether
copied takes at least 1.05 x. FOLDER keeps the metrics of every run; models and runs lie in a folder
of their own in DIR and are removed.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from pagoda_runs import Bench, Shape, fail, write_even_text
from table_text import add_scales, others_text, print_machine, print_rows, spread, verdict

TRACED_STEP = 5
# hidden, ffn, experts
MODELS = {"full": ((512, 128, 32), (512, 512, 32), (256, 1024, 8)),
          "small": ((256, 64, 32), (256, 256, 32), (128, 512, 8)), "tiny": ((64, 32, 8),)}
TOP_K = {"full": (1, 2, 4, 8), "small": (1, 2, 4, 8), "tiny": (1, 2)}
SHAPES = {"full": Shape(512, 128, 4096, 512, 8, 3), "small": Shape(256, 64, 1024, 256, 8, 3),
          "tiny": Shape(64, 32, 256, 64, 5, 1, tiny=True)}
COPIED, IN_PLACE = "copied", "in place"
LEAST_SHARE = 0.05  # of a step, from which on its copies should be seen in its time


def copies_share(bench, flags):
    """Returns the part of a step, from its first task to its last one, that dispatches take."""
    code, printed = bench.train(bench.text, TRACED_STEP + 1,
                                flags | {"train.trace_steps": f"{TRACED_STEP}:{TRACED_STEP}"})
    if code != 0:
        fail(f"a traced run exits with {code}: {printed[-1000:]}")
    trace = json.loads((bench.folder / "run" / "trace.json").read_text())
    shutil.rmtree(bench.folder / "run")
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events
              if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and
             "compute" in tracks.get((e["pid"], e["tid"]), "")]
    copies_us = sum(e["dur"] for e in spans if e["name"].startswith("dispatch"))
    if copies_us == 0:
        fail("no dispatch in the trace of a copied step")
    step_us = max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)
    return copies_us / step_us


def verdicts_of(race, share):
    """What should hold of a row, for people."""
    found = [f"in place over copied {verdict(race.ratio(IN_PLACE, COPIED), '<=', 1)}"]
    if share >= LEAST_SHARE:
        found.append(f"copies are {100 * share:.1f} %, copied over in place "
                     f"{verdict(race.ratio(COPIED, IN_PLACE), '>=', 1 + LEAST_SHARE)}")
    return "; ".join(found)


def drop_models(bench):
    """Removes the models made so far, which are of one hidden size."""
    for path in bench.models.values():
        shutil.rmtree(path)
    bench.models.clear()


def row_of(bench, model, top_k):
    """The cells of a model's row, and its verdicts."""
    hidden, ffn, experts = model
    bench.shape.hidden, bench.shape.ffn, bench.experts_per_token = hidden, ffn, top_k
    drop_models(bench)
    base = {"model.path": bench.model(experts), "memory.device": "3GiB", "memory.host": "1GiB",
            "train.devices": "cpu"}
    variants = {COPIED: base | {"plan.in_place": "false"}, IN_PLACE: base}
    race = bench.race(f"{hidden}-{ffn}-{top_k}", variants, base=COPIED)
    race.expect_same_bits(*variants)

    def mib(name, field):
        return statistics.median(run.median(field) for run in race.runs[name]) / 2**20

    if mib(IN_PLACE, "in_place_row_bytes") == 0 or mib(COPIED, "in_place_row_bytes") != 0:
        fail("rows were not read as asked")
    share = copies_share(bench, variants[COPIED])
    cells = [hidden, ffn, experts, top_k, f"{mib(COPIED, 'copied_row_bytes'):.1f}",
             f"{mib(IN_PLACE, 'copied_row_bytes'):.1f}", spread(race.seconds(COPIED)),
             spread(race.seconds(IN_PLACE)), f"{race.ratio(COPIED, IN_PLACE):.3f}",
             f"{1 / (1 - share):.3f}", race.effect(IN_PLACE, COPIED)]
    return cells, f"hidden {hidden}, ffn {ffn}, top {top_k}: {verdicts_of(race, share)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, help="the pagoda binary")
    parser.add_argument("--dir", type=Path, required=True, help="where models and runs may lie")
    parser.add_argument("--raw", type=Path, required=True, help="keeps the metrics of every run")
    parser.add_argument("--rounds", type=int)
    add_scales(parser)
    arguments = parser.parse_args()
    scale = arguments.scale
    shape = SHAPES[scale]
    if arguments.rounds:
        shape.rounds = arguments.rounds
    arguments.raw.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    print_machine(program, shape, scale)
    with tempfile.TemporaryDirectory(prefix="rows-", dir=arguments.dir) as folder:
        text = Path(folder) / "even.txt"
        write_even_text(text)
        bench = Bench(program, text, Path(folder), arguments.raw, shape)
        rows = [row_of(bench, model, top_k) for model in MODELS[scale] for top_k in TOP_K[scale]]
        print_rows(["hidden", "ffn", "experts", "top", "MiB copied a step", "in place",
                    "copied s/step", "in place s/step", "copied/in place", "without copies",
                    "effect"], [cells for cells, _ in rows])
        for _, verdicts in rows:
            print(verdicts)
        print(f"took its runs{others_text(bench)}")


if __name__ == "__main__":
    main()
