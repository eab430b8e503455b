"""Writes TensorBoard event files without loading TensorFlow."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NAME = "events.out.tfevents.0.dualnet"


def write(folder: Path, events: Iterable[tuple[int, Any]], *, append: bool = False) -> None:
    """Write events, each a step and a `Summary` protocol buffer, into the event file in `folder`.

    Unless they `append` to it, the file is a fresh one, in place of the old one, whatever that is.

    Keras's callback and tensorboard's own event writer load TensorFlow; its record writer
    does not.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    contents: list[dict[str, Any]] = [{"step": step, "summary": data} for step, data in events]
    if not append:
        (folder / NAME).unlink(missing_ok=True)
        contents.insert(0, {"file_version": "brain.Event:2"})
    # Not renamed into place: a TensorBoard that is running goes on reading the open file.
    with (folder / NAME).open("ab") as file:
        for content in contents:
            RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


def scalars(values: Mapping[str, float]) -> Any:
    """Return a `Summary` of one scalar per tag."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    tags = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Summary(value=tags)
