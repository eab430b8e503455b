"""Writes TensorBoard event files without loading TensorFlow."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

NAME = "events.out.tfevents.0.dualnet"


def new_file(folder: Path) -> BinaryIO:
    """Open a fresh event file in `folder`, in place of the old one, whatever that is."""
    (folder / NAME).unlink(missing_ok=True)
    return (folder / NAME).open("wb")


class EventWriter:
    """Writes events to an open binary file, beginning with the version record.

    Keras's callback and tensorboard's own event writer load TensorFlow; its record writer
    does not.
    """

    def __init__(self, file: BinaryIO) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.file = file
        self.records = RecordWriter(file)
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self.records.write(version.SerializeToString())

    def write(self, step: int, summary: Any) -> None:
        """Write one `Summary` protocol buffer."""
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, summary=summary)
        self.records.write(event.SerializeToString())

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per tag."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        tags: Iterable[Any] = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
        ]
        self.write(step, Summary(value=tags))
