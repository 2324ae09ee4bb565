#!/usr/bin/env python3
"""Races pagoda's products of cold experts against PyTorch's, on the same threads, interleaved.

    python tools/bench/gemm_peers.py build/release/pagoda [--threads N] [--rounds 5] [--mib 1024]
        [--hidden 2048] [--ffn 768 1408] [--tokens 16 64 256 1024] [--raw FILE]

Needs a Python with torch: tools/install-deps.sh --python makes one. An expert's six products in
bf16, on --mib of weights: all experts forward, then all backward, so that weights are cold in both
directions where --mib is far more than the caches hold. As `pagoda bench gemm` does:

    loop     torch.mm expert by expert into memory that is there; experts share their activations;
             weight gradients in bf16, as PyTorch has them (ours: fp32)
    grouped  torch._grouped_mm over all experts at once, where this PyTorch has it. It makes its
             results itself; freed memory is kept for the next ones

In each round each side runs once to warm up and once on the clock; another side begins each round.
Prints GFLOP/s of each (medians of the rounds) and the median of the rounds' own ratios.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import time

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)


def keep_freed_memory():
    """Results that are made anew would else be new pages each time, which the system clears."""
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16)


class Experts:
    """Weights of all experts, their activations, and what the loop's products are written to."""

    def __init__(self, hidden, ffn, tokens, weight_bytes):
        self.count = max(2, weight_bytes // (6 * hidden * ffn))
        self.operations = self.count * 18 * hidden * ffn * tokens
        self.gate_up = randn(self.count, 2 * ffn, hidden)
        self.down = randn(self.count, hidden, ffn)
        rows = self.count * tokens
        self.x, self.dout = randn(rows, hidden), randn(rows, hidden)
        self.act, self.dgate_up = randn(rows, ffn), randn(rows, 2 * ffn)
        self.ends = torch.arange(1, self.count + 1, dtype=torch.int32) * tokens
        self.of_one = [t[:tokens] for t in (self.x, self.dout, self.act, self.dgate_up)]
        self.y, self.dx = randn(tokens, hidden), randn(tokens, hidden)
        self.y_gate_up, self.dact = randn(tokens, 2 * ffn), randn(tokens, ffn)
        buffers = -(-self.count // 4)
        self.gradients = [(randn(2 * ffn, hidden), randn(hidden, ffn)) for _ in range(buffers)]


def run_loop(e):
    x, dout, act, dgate_up = e.of_one
    for gate_up, down in zip(e.gate_up, e.down):
        torch.mm(x, gate_up.t(), out=e.y_gate_up)
        torch.mm(act, down.t(), out=e.y)
    for i, (gate_up, down) in enumerate(zip(e.gate_up, e.down)):
        gate_up_gradient, down_gradient = e.gradients[i % len(e.gradients)]
        torch.mm(dout, down, out=e.dact)
        torch.mm(dout.t(), act, out=down_gradient)
        torch.mm(dgate_up.t(), x, out=gate_up_gradient)
        torch.mm(dgate_up, gate_up, out=e.dx)


def run_grouped(e):
    """Those of gate_up come first in either direction: down is not read twice in a row."""
    grouped = torch._grouped_mm
    grouped(e.x, e.gate_up.transpose(1, 2), offs=e.ends)
    grouped(e.act, e.down.transpose(1, 2), offs=e.ends)
    grouped(e.dgate_up.t(), e.x, offs=e.ends)
    grouped(e.dgate_up, e.gate_up, offs=e.ends)
    grouped(e.dout.t(), e.act, offs=e.ends)
    grouped(e.dout, e.down, offs=e.ends)


def rate(run, experts):
    run(experts)  # warms up
    begin = time.perf_counter()
    run(experts)
    return experts.operations / (time.perf_counter() - begin) / 1e9


def rate_of_pagoda(arguments, ffn, tokens):
    words = [arguments.program, "bench", "gemm", "--json", "--rounds", "1",
             "--bytes", f"{arguments.mib}MiB", "--threads", str(arguments.threads),
             "--hidden", str(arguments.hidden), "--ffn", str(ffn), "--tokens", str(tokens)]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(found.stdout)["figures"][0]["value"]


def candidates(experts):
    found = {"loop": run_loop}
    try:
        run_grouped(experts)
        found["grouped"] = run_grouped
    except (AttributeError, RuntimeError, TypeError) as error:
        print(f"grouped: not measured: {str(error).splitlines()[0]}")
    return found


def race(arguments, ffn, tokens):
    experts = Experts(arguments.hidden, ffn, tokens, arguments.mib << 20)
    runs = candidates(experts)
    names = ["pagoda", *runs]
    rounds = []
    for i in range(arguments.rounds):
        first = i % len(names)
        rates = {}
        for name in names[first:] + names[:first]:
            rates[name] = (rate_of_pagoda(arguments, ffn, tokens) if name == "pagoda"
                           else rate(runs[name], experts))
        rounds.append(rates)
    text = f"f {ffn:5} tokens {tokens:5}"
    for name in names:
        text += f"  {name} {statistics.median(r[name] for r in rounds):7.0f}"
    for name in runs:
        text += f"  x {name} {statistics.median(r['pagoda'] / r[name] for r in rounds):.2f}"
    print(text, flush=True)
    return {"ffn": ffn, "tokens": tokens, "rounds": rounds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="of weights")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--ffn", type=int, nargs="+", default=[768, 1408])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--raw", help="JSON of every round")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}, {arguments.threads} threads, "
          f"{arguments.mib} MiB of weights, GFLOP/s")
    found = [race(arguments, f, t) for f in arguments.ffn for t in arguments.tokens]
    if arguments.raw:
        with open(arguments.raw, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
