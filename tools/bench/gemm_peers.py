#!/usr/bin/env python3
"""Races pagoda's products of cold experts against PyTorch's, on the same threads, interleaved.

    python tools/bench/gemm_peers.py build/release/pagoda [--threads N] [--rounds 5]
        [--hidden 2048] [--ffn 768 1408] [--tokens 16 64 256 1024] [--raw FILE]

Needs a Python with torch: tools/install-deps.sh --python makes one. An expert's six products,
forward and backward, bf16 with weights that were last read many experts ago:

    loop     torch.mm expert by expert; weight gradients in bf16, as PyTorch has them (ours: fp32)
    grouped  torch._grouped_mm over all experts of a round at once, where this PyTorch has it

Prints GFLOP/s of each (medians of the rounds) and the median of the rounds' own ratios.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch

WEIGHT_BYTES = 512 << 20


class Experts:
    """Weights of enough experts to be cold, and activations that all share."""

    def __init__(self, hidden, ffn, tokens):
        count = max(2, WEIGHT_BYTES // (6 * hidden * ffn))
        self.batch = max(2, min(count, 4096 // tokens))
        self.tokens, self.next = tokens, 0
        self.operations = self.batch * 18 * hidden * ffn * tokens
        self.count = count // self.batch * self.batch
        self.gate_up = torch.randn(self.count, 2 * ffn, hidden).to(torch.bfloat16)
        self.down = torch.randn(self.count, hidden, ffn).to(torch.bfloat16)
        rows = self.batch * tokens
        self.x = torch.randn(rows, hidden).to(torch.bfloat16)
        self.dout = torch.randn(rows, hidden).to(torch.bfloat16)
        self.act = torch.randn(rows, ffn).to(torch.bfloat16)
        self.dgate_up = torch.randn(rows, 2 * ffn).to(torch.bfloat16)
        self.ends = torch.arange(1, self.batch + 1, dtype=torch.int32) * tokens

    def weights(self):
        first = self.next
        self.next = (first + self.batch) % self.count
        return self.gate_up[first:first + self.batch], self.down[first:first + self.batch]


def run_loop(e):
    gate_up, down = e.weights()
    for i in range(e.batch):
        rows = slice(i * e.tokens, (i + 1) * e.tokens)
        x, dout, act, dgate_up = e.x[rows], e.dout[rows], e.act[rows], e.dgate_up[rows]
        torch.mm(x, gate_up[i].t())
        torch.mm(act, down[i].t())
        torch.mm(dout, down[i])
        torch.mm(dout.t(), act)
        torch.mm(dgate_up.t(), x)
        torch.mm(dgate_up, gate_up[i])


def run_grouped(e):
    gate_up, down = e.weights()
    grouped = torch._grouped_mm
    grouped(e.x, gate_up.transpose(1, 2), offs=e.ends)
    grouped(e.act, down.transpose(1, 2), offs=e.ends)
    grouped(e.dout, down, offs=e.ends)
    grouped(e.dout.t(), e.act, offs=e.ends)
    grouped(e.dgate_up.t(), e.x, offs=e.ends)
    grouped(e.dgate_up, gate_up, offs=e.ends)


def rate(run, experts):
    begin = time.perf_counter()
    run(experts)
    return experts.operations / (time.perf_counter() - begin) / 1e9


def rate_of_pagoda(arguments, ffn, tokens):
    words = [arguments.program, "bench", "gemm", "--json", "--rounds", "1",
             "--bytes", str(WEIGHT_BYTES >> 20) + "MiB", "--threads", str(arguments.threads),
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
    experts = Experts(arguments.hidden, ffn, tokens)
    runs = candidates(experts)
    rounds = []
    for _ in range(arguments.rounds):
        rates = {"pagoda": rate_of_pagoda(arguments, ffn, tokens)}
        for name, run in runs.items():
            rate(run, experts)  # warms up
            rates[name] = rate(run, experts)
        rounds.append(rates)
    text = f"f {ffn:5} tokens {tokens:5}"
    for name in ["pagoda", *runs]:
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
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--ffn", type=int, nargs="+", default=[768, 1408])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--raw", help="JSON of every round")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}, {arguments.threads} threads, GFLOP/s")
    found = [race(arguments, f, t) for f in arguments.ffn for t in arguments.tokens]
    if arguments.raw:
        with open(arguments.raw, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
