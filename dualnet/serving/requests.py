"""Checks of requests inside a TensorFlow graph: each refuses a request with one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


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


def same_rows(inputs: dict[str, Any], first: str) -> list[Any]:
    """Return assertions that all `inputs` have as many rows as the input `first`."""
    rows = tf.shape(inputs[first])[0]
    return [
        tf.debugging.Assert(
            tf.equal(tf.shape(values)[0], rows),
            [f"`{name}` must have one row for each row of `{first}`. Received rows of both:",
             tf.shape(values)[0], rows],
        )
        for name, values in inputs.items()
        if name != first
    ]  # fmt: skip


def after(checks: Iterable[Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return `inputs`, which nothing reads before `checks` have passed."""
    with tf.control_dependencies(checks):
        return {name: tf.identity(values) for name, values in inputs.items()}
