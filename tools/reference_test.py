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
from reference.text_rows import END_OF_TEXT, NO_TARGET, TextRows


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


class TextRowsTest(unittest.TestCase):
    DOCUMENTS = ["abcdefg", "h", "", "ijklmnopqrst", "\u00e9"]

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "text.jsonl"
        self.path.write_text("".join(json.dumps({"text": d}) + "\n" for d in self.DOCUMENTS))

    def tearDown(self):
        self.directory.cleanup()

    def plain(self, length):
        """One token at a time: (token, target, position, document) per place."""
        stream = []
        for number, document in enumerate(self.DOCUMENTS):
            tokens = list(document.encode()) + [END_OF_TEXT]
            stream += [(t, n, number) for t, n in zip(tokens, tokens[1:] + [NO_TARGET])]
        rows = []
        for begin in range(0, len(stream) - length + 1, length):
            row, position = [], 0
            for i, (token, target, number) in enumerate(stream[begin:begin + length]):
                new = i == 0 or number != stream[begin + i - 1][2]
                position = 0 if new else position + 1
                row.append((token, target, position, number))
            rows.append(row)
        return rows

    def test_rows(self):
        for length in (1, 3, 5, 8, 27):
            text, want = TextRows([self.path], length), self.plain(length)
            self.assertEqual(len(want), text.num_rows)
            rows = text.take(0, text.num_rows)
            for r, row in enumerate(want):
                self.assertEqual([x[0] for x in row], rows.tokens[r].tolist())
                self.assertEqual([x[1] for x in row], rows.targets[r].tolist())
                self.assertEqual([x[2] for x in row], rows.positions[r].tolist())
                same = np.equal.outer(rows.documents[r], rows.documents[r])
                numbers = np.array([x[3] for x in row])
                np.testing.assert_array_equal(np.equal.outer(numbers, numbers), same)

    def test_shuffled(self):
        text = TextRows([self.path], 3, seed=5)
        n = text.num_rows
        plain = text.take(0, n).tokens
        for epoch in range(2):
            rows = text.shuffled(epoch * n, n).tokens
            order = [rp.random_permutation(5, epoch, n, i) for i in range(n)]
            np.testing.assert_array_equal(plain[order], rows)


if __name__ == "__main__":
    unittest.main()
