#!/usr/bin/env python3
"""Compares what llama.cpp makes of an exported GGUF file with Transformers on the folder that it
came from: the tokens of twenty prompts, and what is likeliest behind each.

    pip install llama-cpp-py-sync          # llama.cpp's libraries in a wheel
    pagoda export --checkpoint RUN --dtype fp32 --out FOLDER
    pagoda export --checkpoint RUN --format gguf --dtype fp32 --out model.gguf
    python tools/check_gguf.py FOLDER model.gguf [--new-tokens 24]

Both compute in fp32, llama.cpp with a cache of fp32. A prompt's tokens are compared up to the first
where Transformers' two best logits are within --gap of each other. Prints a line a prompt, and how
far logits are apart (the worst of all rows, relative L2); exit 1 where tokens differ or none was
compared.
"""

import argparse
import sys
from pathlib import Path

import torch
from llama_cpp_py_sync import Llama
from llama_cpp_py_sync._cffi_bindings import get_ffi
from llama_cpp_py_sync._version import __llama_cpp_tag__
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

PROMPTS = [
    "The capital of France is", "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n", "Q: What is 12 + 30?\nA:", "The three laws of thermodynamics are",
    "Photosynthesis is the process by which", "In 1969, the first human",
    "A recipe for pancakes:\n1.", "Die Katze sitzt auf", "To be, or not to be:",
    "  leading blanks", "tabs\tand\n\n\nlines", "123456 7.89", "it's o'clock, we'll go",
    "Größe, naïve, 你好 👍", "<html><body>", "x", "ALL CAPITALS HERE", "a_b-c/d\\e",
    "The end of the text is near. The end",
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--gap", type=float, default=1e-3, help="between the two best logits")
    return parser.parse_args()


@torch.no_grad()
def reference_logits(model, prompt, count, gap):
    """Forwards of the prompt and its greedy tokens, each anew, up to the first near-tie."""
    tokens, rows = list(prompt), []
    for _ in range(count):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        best, second = logits.topk(2).values
        if best - second <= gap:
            break
        rows.append(logits)
        tokens.append(int(logits.argmax()))
    return rows


def llama_logits(llama, prompt, greedy):
    """Gives llama.cpp a token at a time behind the prompt, and takes what it makes of each."""
    llama._clear_context_state()
    past, rows = llama._eval_tokens(prompt, 0), []
    for token in greedy:
        raw = llama._lib.llama_get_logits_ith(llama._ctx, -1)
        bytes_of_row = get_ffi().buffer(raw, 4 * llama.n_vocab)
        rows.append(torch.frombuffer(bytes_of_row, dtype=torch.float32).clone())
        past = llama._eval_tokens([token], past)
    return rows


def main():
    args = parse_arguments()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(args.folder / "tokenizer.json"))
    llama = Llama(str(args.file), n_ctx=512, n_batch=256, n_threads=1, flash_attn_type=0,
                  type_k="f32", type_v="f32")
    llama._lib.llama_set_embeddings(llama._ctx, False)  # with these LFM2 has no logits
    begin = [llama.bos_token] if llama._lib.llama_vocab_get_add_bos(llama._vocab) else []
    wrong = compared = 0
    worst, kinds = 0.0, set()
    for prompt in PROMPTS:
        want = begin + tokenizer.encode(prompt, add_special_tokens=False)
        got = llama.tokenize(prompt)
        reference = reference_logits(model, want, args.new_tokens, args.gap)
        greedy = [int(row.argmax()) for row in reference]
        rows = llama_logits(llama, want, greedy)
        ours = [int(row.argmax()) for row in rows]
        worst = max([worst, *(float((a - b).norm() / b.norm()) for a, b in zip(rows, reference))])
        compared += len(greedy)
        kinds |= set(greedy)
        word = "ok" if got == want and ours == greedy else "DIFFERS"
        wrong += word != "ok"
        print(f"{word:7} {len(want):3} tokens of the prompt, {len(greedy):3} behind it: {prompt!r}")
        if got != want:
            print(f"  tokens: {got}, expected {want}")
        if ours != greedy:
            print(f"  behind it: {ours}, expected {greedy}")
    print(f"llama.cpp {__llama_cpp_tag__}: {len(PROMPTS)} prompts, {compared} tokens compared "
          f"({len(kinds)} different ones), {wrong} prompts differ; logits within {worst:.1e}")
    return 1 if wrong or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
