"""Text cut into rows as src/data cuts it: byte tokens, end of text after each document.

The stream of all documents, each followed by END_OF_TEXT, is cut into rows of sequence_len tokens;
the last incomplete row is dropped. The target of a token is the next one of the stream, none (-1)
after a document's end. Inside a row positions restart and attention stops at document borders, and
each row starts a document of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
        pieces = []
        for path in paths:
            for document in read_documents(path):
                pieces.append(np.frombuffer(document, dtype=np.uint8).astype(np.int64))
                pieces.append(np.array([END_OF_TEXT], dtype=np.int64))
        self._stream = np.concatenate(pieces)
        self._sequence_len = sequence_len
        self._seed = seed
        self.num_rows = len(self._stream) // sequence_len
        if self.num_rows == 0:
            raise SystemExit(f"{paths}: {len(self._stream)} tokens do not fill one row of "
                             f"{sequence_len}; give more text or a smaller sequence_len")

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
        begin = index * self._sequence_len
        end = begin + self._sequence_len
        tokens = self._stream[begin:end]
        targets = np.full_like(tokens, NO_TARGET)
        following = self._stream[begin + 1:end + 1]
        targets[:len(following)] = following
        is_last = tokens == END_OF_TEXT
        targets[is_last] = NO_TARGET
        documents = np.concatenate([[0], np.cumsum(is_last)[:-1]])
        place = np.arange(len(tokens))
        starts = place * np.concatenate([[True], is_last[:-1]])
        return tokens, targets, place - np.maximum.accumulate(starts), documents
