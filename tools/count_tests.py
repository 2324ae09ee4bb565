#!/usr/bin/env python3
"""Counts test cases: passed, failed and skipped, over the folders that tools/test.sh leaves.

    count_tests.py FOLDER...   prints "N passed, N failed, N skipped"; exit 1 if any failed, or
                               none passed

A folder holds ctest.xml (ctest --output-junit) and one GoogleTest report for each program that is a
GoogleTest; there its cases count, elsewhere the program counts as one.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter


def program_outcome(case):
    """What ctest says of a program: passed, failed or skipped. One that is missing has failed."""
    skipped = case.find("skipped")
    if skipped is not None and skipped.get("message", "").startswith(("SKIP_", "Disabled")):
        return "skipped"
    return "passed" if case.get("status") == "run" else "failed"


def case_outcomes(report):
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None:
            yield "failed"
        elif case.find("skipped") is not None or case.get("result") in ("skipped", "suppressed"):
            yield "skipped"
        else:
            yield "passed"


def count(folder):
    counts = Counter()
    for program in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase"):
        outcome = program_outcome(program)
        report = folder / (program.get("name") + ".xml")
        try:
            cases = Counter(case_outcomes(report)) if report.is_file() else Counter()
        except ElementTree.ParseError:  # the program died while writing it
            cases = Counter()
        if outcome == "failed" and cases["failed"] == 0:
            cases["failed"] += 1  # it crashed, or failed outside its cases
        counts += cases or Counter({outcome: 1})
    return counts


def main():
    total = Counter()
    for name in sys.argv[1:]:
        folder = pathlib.Path(name)
        if (folder / "ctest.xml").is_file():
            total += count(folder)
        else:
            print(f"count_tests: {folder} has no ctest.xml: its tests did not run")
            total["failed"] += 1
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
