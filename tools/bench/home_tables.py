"""What moving experts gains by `pagoda plan --routing` and in a run: a table of hexa_tables.py.

A run records its routing, on a text that favours some experts, and is planned with it. Runs whose
experts move say which ones exchanged homes, and what was recorded is planned again with these
experts' rows exchanged. So "gain planned" is of the placement that was executed, and the two gains
should differ by 5 % of a step at most.

"the plan's" are exchanges that the plan itself would make, with any device and whatever they cost,
where a run has its thresholds: what they gain, how many experts move, in what time, and after how
many steps that has paid. Their time is by Piper's Table IV: the bytes of the busiest rank, here 12
for a parameter where the paper has 16, over the rate that `bench machine` measured between two
processes. Standard library only."""

import math
import random
import statistics
import string

from device_tables import resident
from pagoda_runs import fail
from table_text import print_rows, verdict

MOVED_RANKS = {"full": (2, 4), "small": (2, 4), "tiny": (2,)}
MOVED_FFN = {"full": 512, "small": 512, "tiny": 128}  # so that experts are most of a step
MOVED_EXPERTS, MOVED_EVERY = 16, 6  # steps until homes move, and as many behind that
BY_SWAPS = "swaps with any device"  # as a run makes them
MOST_OFF = 0.05  # of a step, between a planned gain and the executed one


def write_skewed_text(path):
    """Letters of which the first are much more frequent, as tokens of which some experts get
    most."""
    letters = string.ascii_lowercase
    drawn = random.Random(1).choices(letters, [(i + 1) ** -2 for i in range(len(letters))],
                                     k=300_000)
    path.write_text("".join(drawn), encoding="utf-8")


def behind(run, field):
    """The median of a field over the steps behind those until the move, but for the first."""
    return statistics.median(step[field] for step in run.steps if step["step"] > MOVED_EVERY + 1)


def exchanged(moves):
    """{(layer, expert): the expert whose first home it has now}, of those that another has."""
    places = {}
    for move in moves:
        swaps = list(zip(*(move["swaps"][name] for name in ("layer", "a", "b"))))
        if 2 * len(swaps) != move["experts"]:
            fail(f"{move['experts']} experts moved, and {len(swaps)} exchanges were told")
        for layer, a, b in swaps:
            of_a, of_b = places.get((layer, a), a), places.get((layer, b), b)
            places[layer, a], places[layer, b] = of_b, of_a
    return {of: place for of, place in places.items() if of[1] != place}


def with_homes(text, places):
    """A routing trace (plan/step/routing_trace.h) in which experts have the numbers of those whose
    first home they have, so that a plan of the run's first homes is one of these."""
    header, *lines = text.splitlines()
    moved = [header]
    for line in lines:
        step, microbatch, layer, *rows = line.split()
        to = list(rows)
        for expert, of_expert in enumerate(rows):
            to[places.get((int(layer), expert), expert)] = of_expert
        moved.append(" ".join([step, microbatch, layer] + to))
    return "\n".join(moved) + "\n"


def plans_of_moves(runs, plan_with, planned):
    """[run] what is planned for the homes that its experts moved to. planned: where none did;
    plan_with(places): where they did so."""
    plans = {(): planned}
    of_runs = []
    for run in runs:
        places = exchanged(run.moves)
        key = tuple(sorted(places.items()))
        if key not in plans:
            plans[key] = plan_with(places)
        of_runs.append(plans[key])
    return of_runs


def cells_of_moves(stay, move, planned, after):
    """Executed and planned gains, and what the moves took. after: [run that moves] its plan."""
    own = planned["homes"][0]
    named = next(homes for homes in planned["homes"] if homes["name"] == BY_SWAPS)
    saved_s = statistics.median(behind(s, "step_s") - behind(m, "step_s")
                                for s, m in zip(stay, move))
    moved = statistics.median(plan["homes"][0]["imbalance"] for plan in after)
    gains = [1 - plan["homes"][0]["step_s"] / own["step_s"] for plan in after]
    executed = [1 - behind(m, "step_s") / behind(s, "step_s") for s, m in zip(stay, move)]
    off = statistics.median(a - b for a, b in zip(gains, executed))
    cells = [f"{own['imbalance']:.3f}, {moved:.3f}", f"{own['step_s']:.3f}",
             f"{statistics.median(behind(s, 'step_s') for s in stay):.3f}",
             f"{100 * statistics.median(gains):.1f} %",
             f"{100 * statistics.median(executed):.1f} %", f"{100 * off:+.1f} %",
             f"{100 * (1 - named['step_s'] / own['step_s']):.1f} %"]
    moves = [one for m in move for one in m.moves]
    if not moves:
        return cells + [f"{named['moved_experts']}, 0"] + ["-"] * 2, off
    took_s = statistics.median(one["move_s"] for one in moves)
    pays = math.ceil(took_s / saved_s) if saved_s > 0 else "never"
    experts = statistics.median_low(len(exchanged(m.moves)) for m in move)
    return cells + [f"{named['moved_experts']}, {experts}",
                    f"{1e3 * named['move_s']:.1f}, {1e3 * took_s:.1f}",
                    f"{named['pays_after_steps']}, {pays}"], off


def gain_text(count, off, moved):
    """Whether the plan's gain is near the executed one."""
    if not moved:
        return f"  {count} ranks: nothing moved"
    return (f"  {count} ranks: gains differ, in parts of a step, by "
            f"{verdict(abs(off), '<=', MOST_OFF)}")


def homes(bench, scale):
    text, steps = bench.text, bench.shape.steps
    bench.text, bench.shape.steps = bench.folder / "skewed.txt", 2 * MOVED_EVERY
    write_skewed_text(bench.text)
    rows, verdicts = [], []
    for count in MOVED_RANKS[scale]:
        base = resident(bench, MOVED_EXPERTS) | {
            "model.path": bench.model(MOVED_EXPERTS, MOVED_FFN[scale]),
            "train.devices": f"cpu/{8 if count == 2 else 16}", "train.optimizer_threads": 1,
            "parallel.place": "home", "ranks": count}
        race = bench.race(f"homes-{count}",
                          {"stay": base, "move": base | {"parallel.migrate_steps": MOVED_EVERY}})
        race.expect_same_bits("stay", "move")
        routing = bench.folder / "routing"
        bench.run(f"homes-{count}-traced", base | {"train.trace_routing": routing})
        recorded = routing.read_text()

        def plan_with(places):
            routing.write_text(with_homes(recorded, places))
            return bench.planned(count, base, profiled=True, routing=routing)["routing"]

        stay, move, planned = race.runs["stay"], race.runs["move"], plan_with({})
        cells, off = cells_of_moves(stay, move, planned, plans_of_moves(move, plan_with, planned))
        routing.unlink()
        rows.append([count] + cells)
        verdicts.append(gain_text(count, off, any(m.moves for m in move)))
    bench.text, bench.shape.steps = text, steps
    print(f"Homes by `plan --routing` and in a run, {MOVED_EXPERTS} experts of {MOVED_FFN[scale]} "
          f"hidden units, rows of the busiest device over the mean before and after, by the plan; "
          f"moves behind step {MOVED_EVERY}. Of pairs the plan's is first")
    print_rows(["ranks", "imbalance", "planned s", "executed s", "gain planned", "executed",
                "off by", "the plan's", "experts move", "in ms", "pays after steps"], rows)
    print("\n".join(verdicts))
