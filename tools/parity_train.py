#!/usr/bin/env python3
"""Trains a run's model again with PyTorch, on the same batches, and compares the loss curves.

    python tools/parity_train.py RUN_DIR [--steps N] [--csv FILE] [--threads N]

Reads RUN_DIR/resolved.toml (paths as they were given to pagoda, so start it in the same directory),
the initial model folder, the data, and RUN_DIR/metrics.jsonl. With dtype bf16 the model multiplies
with bf16 copies of fp32 masters, gradients are summed over microbatches in fp32 and rounded to bf16
once. Prints a CSV of both curves as they grow and one JSON line; exit 1 when the mean absolute
difference is above --tolerance.
"""

import argparse
import csv
import fnmatch
import json
import math
import sys
import time
import tomllib
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from reference import moe as ref
from reference.documents import documents_for
from reference.packed_rows import PackedRows


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, default=0, help="stop earlier (0: all of the run)")
    parser.add_argument("--csv", type=Path, help="write the curves here instead of stdout")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as PyTorch likes")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--no-compare", action="store_true",
                        help="train only: no metrics.jsonl is needed")
    return parser.parse_args()


def read_run(run_dir):
    path = run_dir / "resolved.toml"
    if not path.is_file():
        raise SystemExit(f"{path}: not there; name the output_dir of a pagoda run")
    run = tomllib.loads(path.read_text())
    optim = run["optim"]
    if optim["clip"] not in ("global", "none"):
        raise SystemExit(f"{path}: optim.clip = {optim['clip']}: PyTorch has only global and none")
    if optim.get("untouched", "exact") != "exact":
        raise SystemExit(f"{path}: optim.untouched = {optim['untouched']}: "
                         "PyTorch's AdamW is exact")
    return run


def read_losses(run_dir):
    """step -> loss; a resumed run may repeat steps, the last line counts."""
    losses = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("type") == "step":
            losses[entry["step"]] = entry["loss"]
    return losses


def aligned_copy(parameters):
    with torch.no_grad():
        for parameter in parameters:  # own memory: a mapped file would choose slower kernels
            parameter.data = parameter.data.clone()


# Words of train.freeze, as patterns of Transformers' parameters.
FROZEN = {"router": ["*.gate.weight", "*.router.*"], "embed": ["*.embed_tokens.*"],
          "head": ["lm_head.*"], "experts": ["*.experts.*"]}


def is_frozen(name, words):
    patterns = [pattern for word in words for pattern in FROZEN.get(word, [word])]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


class Trainer:
    """One model, its fp32 masters and AdamW; what is frozen has requires_grad = False."""

    def __init__(self, run):
        self.run = run
        train, optim = run["train"], run["optim"]
        self.dtype = dict(fp32=torch.float32, bf16=torch.bfloat16)[train["dtype"]]
        self.model = AutoModelForCausalLM.from_pretrained(
            run["model"]["path"], dtype=torch.float32, attn_implementation="sdpa",
            experts_implementation="grouped_mm").train()
        aligned_copy(self.model.parameters())
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not is_frozen(name, train.get("freeze", [])))
        self.masters = [p for p in self.model.parameters() if p.requires_grad]
        if self.dtype != torch.float32:
            self.masters = [torch.nn.Parameter(p.detach().clone()) for p in self.masters]
            self.model.to(self.dtype)
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [dict(params=[p for p in self.masters if p.dim() >= 2],
                  weight_decay=optim["weight_decay"]),
             dict(params=[p for p in self.masters if p.dim() < 2], weight_decay=0.0)],
            lr=optim["learning_rate"], betas=(optim["beta1"], optim["beta2"]), eps=optim["eps"])
        self.schedule = transformers.get_scheduler(
            dict(constant="constant_with_warmup").get(optim["schedule"], optim["schedule"]),
            self.optimizer, num_warmup_steps=optim["warmup_steps"],
            num_training_steps=train["steps"])
        self.rows = PackedRows(documents_for(run["model"]["path"], run["data"]["path"]),
                               run["data"]["sequence_len"], train["seed"])

    def microbatches(self, step):
        """Those of step 1, 2, ...: the data position is a counter of rows."""
        train, length = self.run["train"], self.run["data"]["sequence_len"]
        rows = train["micro_batch_tokens"] // length
        count = train["tokens_per_step"] // train["micro_batch_tokens"]
        first = (step - 1) * rows * count
        return [ref.Microbatch.from_rows(self.rows.shuffled(first + i * rows, rows))
                for i in range(count)]

    def take_gradients(self):
        """Adds the microbatch's gradients to the masters', in fp32."""
        if self.dtype == torch.float32:
            return
        for master, weight in zip(self.masters, self.weights):
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def step(self, step):
        """Returns (mean cross-entropy, balance loss, gradient norm, learning rate)."""
        batches = self.microbatches(step)
        targets = sum(b.num_targets() for b in batches)
        tokens = sum(b.num_tokens() for b in batches)
        coef = getattr(self.model.config, "router_aux_loss_coef", 0.0)
        total, total_aux = 0.0, 0.0
        for batch in batches:
            out = ref.forward(self.model, batch)
            ce = ref.cross_entropy_sum(out.logits, batch.targets)
            aux = ref.balance_loss(self.model, [x.float() for x in out.router_logits],
                                   batch.padding)
            share = batch.num_tokens() / tokens
            (ce / targets + coef * share * aux).backward()
            self.take_gradients()
            total += float(ce.detach())
            total_aux += float(aux.detach()) * share
        norm, rate = self.update()
        return total / targets, total_aux, norm, rate

    def update(self):
        optim = self.run["optim"]
        for master in self.masters:
            if master.grad is None:  # AdamW skips such a parameter; decay and momentum must not be
                master.grad = torch.zeros_like(master)
            if self.dtype != torch.float32:
                master.grad = master.grad.to(self.dtype).float()
        limit = optim["clip_norm"] if optim["clip"] == "global" else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters, limit))
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.dtype != torch.float32:
            with torch.no_grad():
                for master, weight in zip(self.masters, self.weights):
                    weight.copy_(master)
        return norm, rate


def train(run, steps):
    """Yields (step, loss, aux, norm, rate) of each step."""
    trainer = Trainer(run)
    started = time.monotonic()
    for step in range(1, steps + 1):
        loss, aux, norm, rate = trainer.step(step)
        if step == 1 or step % 10 == 0 or step == steps:
            spent = time.monotonic() - started
            print(f"step {step}/{steps} | loss {loss:.4f} | aux {aux:.4f} | gnorm {norm:.3f} | "
                  f"lr {rate:.2e} | {spent / step:.2f} s a step", file=sys.stderr, flush=True)
        yield step, loss, aux, norm, rate


def write_curve(steps, ours, file):
    """Writes each step as it comes, so that a run cut short leaves its curve."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["step", "pagoda_loss", "pytorch_loss", "difference", "pytorch_aux",
                     "pytorch_grad_norm", "learning_rate"])
    curve = []
    for step, loss, aux, norm, rate in steps:
        own = ours.get(step)
        columns = (["", f"{loss:.6f}", ""] if own is None else
                   [f"{own:.6f}", f"{loss:.6f}", f"{own - loss:.6f}"])
        writer.writerow([step, *columns, f"{aux:.6f}", f"{norm:.6f}", f"{rate:.6e}"])
        file.flush()
        curve.append((step, loss))
    return curve


def compare(curve, ours, tolerance):
    differences = [abs(ours[step] - loss) for step, loss in curve if step in ours]
    if not differences:
        raise SystemExit("metrics.jsonl has no step that was trained here: nothing was compared")
    mean = sum(differences) / len(differences)
    report = dict(steps=len(differences), mean_abs_difference=mean,
                  max_abs_difference=max(differences), tolerance=tolerance, ok=mean <= tolerance)
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def main():
    args = parse_arguments()
    logging.disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    run = read_run(args.run_dir)
    ours = {} if args.no_compare else read_losses(args.run_dir)
    # The schedule is the whole run's, even if only some of its steps are repeated.
    steps = train(run, min(args.steps or run["train"]["steps"], run["train"]["steps"]))
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            curve = write_curve(steps, ours, file)
    else:
        curve = write_curve(steps, ours, sys.stdout)
    return 0 if args.no_compare else compare(curve, ours, args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
