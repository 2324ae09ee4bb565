#!/usr/bin/env python3
"""Checks tools/reference: the permutation against base/random.cc, the rows against a plain loop.

    python tools/reference_test.py
"""

import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

from reference import random_permutation as rp
from reference.packing import pack
from reference.documents import END_OF_BYTES, read_documents
from reference.packed_rows import NO_TARGET, PackedRows


class RandomPermutationTest(unittest.TestCase):
    """Values printed by the C++ functions of base/random.h."""

    def test_philox(self):
        self.assertEqual((1488328632, 2450578424, 3394505287, 504305040),
                         rp.philox(42, rp.PURPOSE_SHUFFLE, 7, 0x300000005))
        self.assertEqual((1781498715, 577408194, 4269707738, 439196518),
                         rp.philox(0xDEADBEEFCAFEF00D, rp.PURPOSE_INIT, 0x123456789ABCDEF,
                                   0xFEDCBA987654321))

    def test_permutation(self):
        for (seed, epoch, n), want in (
                ((1, 0, 1), [0]), ((1, 0, 2), [1, 0]), ((1, 0, 5), [4, 2, 0, 3, 1]),
                ((7, 3, 17), [15, 10, 16, 11, 12, 9, 1, 3]),
                ((1234567890123, 2, 1000), [647, 414, 706, 95, 993, 663, 526, 196]),
                ((42, 1, 100000), [15178, 19338, 73773, 95508, 1294, 48834, 5440, 9827]),
                ((3, 0, (1 << 40) + 1), [310682683073, 441472693667, 173358769224, 776365641356,
                                         399161445386, 737427940770, 859286418820, 503435083424])):
            self.assertEqual(want, [rp.random_permutation(seed, epoch, n, i)
                                    for i in range(len(want))])

    def test_is_a_permutation(self):
        for n in (1, 2, 3, 4, 5, 16, 17, 100, 1000):
            image = [rp.random_permutation(11, 4, n, i) for i in range(n)]
            self.assertEqual(list(range(n)), sorted(image))


class PackingTest(unittest.TestCase):
    def test_rows_that_the_program_makes_too(self):
        """The same numbers are in tests/data/packing_test.cc."""
        rows = pack([5, 19, 3, 8, 1, 12, 2, 2, 7, 16, 3, 4, 40, 6], 16)
        text = "".join("".join(f"{d}.{n} " for d, n in row) + "| " for row in rows)
        self.assertEqual("0.0 2.0 4.0 6.0 7.0 10.0 | 1.0 | 1.1 8.0 13.0 | 3.0 12.2 | 5.0 11.0 | "
                         "9.0 | 12.0 | 12.1 | ", text)

    def test_every_piece_once(self):
        lengths = [int(x) for x in np.random.default_rng(3).integers(0, 90, 400)]
        rows = pack(lengths, 32)
        used = [0] * len(lengths)
        for row in rows:
            tokens = [min(32, lengths[d] - 32 * n) for d, n in row]
            self.assertLessEqual(sum(tokens), 32)
            for (document, _), count in zip(row, tokens):
                used[document] += count
        self.assertEqual(lengths, used)


class PackedRowsTest(unittest.TestCase):
    DOCUMENTS = ["abcdefg", "h", "", "ijklmnopqrst", "\u00e9"]

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "text.jsonl"
        self.path.write_text("".join(json.dumps({"text": d}) + "\n" for d in self.DOCUMENTS))

    def tearDown(self):
        self.directory.cleanup()

    def plain(self, length):
        """(token, target, position, piece) per place of each row, without padding."""
        texts = [list(d.encode()) + [END_OF_BYTES] for d in self.DOCUMENTS]
        rows = []
        for pieces in pack([0 if len(t) == 1 else len(t) - (len(t) % length == 1) for t in texts],
                           length):
            row = []
            for document, number in pieces:
                tokens = texts[document]
                for i in range(number * length, min((number + 1) * length, len(tokens))):
                    target = tokens[i + 1] if i + 1 < len(tokens) else NO_TARGET
                    row.append((tokens[i], target, i - number * length, (document, number)))
            rows.append(row)
        return rows

    def test_rows(self):
        for length in (2, 3, 5, 8, 27, 40):
            text, want = PackedRows(read_documents([self.path]), length), self.plain(length)
            self.assertEqual(len(want), text.num_rows)
            rows = text.take(0, text.num_rows)
            for r, row in enumerate(want):
                used = len(row)
                self.assertEqual([x[0] for x in row], rows.tokens[r, :used].tolist())
                self.assertEqual([x[1] for x in row], rows.targets[r, :used].tolist())
                self.assertEqual([x[2] for x in row], rows.positions[r, :used].tolist())
                self.assertEqual([0] * used + [1] * (length - used), rows.padding[r].tolist())
                self.assertTrue((rows.targets[r, used:] == NO_TARGET).all())
                numbers = [x[3] for x in row] + [None] * (length - used)
                for i in range(length):
                    for j in range(length):
                        self.assertEqual(numbers[i] == numbers[j],
                                         rows.documents[r, i] == rows.documents[r, j])

    def test_shuffled(self):
        text = PackedRows(read_documents([self.path]), 3, seed=5)
        n = text.num_rows
        plain = text.take(0, n).tokens
        for epoch in range(2):
            rows = text.shuffled(epoch * n, n).tokens
            order = [rp.random_permutation(5, epoch, n, i) for i in range(n)]
            np.testing.assert_array_equal(plain[order], rows)


if __name__ == "__main__":
    unittest.main()
