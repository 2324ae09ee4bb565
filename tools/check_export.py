#!/usr/bin/env python3
"""Loads an exported folder in Transformers and measures its loss on data, as `pagoda eval` does.

    python tools/check_export.py FOLDER EVAL_TEXT [--sequence-len N] [--rows N] [--expect-loss X]

The rows are the data's first, unshuffled. Prints a JSON object with the mean cross-entropy in fp32
and in the folder's own dtype. Exit 1 when a loss is further than --tolerance from --expect-loss.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from reference import moe as ref
from reference.documents import documents_for
from reference.packed_rows import PackedRows


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="exported folder, or a run that holds export/")
    parser.add_argument("eval_text", nargs="+", type=Path, help=".txt or .jsonl, text or chat")
    parser.add_argument("--sequence-len", type=int, default=1024, help="tokens a row")
    parser.add_argument("--rows", type=int, default=0, help="rows to read (0: all)")
    parser.add_argument("--batch-rows", type=int, default=4, help="rows at a time")
    parser.add_argument("--expect-loss", type=float, help="loss that pagoda eval printed")
    parser.add_argument("--tolerance", type=float, default=1e-4,
                        help="for fp32; bf16 is given 100 times as much")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as PyTorch likes")
    return parser.parse_args()


def find_folder(folder):
    for candidate in (folder, folder / "export"):
        if (candidate / "config.json").is_file():
            return candidate
    raise SystemExit(f"{folder}: no config.json here nor in export/; "
                     f"run `pagoda export --checkpoint {folder} --out {folder}/export` first")


def of_next_token_layer(key, config):
    """Layers behind the last one, which Transformers has no use for."""
    last = config.num_hidden_layers + getattr(config, "num_nextn_predict_layers", 0)
    return any(key.startswith(f"model.layers.{layer}.")
               for layer in range(config.num_hidden_layers, last))


def load(folder, dtype):
    """Every tensor must come from the folder: Transformers would initialise a missing one."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True)
    info["unexpected_keys"] = {key for key in info["unexpected_keys"]
                               if not of_next_token_layer(key, model.config)}
    wrong = {k: sorted(map(str, v)) for k, v in info.items() if v and k.endswith("_keys")}
    if wrong:
        raise SystemExit(f"{folder}: Transformers found {wrong}")
    with torch.no_grad():
        for parameter in model.parameters():  # own, aligned memory: a mapped file is slower
            parameter.data = parameter.data.clone()
    return model.eval()


@torch.no_grad()
def mean_cross_entropy(model, text, num_rows, batch_rows):
    total, targets = 0.0, 0
    for first in range(0, num_rows, batch_rows):
        rows = text.take(first, min(batch_rows, num_rows - first))
        batch = ref.Microbatch.from_rows(rows)
        logits = ref.forward(model, batch).logits
        total += float(ref.cross_entropy_sum(logits, batch.targets))
        targets += batch.num_targets()
    return total / targets, targets


def main():
    args = parse_arguments()
    logging.disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = find_folder(args.folder)
    text = PackedRows(documents_for(folder, args.eval_text), args.sequence_len)
    num_rows = min(args.rows or text.num_rows, text.num_rows)

    report = dict(folder=str(folder), rows=num_rows, sequence_len=args.sequence_len)
    exact = load(folder, torch.float32)
    report["loss_fp32"], report["targets"] = mean_cross_entropy(exact, text, num_rows,
                                                                args.batch_rows)
    own = load(folder, "auto")
    report["dtype"] = str(own.dtype).removeprefix("torch.")
    report["loss"] = report["loss_fp32"]
    if own.dtype != torch.float32:
        report["loss"], _ = mean_cross_entropy(own, text, num_rows, args.batch_rows)

    good = True
    if args.expect_loss is not None:
        allowed = args.tolerance * (1 if own.dtype == torch.float32 else 100)
        report["expected_loss"] = args.expect_loss
        report["difference"] = abs(report["loss"] - args.expect_loss)
        good = report["ok"] = report["difference"] <= allowed
    print(json.dumps(report, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
