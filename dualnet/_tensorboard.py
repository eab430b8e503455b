"""Writes TensorBoard event files without loading TensorFlow."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

NAME = "events.out.tfevents.0.dualnet"


def write(
    folder: Path, rows: Iterable[tuple[int, Mapping[str, float]]], *, append: bool = False
) -> None:
    """Write rows, each a step and its scalars by tag, into the event file in `folder`.

    Unless they `append` to it, the file is a fresh one, in place of the old one, whatever that is.

    Keras's callback and tensorboard's own event writer load TensorFlow; its record writer
    does not.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    events = []
    if not append:
        (folder / NAME).unlink(missing_ok=True)
        events.append(Event(file_version="brain.Event:2"))
    for step, scalars in rows:
        tags = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        events.append(Event(step=step, summary=Summary(value=tags)))
    # Not renamed into place: a TensorBoard that is running goes on reading the open file.
    with (folder / NAME).open("ab") as file:
        for event in events:
            event.wall_time = time.time()
            RecordWriter(file).write(event.SerializeToString())
