#!/usr/bin/env python3
"""Writes tests/golden/events.tfevents: the numbers of event_file_test.cc by TensorBoard's writer.

    pip install tensorboard==2.21.0
    python tools/make_event_golden.py

The reader that TensorBoard itself uses (EventAccumulator) is asked for them again.
"""

import shutil
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "events.tfevents"


def scalars(wall_time, step, values):
    event = event_pb2.Event(wall_time=wall_time, step=step)
    for tag, value in values:
        event.summary.value.add(tag=tag, simple_value=value)
    return event


def main():
    start = 1700000000.25  # a clock that goes on by a quarter of a second each time it is read
    events = [
        event_pb2.Event(wall_time=start, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=start, step=1,
                        session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
        scalars(start + 0.25, 1,
                [("train/loss", 2.5), ("train/skipped", 0), ("train/tokens", 16384),
                 ("experts/max_over_mean", 4), ("experts/entropy", 0), ("experts/dead", 4)]),
        scalars(start + 0.5, 300, [("eval/loss", 2.25)]),
    ]
    with open(GOLDEN, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()
        writer.close()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(GOLDEN, Path(folder) / "events.out.tfevents.1")
        read = EventAccumulator(folder)
        read.Reload()
        assert [(s.step, s.value) for s in read.Scalars("train/loss")] == [(1, 2.5)]
        assert [(s.step, s.value) for s in read.Scalars("eval/loss")] == [(300, 2.25)]
        print(sorted(read.Tags()["scalars"]))


if __name__ == "__main__":
    main()
