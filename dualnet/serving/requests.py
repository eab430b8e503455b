"""Inputs of requests, and checks of them in a graph: each refuses a request with one sentence."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

Tensors = dict[str, Any]
Endpoint = tuple[Callable[[Tensors], Tensors], dict[str, Any]]  # with the specs of its inputs


def spec(name: str, dtype: Any, *shape: int | None) -> Any:
    """Return the spec of the input `name`, of shape `(batch, *shape)`."""
    return tf.TensorSpec((None, *shape), dtype, name=name)


IDS = {"ids": spec("ids", tf.int32, None), "lengths": spec("lengths", tf.int32)}


def checked_rows(inputs: Tensors, words: int) -> tuple[Tensors, Any]:
    """Return `inputs`, among them `IDS`, after checks, and which ids are within their row.

    Ids are of a vocabulary of `words` words. What stands beyond `lengths` may be anything, and
    becomes 0.
    """
    inputs = after(same_rows(inputs, "ids"), inputs)
    lengths, time = inputs["lengths"], tf.shape(inputs["ids"])[1]
    in_row = tf.sequence_mask(lengths, time)
    ids = tf.where(in_row, inputs["ids"], 0)
    columns = "at least 0 and at most the number of columns of `ids`"
    checks = [in_range("lengths", lengths, 0, time, columns), are_words("ids", ids, words)]
    return after(checks, {**inputs, "ids": ids}), in_row


def in_range(name: str, values: Any, least: Any, most: Any, requirement: str) -> Any:
    """Return an assertion that the integers `values` are from `least` to `most`.

    The message says that the input `name` must be `requirement`. No values pass: their lowest is
    the largest integer, and their highest the smallest.
    """
    lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
    message = f"`{name}` must be {requirement}. Received lowest and highest:"
    return tf.debugging.Assert((lowest >= least) & (highest <= most), [message, lowest, highest])


def are_words(name: str, ids: Any, words: int) -> Any:
    """Return an assertion that `ids` are those of a vocabulary of `words` words."""
    return in_range(name, ids, 0, words - 1, f"ids of the vocabulary, 0 to {words - 1}")


def all_valid(name: str, values: Any, valid: Any, requirement: str) -> Any:
    """Return an assertion that all `values` are `valid`, bool of their shape."""
    message = f"`{name}` must be {requirement}. Received:"
    return tf.debugging.Assert(tf.reduce_all(valid), [message, tf.boolean_mask(values, ~valid)])


def finite(inputs: Tensors, names: Iterable[str]) -> list[Any]:
    """Return assertions that the `inputs` with these names, if they are floats, are finite."""
    return [
        all_valid(name, inputs[name], tf.math.is_finite(inputs[name]), "finite")
        for name in names
        if inputs[name].dtype.is_floating
    ]


def not_empty(name: str, ids: Any) -> Any:
    """Return an assertion that `ids` have at least one column."""
    message = f"`{name}` must hold at least one word in each row. Received the shape:"
    return tf.debugging.Assert(tf.shape(ids)[1] > 0, [message, tf.shape(ids)])


def same_rows(inputs: dict[str, Any], first: str, *, axis: int = 0, part: str = "row") -> list[Any]:
    """Return assertions that all `inputs` have as many rows, or other parts, as `first`."""
    size = tf.shape(inputs[first])[axis] if inputs else 0
    return [
        tf.debugging.Assert(
            tf.equal(tf.shape(values)[axis], size),
            [f"`{name}` must have one {part} for each {part} of `{first}`. Received {part}s of "
             "both:", tf.shape(values)[axis], size],
        )
        for name, values in inputs.items()
        if name != first
    ]  # fmt: skip


def after(checks: Iterable[Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return `inputs`, which nothing reads before `checks` have passed."""
    with tf.control_dependencies(checks):
        return {name: tf.identity(values) for name, values in inputs.items()}
