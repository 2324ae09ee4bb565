#!/usr/bin/env python3
"""Races pagoda's tokenizer against Hugging Face tokenizers on one thread, interleaved.

    python tools/bench/tokenizer_bench.py build/release/tokenizer_probe FOLDER TEXT...
        [--rounds 9] [--piece-bytes 4000]

FOLDER holds a tokenizer.json, TEXT are text files, cut into pieces at line ends. Prints MB/s of
each (medians of the rounds) and their ratio; fails when the ids differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library's own switch: one thread

from tokenizers import Tokenizer  # noqa: E402


def pieces(paths, piece_bytes):
    out, piece = [], ""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            piece += line
            if len(piece) >= piece_bytes:
                out.append(piece)
                piece = ""
    return out + [piece] if piece else out


class Pagoda:
    def __init__(self, program, folder, texts):
        self.process = subprocess.Popen([program, "time", folder, texts], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, ids = self.process.stdout.readline().split()
        return float(seconds), int(ids)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def round_of_reference(tokenizer, texts):
    begin = time.perf_counter()
    ids = sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    return time.perf_counter() - begin, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--piece-bytes", type=int, default=4000)
    arguments = parser.parse_args()
    texts = pieces(arguments.texts, arguments.piece_bytes)
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    reference = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        pagoda = Pagoda(arguments.program, arguments.folder, file.name)
        rounds = []
        for _ in range(arguments.rounds + 1):  # the first warms up
            rounds.append((pagoda.round(), round_of_reference(reference, texts)))
        pagoda.close()
    for (_, ours), (_, theirs) in rounds:
        if ours != theirs:
            raise SystemExit(f"tokenizer_bench: {ours} ids against {theirs}")
    ours = statistics.median(seconds for (seconds, _), _ in rounds[1:])
    theirs = statistics.median(seconds for _, (seconds, _) in rounds[1:])
    print(f"{arguments.folder.name}: {megabytes:.2f} MB, {rounds[0][0][1]} ids: "
          f"pagoda {megabytes / ours:.1f} MB/s, tokenizers {megabytes / theirs:.1f} MB/s, "
          f"ratio {theirs / ours:.2f} (medians of {arguments.rounds} rounds)")


if __name__ == "__main__":
    main()
