#!/usr/bin/env python3
"""Compares families with Transformers on models of random sizes and switches.

    python tools/draw_families.py build/release [--only NAME] [--draws 8] [--first 1]

Each draw is written over the family's folder in tests/golden, the tests of that folder are run,
and the folder is put back. A line a draw: whether fp32 logits and losses are within 1e-5 and every
gradient within 1e-4 of Transformers (with experts in both layouts), 50 steps of AdamW, greedy
tokens, and the byte-exact round trip hold ("ok", else the tests that fail); then the worst
gradient, the worst loss of the curve, and how far bf16 is at most, in distances of Transformers'
own bf16. Where the curve fails, a second line says how far Transformers' own fp32 is from its fp64
on it, and how far it is from itself when it begins one rounding away: what is nearer than these is
as near as fp32 can tell. Exit 1 when any fails; bf16's ratio is told, not judged
(tests/golden/README.md).
"""

import argparse
import contextlib
import io
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

import make_goldens as goldens
from reference import moe as ref
from reference import random_sizes

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
PROGRAMS = {"parity_test": ("Fp32Parity", "CurveParity", "Bf16Parity"),
            "generation_test": ("CachedForward",), "hf_writer_test": ("RoundTrip",)}
FIGURES = {"gradient": r"worst gradient: ([0-9.e+-]+)",
           "curve": r"largest loss difference over \d+ steps: ([0-9.e+-]+)",
           "bf16": r"in the middle, ([0-9.e+-]+) worst"}
# Qwen3's tests read its model in bf16, and its curve and tokens of another folder.
QWEN3, QWEN3_TINY = "qwen3_moe_bf16", "qwen3_moe_tiny"


def folders_of(family):
    """What a draw is written to; gpt_oss has no other layout, and MXFP4's folder is its curve's."""
    other = "gpt_oss_mxfp4" if family == "gpt_oss" else f"{family}_fused"
    return [family, other] + ([QWEN3_TINY, "curve"] if family == QWEN3 else [])


@contextlib.contextmanager
def put_back(names):
    """Puts the folders back as they were, whatever happens."""
    with tempfile.TemporaryDirectory() as copies:
        there = [name for name in names if (GOLDEN / name).is_dir()]
        for name in there:
            shutil.copytree(GOLDEN / name, Path(copies) / name)
        try:
            yield
        finally:
            for name in names:
                shutil.rmtree(GOLDEN / name, ignore_errors=True)
            for name in there:
                shutil.copytree(Path(copies) / name, GOLDEN / name)


def near_limit(folder):
    """Whether a number is so near SwiGLU's limit that rounding puts it on the other side."""
    model = goldens.load(folder, torch.float32)
    with ref.limit_gap(model) as limits:
        goldens.run_step(model, goldens.expected_batches(folder))
    return min(limits, default=1.0) <= goldens.MIN_LIMIT_GAP


def make_draw(family, number):
    """Returns the seed of the weights: the first without near-ties and idle experts."""
    folder = GOLDEN / family
    config = random_sizes.CONFIGS[family](random.Random(number))
    for seed in range(100 * number, 100 * number + 100):
        for name in folders_of(family):
            shutil.rmtree(GOLDEN / name, ignore_errors=True)
        try:
            model = goldens.make_bf16(folder, config, seed, goldens.MIDDLE_ROWS,
                                      experts_implementation="eager")  # others want wide rows
        except AssertionError as error:
            if " gap " not in str(error) and "without gradient" not in str(error):
                raise
            continue
        if near_limit(folder):
            continue
        finish_draw(family, model)
        return seed
    raise SystemExit(f"{family}: no seed without near-ties and idle experts for draw {number}")


def finish_draw(family, model):
    folder = GOLDEN / family
    names = sorted(load_file(folder / "expected.safetensors"))
    names = [name.removeprefix("grad.") for name in names if name.startswith("grad.")]
    final = names[::max(1, len(names) // 5)]
    goldens.make_greedy(folder, model)
    if family == "gpt_oss":
        shutil.copytree(folder, GOLDEN / "gpt_oss_mxfp4")
    else:
        goldens.make_fused(folder)
    if family != QWEN3:
        return goldens.make_curve(folder / "curve.safetensors", model, 20, final)
    shutil.copytree(folder, GOLDEN / QWEN3_TINY)
    return goldens.make_curve(GOLDEN / "curve/expected.safetensors", model, 40, final)


def run_tests(build, family):
    """The names of failed tests, and the figures that the tests print."""
    failed, texts = [], []
    models = [name for name in folders_of(family) if name != "curve"]
    for program, suites in PROGRAMS.items():
        chosen = ":".join(f"*/{suite}.*/{model}" for suite in suites for model in models)
        done = subprocess.run([build / program, f"--gtest_filter={chosen}", "--gtest_brief=1"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        failed += [name for name in re.findall(r"^\[  FAILED  \] (\S+), where", done.stdout, re.M)
                   if "Bf16Parity" not in name]
        if done.returncode not in (0, 1) or "PASSED" not in done.stdout:
            failed.append(f"{program}: {done.stdout[-300:]}")
        texts.append(done.stdout)
    figures = {name: max(float(x) for x in re.findall(pattern, "".join(texts)))
               for name, pattern in FIGURES.items()}
    return sorted(set(failed)), figures


@contextlib.contextmanager
def in_doubles():
    """What asks PyTorch for fp32 gets fp64: Transformers' norms, angles and softmaxes do."""
    before = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = before[0]
        torch.Tensor.float = before[1]


def one_rounding_away(model):
    """Moves each weight by its last bit, up or down at random."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1.0
            parameter.mul_(1.0 + sign * 2.0**-23)
    return model


def curve_of(family):
    """The folder and the file that the curve's test reads."""
    if family == QWEN3:
        return GOLDEN / QWEN3_TINY, GOLDEN / "curve/expected.safetensors"
    return GOLDEN / family, GOLDEN / family / "curve.safetensors"


def distance_from(want, model, record):
    """The worst loss, relative gradient norm and final tensor (relative L2) of a training again."""
    losses, norms = torch.tensor(record["cross_entropy"]), torch.tensor(record["grad_norm"])
    found = dict(ref.hub_tensors(model.named_parameters(), model.config.model_type))
    finals = {name: float(goldens.distance(found[name], tensor)) for name, tensor in
              ((key.removeprefix("final."), want[key]) for key in want if key.startswith("final."))}
    worst = max(finals, key=finals.get)
    apart = (norms / want["grad_norm"] - 1.0).abs()
    far = (apart > 1e-3).nonzero().flatten().tolist()
    since = f" (above 1e-3 from step {far[0] + 1} on)" if far else ""
    return (f"losses {float((losses - want['cross_entropy']).abs().max()):.2e}, gradient norms "
            f"{float(apart.max()):.2e}{since}, final tensors {finals[worst]:.2e} ({worst})")


def own_distances(family):
    """How far Transformers is from itself on the family's curve."""
    folder, path = curve_of(family)
    want = load_file(path)
    tokens = want["input_ids"].long()
    moved = one_rounding_away(goldens.load(folder, torch.float32))
    near = distance_from(want, moved, goldens.train_curve(moved, tokens))
    exact = goldens.load(folder, torch.float64, experts_implementation="eager")
    with in_doubles():
        record = goldens.train_curve(exact, tokens)
    return (f"  Transformers' fp64 from its fp32: {distance_from(want, exact, record)}\n"
            f"  its fp32 one rounding away:       {near}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path, help="folder of the test programs")
    parser.add_argument("--only", choices=sorted(random_sizes.CONFIGS))
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--own", action="store_true",
                        help="say how far Transformers is from itself in any case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    wrong = 0
    print(f"{'family':15} {'draw':>4} {'seed':>5} {'gradient':>9} {'curve':>9} {'bf16':>6}  tests")
    for family in [arguments.only] if arguments.only else sorted(random_sizes.CONFIGS):
        for number in range(arguments.first, arguments.first + arguments.draws):
            with put_back(folders_of(family)), contextlib.redirect_stdout(io.StringIO()):
                seed = make_draw(family, number)
                failed, figures = run_tests(arguments.build, family)
                curve = any("CurveParity" in name for name in failed) or arguments.own
                own = own_distances(family) if curve else ""
            wrong += bool(failed)
            print(f"{family:15} {number:4} {seed:5} {figures['gradient']:9.2e} "
                  f"{figures['curve']:9.2e} {figures['bf16']:6.2f}  "
                  f"{' '.join(failed) if failed else 'ok'}", flush=True)
            if own:
                print(own, flush=True)
    print(f"{wrong} draws with a failed test")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
