"""What every layer must pass, on whichever backend is active."""

import json

import keras
import numpy as np
from keras import ops, tree

from tests import reference

if keras.backend.backend() == "jax":
    import jax

    # Tests compile much and run little.
    jax.config.update("jax_disable_most_optimizations", True)


def array(tensor):
    """Return `tensor`, a bfloat16 one too, as a NumPy array."""
    tensor = ops.convert_to_tensor(tensor)
    if "bfloat16" in str(tensor.dtype):
        tensor = ops.cast(tensor, "float32")
    return ops.convert_to_numpy(tensor)


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def randomise(layer, rng, scale=0.5):
    """Give every weight random values: with constant ones, swapped gates give the same numbers."""
    layer.set_weights([scale * normal(rng, *weight.shape) for weight in layer.weights])
    return layer


def by_name(layer):
    """Return the weights of one layer or cell by name, float64."""
    return {weight.name: array(weight).astype("float64") for weight in layer.weights}


def gradients(function, variables):
    """Return the gradients of the scalar `function()` with respect to Keras variables."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            scalar = function()
        found = tape.gradient(scalar, [variable.value for variable in variables])
    elif keras.backend.backend() == "jax":

        def scalar_of(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values))):
                return function()

        found = jax.grad(scalar_of)([variable.value for variable in variables])
    else:
        import torch

        values = [variable.value for variable in variables]
        found = torch.autograd.grad(function(), values, allow_unused=True)
    return [None if gradient is None else array(gradient) for gradient in found]


def check_against_reference(call, variables, inputs, expected):
    """Values and gradients of `call(*tensors)` are those of `expected(weights, *arrays)`.

    Both return a list of outputs. The gradient is that of a random projection of all
    outputs to a scalar, with respect to each of the inputs and `variables`; `expected`
    gets the latter as a dict by name. Its gradient is taken by central differences.
    """
    inputs = [keras.Variable(value, name=f"input_{i}") for i, value in enumerate(inputs)]
    names = [variable.name for variable in variables]
    start = [array(variable).astype("float64") for variable in [*variables, *inputs]]

    def reference_outputs(*arrays):
        return expected(dict(zip(names, arrays)), *arrays[len(names) :])

    right = reference_outputs(*start)
    found = call(*[ops.convert_to_tensor(variable) for variable in inputs])
    assert len(found) == len(right)
    for a, b in zip(found, right):
        np.testing.assert_allclose(array(a), b, rtol=1e-5, atol=1e-6)

    rng = np.random.default_rng(0)
    projections = [normal(rng, *np.shape(value)) for value in right]

    def scalar():
        outputs = call(*[ops.convert_to_tensor(variable) for variable in inputs])
        return sum(ops.sum(ops.multiply(out, p)) for p, out in zip(projections, outputs))

    def reference_scalar(*arrays):
        return sum(np.sum(p * out) for p, out in zip(projections, reference_outputs(*arrays)))

    wanted = reference.differences(reference_scalar, start)
    got = gradients(scalar, [*variables, *inputs])
    names += [variable.name for variable in inputs]
    for name, a, b in zip(names, got, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5, err_msg=f"gradient of {name}")


def check_layer(layer, *inputs, folder, dtypes=("bfloat16",), atol=0.1):
    """Check what every layer owes its users; `layer(*inputs)` is how it is called.

    Args:
        layer: not yet built, or built with weights that may be changed.
        *inputs: arrays, or lists of arrays.
        folder: an empty folder to save in.
        dtypes: of the outputs under mixed_bfloat16, in order.
        atol: how far an output may be off under mixed_bfloat16.
    """
    symbolic = tree.map_structure(_symbolic, inputs)
    symbolic_outputs = layer(*symbolic)
    randomise(layer, np.random.default_rng(3))
    outputs = tree.flatten(layer(*inputs))

    # Symbolic and eager shapes agree.
    for a, b in zip(tree.flatten(symbolic_outputs), outputs, strict=True):
        assert len(a.shape) == len(b.shape) and a.shape[-1] == b.shape[-1]
        assert all(n in (None, m) for n, m in zip(a.shape, b.shape)), (a.shape, b.shape)

    # The configuration goes through JSON and back, to the same layer.
    written = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(written))
    assert json.dumps(keras.saving.serialize_keras_object(again)) == written
    _assert_same(_with_weights_of(layer, again, inputs)(*inputs), outputs)

    # A functional model holds it, and gives the same after a save and a load.
    model = keras.Model(tree.flatten(symbolic), symbolic_outputs)
    model.save(folder / "model.keras")
    reloaded = keras.models.load_model(folder / "model.keras")
    _assert_same(reloaded(tree.flatten(inputs)), outputs)

    # bfloat16 comes near.
    coarse = keras.saving.deserialize_keras_object(_in_bfloat16(json.loads(written)))
    found = tree.flatten(_with_weights_of(layer, coarse, inputs)(*inputs))
    assert [keras.backend.standardize_dtype(out.dtype) for out in found] == list(dtypes)
    for a, b in zip(found, outputs, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=0.05, atol=atol)

    # The gradient reaches every weight.
    rng = np.random.default_rng(4)
    projections = [normal(rng, *out.shape) for out in outputs]

    def scalar():
        return sum(
            ops.sum(ops.multiply(out, p))
            for p, out in zip(projections, tree.flatten(layer(*inputs)))
        )

    weights = layer.trainable_variables
    for weight, gradient in zip(weights, gradients(scalar, weights) if weights else []):
        assert gradient is not None and np.any(gradient), f"no gradient reaches {weight.path}"


def _symbolic(value):
    tokens = value.ndim == 2 and value.dtype.kind == "i"
    shape = (None, *value.shape[2:]) if value.ndim == 3 or tokens else value.shape[1:]
    return keras.Input(shape, dtype=str(value.dtype))  # of any length


def _with_weights_of(layer, other, inputs):
    other(*inputs)  # builds it
    other.set_weights(layer.get_weights())
    return other


def _assert_same(found, outputs):
    for a, b in zip(tree.flatten(found), outputs, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=1e-6, atol=1e-6)


def _in_bfloat16(config):
    """Return `config` with every dtype policy in it, nested ones too, mixed_bfloat16."""
    if isinstance(config, dict):
        return {k: "mixed_bfloat16" if k == "dtype" else _in_bfloat16(v) for k, v in config.items()}
    return [_in_bfloat16(v) for v in config] if isinstance(config, list) else config
