"""A search as TensorBoard's HParams."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet.tuning.rows import Row, history_of, in_order, text_of

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job, Parameter


def write_hparams(folder: str | os.PathLike[str], job: Job, rows: Iterable[Row]) -> None:
    """Write TensorBoard's HParams into `tensorboard/`, anew and whole.

    Each trial is a session with its drawn values, its status, the metric `val_perplexity`,
    which is the least of its epochs, and the curve `epoch_val_perplexity`. Read it with
    `tensorboard --logdir FOLDER/tensorboard`.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

    # `tensorboard.plugins.hparams.summary`, which writes the end of a session, loads TensorFlow.
    statuses = {
        "completed": api_pb2.STATUS_SUCCESS,
        "failed": api_pb2.STATUS_FAILURE,
        "running": api_pb2.STATUS_RUNNING,
    }
    folder = Path(folder)
    names = {parameter.name: _domain(parameter) for parameter in job.space}
    beside = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        beside.chmod(0o755)  # mkdtemp hides it from others
        config = summary_v2.hparams_config_pb(
            hparams=[summary_v2.HParam(name, domain) for name, domain in names.items()],
            metrics=[summary_v2.Metric("val_perplexity", display_name="validation perplexity")],
        )
        _write_events(beside, [(0, config)])
        for row in in_order(rows):
            end = time.time()
            drawn = {
                name: _of_type(domain.dtype, row.drawn[name])
                for name, domain in names.items()
                if name in row.drawn
            }
            start = summary_v2.hparams_pb(
                drawn, trial_id=row.trial, start_time_secs=end - (row.seconds or 0.0)
            )
            events = [(0, start)]
            for epoch in history_of(folder / "trials" / row.trial):
                events.append(
                    (int(epoch["epoch"]), _scalar("epoch_val_perplexity", epoch["val_perplexity"]))
                )
            if row.val_perplexity is not None and math.isfinite(row.val_perplexity):
                events.append((row.best_epoch or 0, _scalar("val_perplexity", row.val_perplexity)))
            status = statuses.get(row.status, api_pb2.STATUS_UNKNOWN)
            info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=end)
            ended = plugin_data_pb2.HParamsPluginData(session_end_info=info)
            value = Summary.Value(
                tag=metadata.SESSION_END_INFO_TAG,
                metadata=metadata.create_summary_metadata(ended),
                tensor=metadata.NULL_TENSOR,
            )
            events.append((0, Summary(value=[value])))
            (beside / row.trial).mkdir()
            _write_events(beside / row.trial, events)
        old = folder / "tensorboard"
        if old.exists():
            shutil.rmtree(old)
        beside.rename(old)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _scalar(tag: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def _write_events(folder: Path, events: Iterable[tuple[int, Any]]) -> None:
    # tensorboard's record writer: its event writer loads TensorFlow.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with (folder / "events.out.tfevents.0.dualnet").open("wb") as file:
        writer = RecordWriter(file)
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        for step, summary in events:
            event = Event(wall_time=time.time(), step=step, summary=summary)
            writer.write(event.SerializeToString())


def _domain(parameter: Parameter) -> Any:
    """Return the domain of a parameter in HParams, which knows numbers, texts and truth values."""
    from tensorboard.plugins.hparams import summary_v2

    if not parameter.values:
        return summary_v2.RealInterval(
            float(parameter.min_value or 0), float(parameter.max_value or 0)
        )
    kinds = {type(value) for value in parameter.values}
    if kinds == {bool}:
        dtype: type = bool
    else:
        dtype = float if kinds <= {int, float} else str
    values = [_of_type(dtype, value) for value in parameter.values]
    return summary_v2.Discrete(values, dtype=dtype)


def _of_type(dtype: type, value: Any) -> Any:
    return text_of(value) if dtype is str else dtype(value)
