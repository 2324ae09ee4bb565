#!/usr/bin/env python3
"""The tables and figures of the ES-MoE paper (ICML 2024) for pagoda, in one run on one machine.

    python3 tools/bench/es_moe_tables.py build/release/pagoda [TEXT] --dir DIR --raw FOLDER
        [--quick | --tiny] [--rounds N] [--only table3,table1,figure5,figure7,figure4]

TEXT is trained on; without it a text is made of which experts of random models get about equal
parts, as trained routers see to. Models with random weights and the runs lie in a folder of their
own in DIR, on the drive that is meant, and are removed. FOLDER keeps the metrics.jsonl of every
run.

  table3   ablation: the full system, and it without each of its parts
  table1   against whole layers paged on demand with the optimizer at the end of the step, which
           stands for generic offload, and against padded experts
  figure5  throughput against tokens per step, paged and all on the device
  figure7  throughput against the number of experts, which spill from device to host to disk
  figure4  the most experts that budgets hold

What is compared takes turns: A B C, C B A. A round's time is the median of its steps after the
first ones; tables show medians over the rounds with the least and the most, ratios are taken
inside a round. The ablation goes on until the interval of each row's median ratio lies on one side
of 1, or its rounds are spent: then the row says that it shows no effect. Runs that must compute
the same bits are held to equal losses, and runs that are said to page to reads and writes above
zero.
"""

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pagoda_runs import (LAYERS, Bench, Shape, budget, fail, largest, median_interval,
                         write_even_text)
from table_text import others_text, print_machine, print_rows, spread

FULL = "full"
WITHOUT = {
    "no prefetch": {"plan.prefetch": "false"},
    "optimizer at the end": {"plan.optimizer_at_end": "true"},
    "whole layers": {"plan.whole_layers": "true"},
    "microbatch-major": {"plan.microbatch_major": "true"},
    "padded experts": {"plan.padded_experts": "true"},
}
# The paper's Adam, at the completion of an expert's gradient; it computes other bits.
PER_EXPERT = {"optim.clip": "per_expert"}
ALL_OFF = {key: value for flags in WITHOUT.values() for key, value in flags.items()}
PINNED = {"memory.pin": "25%"}
WHOLE_LAYER_END = {key: ALL_OFF[key]
                   for key in ("plan.prefetch", "plan.optimizer_at_end", "plan.whole_layers")}


@dataclass
class Scale:
    shape: Shape
    ablation_experts: int
    table1_experts: tuple
    figure5_experts: int
    figure5_tokens: tuple
    figure7_experts: tuple
    figure7_on_device: int  # the most that memory.device is made to hold
    figure7_in_host: int    # memory.host of the same
    figure4_budgets: tuple  # (device MiB, host MiB, disk GiB)


SCALES = {
    "full": Scale(Shape(512, 768, 4096, 1024, 5, 3), 32, (8, 16, 32, 64), 32,
                  (512, 1024, 2048, 4096, 8192), (4, 8, 16, 24, 32, 64), 8, 16,
                  ((512, 1024, 16), (1024, 4096, 64), (2048, 8192, 128))),
    "quick": Scale(Shape(256, 512, 2048, 512, 5, 1), 16, (8, 16), 16, (512, 2048), (4, 8, 24), 4,
                   8, ((256, 512, 8), (512, 2048, 32))),
    "tiny": Scale(Shape(64, 96, 256, 64, 4, 1), 4, (4,), 4, (128, 256), (2, 4, 8), 2, 4,
                  ((32, 32, 0.25),)),
}


LINKS = {"read GB": "fetch_bytes", "written GB": "write_back_bytes", "up GB": "upload_bytes",
         "down GB": "download_bytes"}


def links(race, name):
    return [f"{race.gigabytes(name, field):.3f}" for field in LINKS.values()]


def model_line(bench, flags):
    plan = bench.ask(flags)
    return (f"{plan.parameters / 1e6:.1f} M parameters, {plan.weights / 2**20:.0f} MiB of "
            f"weights, {plan.state / 2**20:.0f} MiB of state; {budgets_text(flags)}")


def budgets_text(flags):
    return f"memory.device {flags['memory.device']}, memory.host {flags['memory.host']}"


def effect_of(race, name):
    """Cells of a variant against FULL: the interval of its median ratio, and what it shows."""
    interval = median_interval(race.ratios(name, FULL))
    if name == FULL or interval is None:
        return "", "" if name == FULL else "none"
    return f"{interval[0]:.3f} .. {interval[1]:.3f}", race.effect(name, FULL)


def table3(bench, scale):
    experts = scale.ablation_experts
    base = bench.paged(experts, ALL_OFF)
    variants = {FULL: base} | {name: base | flags for name, flags in WITHOUT.items()}
    variants |= {"all of them": base | ALL_OFF, "memory.pin 25%": base | PINNED}
    same_bits = list(variants)
    variants["clip per expert"] = base | PER_EXPERT
    race = bench.race("table3", variants, FULL)
    race.expect_paged(*variants)
    race.expect_same_bits(*same_bits)
    print(f"Table 3: ablation, {experts} experts in {LAYERS} layers, {bench.shape.tokens} tokens a "
          f"step: {model_line(bench, base)}")
    print(f"(memory.pin is off in all rows but its own; padding makes "
          f"{race.runs[FULL][0].imbalance():.2f} x the rows; {len(race.runs[FULL])} rounds; the "
          f"interval is of the median ratio, 19 in 20)")
    print_rows(["", "s/step [least .. most]", "tokens/s", "x full's time", "interval", "effect",
                "stalled", *LINKS],
               [[name, spread(race.seconds(name)), f"{race.tokens_per_s(name):.0f}",
                 f"{race.ratio(name, FULL):.3f}", *effect_of(race, name),
                 f"{100 * race.share(name, 'stall_share'):.0f}%",
                 *links(race, name)] for name in variants])


def table1(bench, scale):
    rows = []
    for experts in scale.table1_experts:
        base = bench.paged(experts, WHOLE_LAYER_END)
        variants = {FULL: base, "whole layers, end": base | WHOLE_LAYER_END,
                    "padded": base | WITHOUT["padded experts"]}
        race = bench.race(f"table1-{experts}", variants)
        race.expect_paged(*variants)
        race.expect_same_bits(*variants)
        computed = {name: race.runs[name][0].imbalance() if name == "padded" else 1.0
                    for name in variants}
        rows += [[experts, name, spread(race.seconds(name)), f"{race.tokens_per_s(name):.0f}",
                  f"{race.ratio(name, FULL):.3f}", f"{computed[name]:.2f}",
                  base["memory.device"], base["memory.host"], *links(race, name)]
                 for name in variants]
    print(f"Table 1: experts, {LAYERS} layers, top 2, {bench.shape.tokens} tokens a step")
    print_rows(["experts", "", "s/step [least .. most]", "tokens/s", "x full's time",
                "x rows", "device", "host", *LINKS], rows)


def figure5(bench, scale):
    experts, tokens = scale.figure5_experts, scale.figure5_tokens
    most = {"train.tokens_per_step": max(tokens)}
    base = bench.paged(experts, most)
    rows = []
    for count in tokens:
        paged = base | {"train.tokens_per_step": count}
        resident = paged | {"memory.device": "100%"}
        race = bench.race(f"figure5-{count}", {"paged": paged, "resident": resident})
        race.expect_paged("paged")
        race.expect_same_bits("paged", "resident")
        if not bench.ask(resident).resident:
            fail(f"{count} tokens a step do not fit on the device")
        rows.append([count, spread(race.seconds("paged")), f"{race.tokens_per_s('paged'):.0f}",
                     spread(race.seconds("resident")), f"{race.tokens_per_s('resident'):.0f}",
                     f"{1 / race.ratio('paged', 'resident'):.3f}", *links(race, "paged")])
    print(f"Figure 5: tokens a step, {experts} experts in {LAYERS} layers: "
          f"{model_line(bench, base | most)}")
    print_rows(["tokens", "paged s/step", "tokens/s", "resident s/step", "tokens/s",
                "paged/resident", *LINKS], rows)


def figure7(bench, scale):
    device = bench.roomy_plan(scale.figure7_on_device, {})
    host = bench.roomy_plan(scale.figure7_in_host, {})
    base = {"memory.device": budget(1.01 * device.on_device),  # sizes are printed rounded
            "memory.host": budget(1.15 * host.pages)}          # pages have headers there
    variants = {f"{experts} experts": base | {"model.path": bench.model(experts)}
                for experts in scale.figure7_experts}
    race = bench.race("figure7", variants)
    rows, tiers = [], set()
    for name, flags in variants.items():
        race.expect_same_bits(name)
        plan = bench.ask(flags)
        tiers.add(plan.lowest_tier())
        if plan.needs_disk:
            race.expect_paged(name)
        rows.append([name, f"{plan.parameters / 1e6:.1f} M", plan.lowest_tier(),
                     spread(race.seconds(name)), f"{race.tokens_per_s(name):.0f}",
                     *links(race, name)])
    if tiers != {"device", "host", "disk"}:
        fail(f"experts lie in {sorted(tiers)} only: {rows}")
    print(f"Figure 7: experts at {budgets_text(base)}, {bench.shape.tokens} tokens a step")
    print_rows(["", "parameters", "down to", "s/step [least .. most]", "tokens/s", *LINKS], rows)


def figure4(bench, scale):
    rows = []
    for device, host, disk in scale.figure4_budgets:
        flags = {"memory.device": f"{device}MiB", "memory.host": f"{host}MiB"}
        plans = {}

        def holds(experts, where):
            if experts not in plans:
                plans[experts] = bench.plan_without_weights(experts, flags)
            plan = plans[experts]
            return plan is not None and plan.accepted and where(plan)

        found = [largest(lambda experts: holds(experts, where)) for where in (
            lambda plan: plan.resident, lambda plan: not plan.needs_disk,
            lambda plan: plan.disk <= disk * 2**30)]
        sizes = [f"{plans[e].parameters / 1e6:.0f} M" if e > 0 else "-" for e in found]
        rows.append([f"{device} MiB", f"{host} MiB", f"{disk} GiB",
                     *(cell for pair in zip(found, sizes) for cell in pair)])
    print(f"Figure 4: the most experts of {LAYERS} layers, {bench.shape.tokens} tokens a step, "
          "by what the plan says")
    print_rows(["device", "host", "disk", "device alone", "", "+ host", "", "+ disk", ""], rows)


TABLES = {"table3": table3, "table1": table1, "figure5": figure5, "figure7": figure7,
          "figure4": figure4}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, help="the pagoda binary")
    parser.add_argument("text", type=Path, nargs="?",
                        help="text to train on (.txt or .jsonl); none: one is made")
    parser.add_argument("--dir", type=Path, required=True, help="where models and runs may lie")
    parser.add_argument("--raw", type=Path, required=True, help="keeps the metrics of every run")
    parser.add_argument("--rounds", type=int, help="in place of the scale's own")
    parser.add_argument("--only", default=",".join(TABLES), help="tables, separated by commas")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small models, one round")
    size.add_argument("--tiny", action="store_true", help="tries the program, measures nothing")
    arguments = parser.parse_args()
    unknown = set(arguments.only.split(",")) - set(TABLES)
    if unknown:
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    return arguments


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the scratch folder is removed
    name = "quick" if arguments.quick else "tiny" if arguments.tiny else "full"
    scale = SCALES[name]
    if arguments.rounds:
        scale.shape.rounds = arguments.rounds
    arguments.raw.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    print_machine(program, scale.shape, name)
    with tempfile.TemporaryDirectory(prefix="es-moe-", dir=arguments.dir) as folder:
        text = arguments.text.resolve() if arguments.text else Path(folder) / "even.txt"
        if not arguments.text:
            write_even_text(text)
        print(f"text: {arguments.text or 'bytes about equally frequent'}\n", flush=True)
        bench = Bench(program, text, Path(folder), arguments.raw, scale.shape)
        for table in arguments.only.split(","):
            began = time.monotonic()
            bench.other_cores = []
            TABLES[table](bench, scale)
            print(f"{table} took {time.monotonic() - began:.0f} s{others_text(bench)}\n",
                  flush=True)


if __name__ == "__main__":
    main()
