#!/usr/bin/env python3
"""Writes a run file with as many steps as fit this machine, from a probe of the same run.

    python3 tools/choose_steps.py CONFIG PROBE OUT

PROBE is the folder of a run of CONFIG's with few steps. OUT becomes CONFIG with as many `steps` as
take 160 s by the probe's last ones (what is around them makes that about five minutes) and as write
at most 14 GB by what these wrote, with one evaluation halfway and one checkpoint at the end.
"""

import json
import re
import sys
from pathlib import Path

SECONDS = 160
WRITTEN_BYTES = 14e9
LEAST, MOST = 12, 100


def chosen_steps(probe):
    lines = (probe / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if row["type"] == "step"]
    steps = steps[1:]  # the first warms up
    seconds = sum(row["step_s"] for row in steps) / len(steps)
    written = sum(row["write_back_bytes"] for row in steps) / len(steps)
    # The store is written when the run begins, and at most once more at its checkpoint.
    store = sum(f.stat().st_blocks * 512 for f in (probe / "store").rglob("*") if f.is_file())
    by_disk = (WRITTEN_BYTES - 2 * store) / max(written, 1)
    steps = int(max(LEAST, min(MOST, SECONDS / seconds, by_disk)))
    return steps, seconds, written


def main():
    config, probe, out = map(Path, sys.argv[1:])
    steps, seconds, written = chosen_steps(probe)
    print(f"choose_steps: {seconds:.1f} s and {written / 1e9:.2f} GB written a step: {steps} steps")
    text = config.read_text()
    for key, value in (("steps", steps), ("save_steps", steps), ("eval_steps", (steps + 1) // 2)):
        text, found = re.subn(rf"^{key} = \d+$", f"{key} = {value}", text, flags=re.MULTILINE)
        if found != 1:
            sys.exit(f"choose_steps: {config} says {key} {found} times, not once")
    out.write_text(text)


if __name__ == "__main__":
    main()
