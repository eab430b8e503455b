"""Data-parallel training: the rows of a batch divided among several devices, on JAX."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from dualnet._checks import ArgumentError, check_count

_joined = False  # whether this process has joined the others


class RowParallel(keras.distribution.DataParallel):
    """`keras.distribution.DataParallel` for streams: each device works on rows of its own.

    Every device gets the whole batch of ids, which is small, and every process reads the
    whole text; the step of a `LanguageModel` then divides the rows, where they can be
    divided evenly. So batches of any size can be read, such as the last one of an epoch of
    sentences, or the one row of dynamic evaluation, at which each device does the same.
    """

    def get_data_layout(self, data_shape):
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


def data_parallel(devices: int | str = "all") -> RowParallel:
    """Return the distribution over `devices`, for `keras.distribution.set_distribution`.

    Set it before a model is built, or use it as `with data_parallel().scope():`. Weights are
    on every device, the rows of each batch divided among them: `batch_size` is that of all
    together. The results are those of one device, to rounding, masks of dropouts too.

    With the environment variables of `keras.distribution.initialize` (as
    `KERAS_DISTRIBUTION_JOB_ADDRESSES`) the process joins those on other hosts first; "all"
    are then the devices of all hosts.

    Args:
        devices: int, at least 1, the first ones of the kind that JAX prefers; or "all".

    Raises:
        ValueError: if the backend is not JAX, or there are fewer devices.
    """
    if devices != "all":
        check_count("devices", devices, least=1)
    if keras.config.backend() != "jax":
        raise ArgumentError(
            "devices",
            f"needs the backend jax. Received: devices={devices!r} with the backend "
            f"{keras.config.backend()!r}. Set the environment variable KERAS_BACKEND=jax.",
        )
    _join()
    found = keras.distribution.list_devices()
    count = len(found) if devices == "all" else int(devices)
    if count > len(found):
        raise ArgumentError(
            "devices",
            f"must be at most {len(found)}, the number of devices that JAX sees. "
            f"Received: devices={devices!r}. To try it on a CPU set the environment variable "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}.",
        )
    return RowParallel(devices=found[:count], auto_shard_dataset=False)


def _join() -> None:
    global _joined
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ and not _joined:
        keras.distribution.initialize()
        _joined = True


def num_devices() -> int:
    """Return among how many devices rows are divided, 1 without a distribution."""
    now = keras.distribution.distribution()
    return now.num_model_replicas if isinstance(now, keras.distribution.DataParallel) else 1


def divided(values: Any) -> Any:
    """Return tensors `(rows, ...)` with the rows divided among the devices, where they can be."""
    count = num_devices()
    if count == 1:
        return values
    now = keras.distribution.distribution()

    def divide(value: Any) -> Any:
        if value is None or not value.shape or value.shape[0] % count:
            return value
        axes = [now.batch_dim_name, *[None] * (len(value.shape) - 1)]
        layout = keras.distribution.TensorLayout(axes, now.device_mesh)
        return keras.distribution.distribute_tensor(value, layout)

    return keras.tree.map_structure(divide, values)


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Let Keras divide no batch meanwhile: for batches of a row or a few."""
    now = keras.distribution.distribution()
    with contextlib.ExitStack() as held:
        if isinstance(now, keras.distribution.DataParallel):
            held.enter_context(RowParallel(now.device_mesh, auto_shard_dataset=False).scope())
        yield


def check_rows(rows: int) -> None:
    """Raise `ValueError` if the rows of a batch cannot be divided evenly among the devices."""
    if rows % num_devices():
        raise ArgumentError(
            "batch_size",
            f"must be a multiple of {num_devices()}, the number of devices that the "
            f"rows are divided among. Received: {rows}. Take another batch_size, or fewer devices.",
        )
