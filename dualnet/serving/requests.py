"""Inputs of requests, and checks of them in a graph: each refuses a request with one sentence."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dualnet._types import Tensor, Tensors


class Input(NamedTuple):
    """An input of shape `(batch, *shape)`, whose values must be as `required`.

    `valid`, of the values and of all inputs, returns which of the values are; None: they all are.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] = ()
    required: str = ""
    valid: Callable[[Tensor, Tensors], Tensor] | None = None


Endpoint = tuple[Callable[[Tensors], Tensors], dict[str, Input]]  # a function of valid inputs


def finite(*shape: int | None) -> Input:
    """Return an input of finite floats."""
    return Input(tf.float32, shape, "finite", lambda x, _: tf.math.is_finite(x))


def not_negative() -> Input:
    """Return an input of a finite float for each row, at least 0."""
    return Input(
        tf.float32, (), "finite and at least 0", lambda x, _: tf.math.is_finite(x) & (x >= 0)
    )


def whole(least: int, most: int, required: str, *shape: int | None) -> Input:
    """Return an input of integers from `least` to `most`."""
    return Input(tf.int32, shape, required, lambda x, _: (x >= least) & (x <= most))


def ids_of(words: int) -> Input:
    """Return an input of rows of ids, of a vocabulary of `words` words."""
    return whole(0, words - 1, f"ids of the vocabulary, 0 to {words - 1}", None)


def rows_of(words: int, least: int = 0) -> dict[str, Input]:
    """Return the inputs `ids` and `lengths`, each at least `least`, beyond which ids may be any."""

    def are_words(ids, inputs):
        return ~in_row(inputs) | ((ids >= 0) & (ids < words))

    def are_lengths(lengths, inputs):
        return (lengths >= least) & (lengths <= tf.shape(inputs["ids"])[1])

    columns = f"at least {least} and at most the number of columns of `ids`"
    lengths = Input(tf.int32, (), columns, are_lengths)
    return {"ids": ids_of(words)._replace(valid=are_words), "lengths": lengths}


def in_row(inputs: Tensors) -> Tensor:
    """Return a mask, bool, of the `ids` within the `lengths` of their rows."""
    return tf.sequence_mask(inputs["lengths"], tf.shape(inputs["ids"])[1])


def served(endpoint: Endpoint) -> tuple[Callable[[Tensors], Tensors], dict[str, tf.TensorSpec]]:
    """Return the function of an endpoint, after checks of its inputs, and the specs of these."""
    function, inputs = endpoint

    def checked(values):
        first = next(iter(inputs))
        rows = {name: tf.shape(value)[0] for name, value in values.items()}
        checks = [
            tf.debugging.Assert(
                tf.equal(rows[name], rows[first]),
                [
                    f"`{name}` must have one row for each row of `{first}`. Received rows of both:",
                    rows[name],
                    rows[first],
                ],
            )
            for name in inputs
        ]
        values = after(checks, values)
        checks = [
            all_valid(name, values[name], declared.valid(values[name], values), declared.required)
            for name, declared in inputs.items()
            if declared.valid is not None
        ]
        return function(after(checks, values))

    return checked, {
        name: tf.TensorSpec((None, *declared.shape), declared.dtype, name)
        for name, declared in inputs.items()
    }


def warm_up(name: str, inputs: dict[str, Input]) -> bytes:
    """Return a small request of endpoint `name`, as a `PredictionLog` of TensorFlow Serving.

    The bytes are those of `predict_log.request` with `model_spec.signature_name` and `inputs`:
    https://github.com/tensorflow/serving/blob/master/tensorflow_serving/apis/prediction_log.proto
    """
    request = _field(1, _field(3, name.encode()))
    for key, (dtype, shape, *_) in inputs.items():
        columns = 0 if (dtype, shape) == (tf.float32, (None,)) else 1  # no memory
        sizes = [1, *(columns if size is None else size for size in shape)]
        values = np.full(sizes, "" if dtype == tf.string else 1, dtype.as_numpy_dtype)
        tensor = tf.make_tensor_proto(values, dtype).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, data: bytes) -> bytes:
    """Return a field of a protocol buffer: its number and kind, the length of `data`, `data`."""
    head, length = [number << 3 | 2], len(data)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + data


def all_valid(name: str, values: Tensor, valid: Tensor, requirement: str) -> tf.Operation:
    """Return an assertion that all `values` are `valid`, bool of their shape."""
    message = f"`{name}` must be {requirement}. Received:"
    # `tf.debugging.Assert` would trace a condition around it, to spare a copy from a GPU.
    data = [message, tf.gather_nd(values, tf.where(~valid))]
    return tf.raw_ops.Assert(condition=tf.reduce_all(valid), data=data, summarize=3)


def after(checks: Iterable[tf.Operation], inputs: Tensors) -> Tensors:
    """Return `inputs`, which nothing reads before `checks` have passed."""
    with tf.control_dependencies(checks):
        return {name: tf.identity(values) for name, values in inputs.items()}
