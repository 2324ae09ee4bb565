#!/usr/bin/env python3
"""What several devices and processes are worth: tables of HEXA-MoE and ES-MoE for pagoda, on CPU
devices that are slowed so that all of them fit on a few cores.

    python3 tools/bench/device_tables.py build/release/pagoda [TEXT] --dir DIR --raw FOLDER
        [--small | --tiny] [--rounds N]
        [--only scaling,sums,shares,seats,ranks,weak,disk,most]

TEXT is trained on; without it a text is made of which experts of random models get about equal
parts. Models with random weights and the runs lie in a folder of their own in DIR and are removed.
FOLDER keeps the metrics.jsonl of every run.

  scaling  one, two and four equal devices on the same run file
  sums     one shard and eight on one device: what more sums of dense gradients cost
  shares   shares by speed against uniform shares on two unlike devices (HEXA-MoE's Table 2 and
           Figure 8, data-centric), beside the most that can be saved, 1 - 2 / (1 + r), where one
           device is r times as fast as the other
  seats    experts at home, `expert % devices`, against seats by their rows in each step, and homes
           that moved behind the first steps (ES-MoE's Figure 6 and Table 6): rows of the busiest
           device over the mean, the least that this can be since an expert has one seat, busy
           share of devices, and how many experts moved

  ranks    one, two and four processes of a device each on the same run file, under mpirun
  weak     as many, with experts and tokens that grow with them (Piper's Figure 14), and what the
           plan says of up to 16
  disk     a model that needs the disk on one process and none on two with the same budgets each
  most     the most experts that need no drive on one and two processes, by what the plan says, and
           a run of so many and one of one more (ES-MoE's Figure 4)

HEXA-MoE's other figures are hexa_tables.py's. What is compared takes turns; a round's time is the
median of its steps after the first ones, and ratios are taken inside a round. All runs of a table
that differ in devices alone are held to equal losses, and runs on several devices to transfers
above zero.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pagoda_runs import LAYERS, WARM_STEPS, Bench, Shape, budget, fail, largest, write_even_text
from table_text import add_scales, others_text, print_machine, print_rows, spread

SHAPES = {"full": Shape(256, 512, 2048, 128, 5, 3), "small": Shape(128, 256, 1024, 128, 5, 3),
          "tiny": Shape(64, 96, 256, 16, 4, 1, tiny=True)}
SLOW = 12  # the slower of two unlike devices
RATIOS = {"full": (1, 1.5, 2, 3, 4), "tiny": (1, 3)}
RATIOS["small"] = RATIOS["full"]
EXPERTS = {"full": (8, 16, 32, 64), "small": (8, 32), "tiny": (8,)}
# MiB: device, host
BUDGETS = {"full": ((64, 256), (128, 512), (256, 1024)), "small": ((32, 128), (64, 256)),
           "tiny": ((2, 6),)}


def number(value):
    return f"{value:.6g}"


def mib(size_bytes):
    return f"{size_bytes / 2**20:.1f}"


def expect_sent(race, *names):
    for name in names:
        for run in race.runs[name]:
            if any(sum(step["links"]["transfers"]) == 0 for step in run.steps):
                fail(f"\"{name}\": nothing travelled between its devices")


def busy_share(race, name):
    """[device] busy time over the time of the steps, of all rounds."""
    steps = [step for run in race.runs[name] for step in run.steps]
    devices = len(steps[0]["devices"]["busy_s"])
    return [sum(step["devices"]["busy_s"][d] for step in steps) /
            sum(step["step_s"] for step in steps) for d in range(devices)]


def percents(shares):
    return " ".join(f"{100 * share:.0f}" for share in shares)


def resident(bench, experts):
    return {"model.path": bench.model(experts), "memory.device": "1GiB", "memory.host": "1GiB",
            "plan.group_blocks": 16}


def scaling(bench, _):
    base = resident(bench, 8)
    names = {1: "cpu/8", 2: "cpu/8*2", 4: "cpu/8*4"}
    race = bench.race("scaling", {name: base | {"train.devices": name}
                                  for name in names.values()})
    race.expect_same_bits(*names.values())
    expect_sent(race, names[2], names[4])
    one = names[1]
    print(f"Scaling: 8 experts in {LAYERS} layers, {bench.shape.tokens} tokens in "
          f"{bench.shape.tokens // bench.shape.microbatch} microbatches")
    print_rows(["devices", "s/step [least .. most]", "times one", "optimizer s", "busy %"],
               [[name, spread(race.seconds(name)), f"{race.ratio(one, name):.2f}",
                 f"{race.share(name, 'optimizer_s'):.3f}",
                 "" if count == 1 else percents(busy_share(race, name))]
                for count, name in names.items()])


def shares(bench, scale):
    rows = []
    # Small parts, so that shares of 1.5 to 1 and the like come out nearly exact.
    part = bench.shape.microbatch // 2
    small = {"train.micro_batch_tokens": part, "data.sequence_len": part,
             "train.shards": bench.shape.tokens // part}
    for r in RATIOS[scale]:
        devices = f"cpu/{SLOW},cpu/{number(SLOW / r)}"
        base = resident(bench, 32) | small | {"train.devices": devices}
        variants = {kind: base | {"parallel.shares": kind} for kind in ("uniform", "speed")}
        race = bench.race(f"shares-{number(r)}", variants)
        race.expect_same_bits(*variants)
        expect_sent(race, *variants)
        saved, most = 1 - race.ratio("speed", "uniform"), 1 - 2 / (1 + r)
        rows.append([number(r), devices, spread(race.seconds("uniform")),
                     spread(race.seconds("speed")), f"{100 * saved:.1f} %", f"{100 * most:.1f} %",
                     f"{saved / most:.2f}" if most > 0 else "-",
                     percents(busy_share(race, "speed"))])
    print("Shares by speed, r times as fast: the paper saves 13.2 and 25.3 %")
    print_rows(["r", "devices", "uniform s/step", "by speed s/step", "saved", "most", "of it",
                "busy %"], rows)


def sums(bench, _):
    names = {1: "1 shard", 8: "8 shards"}
    race = bench.race("sums", {name: resident(bench, 8) | {"train.devices": "cpu",
                                                           "train.shards": count}
                               for count, name in names.items()}, base=names[1])
    print(f"Sums by shards on one device: 8 experts in {LAYERS} layers")
    print_rows(["sums", "s/step [least .. most]", "of one shard's time"],
               [[name, spread(race.seconds(name)), f"{race.ratio(name, names[1]):.4f}"]
                for name in names.values()])


def least_busiest(rows, devices):
    """The rows of the busiest device where each expert has one seat, as few as they can be; or
    fewer, where that would take long to find."""
    rows = sorted(rows, reverse=True)
    least = max(rows[0], -(-sum(rows) // devices))
    if len(rows) > devices:
        least = max(least, rows[devices - 1] + rows[devices])
    best, left = sum(rows), 100_000

    def place(i, loads):
        nonlocal best, left
        left -= 1
        if best == least or left < 0 or max(loads) >= best:
            return
        if i == len(rows):
            best = max(loads)
            return
        for load in sorted(set(loads)):
            others = list(loads)
            others.remove(load)
            place(i + 1, others + [load + rows[i]])

    place(0, [0] * devices)
    return least if left < 0 else best


def least_imbalance(routing, devices, steps):
    """The least that a step's rows of the busiest device over the mean can be: the middle one of
    these steps of a routing trace."""
    layers = {}  # [step, layer] rows of each expert
    for line in routing.read_text().splitlines()[1:]:
        step, _, layer, *rows = map(int, line.split())
        so_far = layers.setdefault((step, layer), [0] * len(rows))
        layers[step, layer] = [a + b for a, b in zip(so_far, rows)]
    least = []
    for step in steps:
        of_step = [rows for (number, _), rows in layers.items() if number == step]
        mean = sum(map(sum, of_step)) / devices
        least.append(sum(least_busiest(rows, devices) for rows in of_step) / mean)
    return statistics.median(least)


def seats(bench, scale):
    rows = []
    for count in (2,) if scale == "tiny" else (2, 4):
        for experts in EXPERTS[scale]:
            # Weights that wait in the host, since those that stay on devices are at home.
            plan = bench.roomy_plan(experts, {"train.devices": f"cpu/8*{count}"})
            base = {"model.path": bench.model(experts), "train.devices": f"cpu/8*{count}",
                    "memory.device": budget(plan.least_device + 0.3 * plan.weights),
                    "memory.host": "1GiB"}
            variants = {place: base | {"parallel.place": place} for place in ("home", "step")}
            variants["moved"] = variants["home"] | {"parallel.migrate_steps": WARM_STEPS}
            race = bench.race(f"seats-{count}-{experts}", variants)
            race.expect_same_bits(*variants)
            expect_sent(race, *variants)
            routing = bench.folder / "routing"
            traced = bench.run(f"seats-{count}-{experts}-traced",
                               variants["step"] | {"train.trace_routing": routing})
            least = least_imbalance(routing, count, [step["step"] for step in traced.steps])
            routing.unlink()
            cells = [cell for place in variants for cell in (
                f"{race.share(place, 'imbalance'):.3f}",
                f"{100 * statistics.mean(busy_share(race, place)):.0f}",
                spread(race.seconds(place)))]
            moved = statistics.median_low(sum(move["experts"] for move in run.moves)
                                          for run in race.runs["moved"])
            rows.append([count, experts, f"{least:.3f}"] + cells +
                        [moved, f"{race.ratio('step', 'home'):.3f}",
                         f"{race.ratio('moved', 'home'):.3f}"])
    print("Seats: rows of the busiest device over the mean, and busy share of the devices")
    print_rows(["devices", "experts", "least", "home", "busy %", "s/step", "by step", "busy %",
                "s/step", "moved", "busy %", "s/step", "experts moved", "by step/home",
                "moved/home"], rows)


def of_ranks(race, name, field):
    """Bytes a step of all processes, in MiB."""
    steps = [step for run in race.runs[name] for step in run.steps]
    all_ranks = [sum(rank[field] for rank in step.get("ranks", [step])) for step in steps]
    return f"{statistics.median(all_ranks) / 2**20:.1f}"


def sent(race, name):
    """Bytes a step that processes got from others, in MiB."""
    steps = [step for run in race.runs[name] for step in run.steps]
    all_ranks = [sum(sum(rank["links"]["bytes"]) for rank in step["ranks"]) for step in steps]
    if min(all_ranks) == 0:
        fail(f"\"{name}\": nothing travelled between its processes")
    return f"{statistics.median(all_ranks) / 2**20:.1f}"


def most_memory(race, name):
    """The most bytes that one of the processes had in all, with the program itself."""
    return max(rank["peak_memory_bytes"] for run in race.runs[name] for step in run.steps
               for rank in step.get("ranks", [step]))


def memory(race, name, plan):
    """MiB a process: the most of its slots and workspace by the plan, and the most that one had."""
    planned = max(rank["device_bytes"] + rank["host_bytes"] for rank in plan["ranks"])
    return f"{planned / 2**20:.0f}, {most_memory(race, name) / 2**20:.0f}"


def ranks(bench, _):
    base = resident(bench, 8) | {"train.devices": "cpu/8", "train.optimizer_threads": 1}
    names = {count: f"{count} x cpu/8" for count in (1, 2, 4)}
    race = bench.race("ranks", {name: base | {"ranks": count} for count, name in names.items()})
    race.expect_same_bits(*names.values())
    print(f"Processes: 8 experts in {LAYERS} layers, {bench.shape.tokens} tokens in "
          f"{bench.shape.tokens // bench.shape.microbatch} microbatches")
    print_rows(["processes", "s/step [least .. most]", "times one", "MiB sent a step"],
               [[name, spread(race.seconds(name)), f"{race.ratio(names[1], name):.2f}",
                 "" if count == 1 else sent(race, name)] for count, name in names.items()])


def weak(bench, scale):
    counts = (1, 2) if scale == "tiny" else (1, 2, 4, 8, 16)
    names = {count: f"{count} x cpu/8" for count in counts}
    variants = {name: resident(bench, 8 * count) |
                {"train.devices": "cpu/8", "train.optimizer_threads": 1, "ranks": count,
                 "train.tokens_per_step": bench.shape.tokens * count,
                 "train.shards": max(8, count)}
                for count, name in names.items()}
    executed = [name for count, name in names.items() if count <= 4]
    race = bench.race("weak", {name: variants[name] for name in executed})
    plans = {name: bench.planned(count, variants[name], profiled=True)
             for count, name in names.items()}
    one = names[1]
    rows = []
    for count, name in names.items():
        cells, held = ["", ""], ""
        if name in executed:
            cells = [spread(race.seconds(name)), f"{race.ratio(name, one):.2f}"]
            held = memory(race, name, plans[name])
        plan_s = plans[name]["step_s"]
        sent_bytes = sum(rank["sent_bytes"] for rank in plans[name]["ranks"])
        rows.append([name, 8 * count, *cells,
                     "" if count == 1 or name not in executed else sent(race, name),
                     f"{plan_s:.3f}", f"{plan_s / plans[one]['step_s']:.2f}",
                     f"{sent_bytes / 2**20:.1f}", held, plans[name]["bottleneck"]])
    print(f"Experts and tokens grow with processes: 8 and {bench.shape.tokens} for each; up to 4 "
          f"executed here, all planned for a machine each")
    print_rows(["processes", "experts", "s/step [least .. most]", "of one's time",
                "MiB sent a step", "planned s", "of one's", "MiB sent", "MiB each, had",
                "limited by"], rows)


def disk(bench, _):
    experts, one = 64, {"train.devices": "cpu", "train.threads": 1, "train.optimizer_threads": 1}
    plan = bench.roomy_plan(experts, one)
    base = one | {"model.path": bench.model(experts),
                  "memory.device": budget(plan.least_device + 0.3 * plan.weights),
                  "memory.host": budget(0.65 * (plan.weights + plan.state) + plan.least_host)}
    names = {count: f"{count} of one core" for count in (1, 2)}
    race = bench.race("disk", {name: base | {"ranks": count} for count, name in names.items()})
    race.expect_same_bits(*names.values())
    race.expect_paged(names[1])
    print(f"The disk on one process, none on two: {experts} experts, memory.device "
          f"{base['memory.device']} and memory.host {base['memory.host']} each")
    print_rows(["processes", "s/step [least .. most]", "times one", "MiB read a step",
                "MiB written", "MiB sent"],
               [[name, spread(race.seconds(name)), f"{race.ratio(names[1], name):.2f}",
                 of_ranks(race, name, "fetch_bytes"), of_ranks(race, name, "write_back_bytes"),
                 "" if count == 1 else sent(race, name)] for count, name in names.items()])


def drive_bytes(run):
    """What the steps of a run read and wrote, all processes together."""
    return sum(rank[field] for step in run.steps for rank in step.get("ranks", [step])
               for field in ("fetch_bytes", "write_back_bytes"))


def most(bench, scale):
    rows = []
    one = {"train.devices": "cpu", "train.threads": 1, "train.optimizer_threads": 1}
    outline = bench.folder / "outline"
    outline.mkdir()
    for device, host in BUDGETS[scale]:
        for count in (2,) if scale == "tiny" else (1, 2):
            flags = one | {"memory.device": f"{device}MiB", "memory.host": f"{host}MiB",
                           "ranks": count}

            def holds(experts):
                (outline / "config.json").write_text(json.dumps(bench.config(experts)))
                plan = bench.planned(count, flags | {"model.path": outline})
                return plan is not None and not any(
                    rank["disk_read_bytes"] + rank["disk_written_bytes"] for rank in plan["ranks"])

            experts = largest(holds)
            moved = [drive_bytes(bench.run("most", flags | {"model.path": bench.model(number)}))
                     for number in (experts, experts + 1)]
            # Few tokens are routed so unevenly that waves may need more than the plan knows.
            if (moved[0] > 0 and scale != "tiny") or moved[1] <= moved[0]:
                fail(f"{experts} experts and one more moved {moved} bytes on {count} processes "
                     f"with {device} and {host} MiB")
            rows.append([f"{device} MiB", f"{host} MiB", count, experts, "0 B", experts + 1,
                         f"{moved[1] / (bench.shape.steps - WARM_STEPS) / 2**20:.1f} MiB"])
    shutil.rmtree(outline)
    print(f"The most experts of {LAYERS} layers that need no drive, by the plan, and what the "
          f"steps of runs read and wrote")
    print_rows(["device", "host", "processes", "experts", "moved a step", "one more",
                "moved a step"], rows)


TABLES = {"scaling": scaling, "sums": sums, "shares": shares, "seats": seats, "ranks": ranks,
          "weak": weak, "disk": disk, "most": most}
OF_PROCESSES = ("ranks", "weak", "disk", "most")


def parse_arguments(description, tables):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("program", type=Path, help="the pagoda binary")
    parser.add_argument("text", type=Path, nargs="?", help="text to train on; none: one is made")
    parser.add_argument("--dir", type=Path, required=True, help="where models and runs may lie")
    parser.add_argument("--raw", type=Path, required=True, help="keeps the metrics of every run")
    parser.add_argument("--rounds", type=int, help="in place of the scale's own")
    parser.add_argument("--only", default=",".join(tables), help="tables, separated by commas")
    add_scales(parser)
    arguments = parser.parse_args()
    unknown = set(arguments.only.split(",")) - set(tables)
    if unknown:
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    return arguments


def main(description=__doc__, tables=TABLES, of_processes=OF_PROCESSES):
    arguments = parse_arguments(description, tables)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the scratch folder is removed
    scale = arguments.scale
    shape = SHAPES[scale]
    if arguments.rounds:
        shape.rounds = arguments.rounds
    arguments.raw.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    print_machine(program, shape, scale)
    with tempfile.TemporaryDirectory(prefix="devices-", dir=arguments.dir) as folder:
        text = arguments.text.resolve() if arguments.text else Path(folder) / "even.txt"
        if not arguments.text:
            write_even_text(text)
        bench = Bench(program, text, Path(folder), arguments.raw, shape)
        for table in arguments.only.split(","):
            if table in of_processes and shutil.which("mpirun") is None:
                print(f"{table}: SKIPPED, there is no mpirun\n")
                continue
            began = time.monotonic()
            bench.other_cores = []
            tables[table](bench, scale)
            print(f"{table} took {time.monotonic() - began:.0f} s{others_text(bench)}\n",
                  flush=True)


if __name__ == "__main__":
    main()
