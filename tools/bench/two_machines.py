#!/usr/bin/env python3
"""Two machines in one: two network namespaces with host names, an sshd and a core each, and a wire
between them of a rate that is set at both ends. In them docs/clusters.md is followed to the letter:
doctor, a sheet of the cluster, a plan from that sheet, and a run, whose step is held against the
plan, whose bytes against those that the wire counted, and whose result against one process's. With
--slowed, the run is also timed as one process, and as one and two on both of them, each with a
device that is slowed so often, and two on both of them in each order of exchanges.

  two_machines.py PAGODA [--mbit 1000 100] [--steps 8] [--rounds 9] [--slowed TIMES] [--dir DIR]

Needs what machine_spaces.py does; says SKIPPED where it may not make namespaces."""

import argparse
import hashlib
import json
import statistics
import sys
from pathlib import Path

import machine_spaces
from machine_spaces import must

WARM_STEPS = 3  # pages find their places
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 512,
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 256, "num_experts": 16,
    "num_experts_per_tok": 4, "norm_topk_prob": True, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "router_aux_loss_coef": 0.01,
    "max_position_embeddings": 1024, "mlp_only_layers": [], "decoder_sparse_step": 1,
    "attention_bias": False}
RUN_FILE = """[model]
path = "model"
[data]
path = "text.txt"
sequence_len = 256
[train]
output_dir = "{output}"
steps = {steps}
tokens_per_step = 8192
micro_batch_tokens = 1024
log_steps = 1
save_steps = {steps}
[memory]
device = "256MiB"
host = "256MiB"
disk = ["{output}-pages{{rank}}"]
"""


def steps_of(metrics):
    lines = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
    return [line for line in lines if line["type"] == "step"]


def hash_of(folder):
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def prepare(machines, steps):
    folder = machines.folder
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text.txt").write_text("".join(
        f"{i} the quick brown fox jumps over {i * 7 % 13} lazy dogs\n" for i in range(9000)))
    must([machines.program, "init", "--config", "config.json", "--seed", "1", "--out", "model"],
         cwd=folder)
    (folder / "alone.toml").write_text(RUN_FILE.format(output="alone", steps=steps))
    must([machines.program, "train", "alone.toml"], cwd=folder)
    return exported(machines, "alone")


def exported(machines, run):
    must([machines.program, "export", "--checkpoint", run, "--out", f"{run}-model"],
         cwd=machines.folder)
    return hash_of(machines.folder / f"{run}-model")


def at_rate(machines, mbit, steps, rounds, expected):
    folder = machines.folder
    name = f"at{mbit}"
    machines.set_rate(mbit)
    sheet, run_file = f"lab{mbit}.toml", f"{name}.toml"
    (folder / run_file).write_text(RUN_FILE.format(output=name, steps=steps))
    doctor = machines.mpirun(["pagoda", "doctor"])
    for node in machines.nodes:
        if node not in doctor:
            sys.exit(f"two_machines: doctor does not name {node}:\n{doctor}")
    network = machines.mpirun(["pagoda", "bench", "network", "--rounds", rounds])
    print(f"{mbit:5} Mb/s, beside MPI_Alltoallv over {rounds} rounds:")
    print("\n".join(line for line in network.splitlines()
                    if line.startswith(("exchange", "all to all")) or "roof   ratio" in line))
    machines.mpirun(["pagoda", "bench", "machine", "--out", sheet])
    plan = json.loads(must([machines.program, "plan", run_file, "--cluster", sheet, "--json"],
                           cwd=folder))["as_train"]
    before = machines.sent_bytes()
    machines.mpirun(["pagoda", "train", run_file])
    counted = sum(machines.sent_bytes()) - sum(before)
    done = steps_of(folder / name / "metrics.jsonl")
    ours = sum(sum(rank["links"]["bytes"]) for step in done for rank in step["ranks"])
    step_s = statistics.median(step["step_s"] for step in done[WARM_STEPS:])
    planned_s = plan["step_s"]
    planned_bytes = sum(rank["sent_bytes"] for rank in plan["ranks"])
    last = sum(sum(rank["links"]["bytes"]) for rank in done[-1]["ranks"])
    same = exported(machines, name) == expected
    print(f"{mbit:5} Mb/s: a step takes {step_s:.2f} s, planned {planned_s:.2f} s "
          f"({100 * (planned_s / step_s - 1):+.0f} %), limited by {plan['bottleneck']}; "
          f"it sends {last / 1e6:.1f} MB, planned {planned_bytes / 1e6:.1f} MB; the wire counted "
          f"{counted / 1e6:.1f} MB of {ours / 1e6:.1f} MB ({100 * (counted / ours - 1):+.1f} %); "
          f"{'the bits of one process' if same else 'OTHER BITS than one process'}", flush=True)
    return same


def slowed_run(machines, name, count, slowed, *flags):
    """The median step and the exported hash of a run of `count` processes on devices that are
    slowed, one on the first machine or as many on each."""
    folder = machines.folder
    (folder / f"{name}.toml").write_text(RUN_FILE.format(output=name, steps=WARM_STEPS + 3))
    words = [machines.program, "train", f"{name}.toml", "--train.devices", f"cpu/{slowed}",
             "--train.optimizer_threads", "1", *flags]
    if count == 1:
        must(machines.inside(0, words), cwd=folder)
    else:
        machines.mpirun(words, count // 2)
    steps = steps_of(folder / name / "metrics.jsonl")[WARM_STEPS:]
    return statistics.median(step["step_s"] for step in steps), exported(machines, name)


def scaling(machines, mbit, slowed):
    """The step of one process, and of one and two on each machine, whose devices are slowed."""
    machines.set_rate(mbit)
    runs = [slowed_run(machines, f"slowed{mbit}-{count}", count, slowed) for count in (1, 2, 4)]
    medians = [step_s for step_s, _ in runs]
    print(f"{mbit:5} Mb/s: with cpu/{slowed}, a step takes {medians[0]:.2f} s in one process, "
          f"{medians[1]:.2f} s in one on each machine ({medians[0] / medians[1]:.2f} x), "
          f"{medians[2]:.2f} s in two on each ({medians[0] / medians[2]:.2f} x)", flush=True)
    return len({of_run for _, of_run in runs}) == 1


def orders(machines, mbit, slowed):
    """The step of two processes on each machine, in each order of their exchanges."""
    machines.set_rate(mbit)
    runs = {order: slowed_run(machines, f"{order}{mbit}", 4, slowed, "--parallel.exchange", order)
            for order in ("flat", "halo", "rounds")}
    print(f"{mbit:5} Mb/s: with cpu/{slowed}, two on each machine, a step takes " + ", ".join(
        f"{step_s:.2f} s {order}" for order, (step_s, _) in runs.items()), flush=True)
    return len({of_run for _, of_run in runs.values()}) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pagoda")
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000, 100])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9, help="of the network's exchanges")
    parser.add_argument("--slowed", type=int, help="how often devices are slowed, to see scaling")
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    if lacking := machine_spaces.lacks():
        print(f"SKIPPED: {lacking}")
        return 0
    with machine_spaces.machines(args.pagoda, directory=args.dir) as machines:
        expected = prepare(machines, args.steps)
        good = [at_rate(machines, mbit, args.steps, args.rounds, expected) for mbit in args.mbit]
        if args.slowed:
            good += [scaling(machines, mbit, args.slowed) for mbit in args.mbit]
            good += [orders(machines, mbit, args.slowed) for mbit in args.mbit]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
