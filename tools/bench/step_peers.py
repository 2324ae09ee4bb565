#!/usr/bin/env python3
"""Races whole training steps of pagoda against Transformers' on PyTorch's CPU.

    python3 tools/bench/step_peers.py build/release/pagoda [--rounds 3] [--steps 6] [--threads N]
        [--models qwen3_moe,mixtral] [--venv build/step_peers] [--dir build] [--raw FOLDER]

Makes a virtual environment of tools/requirements.txt in --venv if there is none. The models are
those of `pagoda bench step`, with random weights that both sides read from one folder; both take
the same rows of text, a batch of 4 of 1024 tokens a step, clip the norm of all gradients and update
with AdamW. In each round each variant runs once, in a process of its own:

    pagoda resident      everything on the device
    pagoda paged         8 bytes of memory a parameter, half of what PyTorch needs at least
    EXPERTS autocast     fp32 weights, bf16 autocast, fused AdamW
    EXPERTS masters      bf16 weights, fused AdamW on fp32 masters beside them

EXPERTS is eager (a loop over experts) or grouped_mm, Transformers' experts_implementation.
grouped_mm knows no autocast and multiplies fp32 weights in fp32, therefore the second way; a goal
holds against the better one. eager takes three steps only. Seconds are medians of the steps after
the first two, the table shows medians of the rounds and ratios taken inside a round. Peak memory is
that of the whole process for pagoda, and for PyTorch that of its steps, without what loading took.

--raw keeps the rounds: those that lie in FOLDER from runs before belong to the table, so that it
can be made in several goes of one build.
"""

import argparse
import json
import math
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_STEPS = 2  # pagoda's first updates run in the second step
ROWS, LENGTH = 4, 1024  # of a step
TEXT_ROWS = 64
RATE, DECAY, CLIP_NORM, BETAS, EPS = 1e-4, 0.01, 1.0, (0.9, 0.95), 1e-8
PAGED_BYTES = 8  # bytes of memory a parameter
PROGRAM_BYTES = 300 << 20  # a program's memory beside its budgets
GOALS = {"eager": 3.0, "grouped_mm": 2.0}
PEERS = [f"{experts} {way}" for experts in GOALS for way in ("autocast", "masters")]
OURS = ["pagoda resident", "pagoda paged"]
WORKER = "--worker"


def fail(what):
    raise SystemExit(f"step_peers: {what}")


def shapes():
    """config.json of each model by name, as src/bench/step_shapes.h has them."""
    text = (ROOT / "src/bench/step_shapes.h").read_text(encoding="utf-8")
    found = re.findall(r'\{"(\w+)", R"\((\{.*?\})\)"\}', text, re.DOTALL)
    return {name: json.loads(config) for name, config in found}


# ---- PyTorch's side: a process that takes steps and prints what each was ----


def padded_experts(self, hidden_states, top_k_index, top_k_weights):
    """All experts in one batched product, each with as many rows as the busiest one: what
    GShard-like libraries do (HEXA-MoE 2.2), without dropping a row."""
    import torch
    experts, (tokens, top_k) = self.num_experts, top_k_index.shape
    chosen = top_k_index.reshape(-1)
    order = torch.argsort(chosen, stable=True)
    counts = torch.bincount(chosen, minlength=experts)
    most, of_sorted = int(counts.max()), chosen[order]
    place = torch.arange(tokens * top_k) - (counts.cumsum(0) - counts)[of_sorted] + most * of_sorted
    rows = hidden_states.new_zeros(experts * most, hidden_states.shape[-1])
    rows = rows.index_copy(0, place, hidden_states[order // top_k]).view(experts, most, -1)
    gate, up = torch.bmm(rows, self.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
    out = torch.bmm(self.act_fn(gate) * up, self.down_proj.transpose(1, 2)).flatten(0, 1)
    weighted = out[place] * top_k_weights.reshape(-1)[order, None]
    return torch.zeros_like(hidden_states).index_add(0, order // top_k,
                                                     weighted.to(hidden_states.dtype))


class Peer:
    def __init__(self, model, way, experts):
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        ALL_EXPERTS_FUNCTIONS.register("padded", padded_experts)
        self.autocast = way == "autocast"
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="sdpa",
            experts_implementation=experts).train()
        with torch.no_grad():  # own memory: a mapped file would choose slower kernels
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()
        self.masters = list(self.model.parameters())
        if not self.autocast:
            self.masters = [torch.nn.Parameter(p.detach().clone()) for p in self.masters]
            self.model.to(torch.bfloat16)
        self.weights = list(self.model.parameters())
        groups = [dict(params=[p for p in self.masters if p.dim() >= 2], weight_decay=DECAY),
                  dict(params=[p for p in self.masters if p.dim() < 2], weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)

    def loss(self, tokens, targets):
        """Cross-entropy, and what is to be made smaller: with the balance loss."""
        import torch
        out = self.model(input_ids=tokens, use_cache=False, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits.float().flatten(0, 1),
                                                 targets.flatten(), ignore_index=-1)
        return loss, loss + self.model.config.router_aux_loss_coef * out.aux_loss

    def step(self, tokens, targets):
        import torch
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss, objective = self.loss(tokens, targets)
        objective.backward()
        if not self.autocast:
            for master, weight in zip(self.masters, self.weights):
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not self.autocast:
            with torch.no_grad():
                for master, weight in zip(self.masters, self.weights):
                    weight.copy_(master)
        return float(loss.detach())


def batches(model, text, steps):
    """Tokens and targets of each step, in the order that pagoda shuffles its rows."""
    sys.path.insert(0, str(ROOT / "tools"))
    import torch
    from reference.documents import documents_for
    from reference.packed_rows import PackedRows
    rows = PackedRows(documents_for(model, [text]), LENGTH)
    for step in range(steps):
        batch = rows.shuffled(step * ROWS, ROWS)
        if batch.padding.any() or batch.documents.any():
            fail("a row is not one whole document")
        yield torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)


def peak_bytes():
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found.group(1)) * 1024


def forget_peak():
    """What loading took is not counted from here on."""
    import ctypes
    import gc
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def work(arguments):
    import torch
    from transformers.utils import logging
    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    experts, way = arguments.worker.split()
    peer = Peer(arguments.model, way, experts)
    data = list(batches(arguments.model, arguments.text, arguments.steps))
    forget_peak()
    losses, seconds = [], []
    for tokens, targets in data:
        begin = time.perf_counter()
        losses.append(peer.step(tokens, targets))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(dict(losses=losses, seconds=seconds, peak_bytes=peak_bytes())))


# ---- the race ----


def write_text(path):
    """Whole rows of even bytes: the experts of a random model then have about equal loads."""
    one_byte = [chr(code) for code in range(0x20, 0x7f)]
    two_bytes = [chr(code) for code in range(0xa0, 0x800)]
    drawn = random.Random(1).choices(20 * one_byte + two_bytes, k=TEXT_ROWS * LENGTH)
    data = "".join(drawn).encode()[:TEXT_ROWS * LENGTH - 1].decode(errors="ignore").encode()
    path.write_bytes(data + b"a" * (TEXT_ROWS * LENGTH - len(data)))


def run_process(command, environment=None):
    """What it printed, and the most memory it had."""
    with subprocess.Popen([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment) as process:
        printed, errors = process.communicate()
        if process.returncode != 0:
            fail(f"{command} exits with {process.returncode}: {errors[-2000:]}")
    return printed


def run_pagoda(command):
    """Its peak of memory in bytes."""
    log = Path(command[command.index("--train.output_dir") + 1]).with_suffix(".log")
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        fail(f"{command} exits with {process.returncode}: {log.read_text()[-2000:]}")
    log.unlink()
    return usage.ru_maxrss * 1024


class Race:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.text = folder / "text.txt"
        write_text(self.text)
        self.parameters = {}

    def model(self, name):
        path = self.folder / name
        if not path.exists():
            config = self.folder / f"{name}.json"
            config.write_text(json.dumps(shapes()[name]), encoding="utf-8")
            run_process([self.arguments.program, "init", "--config", config, "--seed", "1", "--out",
                         path])
        self.parameters[name] = (path / "model.safetensors").stat().st_size // 2  # bf16
        return path

    def pagoda(self, name, variant, more=None):
        """`more`: options besides, or others."""
        model, out = self.model(name), self.folder / "run"
        budgets = ("64GiB", "512MiB")  # host memory is only passed through
        if variant == "pagoda paged":
            half = (PAGED_BYTES * self.parameters[name] - PROGRAM_BYTES) // 2
            budgets = (f"{half}B", f"{half}B")
        options = {
            "model.path": model, "data.path": self.text, "data.sequence_len": LENGTH,
            "train.output_dir": out, "train.steps": self.arguments.steps,
            "train.tokens_per_step": ROWS * LENGTH, "train.micro_batch_tokens": ROWS * LENGTH,
            "train.threads": self.arguments.threads, "train.save_steps": 0, "train.eval_steps": 0,
            "train.log_steps": self.arguments.steps, "optim.learning_rate": RATE,
            "optim.schedule": "constant", "optim.weight_decay": DECAY, "optim.beta1": BETAS[0],
            "optim.beta2": BETAS[1], "optim.eps": EPS, "optim.clip_norm": CLIP_NORM,
            "memory.device": budgets[0], "memory.host": budgets[1]} | (more or {})
        command = [self.arguments.program, "train"]
        for key, value in options.items():
            command += [f"--{key}", str(value)]
        peak = run_pagoda(command)
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [r for r in map(json.loads, lines) if r["type"] == "step"]
        shutil.rmtree(out)
        moved = {field: sum(r[field] for r in steps[WARM_STEPS:])
                 for field in ("fetch_bytes", "write_back_bytes")}
        if variant == "pagoda paged" and min(moved.values()) <= 0:
            fail(f"the paged run of {name} did not page: {moved}")
        return dict(losses=[r["loss"] for r in steps], seconds=[r["step_s"] for r in steps],
                    peak_bytes=peak, **moved)

    def peer(self, name, variant):
        threads, steps = str(self.arguments.threads), self.arguments.steps
        if variant.startswith("eager"):
            steps = min(steps, WARM_STEPS + 1)
        python = self.arguments.venv / "bin" / "python"
        printed = run_process(
            [python, __file__, self.arguments.program, WORKER, variant, "--model",
             self.model(name), "--text", self.text, "--threads", threads, "--steps",
             steps],
            os.environ | {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"})
        return json.loads(printed.splitlines()[-1])

    def round(self, name, number):
        """Every variant once, beginning with another one in each round."""
        variants, runs = OURS + PEERS, {}
        for i in range(len(variants)):
            variant = variants[(i + number) % len(variants)]
            run = self.pagoda if variant in OURS else self.peer
            runs[variant] = run(name, variant)
            print(f"{name}, {variant}: {step_seconds(runs[variant]):.3f} s a step, "
                  f"{runs[variant]['peak_bytes'] / 2**30:.2f} GiB", file=sys.stderr)
        return dict(model=name, steps=self.arguments.steps, threads=self.arguments.threads,
                    parameters=self.parameters[name], runs=runs)


def step_seconds(run):
    return statistics.median(run["seconds"][WARM_STEPS:])


# ---- the table ----


def ratios(rounds, variant, base):
    """Steps of `variant` in the time of one of `base`, in each round."""
    return [step_seconds(r["runs"][base]) / step_seconds(r["runs"][variant]) for r in rounds]


def median_of(rounds, variant, what):
    return statistics.median(what(r["runs"][variant]) for r in rounds)


def rows_of(rounds):
    lines = [f"{'':20} {'s/step':>7} {'token/s':>8} {'GiB':>6} {'resident x':>11} {'min':>6} "
             f"{'max':>6} {'paged x':>8}"]
    for variant in OURS + PEERS:
        seconds = median_of(rounds, variant, step_seconds)
        resident = ratios(rounds, OURS[0], variant)
        paged = statistics.median(ratios(rounds, OURS[1], variant))
        memory = median_of(rounds, variant, lambda run: run["peak_bytes"]) / 2**30
        lines.append(f"{variant:20} {seconds:7.3f} {ROWS * LENGTH / seconds:8.0f} {memory:6.2f} "
                     f"{statistics.median(resident):11.2f} {min(resident):6.2f} "
                     f"{max(resident):6.2f} {paged:8.2f}")
    return lines


def goals_of(rounds):
    lines = []
    for experts, goal in GOALS.items():
        ways = [v for v in PEERS if v.startswith(experts + " ")]
        better = min(ways, key=lambda way: median_of(rounds, way, step_seconds))
        ratio = statistics.median(ratios(rounds, OURS[0], better))
        lines.append(f"resident against {better}, the better way: {ratio:.2f}; goal {goal}: "
                     f"{'reached' if ratio >= goal else 'MISSED'}")
    least = min(median_of(rounds, v, lambda run: run["peak_bytes"]) for v in PEERS)
    share = median_of(rounds, OURS[1], lambda run: run["peak_bytes"]) / least
    lines.append(f"paged memory over the least of PyTorch's: {share:.2f}; goal 0.50: "
                 f"{'reached' if share <= 0.5 else 'MISSED'}")
    return lines


def losses_of(first):
    """Step by step, of one round."""
    runs = first["runs"]
    lines = [f"{'step':20} " + " ".join(f"{s + 1:9}" for s in range(first["steps"]))]
    for variant in OURS + PEERS:
        lines.append(f"{variant:20} " + " ".join(f"{x:9.5f}" for x in runs[variant]["losses"]))
    ours = runs[OURS[0]]["losses"]
    for variant in PEERS:
        largest = max(abs(a - b) for a, b in zip(ours, runs[variant]["losses"]))
        lines.append(f"largest difference to {variant}: {largest:.5f}")
    among = max(max(x) - min(x) for x in zip(*(runs[v]["losses"] for v in PEERS)))
    lines.append(f"largest difference among PyTorch's own: {among:.5f}")
    if runs[OURS[1]]["losses"] != ours:
        fail("paging changed the losses")
    if not all(map(math.isfinite, ours)):
        fail("a loss is not finite")
    return lines


def table(name, rounds):
    parameters = rounds[0]["parameters"] / 1e6
    return "\n".join(
        [f"\n{name}: {parameters:.1f} M parameters, {ROWS} x {LENGTH} tokens a step, "
         f"{rounds[0]['steps']} steps a run, {len(rounds)} rounds"] +
        rows_of(rounds) + goals_of(rounds) + losses_of(rounds[0]))


def header(arguments):
    def text_of(command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    commit = text_of(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    versions = text_of([str(arguments.venv / "bin" / "python"), "-c",
                        "import torch, transformers; print('torch', torch.__version__, "
                        "'transformers', transformers.__version__)"])
    processor = next((line.split(":", 1)[1].strip()
                      for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                      if line.startswith("model name")), platform.machine())
    return (f"step_peers, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}\n"
            f"{processor}, {os.cpu_count()} cores, {arguments.threads} threads; {versions}")


def make_environment(folder):
    if (folder / "bin" / "python").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet",
                    "--disable-pip-version-check", "-r", str(ROOT / "tools/requirements.txt")],
                   check=True)


def race(arguments):
    arguments.raw.mkdir(parents=True, exist_ok=True)
    folder = arguments.dir / f"step-peers-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        contest = Race(arguments, folder)
        for _ in range(arguments.rounds):
            for name in arguments.models.split(","):
                number = len(list(arguments.raw.glob(f"{name}-*.json"))) + 1
                found = contest.round(name, number)
                (arguments.raw / f"{name}-{number:02}.json").write_text(
                    json.dumps(found, indent=1) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder)
    report = [header(arguments)]
    for name in shapes():
        rounds = [json.loads(path.read_text(encoding="utf-8"))
                  for path in sorted(arguments.raw.glob(f"{name}-*.json"))]
        if rounds:
            report.append(table(name, rounds))
    print("\n".join(report))
    (arguments.raw / "table.txt").write_text("\n".join(report) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="build/release/pagoda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", default=",".join(shapes()))
    parser.add_argument("--venv", type=Path, default=Path("build/step_peers"))
    parser.add_argument("--dir", type=Path, default=Path("build"), help="for models and pages")
    parser.add_argument("--raw", type=Path, default=Path("build/step_peers_rounds"))
    parser.add_argument(WORKER, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--text", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    if arguments.steps <= WARM_STEPS:
        fail(f"--steps must be more than {WARM_STEPS}")
    make_environment(arguments.venv)
    race(arguments)


if __name__ == "__main__":
    main()
