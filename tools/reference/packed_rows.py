"""Documents packed into rows as src/data packs them, by reference.packing.

A text that is longer than a row is cut into pieces, a conversation is truncated, and a document or
last piece without anything to predict is left out. The target of a token is the next one of its
document if that is trained, also across the end of a piece; otherwise it has none (-1). Inside a
row each piece is a document of its own: positions restart and attention stops at its borders. What
is left of a row is padding: a document of its own without targets, which the balance loss does not
count.
"""

from dataclasses import dataclass

import numpy as np

from reference.packing import pack
from reference.random_permutation import random_permutation

NO_TARGET = -1


@dataclass
class Rows:
    """Some rows. All arrays (rows, sequence_len), int64."""

    tokens: np.ndarray
    targets: np.ndarray    # NO_TARGET where there is none
    positions: np.ndarray  # restart at 0 with each document
    documents: np.ndarray  # tokens of a row attend to each other when these are equal
    padding: np.ndarray    # 1: padding


class PackedRows:
    """Rows of documents (reference.documents), by number or in the shuffled order of training."""

    def __init__(self, documents, sequence_len, seed=0):
        self._documents = [d if d.is_text else d.truncated(sequence_len) for d in documents]
        self._rows = pack([_packed_tokens(d, sequence_len) for d in self._documents],
                          sequence_len)
        self._sequence_len = sequence_len
        self._seed = seed
        self.num_rows = len(self._rows)
        if self.num_rows == 0:
            raise SystemExit("the data has nothing to predict")

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
        tokens, begin = self._documents[document].tokens, number * self._sequence_len
        end = min(begin + self._sequence_len, len(tokens))
        targets = np.append(self._documents[document].targets, NO_TARGET)[begin + 1:end + 1]
        zeros = np.zeros(end - begin, dtype=np.int64)
        return tokens[begin:end], targets, np.arange(end - begin), zeros + place, zeros


def _packed_tokens(document, sequence_len):
    """How many tokens of a document are packed; 0: it is left out."""
    count = len(document.tokens)
    if not (document.targets[1:] != NO_TARGET).any():
        return 0
    return count - (count > sequence_len and count % sequence_len == 1)
