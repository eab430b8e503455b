"""Data-parallel training on JAX: each device works on some rows of a batch."""

import contextlib
import os
from collections.abc import Iterator

import keras

from dualnet._checks import ArgumentError, check_count
from dualnet._types import Tensor

_joined = False  # whether this process has joined the other hosts


class RowParallel(keras.distribution.DataParallel):
    """`keras.distribution.DataParallel` for parallel streams: each device keeps its own rows.

    Every process reads the whole text, and every device gets the whole batch of ids, which is
    small. The step of a `LanguageModel` then divides the rows if they divide evenly; otherwise
    each device computes all of them. So batches of any size work, such as the last batch of
    sentences or the single row of dynamic evaluation.
    """

    def get_data_layout(self, data_shape):
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


def data_parallel(devices: int | str = "all") -> RowParallel:
    """Return a distribution over `devices`, for `keras.distribution.set_distribution`.

    Set it before you build a model, or use it as `with data_parallel().scope():`. Every device
    holds all weights, and the rows of each batch are divided among the devices: `batch_size`
    counts the rows of all of them. The results, dropout masks included, equal those of one
    device up to rounding.

    With the environment variables of `keras.distribution.initialize`, such as
    `KERAS_DISTRIBUTION_JOB_ADDRESSES`, the process first joins those on other hosts; "all" then
    means the devices of all hosts.

    Args:
        devices: int, at least 1, to use the first devices of the kind that JAX prefers; or "all".

    Raises:
        ValueError: if the backend is not JAX, or there are fewer devices.

    Example:
        >>> import dualnet, keras
        >>> from dualnet import zoo
        >>> if keras.config.backend() == "jax":
        ...     with dualnet.data_parallel(1).scope():
        ...         model = zoo.build("lstm", vocabulary_size=3, units=4)
    """
    global _joined
    if devices != "all":
        check_count("devices", devices)
    if keras.config.backend() != "jax":
        raise ArgumentError(
            "devices",
            f"needs the JAX backend. Received: devices={devices!r} with the backend "
            f"{keras.config.backend()!r}. Set the environment variable KERAS_BACKEND=jax.",
        )
    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ and not _joined:
        keras.distribution.initialize()
        _joined = True
    available = keras.distribution.list_devices()
    count = len(available) if devices == "all" else int(devices)
    if count > len(available):
        raise ArgumentError(
            "devices",
            f"must be at most {len(available)}, the number of devices that JAX sees.",
            " To try it on a CPU, set the environment variable "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}.",
            devices=devices,
        )
    return RowParallel(devices=available[:count], auto_shard_dataset=False)


def num_devices() -> int:
    """Return the number of devices that share the rows of a batch, 1 without a distribution."""
    active = keras.distribution.distribution()
    return active.num_model_replicas if isinstance(active, keras.distribution.DataParallel) else 1


def divided(values: Tensor) -> Tensor:
    """Return tensors `(rows, ...)` with rows that divide evenly spread over the devices."""
    count = num_devices()
    if count == 1:
        return values
    active = keras.distribution.distribution()

    def divide(value: Tensor | None) -> Tensor | None:
        if value is None or not value.shape or value.shape[0] % count:
            return value
        axes = [active.batch_dim_name, *[None] * (len(value.shape) - 1)]
        layout = keras.distribution.TensorLayout(axes, active.device_mesh)
        return keras.distribution.distribute_tensor(value, layout)

    return keras.tree.map_structure(divide, values)


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Keep Keras from dividing batches within the context: for batches of one or a few rows."""
    active = keras.distribution.distribution()
    with contextlib.ExitStack() as stack:
        if isinstance(active, keras.distribution.DataParallel):
            stack.enter_context(RowParallel(active.device_mesh, auto_shard_dataset=False).scope())
        yield


def check_rows(rows: int) -> None:
    """Raise `ValueError` if the rows of a batch do not divide evenly among the devices."""
    if rows % num_devices():
        raise ArgumentError(
            "batch_size",
            f"must be a multiple of {num_devices()}, the number of devices. Received: {rows}. "
            "Choose another batch_size, or fewer devices.",
        )
