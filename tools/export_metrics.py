#!/usr/bin/env python3
"""Copies a run's metrics.jsonl to trackio (or to Weights & Biases, whose calls are the same).

    pip install trackio
    python tools/export_metrics.py RUN [--project NAME] [--to trackio|wandb]

Numbers of a step become train/NAME, evaluations eval/loss, and of the experts the worst layer's.
"""

import argparse
import importlib
import json
import math
from pathlib import Path


def numbers_of(event):
    """What one line of metrics.jsonl has to show: {name: number}; nothing of other lines."""
    group = {"step": "train", "eval": "eval"}.get(event.get("type"))
    if group is None:
        return {}
    shown = {f"{group}/{name}": float(value) for name, value in event.items()
             if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)}
    experts = event.get("experts") or {}
    if experts.get("max_over_mean"):
        shown["experts/max_over_mean"] = max(experts["max_over_mean"])
        shown["experts/entropy"] = min(experts["entropy"])
        shown["experts/dead"] = sum(experts["dead"])
    return shown


def read_run(folder):
    """Returns the run's options and, in their order, (step, numbers)."""
    options, rows = {}, []
    with open(Path(folder) / "metrics.jsonl", encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event.get("type") == "run":
                options = event.get("options", {})
            numbers = numbers_of(event)
            if numbers:
                rows.append((event["step"], numbers))
    return options, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("--project", default="pagoda")
    parser.add_argument("--to", choices=("trackio", "wandb"), default="trackio")
    arguments = parser.parse_args()
    tracker = importlib.import_module(arguments.to)
    options, rows = read_run(arguments.run)
    tracker.init(project=arguments.project, name=Path(arguments.run).resolve().name, config=options)
    for step, numbers in rows:
        tracker.log(numbers, step=step)
    tracker.finish()
    print(f"{len(rows)} lines of {arguments.run} are in the project {arguments.project}")


if __name__ == "__main__":
    main()
