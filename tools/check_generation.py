#!/usr/bin/env python3
"""Compares `pagoda generate` with Transformers: greedy continuations of ten prompts, in fp32.

    python tools/check_generation.py FOLDER [--reference FOLDER] [--pagoda PROGRAM] [--flags "..."]

--reference is what Transformers loads, FOLDER unless named: for an upcycled model the dense one it
was made of. --flags go to pagoda ("--memory.device 100MiB"). Where the two choose different tokens
the reference's margin between them is printed; a margin within rounding (--tolerance, of the
largest logit) counts as agreement up to there. Prints a JSON object; exit 1 when a prompt
disagrees.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Q: What is 12 + 30?\nA:",
    "The three laws of thermodynamics are",
    "Photosynthesis is the process by which",
    "In 1969, the first human",
    "A recipe for pancakes:\n1.",
    "Die Katze sitzt auf",
    "To be, or not to be:",
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="model that pagoda loads")
    parser.add_argument("--reference", type=Path, help="model that Transformers loads")
    parser.add_argument("--pagoda", default="build/release/pagoda", help="the program")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--flags", default="", help="more flags of pagoda generate, quoted")
    return parser.parse_args()


def run_pagoda(args):
    words = [args.pagoda, "generate", "--model.path", str(args.folder), "--train.dtype", "fp32",
             "--max_new_tokens", str(args.new_tokens), "--json", "--quiet"]
    words += shlex.split(args.flags)
    for prompt in PROMPTS:
        words += ["--prompt", prompt]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@torch.no_grad()
def reference_tokens(model, prompt_tokens, new_tokens):
    prompt = torch.tensor([prompt_tokens])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                         max_new_tokens=new_tokens, pad_token_id=0)
    return out[0, prompt.shape[1]:].tolist()


@torch.no_grad()
def margin(model, tokens, other):
    """How much more the reference likes its own next token, in parts of the largest logit."""
    logits = model(torch.tensor([tokens])).logits[0, -1]
    return float((logits.max() - logits[other]) / logits.abs().max())


def compare(model, ours, args, ends):
    ours_tokens = ours["tokens"]
    theirs = reference_tokens(model, ours["prompt_tokens"], args.new_tokens)
    if theirs and theirs[-1] in ends and ours["ended"]:
        theirs = theirs[:-1]
    report = dict(prompt=ours["prompt"], tokens=len(theirs), same=ours_tokens == theirs)
    if not report["same"]:
        at = next((i for i, (a, b) in enumerate(zip(ours_tokens, theirs)) if a != b),
                  min(len(ours_tokens), len(theirs)))
        report["first_difference"] = at
        if at < len(ours_tokens):
            context = ours["prompt_tokens"] + theirs[:at]
            report["margin"] = margin(model, context, ours_tokens[at])
    report["ok"] = report["same"] or report.get("margin", 1.0) <= args.tolerance
    return report


def main():
    args = parse_arguments()
    logging.disable_progress_bar()
    generated = run_pagoda(args)
    reference = args.reference or args.folder
    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32).eval()
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    prompts = [compare(model, ours, args, ends) for ours in generated["generated"]]
    report = dict(folder=str(args.folder), reference=str(reference), new_tokens=args.new_tokens,
                  tokens_per_s=generated["tokens_per_s"], fetch_bytes=generated["fetch_bytes"],
                  same=sum(p["same"] for p in prompts), prompts=prompts)
    print(json.dumps(report, indent=2))
    return 0 if all(p["ok"] for p in prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
