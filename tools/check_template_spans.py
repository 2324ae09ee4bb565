#!/usr/bin/env python3
"""Compares what pagoda trains of a conversation, by running a model's own chat template, with
what {% generation %} tags say in a copy of the template that has them.

    python3 -m pip download --no-deps -d FOLDER trl && (cd FOLDER && unzip -q 'trl-*.whl')
    ninja -C build/release template_probe
    python tools/check_template_spans.py build/release/template_probe FOLDER

Every NAME.jinja in FOLDER beside which there is a NAME_training.jinja is rendered by pagoda with
generated conversations; Jinja2 renders the other. "same": both train the same bytes, white space
aside. "prompt": likewise, but the tags also enclose what the generation prompt writes, which nobody
asks of a model. "other text": the copy writes something else, so there is nothing to compare.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path

from make_template_vectors import TOOLS, rendered

SPECIAL = re.compile(r"<\|[^|<>\n]{1,40}\|>|<\uff5c[^<>\n]{1,40}\uff5c>|<[a-z_]*turn\|?>"
                     r"|</s>|<eos>")
WORDS = ["Hi.", "a < b", "Größe 你好 👍", "it's \"so\"", "line\nline\n\nline", "1", "no and yes"]


def conversation(rng, tools):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": rng.choice(WORDS)})
        messages.append({"role": "assistant", "content": rng.choice(WORDS)})
        if tools and rng.random() < 0.4:
            call = {"name": "weather", "arguments": {"place": rng.choice(WORDS[:2]), "days": [1]}}
            messages[-1]["tool_calls"] = [{"type": "function", "function": call}]
            messages.append({"role": "tool", "name": "weather", "content": rng.choice(WORDS)})
            messages.append({"role": "assistant", "content": rng.choice(WORDS)})
        elif rng.random() < 0.2:
            messages[-1]["reasoning_content"] = rng.choice(WORDS)
    row = {"messages": messages}
    return row | {"tools": TOOLS} if tools else row


def reference(source, row, count, prompt=False):
    """Text of the first messages and which bytes the tags cover; None where Jinja2 refuses."""
    variables = {"messages": row["messages"][:count], "tools": row.get("tools"), "documents": None,
                 "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt}
    got = rendered(source, variables)
    if "error" in got:
        return None
    text = got["text"].encode()
    return text, covered(text, got.get("generated", []))


def covered(text, spans):
    """Places that are trained, white space aside."""
    return {at for begin, end in spans for at in range(begin, end) if text[at] not in b" \t\r\n"}


def common_bytes(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def prompted(training, row, text, count):
    """Places of what generation prompts write before the answers of the first messages."""
    places = set()
    for i, message in enumerate(row["messages"][:count]):
        before, asked = reference(training, row, i), reference(training, row, i, prompt=True)
        if message["role"] == "assistant" and before and asked:
            places |= set(range(common_bytes(before[0], text), common_bytes(asked[0], text)))
    return places


def verdict(training, row, got):
    """"same"; "prompt": but for what the generation prompt writes, which the tags enclose too."""
    if "error" in got:
        return "refused"
    answers = [i + 1 for i, m in enumerate(row["messages"]) if m["role"] == "assistant"]
    several = len(got["rows"]) > 1
    counts = answers if several else [len(row["messages"])]
    if len(counts) != len(got["rows"]):
        return "differs"
    word = "same"
    for count, made in zip(counts, got["rows"]):
        want, text = reference(training, row, count), made["text"].encode()
        if want is None or not text.startswith(want[0]):  # a token that ends it may be added
            return "other text"
        mine = {at for at in covered(text, made["spans"]) if at < len(want[0])}
        theirs = want[1]
        if several:  # the last answer alone
            before = reference(training, row, count - 1)
            theirs = {at for at in theirs if at >= common_bytes(before[0], text)}
        if mine == theirs:
            continue
        word = "prompt"
        if mine != theirs - prompted(training, row, text, count):
            return "differs"
    return word


VERDICTS = ("same", "prompt", "differs", "other text", "refused")


def check(program, source, training, rng, count):
    """Verdicts, and the first conversation whose spans differ."""
    special = sorted(set(SPECIAL.findall(source)))
    rows = [conversation(rng, number % 3 == 2) for number in range(count)]
    lines = "".join(json.dumps({"template": source, "row": row, "bos": "<s>", "eos": "</s>",
                                "special": special}) + "\n" for row in rows)
    done = subprocess.run([program], input=lines, text=True, check=True, encoding="utf-8",
                          stdout=subprocess.PIPE)
    found = dict.fromkeys(VERDICTS, 0)
    first = None
    for row, line in zip(rows, [line for line in done.stdout.split("\n") if line]):
        word = verdict(training, row, json.loads(line))
        found[word] += 1
        if word == "differs" and first is None:
            first = (row, json.loads(line), reference(training, row, len(row["messages"])))
    return found, first


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="conversations for each template")
    arguments = parser.parse_args()
    total = dict.fromkeys(VERDICTS, 0)
    for path in sorted(arguments.folder.rglob("*_training.jinja")):
        plain = path.with_name(path.name.replace("_training", ""))
        if not plain.is_file():
            continue
        found, first = check(arguments.program, plain.read_text(), path.read_text(),
                             random.Random(arguments.seed), arguments.count)
        print(f"{plain.name}: " + ", ".join(f"{n} {word}" for word, n in found.items()))
        if first is not None:
            row, got, want = first
            print(f"  {json.dumps(row)[:500]}\n  expected {str(want)[:900]}\n  got      "
                  f"{str(got)[:900]}")
        for word, n in found.items():
            total[word] += n
    print("all: " + ", ".join(f"{n} {word}" for word, n in total.items()))
    raise SystemExit(1 if total["differs"] else 0)


if __name__ == "__main__":
    main()
