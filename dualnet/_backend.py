"""The few functions that each backend has its own way to: loops, and gradients of a function."""

import functools
import itertools
import weakref
from typing import Any

import keras
from keras import ops

_gradients = itertools.count()  # numbers of those registered with TensorFlow


def scan(function, carry, sequences, like, *, length, reverse=False, stacked=None):
    """Run `function` along the first axis of `sequences`, in order or backwards.

    Keras's own scan asks for results like the carry. No gradient goes through this one on
    TensorFlow at less than its full price: use it inside a custom gradient.

    Args:
        function: `(carry, elements)` -> `(carry, results)`, all of them lists of tensors.
        carry: list of tensors, as `function` returns it again.
        sequences: list of tensors `(length, ...)`, or of what another scan left unstacked.
        like: list of `keras.KerasTensor`, one for each of the results of `function`.
        length: int, or a tensor where it is unknown until the graph runs; at least 1.
        reverse: bool. From the last element to the first; results stand in their place.
        stacked: int. How many of the results, the first ones, are wanted as tensors; all by
            default. The others are for another scan alone: TensorFlow need not copy them.

    Returns:
        The last carry, and the results as tensors `(length, ...)`.
    """
    if keras.backend.backend() == "tensorflow":
        stacked = len(like) if stacked is None else stacked
        return _scan_of_tensorflow(function, carry, sequences, like, length, reverse, stacked)
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.scan(
            function, list(carry), list(sequences), length=int(length), reverse=reverse
        )
    steps: list[Any] = []
    for t in range(length)[:: -1 if reverse else 1]:
        carry, results = function(carry, [sequence[t] for sequence in sequences])
        steps.append(results)
    return carry, [ops.stack(each) for each in zip(*steps[:: -1 if reverse else 1])]


def _scan_of_tensorflow(function, carry, sequences, like, length, reverse, stacked):
    import tensorflow as tf

    def array(dtype, shape):
        return tf.TensorArray(dtype, length, element_shape=shape, clear_after_read=False)

    elements = [
        each
        if isinstance(each, tf.TensorArray)
        else array(each.dtype, each.shape[1:]).unstack(each)
        for each in sequences
    ]
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
    return list(carry), [*[each.stack() for each in arrays[:stacked]], *arrays[stacked:]]


def vjp(function, arguments, cotangents):
    """Return the gradients at `arguments`, and what `function` says beside its results.

    Args:
        function: `(*arguments)` -> `(results, aside)`, both lists of tensors; no gradient
            goes through `aside`.
        arguments: list of floating-point tensors.
        cotangents: list of tensors like the results.
    """
    if keras.backend.backend() == "jax":
        import jax

        _, pullback, aside = jax.vjp(function, *arguments, has_aux=True)
        return list(pullback(list(cotangents))), aside
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results, aside = function(*arguments)
        gradients = tape.gradient(
            results, arguments, cotangents, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradients, aside
    import torch

    with torch.enable_grad():
        arguments = [each.detach().requires_grad_() for each in arguments]
        results, aside = function(*arguments)
    pairs = [pair for pair in zip(results, cotangents) if pair[0].requires_grad]
    outputs, d_outputs = zip(*pairs)
    gradients = torch.autograd.grad(outputs, arguments, d_outputs, materialize_grads=True)
    return list(gradients), [each.detach() for each in aside]


def custom_gradient(function, arguments):
    """Return the results of `function`, whose gradient is what it says itself.

    Args:
        function: `(*arguments)` -> `(results, gradient)`, where `gradient(*cotangents)`
            returns the list of the gradients at the arguments. Both may be given any
            number of tensors, of which Keras's own takes one on torch.
        arguments: list of floating-point tensors. No gradient goes through other tensors
            that `function` reads.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # The values of variables: TensorFlow asks for more where it sees the variables themselves.
        arguments = [tf.convert_to_tensor(each) for each in arguments]
        if tf.executing_eagerly():
            return list(tf.custom_gradient(function)(*arguments))
        return _custom_gradient_in_graph(function, arguments)
    if keras.backend.backend() == "jax":
        import jax

        def with_one_cotangent(*arguments):
            results, gradient = function(*arguments)
            return results, lambda cotangents: tuple(gradient(*cotangents))

        return jax.custom_gradient(with_one_cotangent)(*arguments)
    return list(_function_of_torch().apply(function, *arguments))


def _custom_gradient_in_graph(function, arguments):
    """`tf.custom_gradient`, which lets a graph go when nobody needs it.

    TensorFlow registers each gradient by a name for the life of the process, and that of its own
    knows the graph, with all that it reads: the weights and moments of every model that was
    ever trained. Here the operation holds the gradient, and what is registered knows the
    way there.
    """
    import tensorflow as tf

    results, gradient = function(*arguments)
    count = len(results)

    def gradient_of_identity(*cotangents):
        # Copies: a tape in a graph never frees a tensor that is the gradient at two arguments.
        return [*[None] * count, *map(tf.identity, gradient(*cotangents[:count]))]

    held = weakref.ref(gradient_of_identity)
    kind = f"dualnet_gradient_{next(_gradients)}"

    @tf.RegisterGradient(kind)
    def registered(_, *cotangents):
        found = held()
        assert found is not None  # who asks has the operation, which holds it
        return found(*cotangents)

    inputs = [*map(tf.convert_to_tensor, results), *arguments]
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": kind}):
        outputs = tf.identity_n(inputs)
    outputs[0].op.dualnet_gradient = gradient_of_identity
    tf.__internal__.record_gradient(kind, inputs, (), outputs)
    return outputs[:count]


@functools.cache
def _function_of_torch():
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, function, *arguments):
            results, context.gradient = function(*arguments)
            return tuple(results)

        @staticmethod
        def backward(context, *cotangents):
            return None, *context.gradient(*cotangents)

    return Function


def matmul(rows, matrix, transposed):
    """Return `rows @ matrix`; `transposed` is the transpose of `matrix`.

    TensorFlow's routine on a CPU copies the right operand into another order at each
    product. With few rows and a large matrix that takes as long as the product itself, and
    it is faster to take the matrix for the left operand, and to transpose what is small.
    """
    if _is_large(rows, matrix):
        return _turned(ops.matmul(transposed, _turned(rows)))
    return ops.matmul(rows, matrix)


def matmul_transposed(rows, matrix, transposed):
    """Return `rows @ transposed`, as `matmul` does; of one row without need of `transposed`."""
    if rows.shape[0] == 1 or _is_large(rows, matrix):
        return _turned(ops.matmul(matrix, _turned(rows)))
    return ops.matmul(rows, transposed)


def _is_large(rows, matrix):
    # Found by measurement, see benchmarks/products.py.
    if keras.backend.backend() != "tensorflow":
        return False
    count, weights = rows.shape[0] or 0, matrix.shape[0] * matrix.shape[1]
    if keras.backend.standardize_dtype(matrix.dtype) == "float32":
        return 24 <= count <= 48 and weights >= 2 * 10**6
    return count >= 16 and weights >= 10**6


def _turned(matrix):
    # As a tensor of four axes, or TensorFlow folds the transpose into the product.
    m, n = matrix.shape
    if m == 1 or n == 1:
        return ops.reshape(matrix, (n, m))
    return ops.reshape(ops.transpose(ops.reshape(matrix, (1, m, n, 1)), (0, 2, 1, 3)), (n, m))


def compiled(function):
    """Return `function` of tensors as one compiled kernel; it may assign to variables.

    On JAX and torch it is returned as it is: JAX compiles whole steps. So it is on TensorFlow
    outside of a graph, where it would be compiled anew at each call.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    if tf.executing_eagerly():
        return function
    return tf.function(function, jit_compile=True, autograph=False)
