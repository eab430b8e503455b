"""Checks of batches before the first step, and of the tokens and states given to a model."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops, tree
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError
from dualnet._types import Tensor

# Arrays, a `keras.utils.PyDataset`, a dataset of the backend, or a generator.
Data: TypeAlias = Any


def look_ahead(
    data: Data, batch_size: int | None, targets: Any = None
) -> tuple[Data, Any, Any, int]:
    """Return `data`, tokens and targets of its first batch, and the number of rows of a batch.

    Of arrays, whose `targets` are given, these are all tokens.

    Raises:
        ArgumentError: if a batch that is known already has another number of rows.
    """
    if hasattr(data, "shape"):  # an array, which Keras cuts into batches of 32 by default
        batch_size = batch_size or 32
        rows = data.shape[0] if data.shape else 0
        if rows < batch_size or rows % batch_size:
            raise ArgumentError(
                "x",
                "must hold a multiple of `batch_size` rows, since each row continues the stream "
                f"of the row `batch_size` before it. Received: {rows} rows, "
                f"batch_size={batch_size}.",
            )
        return data, data, targets, batch_size
    carried = getattr(data, "carried", True)
    spec = getattr(data, "element_spec", None)  # of a tf.data.Dataset
    if carried and spec is not None and _num_rows(spec) is None:
        raise ArgumentError(
            "x",
            "must come in batches of one size: each row continues that of the batch before.",
            " Use batch(batch_size, drop_remainder=True).",
        )
    if isinstance(data, keras.utils.PyDataset):
        first = data[0]
        if carried and data.num_batches:
            check_streams(_num_rows(data[data.num_batches - 1]), _num_rows(first))
    else:
        batches = iter(data)
        first = next(batches)
        if batches is data:  # a generator, the only iterator that Keras takes
            data = (batch for batch in itertools.chain([first], batches))
    tokens, targets, _ = keras.utils.unpack_x_y_sample_weight(first)
    return data, tokens, targets, _num_rows(tokens)


def _num_rows(batch: Any) -> Any:
    return tree.flatten(batch)[0].shape[0]


def check_streams(rows: int, streams: int) -> None:
    """Raise `ArgumentError` if the number of rows of a batch is not the number of streams."""
    if rows != streams:
        raise ArgumentError(
            "x",
            f"must come in batches of {streams} rows, the number of streams. Received: a batch of "
            f"{rows}.",
            " Leave the incomplete batch out, or use `Corpus.batches`, which does.",
        )


def check_range(
    name: str, ids: np.ndarray, lowest: int, vocabulary_size: int, way_out: str = ""
) -> None:
    """Raise `ArgumentError` if an id is no integer, below `lowest` or beyond the vocabulary."""
    if ids.dtype.kind == "f" and not np.all(whole := ids % 1 == 0):
        raise ArgumentError(
            name, f"must hold integers, the ids of words. Received: {ids[~whole][0]}.", way_out
        )
    low, high = ids.min(), ids.max()
    if low < lowest or high >= vocabulary_size:  # JAX and XLA would clip or wrap them
        padding = ", or -1 for padding" if lowest < 0 else ""
        required = f"must hold ids of the model's vocabulary, 0 to {vocabulary_size - 1}{padding}."
        raise ArgumentError(name, f"{required} Received: {low} to {high}.", way_out)


def check_tokens(name: str, tokens: ArrayLike, lowest: int, vocabulary_size: int) -> None:
    """Raise `ArgumentError` for ids of another shape or vocabulary, unless they are symbolic."""
    values = _values_of(tokens)
    if values is not None:
        if values.ndim != 2 or not values.size or values.dtype.kind not in "iuf":
            raise ArgumentError(
                name,
                "must be an integer array of shape (batch, time), both at least 1. Received: "
                f"shape {values.shape}, dtype {values.dtype}.",
            )
        check_range(name, values, lowest, vocabulary_size)


def check_targets(targets: Any, shape: tuple[int, ...], vocabulary_size: int) -> None:
    """Raise `ArgumentError` unless there is a target for each of the tokens, of their `shape`.

    As in Keras, they may be alone in a list, and have another axis, of 1. Those below 0 count for
    nothing.
    """
    [targets] = targets if isinstance(targets, list | tuple) else [targets]
    values = None if targets is None else _values_of(targets)
    if values is None:
        return
    if values.shape not in (shape, (*shape, 1)):
        required = f"must hold an id for each token of `x`, shape {shape}."
        raise ArgumentError("y", f"{required} Received: shape {values.shape}.")
    way_out = " A target below 0 counts for nothing."
    check_range("y", np.where(values < 0, 0, values), 0, vocabulary_size, way_out)


def _values_of(tokens: ArrayLike) -> np.ndarray | None:
    """Return `tokens` in NumPy, or None if symbolic, or on a device that NumPy cannot read."""
    try:
        return np.asarray(tokens)
    except (NotImplementedError, TypeError):
        return None


def as_tokens(tokens: ArrayLike, lowest: int, vocabulary_size: int) -> Tensor:
    """Return `tokens` as int32 `(batch, time)`, their values checked unless they are symbolic."""
    check_tokens("tokens", tokens, lowest, vocabulary_size)
    return ops.convert_to_tensor(tokens, "int32")


def as_state(state: Sequence[Tensor], rows: int | None, sizes: Sequence[int]) -> list[Tensor]:
    """Return `state` as a list of float32 `(rows, size)`; `rows` of None is not known yet."""
    tensors = [ops.convert_to_tensor(array, "float32") for array in state]
    shapes = [tuple(tensor.shape) for tensor in tensors]
    fits = [rows in (None, shape[0]) or shape[0] is None for shape in shapes]
    if [shape[1:] for shape in shapes] != [(size,) for size in sizes] or not all(fits):
        raise ArgumentError(
            "state",
            f"must hold {len(sizes)} arrays of shapes {[(rows, size) for size in sizes]}. "
            f"Received: shapes {shapes}.",
            f" Start with initial_state({rows}).",
        )
    return tensors
