#!/usr/bin/env python3
"""HEXA-MoE's figures for pagoda, and what moving experts is worth, on CPU devices that are slowed
so that all of them fit on a few cores.

    python3 tools/bench/hexa_tables.py build/release/pagoda --dir DIR --raw FOLDER
        [--small | --tiny] [--rounds N]
        [--only sharing,centric,wire,batches,speeds,ablation,homes,shifting]

  sharing   rows that travel to experts against experts' weights that travel to rows, on two
            processes of a device each, over tokens and experts per token: weights pay from so many
            rows of an expert and a device on as auto takes them for. "kept": the last layers whose
            weights stay until the backward, with data and with auto
  centric   data-centric against model-centric (Figure 7) on two processes of equal devices, over
            tokens and experts per token, beside what the plan says of both. Below it, from how many
            tokens and which top on data-centric is faster, executed and by the plan
  wire      the same where what is sent takes time, so that one way is faster for few rows and the
            other for many: two network namespaces with a wire between them (machine_spaces.py)
  batches   the same for top-1 to 4 with smaller steps for each, as Table 8 has its Base model "to
            fully utilize the GPU HBM": 110, 100, 90 and 80 images for each device, so that rows of
            experts still grow with top. Here 88, 80, 72 and 64 short rows of text. The paper's
            model-centric step takes 1.52, 1.38, 1.30 and 1.29 of the data-centric one's time
  speeds    uniform shares against shares by speed in both ways (Figure 8), on two devices of a
            process of which one is r times as fast: in so many shards and tiles of columns that
            shares of 1.5 to 1 come out nearly exact. Below it, whether what is saved is 0.9 of the
            most that can be
  ablation  Figure 9: the whole of it, data-centric on two processes, and it without each part:
            time and memory
  homes     what moving experts gains by `plan --routing`, from what a run recorded, and executed,
            of a text that favours some experts (home_tables.py)
  shifting  how steady steps are where each of them favours other experts, rows that travel to
            experts' homes, data- and model-centric: the standard deviation of step times over their
            mean, beside that on a text of which experts get about equal parts in all steps

How a part of the ablation is left out, by what the program has for it:

  rows copied      plan.in_place = false: experts read copies of their rows
  sent when due    plan.send_ahead = false: weights of guests leave for the other process when their
                   layer is due, and not a layer ahead (the paper's overlap); the last layers still
                   keep theirs until the backward
  nothing ahead    plan.prefetch = false: weights of guests leave when due, too; no weights go up
                   from the host before their layer's routing is known, and no page goes up before
                   all that was queued in front of its task is done
  one by one       plan.group_blocks = 1: a task has a row block of one expert, where it has up to
                   sixteen of several. The paper's fused kernel, ESFK, is not what this leaves out:
                   there is no such operator here. A group's backward is one task that calls the
                   operators one behind the other: two products of inputs' gradients, two of
                   weights', the activation's in between, and the first product again where its
                   result was not kept. Each packs its own operands, on the CPU for one expert after
                   the other. One by one leaves out that a task, its pages and what it waits for are
                   shared by a group's blocks
  rows travel      parallel.sharing = rows: no weights travel
  padded           plan.padded_experts, and rows travel: as without the paper's operators, every
                   expert computes as many rows as the busiest one
  model-centric    parallel.sharing = model; its bits are others

Memory of the ablation, in MiB. All variants have as much memory.device beyond their least.

  least            the smallest memory.device that would do, with copied rows and guests' weights
                   that come when they are due
  step's own       what a step takes of memory.device beside weights, states, gradients and
                   activations, which may lie in the host too: workspace, rows of experts, sums, and
  guests           weights of the other process's experts (the pipeline-shared cache)
  process          the most that one process had in all, by the system

Rounds and ratios are device_tables.py's. All runs of a table that differ in how they are computed
alone are held to equal losses, model-centric ones within rounding.
"""

import random
import statistics
import string

import machine_spaces
from device_tables import SLOW, main, mib, most_memory, number, of_ranks, sent
from home_tables import homes
from pagoda_runs import LAYERS, WARM_STEPS, budget, fail
from table_text import print_rows, spread, verdict

EXPERTS = 8
FFN = {"full": 128, "small": 64, "tiny": 128}
TOP_K = {"full": (1, 2, 3, 4), "tiny": (2,)}
TOKENS = {"full": (1024, 2048, 4096), "small": (512, 1024, 2048), "tiny": (128,)}
WIRE_TOKENS = {"full": (256, 1024, 2048), "small": (128, 512, 1024), "tiny": (128,)}
WIRE_MBIT = {"full": 50, "small": 50, "tiny": 1000}  # measured, too, with as many bytes
SHARING_TOP_K = {"full": (1, 2, 4), "tiny": (2,)}
RATIOS = {"full": ((1, [1, 1]), (1.5, [2, 3]), (2, [1, 2]), (3, [1, 3])), "tiny": ((3, [1, 3]),)}
# 13 and 19 of 32 shards, or of 32 tiles of 16 columns, are 1.46 to 1; 11 and 21 are 1.91 to 1.
SPEED_SHARDS = {"full": 32, "small": 32, "tiny": 8}
TILE = 16  # columns
COLUMNS = {"full": 512, "small": 512, "tiny": 128}
LEAST_SAVED = 0.9
# Table 8's Base: images of a device, and model-centric's time over data-centric's after 2000 steps.
PAPER_BATCHES = {1: (110, 1.52), 2: (100, 1.38), 3: (90, 1.30), 4: (80, 1.29)}
BATCH_ROW = {"full": 48, "small": 24, "tiny": 8}  # tokens; a step has eight for ten of the paper's
MODEL = {"parallel.sharing": "model"}
HALVES = MODEL | {"parallel.hidden_shares": [1, 1]}
WHOLE = "all of it"
for by_scale in (TOP_K, SHARING_TOP_K, RATIOS):
    by_scale["small"] = by_scale["full"]
SHIFTED_STEPS = {"full": 24, "small": 24, "tiny": 4}
ROOMY_PLANS = {}  # by what was asked
LEAST_SHIFT = 0.1  # of the busiest expert's rows over the mean, from one step to another


def with_room(bench, flags):
    """Budgets for a run whose experts' weights wait in the host. There is room for rows that are
    read in place, and a third of what is left has room for the weights of two layers' experts of
    the other process."""
    flags = flags | {"memory.device": "1TiB", "memory.host": "1TiB"}
    asked = str(sorted(flags.items())), bench.machines is None
    if asked not in ROOMY_PLANS:
        ROOMY_PLANS[asked] = bench.ask(flags)
    plan = ROOMY_PLANS[asked]
    in_place = 4 * flags["train.tokens_per_step"] * bench.shape.hidden  # and gradients, in bf16
    guests = 3 * plan.weights / LAYERS
    return {"memory.device": budget(plan.least_device + 0.3 * plan.weights + in_place + guests),
            "memory.host": "1GiB"}


def of_two(bench, model, devices, processes, count, shards=8, row=None):
    """A run of two devices that has room for weights that travel. row: tokens of a row of text."""
    part = count // shards
    base = {"model.path": model, "train.devices": devices, "train.optimizer_threads": 1,
            "train.tokens_per_step": count, "train.micro_batch_tokens": part,
            "data.sequence_len": row or part, "train.shards": shards,
            "train.expert_shards": shards, "plan.group_blocks": 16, "ranks": processes}
    return base | with_room(bench, base | {"parallel.sharing": "data"})


def sharing(bench, scale):
    rows = []
    for top_k in SHARING_TOP_K[scale]:
        bench.experts_per_token = top_k
        model = bench.model(EXPERTS, FFN[scale])
        for count in TOKENS[scale]:
            base = of_two(bench, model, "cpu/8", 2, count)
            variants = {kind: base | {"parallel.sharing": kind}
                        for kind in ("rows", "data", "auto")}
            race = bench.race(f"sharing-{top_k}-{count}", variants)
            race.expect_same_bits(*variants)
            kept = [bench.ask(variants[kind]).guest_layers for kind in ("data", "auto")]
            rows.append([top_k, count, f"{count * top_k / EXPERTS / 2:.0f}",
                         spread(race.seconds("rows")), f"{race.ratio('data', 'rows'):.3f}",
                         f"{race.ratio('auto', 'rows'):.3f}", sent(race, "rows"),
                         sent(race, "data"), sent(race, "auto"), f"{kept[0]}, {kept[1]}"])
    bench.experts_per_token = 2
    print(f"Rows or weights, {EXPERTS} experts of {FFN[scale]} hidden units in {LAYERS} layers: "
          f"weights have fewer bytes than more than {2.4 * FFN[scale]:.0f} rows of an expert and a "
          f"device, and in the last layers that \"kept\" counts, where they come once a step, than "
          f"more than {1.8 * FFN[scale]:.0f}")
    print_rows(["top", "tokens", "rows", "rows s/step", "data", "auto", "rows MiB sent", "data",
                "auto", "kept"], rows)


def expect_close_losses(race, one, other):
    """Ways that differ in bits: the first step's losses are equal within rounding to bf16."""
    losses = [race.runs[name][0].losses[0] for name in (one, other)]
    if abs(losses[0] - losses[1]) > 2**-6 * losses[0]:
        fail(f"\"{one}\" and \"{other}\" have losses {losses[0]} and {losses[1]}")


def first_faster(ratios):
    """From which size on data-centric is faster. ratios: by size, ascending, the time of
    model-centric over data-centric's."""
    faster = [size for size, ratio in ratios.items() if ratio > 1]
    if len(faster) == len(ratios):
        return "in all"
    if faster != list(ratios)[len(ratios) - len(faster):]:
        return "at " + ", ".join(map(str, faster))
    return f"from {faster[0]} on" if faster else "in none"


def crossover_text(executed, planned):
    """From which size on data-centric is faster. Where that is all sizes, or none, they show no
    crossover."""
    found, wanted = first_faster(executed), first_faster(planned)
    text = f"{found}, by the plan {wanted}, {'held' if found == wanted else 'NOT HELD'}"
    return text + (" without a crossover" if found == wanted and found.startswith("in") else "")


def print_crossovers(executed, planned):
    """Both by top and tokens."""
    print("Data-centric is faster")
    for top in dict.fromkeys(top for top, _ in executed):
        print(f"  top {top}, by tokens: " + crossover_text(
            *({count: ratio for (of, count), ratio in ratios.items() if of == top}
              for ratios in (executed, planned))))
    for count in dict.fromkeys(count for _, count in executed):
        print(f"  {count} tokens, by top: " + crossover_text(
            *({top: ratio for (top, of), ratio in ratios.items() if of == count}
              for ratios in (executed, planned))))


BOTH_WAYS = ["top", "tokens", "data s/step", "model s/step", "model/data", "planned",
             "data planned s", "model planned s", "data MiB sent", "model"]


def both_ways(bench, table, base, profiled=True):
    """Data- and model-centric: cells of BOTH_WAYS, and model-centric's time over data-centric's,
    executed and planned, by costs that are measured for this run if it is `profiled`."""
    ways = {"data": base | {"parallel.sharing": "data"}, "model": base | HALVES}
    top_k, count = bench.experts_per_token, base["train.tokens_per_step"]
    race = bench.race(f"{table}-{top_k}-{count}", ways)
    expect_close_losses(race, "data", "model")
    planned = {name: bench.planned(2, flags, profiled=profiled)["step_s"]
               for name, flags in ways.items()}
    executed, by_plan = race.ratio("model", "data"), planned["model"] / planned["data"]
    cells = [top_k, count, spread(race.seconds("data")), spread(race.seconds("model")),
             f"{executed:.3f}", f"{by_plan:.3f}", f"{planned['data']:.3f}",
             f"{planned['model']:.3f}", sent(race, "data"), sent(race, "model")]
    return cells, executed, by_plan


def centric_cells(bench, scale, table, tokens):
    rows, executed, planned = [], {}, {}
    for top_k in TOP_K[scale]:
        bench.experts_per_token = top_k
        model = bench.model(EXPERTS, FFN[scale])
        for count in tokens:
            cells, executed[top_k, count], planned[top_k, count] = both_ways(
                bench, table, of_two(bench, model, "cpu/8", 2, count))
            rows.append(cells)
    bench.experts_per_token = 2
    return rows, executed, planned


def centric(bench, scale):
    rows, executed, planned = centric_cells(bench, scale, "centric", TOKENS[scale])
    print(f"Data- and model-centric, {EXPERTS} experts of {FFN[scale]} hidden units")
    print_rows(BOTH_WAYS, rows)
    print_crossovers(executed, planned)


def wire(bench, scale):
    if lacking := machine_spaces.lacks():
        print(f"wire: SKIPPED, {lacking}")
        return
    with machine_spaces.machines(bench.program, directory=bench.folder) as bench.machines:
        bench.machines.set_rate(WIRE_MBIT[scale])
        rows, executed, planned = centric_cells(bench, scale, "wire", WIRE_TOKENS[scale])
    bench.machines = None
    print(f"Data- and model-centric over a wire of {WIRE_MBIT[scale]} Mbit/s, {EXPERTS} experts "
          f"of {FFN[scale]} hidden units")
    print_rows(BOTH_WAYS, rows)
    print_crossovers(executed, planned)


def batches(bench, scale):
    rows, row = [], BATCH_ROW[scale]
    for top_k in TOP_K[scale]:
        bench.experts_per_token = top_k
        of_paper, ratio = PAPER_BATCHES[top_k]
        base = of_two(bench, bench.model(EXPERTS, FFN[scale]), "cpu/8", 2,
                      of_paper // 10 * 8 * row, row=row)
        cells, *_ = both_ways(bench, "batches", base, profiled=not bench.shape.tiny)
        rows.append(cells + [of_paper, f"{ratio:.2f}"])
    bench.experts_per_token = 2
    print(f"Steps that shrink with top (Table 8, Base): {EXPERTS} experts of {FFN[scale]} hidden "
          f"units, rows of {row} tokens")
    print_rows(BOTH_WAYS + ["the paper's batch", "model/data"], rows)


def saved_text(saved, r):
    """What is saved beside the most that can be, where one device is r times as fast."""
    return f"saved of 1 - 2 / (1 + r) {verdict(saved / (1 - 2 / (1 + r)), '>=', LEAST_SAVED)}"


def busy(race, name):
    """[device] seconds for which it computes in a step."""
    of_steps = [step["devices"]["busy_s"] for run in race.runs[name] for step in run.steps]
    return [statistics.median(seconds) for seconds in zip(*of_steps)]


def even_tiles(tiles, one, other):
    """Tiles of columns for two devices, so that both are busy for as long. one, other: [device]
    (tiles, seconds), through which a line is drawn: a part of the time grows with the tiles. Where
    noise hides that, the tiles of `other` stay."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(one, other)]
    if min(slopes) <= 0:
        return [round(of_device[0]) for of_device in other]
    fixed = [a[1] - slope * a[0] for a, slope in zip(one, slopes)]
    until = (tiles + sum(a / slope for a, slope in zip(fixed, slopes))) / sum(
        1 / slope for slope in slopes)
    first = min(max(round((until - fixed[0]) / slopes[0]), 1), tiles - 1)
    return [first, tiles - first]


def evened(bench, race, label, uniform, speed, tiles):
    """What shares of columns save by which devices are busy for as long as each other, of the time
    of uniform shares, which run beside it again."""
    own = [[tiles * share / sum(flags["parallel.hidden_shares"])
            for share in flags["parallel.hidden_shares"]] for flags in (uniform, speed)]
    columns = even_tiles(tiles, *(list(zip(of_way, busy(race, f"model {name}")))
                                  for of_way, name in zip(own, ("uniform", "speed"))))
    again = bench.race(label, {"uniform": uniform,
                               "even": speed | {"parallel.hidden_shares": columns}})
    return columns, 1 - again.ratio("even", "uniform")


def speeds(bench, scale):
    rows, verdicts, count = [], [], TOKENS[scale][-1]
    models = [bench.model(EXPERTS, ffn) for ffn in (FFN[scale], COLUMNS[scale])]
    for r, hidden in RATIOS[scale]:
        by_rows, by_columns = (
            of_two(bench, model, f"cpu/{SLOW},cpu/{number(SLOW / r)}", 1, count,
                   SPEED_SHARDS[scale]) for model in models)
        ways = {}
        for shares, columns in (("uniform", [1, 1]), ("speed", hidden)):
            of_shares = {"parallel.shares": shares}
            ways[f"data {shares}"] = by_rows | of_shares | {"parallel.sharing": "data"}
            ways[f"model {shares}"] = by_columns | of_shares | MODEL | {
                "parallel.hidden_shares": columns}
        race = bench.race(f"speeds-{number(r)}", ways)
        race.expect_same_bits("data uniform", "data speed")
        most, cells = 1 - 2 / (1 + r), []
        even = ["-", "-", "-"]
        if most > 0:
            columns, even_saved = evened(bench, race, f"even-{number(r)}", ways["model uniform"],
                                          ways["model speed"], COLUMNS[scale] // TILE)
            even = [" ".join(map(str, columns)), f"{100 * even_saved:.1f} %",
                    f"{even_saved / most:.2f}"]
        for way in ("data", "model"):
            saved = 1 - race.ratio(f"{way} speed", f"{way} uniform")
            cells += [spread(race.seconds(f"{way} uniform")), spread(race.seconds(f"{way} speed")),
                      f"{100 * saved:.1f} %", f"{saved / most:.2f}" if most > 0 else "-"]
            if most > 0:
                verdicts.append(f"  {number(r)} x, {way}-centric: {saved_text(saved, r)}")
        if most > 0:
            verdicts.append(f"  {number(r)} x, model-centric, even: "
                            f"{saved_text(even_saved, r)}")
        rows.append([number(r), " ".join(map(str, hidden))] + cells + even +
                    [f"{100 * most:.1f} %"])
    print(f"Shares by speed in both ways, r times as fast: saved of uniform shares' time. Experts "
          f"of {FFN[scale]} hidden units, and of {COLUMNS[scale]} where columns are shared")
    print_rows(["r", "columns", "data uniform", "by speed", "saved", "of it", "model uniform",
                "by speed", "saved", "of it", "even tiles", "saved", "of it", "most"], rows)
    print("\n".join(verdicts))


def ablation(bench, scale):
    top_k, count = TOP_K[scale][-1], TOKENS[scale][-1]
    bench.experts_per_token = top_k
    base = of_two(bench, bench.model(EXPERTS, FFN[scale]), "cpu/8", 2, count)
    whole, by_rows = base | {"parallel.sharing": "data"}, base | {"parallel.sharing": "rows"}
    variants = {WHOLE: whole,
                "rows copied": whole | {"plan.in_place": "false"},
                "sent when due": whole | {"plan.send_ahead": "false"},
                "nothing ahead": whole | {"plan.prefetch": "false"},
                "one by one": whole | {"plan.group_blocks": 1},
                "rows travel": by_rows,
                "padded": by_rows | {"plan.padded_experts": "true"},
                "model-centric": base | HALVES}
    if bench.shape.tiny:  # one of each kind
        kept = (WHOLE, "rows copied", "model-centric")
        variants = {name: variants[name] for name in kept}
    variants = {name: flags | with_room(bench, flags) for name, flags in variants.items()}
    race = bench.race("ablation", variants, WHOLE)
    race.expect_same_bits(*(name for name in variants if name != "model-centric"))
    expect_close_losses(race, WHOLE, "model-centric")
    for name in variants:
        if float(of_ranks(race, name, "upload_bytes")) == 0:
            fail(f"\"{name}\" has all on its devices")
    if float(of_ranks(race, WHOLE, "in_place_row_bytes")) == 0:
        fail("no row was read in place")
    bench.experts_per_token = 2
    print(f"Ablation (Figure 9): {EXPERTS} experts of {FFN[scale]} hidden units, top {top_k}, "
          f"{count} tokens, {len(race.runs[WHOLE])} rounds")
    print_rows(["", "s/step [least .. most]", "x its time", "effect", "MiB sent a step",
                "MiB of rows copied", "least", "step's own", "guests", "process"],
               [[name, spread(race.seconds(name)), f"{race.ratio(name, WHOLE):.3f}",
                 "" if name == WHOLE else race.effect(name, WHOLE), sent(race, name),
                 of_ranks(race, name, "copied_row_bytes")] +
                footprint(bench, race, name, variants[name]) for name in variants])


def footprint(bench, race, name, flags):
    """Cells of a device's memory, and of a process's."""
    plan = bench.ask(flags)
    return [mib(plan.least_device), mib(plan.on_device - plan.pages_on_device), mib(plan.guests),
            mib(most_memory(race, name))]


def write_shifting_text(path, row, rows=64):
    """Rows of so many letters, half of which are the row's own one, a quarter its next, and so
    on."""
    drawn, letters, text = random.Random(2), list(string.ascii_lowercase), []
    for _ in range(rows):
        drawn.shuffle(letters)
        text += drawn.choices(letters, [2**-i for i in range(len(letters))], k=row)
    path.write_text("".join(text), encoding="utf-8")


def variation(run):
    """The standard deviation of a run's step times over their mean."""
    seconds = [step["step_s"] for step in run.steps]
    return statistics.pstdev(seconds) / statistics.mean(seconds)


def loads(run):
    """[step] the rows of the busiest expert of a layer over the mean, of all layers."""
    return [statistics.mean(step["experts"]["max_over_mean"]) for step in run.steps]


def shifting(bench, scale):
    even, steps = bench.text, bench.shape.steps
    bench.shape.steps = WARM_STEPS + SHIFTED_STEPS[scale]
    count = TOKENS[scale][len(TOKENS[scale]) // 2]
    shifts = bench.folder / "shifting.txt"
    write_shifting_text(shifts, count // 2)
    # Two shards are two rows of text a step.
    base = of_two(bench, bench.model(EXPERTS, FFN[scale]), "cpu/8", 2, count, 2)
    ways = {"rows": base | {"parallel.sharing": "rows", "parallel.place": "home"},
            "data": base | {"parallel.sharing": "data"}, "model": base | HALVES}
    rows = []
    for name, text in (("even", even), ("shifting", shifts)):
        bench.text = text
        race = bench.race(f"shifting-{name}", ways)
        race.expect_same_bits("rows", "data")
        expect_close_losses(race, "data", "model")
        of_steps = loads(race.runs["data"][0])
        if name == "shifting" and max(of_steps) - min(of_steps) < LEAST_SHIFT:
            fail(f"routing does not shift: {of_steps}")
        rows.append([name, spread(of_steps)] + [
            cell for way in ways for cell in (
                spread(race.seconds(way)),
                f"{100 * statistics.median(variation(run) for run in race.runs[way]):.1f} %")])
    bench.text, bench.shape.steps = even, steps
    print(f"Steps under shifting routing: {EXPERTS} experts of {FFN[scale]} hidden units, {count} "
          f"tokens; the standard deviation of {SHIFTED_STEPS[scale]} step times over their mean, "
          f"and rows of the busiest expert over the mean")
    print_rows(["text", "busiest expert", "rows s/step", "deviation", "data s/step", "deviation",
                "model s/step", "deviation"], rows)


TABLES = {"sharing": sharing, "centric": centric, "wire": wire, "batches": batches,
          "speeds": speeds, "ablation": ablation, "homes": homes, "shifting": shifting}

if __name__ == "__main__":
    main(__doc__, TABLES, [name for name in TABLES if name != "speeds"])
