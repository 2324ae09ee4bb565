#!/usr/bin/env python3
"""Writes tests/golden/chat/masks.zst: the tokens that Transformers makes of rows of every kind with
every preset's template and real tokenizers, and which of them are trained.

    python tools/make_mask_goldens.py [--golden tests/golden]

The tokens are those of `apply_chat_template`. The trained ones are those in which a character of
the assistant's lies (what tools/make_chat_goldens.py has {% generation %} enclose), by the
tokenizer's offsets; where all of the assistant's messages count they must be the mask that
`apply_chat_template(return_assistant_tokens_mask=True)` gives. tests/golden/README.md says what is
in the file; tests/data/mask_test.cc reads it.
"""

import argparse
import json
from pathlib import Path

import jinja2
import zstandard
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import make_chat_goldens as chat

QWEN3_TOKENS = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
             "split": False}
# Preset, a tokenizer of tests/golden/tokenizers, tokens added to it, Metaspace for the normalizer.
# The vocabularies of Llama 3 and OLMo are not there; GPT-2's stands in, with their control tokens.
# Behind ChatML it stands without any, so that an end token is several tokens.
CASES = [
    ("chatml", "qwen2", [], False), ("chatml", "gpt2", [], False),
    ("qwen2", "qwen2", [], False), ("qwen2.5", "qwen2", [], False),
    ("qwen3", "qwen2", QWEN3_TOKENS, False), ("qwen3-2507", "qwen2", QWEN3_TOKENS, False),
    ("smollm2", "smollm2", [], False),
    ("mistral", "mixtral", [], False), ("mistral", "mixtral", [], True),
    ("mistral-v0", "mixtral", [], False), ("mistral-v0", "mixtral", [], True),
    ("tulu", "gpt2", ["<|begin_of_text|>", "<|end_of_text|>"], False),
    ("olmo2", "gpt2", ["|||IP_ADDRESS|||"], False), ("olmoe", "gpt2", [], False),
]

# Questions and answers that tokenizers like to join with what is around them.
PAIRS = [
    ("Hi", "Hello!"), ("2+2?", "4"), ("Why?", " Because."), ("Code?", "\n\n\tx = 1\n"),
    ("", "What?"), ("Say nothing.", ""), ("  a  ", "  b  "), ("Größe?", "Übergröße"),
    ("你好", "你好！👩‍👩‍👧‍👦"), ("e\u0301", "\u0301a\u0323"), ("x<|im_end|>", "y</s>z"),
    ("a\r\nb\u00a0", "\u2028c\u0007"), ("Long", chat.LONG),
]
FROM = {"user": "human", "assistant": "gpt"}


def rows():
    """[kind] a row, its messages, and how many of the last messages may be trained."""
    talks = [chat.messages_of(c) for c in chat.CONVERSATIONS.values()]
    user, bot = (lambda t: dict(role="user", content=t)), (lambda t: dict(role="assistant",
                                                                          content=t))
    system = dict(role="system", content="Be brief.")
    made = {"messages": [(dict(messages=t), t, len(t)) for t in talks],
            "conversations": [], "instruction": [], "prompt": [], "question": []}
    for t in talks[::2]:
        said = [{"from": FROM.get(m["role"], m["role"]), "value": m["content"]} for m in t]
        made["conversations"].append((dict(conversations=said), t, len(t)))
    for q, a in PAIRS:
        pair = [user(q), bot(a)]
        made["question"] += [(dict(question=q, answer=a), pair, 1),
                             (dict(question=q, answer=a, system="Be brief."), [system, *pair], 1)]
        made["instruction"] += [
            (dict(instruction=q, output=a), pair, 1),
            (dict(instruction=q, input="", output=a), pair, 1),
            (dict(instruction=q, input="So:\n", output=a, system="Be brief."),
             [system, user(q + "\nSo:\n"), bot(a)], 1)]
        before = [user("Before?"), bot("It was."), user(q)]
        made["prompt"] += [(dict(prompt=q, completion=a), pair, 1),
                           (dict(prompt=before, completion=[bot(a)]), [*before, bot(a)], 1),
                           (dict(prompt=before, completion=a), [*before, bot(a)], 1)]
    return made


def golden_tokenizer(folder, name, added, metaspace):
    packed = (folder / "tokenizers" / f"{name}.json.zst").read_bytes()
    root = json.loads(zstandard.ZstdDecompressor().decompress(packed))
    root["post_processor"] = None  # it would only trim offsets
    if metaspace:
        root["normalizer"], root["pre_tokenizer"] = None, METASPACE
    tokenizer = Tokenizer.from_str(json.dumps(root))
    first = tokenizer.get_vocab_size()
    for i, content in enumerate(added):
        root["added_tokens"].append(dict(id=first + i, content=content, single_word=False,
                                         lstrip=False, rstrip=False, normalized=False,
                                         special=False))
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(root)))


def trained_ranges(tokenizer, template, messages, last, special):
    """The ids, and [begin, end) of the tokens of each trained message."""
    options = dict(bos_token=special[0], eos_token=special[1])
    whole = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True,
                                          return_assistant_tokens_mask=True, **options)
    said = [(m["role"], m["content"]) for m in messages]
    text, spans = chat.render(template, said, special, marked=True)
    encoded = tokenizer(text, add_special_tokens=False)
    assert encoded["input_ids"] == whole["input_ids"]
    # Several tokens of one character: the first for the beginning, all of them at the end.
    ranges = [[encoded.char_to_token(b), encoded.char_to_token(e - 1) + 1] for b, e in spans]
    mask = [any(b <= i < e for b, e in ranges) for i in range(len(whole["input_ids"]))]
    assert mask == [bool(m) for m in whole["assistant_masks"]], text
    speakers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    return whole["input_ids"], [r for i, r in zip(speakers, ranges) if i >= len(messages) - last]


def golden_of(tokenizer, templates, messages, last, special):
    """None where the template has no place for the messages or nothing is trained."""
    said = [(m["role"], m["content"]) for m in messages]
    try:
        chat.render(templates[0], said, special)
    except jinja2.TemplateError:
        return None
    if chat.drops(templates[0], said, special):
        return None
    ids, ranges = trained_ranges(tokenizer, templates[1], messages, last, special)
    return dict(ids=ids, trained=ranges) if ranges else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path,
                        default=Path(__file__).resolve().parent.parent / "tests/golden")
    golden = parser.parse_args().golden
    made = rows()
    lines = [dict(rows={kind: [row for row, _, _ in of] for kind, of in made.items()})]
    for preset, name, added, metaspace in CASES:
        begin, end, tags = chat.PRESETS[preset]
        text = chat.spellings(golden / "chat/templates", preset)[0]
        templates = text, chat.with_tags(text, tags)
        tokenizer = golden_tokenizer(golden, name, added, metaspace)
        results = {kind: [golden_of(tokenizer, templates, messages, last, (begin, end))
                          for _, messages, last in of] for kind, of in made.items()}
        lines.append(dict(preset=preset, tokenizer=name, added=added, metaspace=metaspace,
                          bos_token=begin, eos_token=end, results=results))
        every = [r for of in results.values() for r in of]
        print(f"{preset}, {name}{', Metaspace' if metaspace else ''}: "
              f"{sum(r is not None for r in every)} of {len(every)} rows, "
              f"{sum(len(r['trained']) for r in every if r)} trained messages")
    out = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    packed = zstandard.ZstdCompressor(level=19).compress(out.encode())
    (golden / "chat/masks.zst").write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main()
