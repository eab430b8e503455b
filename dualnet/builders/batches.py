"""Checks of batches before the first step, and of the tokens and states given to a model."""

import itertools
import reprlib

import numpy as np
from keras import ops, tree, utils

from dualnet._checks import ArgumentError

TOKENS = "must be an integer array of shape (batch, time)"


def look_ahead(data, targets, batch_size, *, check, faults):
    """Return `data` and the number of rows of its batches, looked up in the first one.

    `check` is called with its tokens and targets, or those of arrays, `data` and `targets`. The
    batches of a generator are checked as they are read; an error is also put into the list
    `faults`, since TensorFlow raises another.
    """
    if hasattr(data, "shape"):  # an array, which Keras cuts into batches of 32 by default
        rows, batch_size = len(data), batch_size or 32
        if rows < batch_size or rows % batch_size:
            reason = "since each row continues the stream of the row `batch_size` before it."
            received = f"{reason} Received: {rows} rows, batch_size={batch_size}."
            raise ArgumentError("x", f"must hold a multiple of `batch_size` rows, {received}")
        check(data, targets)
        return data, batch_size
    spec = getattr(data, "element_spec", None)  # of a tf.data.Dataset
    fixed_rows = spec is None or tree.flatten(spec)[0].shape[0] is not None
    carried = getattr(data, "carried", True)
    if not fixed_rows and carried:
        reason = "since each row continues the stream of the same row of the batch before."
        received = "Received: a dataset whose last batch may hold fewer rows."
        way_out = " Use batch(batch_size, drop_remainder=True)."
        raise ArgumentError("x", f"must come in batches of one size, {reason} {received}", way_out)
    if isinstance(data, utils.PyDataset):
        last = data[data.num_batches - 1] if carried and data.num_batches else None
        rows = _rows(data[0], check)
        if last is not None:
            check_streams(_rows(last), rows)
    elif iter(data) is data:  # a generator: the first batch is put back
        first = next(data)
        rows = _rows(first)
        data = _of_one_size(itertools.chain([first], data), rows, check, faults)
    else:
        rows = _rows(next(iter(data)), check)
    return data, rows


def _rows(batch, check=None):
    """Return the number of rows of `batch`, its inputs or a tuple that begins with them."""
    inputs, *rest = batch if isinstance(batch, (tuple, list)) else (batch,)
    if check is not None:
        check(inputs, rest[0] if rest else None)
    return int(tree.flatten(inputs)[0].shape[0])


def _of_one_size(batches, rows, check, faults):
    """Yield `batches`, as a generator, the only iterator that Keras takes, and check them."""
    for batch in batches:
        try:
            check_streams(_rows(batch, check), rows)
        except ArgumentError as error:
            faults.append(error)
            raise
        yield batch


def check_streams(rows, streams):
    """Raise `ArgumentError` if the number of rows of a batch is not the number of streams."""
    if rows != streams:
        way_out = " Leave the incomplete batch out, or use `Corpus.batches`, which does."
        required = f"must come in batches of {streams} rows, the number of streams."
        raise ArgumentError("x", f"{required} Received: a batch of {rows}.", way_out)


def check_range(name, ids, lowest, vocabulary_size, way_out=""):
    """Raise `ArgumentError` if an id is no integer, below `lowest` or beyond the vocabulary."""
    if ids.dtype.kind == "f" and not np.all(whole := ids % 1 == 0):
        received = f"Received: {ids[~whole][0]}."
        raise ArgumentError(name, f"must hold integers, the ids of words. {received}", way_out)
    low, high = ids.min(), ids.max()
    if low < lowest or high >= vocabulary_size:  # JAX and XLA would clip or wrap them
        range_of_ids = f"0 to {vocabulary_size - 1}{', or -1 for padding' * (lowest < 0)}"
        required = f"must hold ids of the model's vocabulary, {range_of_ids}."
        raise ArgumentError(name, f"{required} Received: {low} to {high}.", way_out)


def check_call(name, ids, lowest, vocabulary_size):
    """Raise `ArgumentError` for ids of another shape or vocabulary, unless they are symbolic."""
    values = _values_of(ids)
    if values is not None:
        if values.ndim != 2 or not values.size:
            received = f"Received: shape {values.shape}."
            raise ArgumentError(name, f"{TOKENS}, both at least 1. {received}")
        check_range(name, values, lowest, vocabulary_size)


def check_targets(targets, shape, vocabulary_size):
    """Raise `ArgumentError` unless there is a target for each of the tokens, of their `shape`.

    As in Keras, they may be alone in a list, and have another axis, of 1. Those below 0 count for
    nothing.
    """
    [targets] = targets if isinstance(targets, (list, tuple)) else [targets]
    values = None if targets is None else _values_of(targets)
    if values is not None and values.shape not in (shape, (*shape, 1)):
        required = f"must hold an id for each token of `x`, shape {shape}."
        raise ArgumentError("y", f"{required} Received: shape {values.shape}.")
    if values is not None and values.size:
        way_out = " A target below 0 counts for nothing."
        check_range("y", np.where(values < 0, 0, values), 0, vocabulary_size, way_out)


def _values_of(tokens):
    """Return `tokens` in NumPy, or None if symbolic, or on a device that NumPy cannot read."""
    try:
        return np.asarray(tokens)
    except (NotImplementedError, TypeError):
        return None


def as_tokens(tokens, lowest, vocabulary_size):
    """Return `tokens` as int32 `(batch, time)`, their values checked unless they are symbolic."""
    try:
        values = _values_of(tokens)
    except ValueError as error:
        raise ArgumentError("tokens", f"{TOKENS}. Received: {error}") from None
    array = tokens if values is None else values
    dtype, shape = getattr(array.dtype, "name", str(array.dtype)), tuple(array.shape)
    if "int" not in dtype or len(shape) != 2 or 0 in shape:
        received = f"Received: shape {shape}, dtype {dtype}."
        raise ArgumentError("tokens", f"{TOKENS}, both at least 1. {received}")
    if values is not None:
        check_range("tokens", values, lowest, vocabulary_size)
    return ops.convert_to_tensor(tokens, "int32")


def as_tensors(state, dtype=None):
    """Return the arrays of `state` as tensors."""
    try:
        return [ops.convert_to_tensor(tensor, dtype) for tensor in state]
    except Exception as error:  # each backend has its own
        received = f"Received: {reprlib.repr(state)}."
        raise ArgumentError("state", f"must be a list of arrays. {received}") from error


def as_state(state, rows, sizes):
    """Return `state` as a list of float32 `(rows, size)`; a size of None is not known yet."""
    tensors = as_tensors(state, "float32")
    shapes = [tuple(tensor.shape) for tensor in tensors]
    wanted = [(rows, size) for size in sizes]
    if len(shapes) != len(wanted) or not all(map(_may_be, shapes, wanted)):
        arrays = f"{len(wanted)} arrays of shapes {wanted}, a row for each row of `tokens`"
        way_out = f" Start with initial_state({rows})."
        raise ArgumentError("state", f"must hold {arrays}. Received: shapes {shapes}.", way_out)
    return tensors


def _may_be(shape, wanted):
    sizes = zip(shape, wanted)
    return len(shape) == len(wanted) and all(a == b or None in (a, b) for a, b in sizes)
