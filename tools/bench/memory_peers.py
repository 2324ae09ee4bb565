#!/usr/bin/env python3
"""Memory of training steps with one to eight experts per token, beside PyTorch's (HEXA-MoE's
Table 7): the model of `pagoda bench step` with eight experts, on one CPU device.

    python3 tools/bench/memory_peers.py build/release/pagoda [--top 1,2,3,4,5,6,7,8] [--steps 3]
        [--threads N] [--venv build/step_peers] [--dir build]

    pagoda in place     everything on the device, rows read where attention left them
    pagoda copied       the same, experts read copies of their rows
    pagoda saving       in place, with room for what the backward would compute again otherwise
    pagoda paged        step_peers.py's: 8 bytes of memory a parameter
    grouped             Transformers' grouped_mm, rows sorted by their experts (as MegaBlocks' dMoE)
    padded              all experts in one batched product, each with the busiest one's rows (as
                        Tutel), no row is dropped

PyTorch has bf16 weights and fused AdamW on fp32 masters. Memory is step_peers.py's: of the whole
process for pagoda, of the steps for PyTorch. The first losses of a column are held to be equal
within rounding.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from step_peers import Race, fail, header, make_environment, run_process, shapes

OURS = ("pagoda in place", "pagoda copied", "pagoda saving", "pagoda paged")
PEERS = {"grouped": "grouped_mm masters", "padded": "padded masters"}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def bytes_of_all(plan):
    """The memory.device that holds everything and saves nothing for the backward, by the plan that
    `pagoda train` prints; None: it does not hold everything."""
    def size(pattern):
        found = re.search(pattern + r" +([\d.]+) (B|KiB|MiB|GiB)", plan, re.MULTILINE)
        return float(found.group(1)) * UNITS[found.group(2)] if found else 0

    if "everything fits on the device" not in plan:
        return None
    return 1.005 * size("^device:") - size("^  kept")  # sizes are printed rounded


class TopK(Race):
    """A race whose models are named by their experts per token."""

    def model(self, name):
        path = self.folder / name
        if not path.exists():
            config = self.folder / f"{name}.json"
            config.write_text(json.dumps(shapes()["mixtral"] | {
                "num_experts_per_tok": int(name.removeprefix("top-"))}), encoding="utf-8")
            run_process([self.arguments.program, "init", "--config", config, "--seed", "1", "--out",
                         path])
        self.parameters[name] = (path / "model.safetensors").stat().st_size // 2  # bf16
        return path

    def whole_bytes(self, name):
        """bytes_of_all() of the model."""
        asked = subprocess.run(
            [self.arguments.program, "train", "--model.path", self.model(name), "--data.path",
             self.folder / "none.txt", "--train.output_dir", self.folder / "run",
             *(f"--{key}={value}" for key, value in {
                 "data.sequence_len": 1024, "train.tokens_per_step": 4096,
                 "train.micro_batch_tokens": 4096, "train.threads": self.arguments.threads,
                 "train.save_steps": 0, "memory.device": "64GiB",
                 "memory.host": "512MiB"}.items())], capture_output=True, text=True, check=False)
        whole = bytes_of_all(asked.stderr)
        if whole is None:
            fail(f"no plan of {name}: {asked.stderr[-2000:]}")
        return whole

    def run(self, name, variant):
        if variant in PEERS:
            return self.peer(name, PEERS[variant])
        if variant == "pagoda paged":
            return self.pagoda(name, variant)
        more = {"plan.in_place": "false"} if variant == "pagoda copied" else {}
        if variant != "pagoda saving":
            more["memory.device"] = f"{int(self.whole_bytes(name))}B"
        return self.pagoda(name, variant, more)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("program", help="build/release/pagoda")
    parser.add_argument("--top", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--venv", type=Path, default=Path("build/step_peers"))
    parser.add_argument("--dir", type=Path, default=Path("build"), help="for models and pages")
    arguments = parser.parse_args()
    make_environment(arguments.venv)
    folder = arguments.dir / f"memory-peers-{os.getpid()}"
    folder.mkdir(parents=True)
    names = [f"top-{k}" for k in arguments.top.split(",")]
    gib = {}
    try:
        race = TopK(arguments, folder)
        for name in names:
            losses = {}
            for variant in (*OURS, *PEERS):
                run = race.run(name, variant)
                losses[variant], gib[variant, name] = run["losses"][0], run["peak_bytes"] / 2**30
                print(f"{name}, {variant}: {gib[variant, name]:.2f} GiB", flush=True)
            if max(losses.values()) - min(losses.values()) > 2**-6 * min(losses.values()):
                fail(f"the first losses differ: {losses}")
            shutil.rmtree(folder / name)
    finally:
        shutil.rmtree(folder)
    print(header(arguments).replace("step_peers", "memory_peers", 1))
    print(f"GiB, 4 x 1024 tokens a step, {arguments.steps} steps a run; the last column: the last "
          f"over the first")
    print(f"{'':18}" + "".join(f"{name:>8}" for name in names) + f"{'growth':>9}")
    for variant in (*OURS, *PEERS):
        row = [gib[variant, name] for name in names]
        print(f"{variant:18}" + "".join(f"{value:8.2f}" for value in row) +
              f"{row[-1] / row[0]:9.3f}")


if __name__ == "__main__":
    main()
