#!/usr/bin/env python3
"""The table of tests/load/compare calls a difference one only where no turn of the one revision lies among the other's."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "load"))
sys.dont_write_bytecode = True
import compare  # noqa: E402


class Verdict(unittest.TestCase):
    def test_turns_that_lie_apart_differ(self):
        self.assertEqual(compare.verdict([10, 11, 12], [7, 8, 9]), "lower")
        self.assertEqual(compare.verdict([10, 11, 12], [13, 14, 15]), "higher")

    def test_turns_that_overlap_are_noise(self):
        self.assertEqual(compare.verdict([10, 11, 12], [12, 13, 14]), "noise")
        self.assertEqual(compare.verdict([10, 30], [11, 12]), "noise")

    def test_one_turn_says_nothing(self):
        self.assertEqual(compare.verdict([10], [20, 21]), "one turn says nothing")


class Table(unittest.TestCase):
    def test_ratios_are_those_of_the_medians_and_of_the_first_revision(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = Path(folder)
            for key, rates in {"before": [100, 200, 90], "now": [130, 125, 120]}.items():
                (runs / "256" / key).mkdir(parents=True)
                for turn, rate in enumerate(rates, 1):
                    process = {"cpu_us_per_order": 50.0, "peak_memory_mib": 10.0}
                    run = {"webhooks_per_second": rate, "processes": {name: process for name in ["ingress", "generator"]}}
                    (runs / "256" / key / f"{turn}.json").write_text(json.dumps({"runs": [run]}))
            lines = list(compare.tables(runs, ["before", "now"]))
        self.assertIn("| order → webhook, 1/s | 100.0 | 125.0 | 1.25 | 110% | noise |", lines)
        # The generator is not part of what an order costs.
        self.assertIn("| … with PostgreSQL and NATS, µs | 50.0 | 50.0 | 1.00 | 0% | noise |", lines)


if __name__ == "__main__":
    unittest.main()
