"""A search as TensorBoard's HParams."""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dualnet import _tensorboard
from dualnet._files import folder_beside
from dualnet.tuning.job import Job, Parameter
from dualnet.tuning.report.tables import Row, text_of
from dualnet.tuning.trial import TRIALS, read_epochs


def write_hparams(folder: Path, job: Job, rows: Iterable[Row]) -> None:
    """Write TensorBoard's HParams into `tensorboard/`, replacing what is there.

    Each trial is a session with its drawn values, its status, the metric `val_perplexity`,
    the lowest of its epochs, and the curve `epoch_val_perplexity`. View it with
    `tensorboard --logdir FOLDER/tensorboard`.
    """
    from tensorboard.plugins.hparams import summary_v2

    domains = {parameter.name: _domain(parameter) for parameter in job.space}
    config = summary_v2.hparams_config_pb(
        hparams=[summary_v2.HParam(name, domain) for name, domain in domains.items()],
        metrics=[summary_v2.Metric("val_perplexity", display_name="validation perplexity")],
    )
    with folder_beside(folder / "tensorboard") as target:
        _tensorboard.write(target, [(0, config)])
        for row in rows:
            drawn = {name: _convert(domains[name].dtype, row.drawn[name]) for name in row.drawn}
            end = time.time()
            start = end - (row.seconds or 0.0)
            begin = summary_v2.hparams_pb(drawn, trial_id=row.trial, start_time_secs=start)
            events = [(0, begin)]
            for epoch in read_epochs(folder / TRIALS / row.trial):
                curve = {"epoch_val_perplexity": epoch["val_perplexity"]}
                events.append((int(epoch["epoch"]), _tensorboard.scalars(curve)))
            if row.val_perplexity is not None and math.isfinite(row.val_perplexity):
                metric = {"val_perplexity": row.val_perplexity}
                events.append((row.best_epoch or 0, _tensorboard.scalars(metric)))
            events.append((0, _session_end(row.status, end)))
            _tensorboard.write(target / row.trial, events)


def _session_end(status: str, seconds: float) -> Any:
    """Return the end of a session; TensorBoard's own function for it loads TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    names = {"completed": "SUCCESS", "failed": "FAILURE", "running": "RUNNING"}
    code = getattr(api_pb2, f"STATUS_{names.get(status, 'UNKNOWN')}")
    end = plugin_data_pb2.SessionEndInfo(status=code, end_time_secs=seconds)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=end)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


def _domain(parameter: Parameter) -> Any:
    """Return the domain of a parameter in HParams, which has numbers, strings and booleans."""
    from tensorboard.plugins.hparams import summary_v2

    if not parameter.values:
        return summary_v2.RealInterval(*(float(end) for end in parameter.ends))
    types = {type(value) for value in parameter.values}
    dtype = bool if types == {bool} else float if types <= {int, float} else str
    return summary_v2.Discrete([_convert(dtype, v) for v in parameter.values], dtype=dtype)


def _convert(dtype: type, value: Any) -> Any:
    return text_of(value) if dtype is str else dtype(value)
