"""The few functions that differ between backends: loops, and gradients of functions."""

import contextlib
import functools
import itertools
import weakref
import zlib

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError

_gradient_numbers = itertools.count()  # make the names registered with TensorFlow unique


def scan(function, carry, sequences, like, *, length, reverse=False, stacked=None):
    """Run `function` along the first axis of `sequences`, forwards or backwards.

    Unlike `keras.ops.scan` on TensorFlow, the results may differ in shape from the carry, and
    need not be stacked. Gradients through this loop are expensive there: use it inside
    `custom_gradient`.

    Args:
        function: `(carry, elements)` -> `(carry, results)`, all of them lists of tensors.
        carry: list of tensors. The initial carry.
        sequences: list of tensors `(length, ...)`, or of unstacked results of another scan.
        like: list of `keras.KerasTensor`, one per result of `function`.
        length: int, or a tensor if it is unknown until the graph runs; at least 1.
        reverse: bool. Whether to run from the last element to the first. Results keep the
            order of the sequences.
        stacked: int. How many results, counted from the first, to return as tensors; all by
            default. The others can only be passed to another scan, which saves TensorFlow a
            copy.

    Returns:
        The final carry, and the results as tensors `(length, ...)`.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.scan(function, list(carry), list(sequences), length=int(length), reverse=reverse)
    import tensorflow as tf

    def array(dtype, shape):
        return tf.TensorArray(dtype, length, element_shape=shape, clear_after_read=False)

    sequences = [
        sequence
        if isinstance(sequence, tf.TensorArray)
        else array(sequence.dtype, sequence.shape[1:]).unstack(sequence)
        for sequence in sequences
    ]
    arrays = [array(result.dtype, result.shape) for result in like]

    def step(i, carry, arrays):
        t = length - 1 - i if reverse else i
        new_carry, results = function(list(carry), [sequence.read(t) for sequence in sequences])
        for new, old in zip(new_carry, carry):
            new.set_shape(old.shape)
        return i + 1, list(new_carry), [a.write(t, result) for a, result in zip(arrays, results)]

    _, carry, arrays = tf.while_loop(
        lambda i, *_: i < length,
        step,
        (0, list(carry), arrays),
        parallel_iterations=1,
        maximum_iterations=length,  # XLA needs it
    )
    stacked = len(arrays) if stacked is None else stacked
    return list(carry), [*[a.stack() for a in arrays[:stacked]], *arrays[stacked:]]


def vjp(function, arguments, cotangents):
    """Return the gradients at `arguments`, and the auxiliary outputs of `function`.

    Args:
        function: `(*arguments)` -> `(results, auxiliary)`, both lists of tensors; no gradient
            flows through `auxiliary`.
        arguments: list of floating-point tensors.
        cotangents: list of tensors like the results.
    """
    if keras.backend.backend() == "jax":
        import jax

        _, pullback, auxiliary = jax.vjp(function, *arguments, has_aux=True)
        return list(pullback(list(cotangents))), auxiliary
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results, auxiliary = function(*arguments)
        gradients = tape.gradient(
            results, arguments, cotangents, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradients, auxiliary
    import torch

    with torch.enable_grad():
        arguments = [argument.detach().requires_grad_() for argument in arguments]
        results, auxiliary = function(*arguments)
    pairs = [pair for pair in zip(results, cotangents) if pair[0].requires_grad]
    outputs, d_outputs = zip(*pairs)
    gradients = torch.autograd.grad(outputs, arguments, d_outputs, materialize_grads=True)
    return list(gradients), [tensor.detach() for tensor in auxiliary]


def custom_gradient(function, arguments):
    """Return the results of `function`, which defines its own gradient.

    Unlike `keras.ops.custom_gradient`, it takes any number of tensors on torch.

    Args:
        function: `(*arguments)` -> `(results, gradient)`, where `gradient(*cotangents)`
            returns the list of gradients at the arguments.
        arguments: list of floating-point tensors. No gradient flows through other tensors
            that `function` reads.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Values: TensorFlow asks for an additional argument if it sees the variables themselves.
        arguments = [tf.convert_to_tensor(argument) for argument in arguments]
        if tf.executing_eagerly():
            return list(tf.custom_gradient(function)(*arguments))
        return _custom_gradient_in_graph(function, arguments)
    if keras.backend.backend() == "jax":
        import jax

        def with_one_cotangent(*arguments):
            results, gradient = function(*arguments)
            return results, lambda cotangents: tuple(gradient(*cotangents))

        return jax.custom_gradient(with_one_cotangent)(*arguments)
    return list(_torch_function().apply(function, *arguments))


def _custom_gradient_in_graph(function, arguments):
    """`tf.custom_gradient` without a memory leak.

    TensorFlow registers each gradient under a name for the life of the process.
    `tf.custom_gradient` registers a function that refers to the graph, and so to the weights
    and moments of every model that was ever trained. Here the operation holds the gradient,
    and the registered function has only a weak reference to it.
    """
    import tensorflow as tf

    results, gradient = function(*arguments)
    count = len(results)

    def gradient_of_identity(*cotangents):
        # Copies: in a graph a tape never frees a tensor that is the gradient at two arguments.
        return [*[None] * count, *map(tf.identity, gradient(*cotangents[:count]))]

    reference = weakref.ref(gradient_of_identity)
    kind = f"dualnet_gradient_{next(_gradient_numbers)}"

    @tf.RegisterGradient(kind)
    def registered(_, *cotangents):
        gradient_of_identity = reference()
        assert gradient_of_identity is not None  # the caller has the operation, which holds it
        return gradient_of_identity(*cotangents)

    inputs = [*map(tf.convert_to_tensor, results), *arguments]
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": kind}):
        outputs = tf.identity_n(inputs)
    outputs[0].op.dualnet_gradient = gradient_of_identity
    tf.__internal__.record_gradient(kind, inputs, (), outputs)
    return outputs[:count]


@functools.cache
def _torch_function():
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

    TensorFlow's CPU routine reorders a copy of the right operand at each product. With few
    rows and a large matrix, that takes as long as the product itself. It is then faster to
    use the matrix as the left operand and to transpose the small tensors.
    """
    if _is_large(rows, matrix):
        return _transpose(ops.matmul(transposed, _transpose(rows)))
    return ops.matmul(rows, matrix)


def matmul_transposed(rows, matrix, transposed):
    """Return `rows @ transposed`, as `matmul` does; a single row does not need `transposed`."""
    if rows.shape[0] == 1 or _is_large(rows, matrix):
        return _transpose(ops.matmul(matrix, _transpose(rows)))
    return ops.matmul(rows, transposed)


def _is_large(rows, matrix):
    # In float32, oneDNN needs no such help.
    if keras.backend.backend() != "tensorflow":
        return False
    if keras.backend.standardize_dtype(matrix.dtype) == "float32":
        return False
    return (rows.shape[0] or 0) >= 16 and matrix.shape[0] * matrix.shape[1] >= 10**6


def _transpose(matrix):
    # With four axes, since TensorFlow folds a plain transpose into the product.
    m, n = matrix.shape
    if m == 1 or n == 1:
        return ops.reshape(matrix, (n, m))
    return ops.reshape(ops.transpose(ops.reshape(matrix, (1, m, n, 1)), (0, 2, 1, 3)), (n, m))


def sum_of_squares(values):
    """Return the sum of the squares of all `values`, which are written nowhere on TensorFlow."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return 2.0 * tf.nn.l2_loss(tf.convert_to_tensor(values))
    return ops.sum(ops.square(values))


def descend(variable, gradient, rate):
    """Take `rate * gradient` from a variable of TensorFlow, in place and on all cores."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def compiled(function):
    """Return `function` of tensors as one compiled kernel; it may assign to variables.

    It is returned unchanged on JAX, which compiles whole steps, on torch, and on TensorFlow
    outside of a graph, where each call would compile it again.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    if tf.executing_eagerly():
        return function
    return tf.function(function, jit_compile=True, autograph=False)


def like(carry, new):
    """Return the tensors `new` with the shapes and dtypes of `carry`, which a loop requires."""
    return keras.tree.map_structure(
        lambda old, tensor: ops.reshape(ops.cast(tensor, old.dtype), ops.shape(old)), carry, new
    )


def values_of(variables):
    """Return copies of the values of `variables`."""
    # In NumPy: on JAX, a step donates the memory of variables.
    return [np.array(ops.convert_to_numpy(variable)) for variable in variables]


def sum_of(variables):
    """Return a number that tells whether variables have changed."""
    return sum(zlib.crc32(value.tobytes()) for value in values_of(variables))


def assign_all(variables, values):
    """Assign to each of `variables` its value."""
    for variable, value in zip(variables, values):
        variable.assign(value)


@contextlib.contextmanager
def restoring(variables, *, keep=False):
    """Restore the values of `variables` in the end, bit for bit; with `keep` only on error."""
    with contextlib.ExitStack() as stack:
        stack.callback(assign_all, variables, values_of(variables))
        yield
        if keep:
            stack.pop_all()


def untuned(batches, *others):
    """Return `batches` for Keras so that TensorFlow does not tune how it reads a `PyDataset`.

    Its tuner holds up the end of many an epoch, for up to a minute. What Keras refuses beside a
    `PyDataset` is left to it: `others`, such as targets, that are not None.
    """
    is_alone = isinstance(batches, keras.utils.PyDataset) and all(other is None for other in others)
    if not is_alone or keras.config.backend() != "tensorflow":
        return batches
    import tensorflow as tf

    try:  # as of Keras 3.15
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
    except ImportError:
        return batches

    class Untuned(PyDatasetAdapter):
        def get_tf_dataset(self):
            options = tf.data.Options()
            options.autotune.enabled = False
            return super().get_tf_dataset().with_options(options)

    return Untuned(batches)


def read_weights(function, variables, *arguments):
    """Return the answer of `function` to the values of lists of `variables`.

    On JAX, Keras takes the weights of a model that is in training away until an epoch ends, and
    would give their initial values instead: then raise `ArgumentError`.
    """
    attribute = "_value" if keras.config.backend() == "jax" else "value"
    values = [[getattr(variable, attribute) for variable in group] for group in variables]
    try:
        if all(value is not None for group in values for value in group):
            return function(values, *arguments)
    except (RuntimeError, ValueError) as error:
        if "deleted" not in str(error):  # "or donated" to a step, which `is_deleted` shows later
            raise
    raise ArgumentError(
        "model",
        "must not be in `fit` meanwhile. "
        "On JAX, read it after an epoch, or in a callback by way of `self.model`.",
    )


def copies_of(variables):
    """Return copies of the values of `variables`, on their device."""
    return read_weights(lambda values: [ops.copy(value) for value in values[0]], [variables])


def jitted(function):
    """Return `function` compiled by JAX."""
    import jax

    return jax.jit(function)


def numpy_of(array):
    """Return the module that computes on `array`: NumPy, or `keras.ops`, slow outside a graph."""
    return np if isinstance(array, np.ndarray) else ops


def argsort(values):
    """Return the order of the last axis, of equal values the first first."""
    if isinstance(values, np.ndarray):
        return np.argsort(values, axis=-1, kind="stable")
    return ops.argsort(values, axis=-1)


def top_k(values, count):
    """Return `ops.top_k`, of equal values the first first, which torch does not promise."""
    if keras.backend.backend() != "torch" and not isinstance(values, np.ndarray):
        return ops.top_k(values, count)
    columns = argsort(-values)[..., :count]
    return numpy_of(values).take_along_axis(values, columns, axis=-1), columns


def cumsum(values):
    """Return the sums along the last axis, in the precision of `values`."""
    if keras.backend.backend() == "torch":  # where that of Keras is float32
        return values.cumsum(-1)
    return ops.cumsum(values, axis=-1)


def double_precision():
    """Return a context in which a compiled function can use float64, which JAX needs to be told."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.enable_x64(True)
    return contextlib.nullcontext()
