"""The few functions that each backend has its own way to: loops, and gradients of a function."""

import importlib
from typing import Any

import keras
from keras import ops


def scan(function, carry, sequences, like, *, length, reverse=False):
    """Run `function` along the first axis of `sequences`, in order or backwards.

    Keras's own scan asks for results like the carry. No gradient goes through this one on
    TensorFlow at less than its full price: use it inside a custom gradient.

    Args:
        function: `(carry, elements)` -> `(carry, results)`, all of them lists of tensors.
        carry: list of tensors, as `function` returns it again.
        sequences: list of tensors `(length, ...)`.
        like: list of `keras.KerasTensor`, one for each of the results of `function`.
        length: int, or a tensor where it is unknown until the graph runs; at least 1.
        reverse: bool. From the last element to the first; results stand in their place.

    Returns:
        The last carry, and the results as tensors `(length, ...)`.
    """
    if keras.backend.backend() == "tensorflow":
        return _scan_of_tensorflow(function, carry, sequences, like, length, reverse)
    if keras.backend.backend() == "jax":
        lax: Any = importlib.import_module("jax.lax")
        return lax.scan(function, list(carry), list(sequences), length=int(length), reverse=reverse)
    steps: list[Any] = []
    for t in range(length)[:: -1 if reverse else 1]:
        carry, results = function(carry, [sequence[t] for sequence in sequences])
        steps.append(results)
    return carry, [ops.stack(each) for each in zip(*steps[:: -1 if reverse else 1])]


def _scan_of_tensorflow(function, carry, sequences, like, length, reverse):
    tf: Any = importlib.import_module("tensorflow")

    def array(dtype, shape):
        return tf.TensorArray(dtype, size=length, element_shape=shape)

    elements = [array(each.dtype, each.shape[1:]).unstack(each) for each in sequences]
    arrays = [array(each.dtype, each.shape) for each in like]

    def step(i, carry, arrays):
        t = length - 1 - i if reverse else i
        new_carry, results = function(list(carry), [each.read(t) for each in elements])
        for each, before in zip(new_carry, carry):
            each.set_shape(before.shape)
        return i + 1, list(new_carry), [a.write(t, each) for a, each in zip(arrays, results)]

    _, carry, arrays = tf.while_loop(
        lambda i, *_: i < length,
        step,
        (0, list(carry), arrays),
        parallel_iterations=1,
        maximum_iterations=length,  # XLA must know it
    )
    return list(carry), [each.stack() for each in arrays]
