#!/usr/bin/env python3
"""Races pagoda's Adam against DeepSpeed's CPUAdam and PyTorch's fused AdamW, interleaved.

    python3 tools/bench/adam_peers.py build/release/adam_probe [--threads N] [--rounds 11]
        [--venv build/adam_peers] [--raw FILE]

Makes a virtual environment with torch and deepspeed in --venv if there is none, and runs itself
there. DeepSpeed compiles its optimizer itself on first use, for this processor; where it cannot,
the table says why and goes on without it.

All update the same number of parameters: one tensor of 64 Mi, and 24 of 2.5 Mi, which are an
expert each. A gradient comes in bf16 and a weight leaves in bf16; the state is in fp32. For the
peers, which keep an fp32 master, that is gradient.copy_, step, weight.copy_; "step alone" leaves
the casts out. In each round each has its turn; ratios are taken inside a round, of parameters per
second, those of pagoda with fp32 state over each other's. --raw keeps the seconds of every round.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

PACKAGES = ["torch==2.9.1", "numpy", "ninja"]
DEEPSPEED = "deepspeed==0.19.8"  # its setup wants torch to be there already
SHAPES = {"one tensor of 64 Mi": (1 << 26, 1), "24 tensors of 2.5 Mi": (5 << 19, 24)}
FORMATS = ["fp32", "bf16", "8bit"]
IN_VENV = "--in-venv"


def run_in_venv(folder):
    """This program again, with the Python of `folder`, which is made if there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(pip + PACKAGES + ["setuptools", "wheel"], check=True)
        if subprocess.run(pip + ["--no-build-isolation", DEEPSPEED], check=False).returncode != 0:
            print(f"adam_peers: {DEEPSPEED} cannot be installed", file=sys.stderr)
    os.execv(python, [str(python), *sys.argv, IN_VENV])


class Pagoda:
    def __init__(self, program, name, elements, count, threads):
        command = [program, name, str(elements), str(count), str(threads)]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    """fp32 masters under an optimizer, with bf16 gradients and weights beside them."""

    def __init__(self, make_optimizer, casts, elements, count):
        import torch
        generator = torch.Generator().manual_seed(1)
        tile = torch.randn(1 << 16, generator=generator) * 0.01
        values = tile.repeat(elements // tile.numel())
        self.casts = casts
        self.masters = [torch.nn.Parameter(values.clone()) for _ in range(count)]
        self.weights = [values.bfloat16() for _ in range(count)]
        self.gradients = [values.bfloat16() for _ in range(count)]
        for master in self.masters:
            master.grad = values.clone()
        self.optimizer = make_optimizer(self.masters)

    def round(self):
        import torch
        begin = time.perf_counter()
        with torch.no_grad():
            if self.casts:
                for master, gradient in zip(self.masters, self.gradients):
                    master.grad.copy_(gradient)
            self.optimizer.step()
            if self.casts:
                for master, weight in zip(self.masters, self.weights):
                    weight.copy_(master)
        return time.perf_counter() - begin

    def close(self):
        pass


def deepspeed_adam():
    """What makes DeepSpeed's optimizer, or None and why not."""
    try:
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(8))])
    except Exception as error:  # its builder raises whatever comes its way
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return lambda parameters: DeepSpeedCPUAdam(parameters, lr=1e-5), ""


def torch_adam(parameters):
    import torch
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def race(program, elements, count, threads, rounds, peers):
    """Seconds of each by name, a list over rounds."""
    makers = [(f"pagoda {name}", lambda name=name: Pagoda(program, name, elements, count, threads))
              for name in FORMATS]
    for name, make in peers:
        for casts, suffix in ((True, ""), (False, ", step alone")):
            makers.append((name + suffix,
                           lambda make=make, casts=casts: Peer(make, casts, elements, count)))
    runners = {name: make() for name, make in makers}
    seconds = {name: [] for name in runners}
    names = list(runners)
    for number in range(rounds + 1):
        for i in range(len(names)):
            name = names[(i + number) % len(names)]
            taken = runners[name].round()
            if number > 0:  # the first warms up
                seconds[name].append(taken)
    for runner in runners.values():
        runner.close()
    return seconds


def table(parameters, seconds):
    ours = seconds["pagoda fp32"]
    lines = [f"{'':32} {'Gparam/s':>9} {'fp32 is faster':>14} {'min':>6} {'max':>6}"]
    for name, taken in seconds.items():
        ratios = [theirs / own for theirs, own in zip(taken, ours)]
        rate = parameters / statistics.median(taken) / 1e9
        lines.append(f"{name:32} {rate:9.3f} {statistics.median(ratios):14.2f} "
                     f"{min(ratios):6.2f} {max(ratios):6.2f}")
    return "\n".join(lines)


def processor():
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def header(arguments, peers_missing):
    import torch
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    lines = [f"adam_peers, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}",
             f"{processor()}, {os.cpu_count()} cores, {arguments.threads} threads, "
             f"{arguments.rounds} rounds", f"torch {torch.__version__}, {DEEPSPEED}"]
    return "\n".join(lines + peers_missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="build/release/adam_probe")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--venv", type=Path, default=Path("build/adam_peers"))
    parser.add_argument("--raw", type=Path)
    parser.add_argument(IN_VENV, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.in_venv:
        run_in_venv(arguments.venv)
    # Both OpenMP runtimes, PyTorch's own and the one DeepSpeed's extension links, read this once.
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    # The optimizer's builder looks for the ninja of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    peers = [("torch fused AdamW", torch_adam)]
    make_deepspeed, why = deepspeed_adam()
    missing = []
    if make_deepspeed:
        peers.insert(0, ("DeepSpeed CPUAdam", make_deepspeed))
    else:
        missing.append(f"DeepSpeed CPUAdam: not measured: {why}")
    report, raw = [header(arguments, missing)], {}
    for name, (elements, count) in SHAPES.items():
        seconds = race(arguments.program, elements, count, arguments.threads, arguments.rounds,
                       peers)
        raw[name] = seconds
        report.append(f"\n{name}\n{table(elements * count, seconds)}")
    print("\n".join(report))
    if arguments.raw:
        arguments.raw.parent.mkdir(parents=True, exist_ok=True)
        lines = ["\nSeconds of every round:"]
        for shape, seconds in raw.items():
            lines += ["", shape]
            lines += [f"{name}: {' '.join(f'{s:.4f}' for s in taken)}"
                      for name, taken in seconds.items()]
        arguments.raw.write_text("\n".join(report + lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
