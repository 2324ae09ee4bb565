#!/usr/bin/env python3
"""Tests of what benches make of rounds. Standard library only."""

import unittest
from types import SimpleNamespace

from pagoda_runs import Race, median_interval


def race_of(**seconds):
    """A race whose variants took these seconds, round by round."""
    return Race({name: [SimpleNamespace(median=lambda _, s=s: s) for s in of_name]
                 for name, of_name in seconds.items()})


class MedianInterval(unittest.TestCase):
    def test_is_the_textbooks(self):
        # Ranks of the sign test's interval at 95 %, from published tables.
        for count, first, last in ((6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)):
            self.assertEqual(median_interval(range(1, count + 1)), (first, last))

    def test_needs_six(self):
        self.assertIsNone(median_interval([1, 2, 3, 4, 5]))


class Effect(unittest.TestCase):
    def test_one_outlier_decides_nothing(self):
        race = race_of(full=[1.0] * 6, other=[1.01, 0.99, 1.01, 0.99, 1.01, 9.0])
        self.assertEqual(race.effect("other", "full"), "none")

    def test_a_small_steady_difference_is_seen(self):
        race = race_of(full=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                       slower=[1.01, 2.03, 3.01, 4.1, 5.2, 6.01],
                       faster=[0.99, 1.99, 2.9, 3.9, 4.9, 5.9])
        self.assertEqual(race.effect("slower", "full"), "slower")
        self.assertEqual(race.effect("faster", "full"), "faster")


if __name__ == "__main__":
    unittest.main()
