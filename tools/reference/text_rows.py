"""Text packed into rows as src/data packs it: byte tokens, end of text after each document.

Documents are packed by reference.packing; one that is longer than a row is cut into pieces, and a
document or last piece of a single token is left out, since it has nothing to predict. The target of
a token is the next one of its document, also across the end of a piece; the last token of a
document has none (-1). Inside a row each piece is a document of its own: positions restart and
attention stops at its borders. What is left of a row is padding: a document of its own without
targets, which the balance loss does not count.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference.packing import pack
from reference.random_permutation import random_permutation

END_OF_TEXT = 256
NO_TARGET = -1


@dataclass
class Rows:
    """Some rows. All arrays (rows, sequence_len), int64."""

    tokens: np.ndarray
    targets: np.ndarray    # NO_TARGET where there is none
    positions: np.ndarray  # restart at 0 with each document
    documents: np.ndarray  # tokens of a row attend to each other when these are equal
    padding: np.ndarray    # 1: padding


def read_documents(path):
    """The documents of a .txt (one) or .jsonl (one a line, field "text") file, as bytes."""
    data = Path(path).read_bytes()
    if Path(path).suffix != ".jsonl":
        return [data]
    lines = data.decode("utf-8").split("\n")
    return [json.loads(line)["text"].encode("utf-8") for line in lines if line.strip()]


class TextRows:
    """Rows of the given files, by number or in the shuffled order of training."""

    def __init__(self, paths, sequence_len, seed=0):
        self._documents = [np.append(np.frombuffer(text, dtype=np.uint8), END_OF_TEXT)
                           .astype(np.int64) for path in paths for text in read_documents(path)]
        lengths = [len(d) for d in self._documents]
        self._rows = pack([n - (n % sequence_len == 1 or n == 1) for n in lengths], sequence_len)
        self._sequence_len = sequence_len
        self._seed = seed
        self.num_rows = len(self._rows)
        if self.num_rows == 0:
            raise SystemExit(f"{paths}: no text with anything to predict")

    def row(self, index):
        return self._cut([index])

    def take(self, first, count):
        """Rows [first, first + count), unshuffled, as evaluation reads them."""
        return self._cut(range(first, first + count))

    def shuffled(self, first, count):
        """Rows [first, first + count) of the endless shuffled sequence of training."""
        n = self.num_rows
        return self._cut([random_permutation(self._seed, p // n, n, p % n)
                          for p in range(first, first + count)])

    def _cut(self, indices):
        rows = [self._one(i) for i in indices]
        return Rows(*(np.stack(column) for column in zip(*rows)))

    def _one(self, index):
        pieces = [self._piece(*piece, place) for place, piece in enumerate(self._rows[index])]
        left = self._sequence_len - sum(len(piece[0]) for piece in pieces)
        zeros, place = np.zeros(left, dtype=np.int64), np.arange(left)
        pieces.append((zeros, zeros + NO_TARGET, place, zeros + len(pieces), zeros + 1))
        return [np.concatenate(column) for column in zip(*pieces)]

    def _piece(self, document, number, place):
        tokens, begin = self._documents[document], number * self._sequence_len
        end = min(begin + self._sequence_len, len(tokens))
        targets = np.append(tokens, NO_TARGET)[begin + 1:end + 1]
        zeros = np.zeros(end - begin, dtype=np.int64)
        return tokens[begin:end], targets, np.arange(end - begin), zeros + place, zeros
