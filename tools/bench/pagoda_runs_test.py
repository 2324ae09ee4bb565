#!/usr/bin/env python3
"""Tests of what benches make of rounds. Standard library only."""

import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import hexa_tables
import home_tables
import launcher
import memory_peers
from pagoda_runs import Plan, Race, median_interval


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


class PlanOfRun(unittest.TestCase):
    PRINTED = """model: 1.5 M parameters, 0.5 M active per token, 4 layers, 8 experts, top 2
offloaded; what does not fit goes to host memory
device: 20.0 MiB of 21.0 MiB (3.0 MiB workspace, 17.0 MiB slots); \
smallest memory.device that would do: 9.5 MiB
host:   40.0 MiB of 1.0 GiB; smallest memory.host that would do: 2.0 MiB
disk:   64.0 KiB
  weights          6.0 MiB in all: room for 5.0 MiB on the device, 6.0 MiB in host memory
  state           12.0 MiB in all: room for 0 B on the device, 12.0 MiB in host memory
  gradients        6.0 MiB in all: room for 1.0 MiB on the device, 6.0 MiB in host memory
  activations      4.0 MiB in all: room for 2.0 MiB on the device, 4.0 MiB in host memory
  in-layer         4.0 MiB in all: room for 4.0 MiB on the device, 0 B in host memory
"""

    def test_says_what_a_step_has_of_its_own(self):
        plan = Plan.parse(66, self.PRINTED + "  guests           1.5 MiB on the devices, for "
                          "weights of other processes' experts in 3 layers\n")
        self.assertEqual(plan.on_device - plan.pages_on_device, 12 * 2**20)
        self.assertEqual((plan.least_device, plan.guests), (9.5 * 2**20, 1.5 * 2**20))
        self.assertEqual(plan.guest_layers, 3)

    def test_knows_guests_that_come_when_due_and_none(self):
        plan = Plan.parse(66, self.PRINTED + "  guests         512.0 KiB on the devices, for "
                          "weights of other processes' experts, which come when they are due\n")
        self.assertEqual((plan.guests, plan.guest_layers), (2**19, 0))
        none = Plan.parse(66, self.PRINTED)
        self.assertEqual((none.guests, none.guest_layers), (0, 0))


class HomeTables(unittest.TestCase):
    def test_follows_exchanges_in_their_order(self):
        # Layer 1: 0 and 2 exchange, so 0 is where 2 was; then 0 and 1: 0 is where 1 was, 1 where 2.
        move = {"experts": 6, "swaps": {"layer": [1, 1, 2], "a": [0, 0, 3], "b": [2, 1, 0]}}
        self.assertEqual(home_tables.exchanged([move]),
                         {(1, 0): 1, (1, 1): 2, (1, 2): 0, (2, 3): 0, (2, 0): 3})
        back = {"experts": 2, "swaps": {"layer": [2], "a": [0], "b": [3]}}
        self.assertEqual(home_tables.exchanged([move, back]), {(1, 0): 1, (1, 1): 2, (1, 2): 0})

    def test_gives_experts_the_numbers_of_their_homes(self):
        trace = "pagoda-routing 1 experts 3\n7 0 1 10 20 30\n7 0 2 1 2 3\n"
        self.assertEqual(home_tables.with_homes(trace, {(1, 0): 1, (1, 1): 2, (1, 2): 0}),
                         "pagoda-routing 1 experts 3\n7 0 1 30 10 20\n7 0 2 1 2 3\n")
        self.assertEqual(home_tables.with_homes(trace, {}), trace)

    def test_plans_each_placement_once(self):
        swap = {"experts": 2, "swaps": {"layer": [0], "a": [0], "b": [1]}}
        runs = [SimpleNamespace(moves=moves) for moves in ([swap], [], [swap])]
        asked = []
        self.assertEqual(home_tables.plans_of_moves(
            runs, lambda places: asked.append(places) or "moved", "own"), ["moved", "own", "moved"])
        self.assertEqual(asked, [{(0, 0): 1, (0, 1): 0}])

    def test_says_whether_the_plan_is_near(self):
        text = "  2 ranks: gains differ, in parts of a step, by 0.060, NOT HELD (<= 0.05)"
        self.assertEqual(home_tables.gain_text(2, -0.06, True), text)
        self.assertEqual(home_tables.gain_text(4, 0, False), "  4 ranks: nothing moved")


class HexaTables(unittest.TestCase):
    def test_where_data_centric_becomes_faster(self):
        first = hexa_tables.first_faster
        self.assertEqual(first({1024: 0.8, 2048: 1.01, 4096: 1.3}), "from 2048 on")
        self.assertEqual(first({1024: 1.1, 2048: 0.9, 4096: 1.3}), "at 1024, 4096")
        self.assertEqual(first({1024: 1.1, 2048: 1.2}), "in all")
        self.assertEqual(first({1024: 0.8, 2048: 1.0}), "in none")
        crossover = hexa_tables.crossover_text
        self.assertEqual(crossover({1: 0.9, 2: 1.1}, {1: 0.9, 2: 0.95}),
                         "from 2 on, by the plan in none, NOT HELD")
        self.assertEqual(crossover({1: 0.9, 2: 1.1}, {1: 0.7, 2: 1.2}),
                         "from 2 on, by the plan from 2 on, held")
        self.assertEqual(crossover({1: 1.3, 2: 1.1}, {1: 1.1, 2: 1.2}),
                         "in all, by the plan in all, held without a crossover")

    def test_what_shares_save(self):
        # 13 of 32 shards where there were 16, of which a fifth is the most: 3 / 16 over 1 / 5.
        self.assertEqual(hexa_tables.saved_text(3 / 16, 1.5),
                         "saved of 1 - 2 / (1 + r) 0.938, held (>= 0.90)")
        self.assertEqual(hexa_tables.saved_text(5 / 16 - 1 / 32, 2),
                         "saved of 1 - 2 / (1 + r) 0.844, NOT HELD (>= 0.90)")

    def test_how_steady_steps_are(self):
        run = SimpleNamespace(steps=[{"step_s": seconds} for seconds in (1, 1, 3, 3)])
        self.assertEqual(hexa_tables.variation(run), 0.5)

    def test_each_row_of_a_shifting_text_has_a_letter_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            hexa_tables.write_shifting_text(path, row=400, rows=20)
            text = path.read_text()
        self.assertEqual(len(text), 20 * 400)
        rows = [text[begin:begin + 400] for begin in range(0, len(text), 400)]
        most = [max(set(row), key=row.count) for row in rows]
        self.assertTrue(all(150 < row.count(letter) < 250 for row, letter in zip(rows, most)))
        self.assertGreater(len(set(most)), 8)


class MemoryPeers(unittest.TestCase):
    def test_reads_what_holds_everything(self):
        plan = ("offload: none: everything fits on the device, in 2.50 GiB of memory.device\n"
                "device: 3.00 GiB of 64.00 GiB (2.00 GiB workspace, 1.00 GiB slots)\n"
                "host:   1.00 MiB of 512.00 MiB\n")
        kept = "  kept           512.00 MiB on the device, which 4 of 4 layers do not compute\n"
        self.assertAlmostEqual(memory_peers.bytes_of_all(plan) / 2**30, 3.015)
        self.assertAlmostEqual(memory_peers.bytes_of_all(plan + kept) / 2**30, 2.515)
        self.assertIsNone(memory_peers.bytes_of_all("offload: device + host: the device alone\n"))


class UnderMpirun(unittest.TestCase):
    """A made-up mpirun stands in for the launcher."""

    def launched(self, script):
        with tempfile.TemporaryDirectory() as folder:
            mpirun = Path(folder) / "mpirun"
            mpirun.write_text("#!/bin/sh\n" + script)
            mpirun.chmod(0o755)
            path = os.environ["PATH"]
            os.environ["PATH"] = folder + os.pathsep + path
            try:
                return launcher.under_mpirun(2, ["pagoda", "--version"])
            finally:
                os.environ["PATH"] = path

    def test_says_what_was_printed(self):
        done = self.launched('sleep 0.1; echo of "$@"; echo no >&2; exit 3')
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (3, "of -n 2 pagoda --version\n", "no\n"))

    def test_a_launcher_that_outlives_its_processes_is_killed(self):
        launcher.ALONE_S = 0.3
        done = self.launched("echo out; sleep 1; exec sleep 10000")
        self.assertEqual((done.returncode, done.stdout), (-9, "out\n"))


if __name__ == "__main__":
    unittest.main()
