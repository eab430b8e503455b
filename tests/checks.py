"""Checks that every layer must pass, on whichever backend is active."""

import contextlib
import functools
import importlib
import inspect
import io
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops, tree

from dualnet import corpora, zoo
from dualnet.builders import CELLS
from tests import reference

# The marks of a module whose models take a few steps each, for which tracing takes too long.
UNTRACED = [
    pytest.mark.usefixtures("without_tracing"),
    pytest.mark.filterwarnings("ignore:Even though the .*run_functions_eagerly"),
]


# The mark of a test, or of a file, that runs with the TensorFlow backend alone: of what TensorFlow
# does, what no backend has a part in, and slow tests of what quick ones show on each backend.
once = pytest.mark.once


def few_elsewhere(cases, few=1):
    """Return `cases` on TensorFlow and the first of them on the others, which compile each."""
    return list(cases)[: None if keras.backend.backend() == "tensorflow" else few]


def needed(extra, *packages):
    """Return optional `packages`, or skip the test and say which extra installs them."""
    reason = f'this test needs optional packages: pip install "dualnet[{extra}]"'
    return [pytest.importorskip(name, reason=reason) for name in packages]


PAGES = sorted((Path(__file__).parents[1] / "docs" / "api").glob("*.md"))
# The lists of autosummary on those pages: a module, and names of it.
LISTS = re.compile(
    r"^\.\. (?:automodule|currentmodule):: (\S+)\n(.*?)(?=^\.\. (?:auto|current)module|\Z)",
    re.DOTALL | re.MULTILINE,
)


def documented_names():
    """Return the public names that `docs/api` lists, each with its module."""
    lists = [found for page in PAGES for found in LISTS.findall(page.read_text("utf-8"))]
    return [f"{module}.{name}" for module, names in lists
            for name in re.findall(r"^   (\w+)$", names, re.MULTILINE)]  # fmt: skip


def resolve(name):
    """Return the object of a module's name and its own."""
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(module), name)


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


def assert_close(found, expected, rtol=1e-5, atol=1e-6):
    """All tensors of two lists are close."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=rtol, atol=atol)


def assert_same(found, expected):
    """All tensors of two lists are equal to the last bit."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array(a), array(b))


def total(losses):
    return float(sum(array(loss) for loss in losses))


def gradients(function, variables):
    """Return the gradients of the scalar `function()` with respect to Keras variables."""
    values = [variable.value for variable in variables]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            scalar = function()
        results = tape.gradient(scalar, values)
    elif keras.backend.backend() == "jax":
        import jax

        def scalar_of(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values))):
                return function()

        results = jax.grad(scalar_of)(values)
    else:
        import torch

        results = torch.autograd.grad(function(), values, allow_unused=True)
    return [None if gradient is None else array(gradient) for gradient in results]


def projections_of(outputs):
    """Return a random array of the shape of each of `outputs`, always the same."""
    rng = np.random.default_rng(0)
    return [normal(rng, *np.shape(output)) for output in outputs]


def outputs_and_gradients(call, variables):
    """Return the outputs of `call()`, and the gradients of a random projection of all of them."""
    outputs = call()
    projections = projections_of(outputs)

    def scalar():
        outputs = [ops.cast(out, "float32") for out in call()]
        return sum(ops.sum(ops.multiply(*pair)) for pair in zip(outputs, projections))

    return outputs, gradients(scalar, variables)


# --- texts and models


def small(vocabulary, name="lstm", *, units=4, **arguments):
    """Return a model of the zoo with few units, and with `vocabulary`."""
    model = zoo.build(name, vocabulary_size=len(vocabulary), units=units, **arguments)
    model.vocabulary = vocabulary
    return model


def strong(model, vocabulary=None, seed=4, scale=0.9, only=""):
    """Return `model` with large random weights: each token changes what comes after it.

    Those alone whose path begins with `only`.
    """
    random = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.path.startswith(only):
            weight.assign(random.normal(size=weight.shape, scale=scale))
    if vocabulary is not None:
        model.vocabulary = vocabulary
    return model


NO_DROPOUT = {
    f"{place}_dropout": 0.0
    for place in ("input", "recurrent", "internal", "output", "dual_input", "dual_output")
}
NOUNS, VERBS = ["cat", "dog", "bird", "fish"], ["sees", "likes", "finds"]


def sentences(count, seed):
    """Return made-up text in which a verb depends on the noun before it."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        first, second = random.integers(4, size=2)
        lines.append(f"the {NOUNS[first]} {VERBS[first % 3]} the {NOUNS[second]}")
    return "".join(line + "\n" for line in lines)


def nll(logits, targets):
    """Return -log p of `targets`, in float64."""
    log_p = np.log(reference.softmax(np.array(keras.ops.convert_to_numpy(logits), "float64")))
    return -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]


def values(model):
    """Return copies of all weights."""
    return [np.array(keras.ops.convert_to_numpy(weight)) for weight in model.weights]


@contextlib.contextmanager
def dtype_policy(name):
    """Build models under another policy than float32."""
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


# --- files


def write_splits(folder, text, **others):
    """Write `text` as each split of a corpus, but for those that `others` has a text for."""
    for split in corpora.SPLITS:
        (folder / f"{split}.txt").write_text(others.get(split, text), "utf-8")


def edit_card(run, old, new):
    """Replace `old` in the card of a RUN, which then has no checksums."""
    card = (run / "card.toml").read_text("utf-8")
    assert old in card
    (run / "card.toml").write_text(card.replace(old, new), "utf-8")
    (run / "sums.json").unlink(missing_ok=True)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@contextlib.contextmanager
def limited_files(size):
    """Let no file become larger than `size` bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- cells

KINDS = {kind: name for name, kind in CELLS.items()}


def reference_step(cell):
    """Return the reference of `cell`, `step(x, states, weights, masks)`."""
    name = f"{KINDS[type(cell)]}_step"
    function = getattr(reference, name, None)
    assert function, f"Write the equations of the paper as `{name}` in tests/reference.py."
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return functools.partial(function, **{name: getattr(cell, name) for name in names})


def built(cell, rng, features):
    """Return `cell`, built, with random weights."""
    cell.build((2, features))
    return randomise(cell, rng)


def a_step(cell, rng, batch=2):
    """Return x and the list of states of one time step, none of them zero."""
    x, *states = [normal(rng, batch, size) for size in (cell.input_size, *cell.state_size)]
    return x, states


def random_masks(cell, rng, batch=2):
    """Return random masks for one step of `cell`, and those of its weights apart.

    They are zeros and values away from 1.
    """
    masks, weight_masks = {}, {}
    for spec in cell.mask_specs():
        of_weight = isinstance(spec.size, tuple)
        shape = spec.size if of_weight else (batch, spec.size)
        mask = np.where(rng.random(shape) < 0.4, 0, 1.7).astype("float32")
        (weight_masks if of_weight else masks)[spec.name] = mask
    return masks, weight_masks


def check_step(cell, rng):
    """Values and gradients of a step match the papers, with random masks if there is dropout."""
    masks, weight_masks = random_masks(cell, rng)
    x, states = a_step(cell, rng)

    def call(x, *states):
        dropped = {name: getattr(cell, name) * mask for name, mask in weight_masks.items()}
        training = bool(masks or dropped)
        out, states = cell(x, list(states), training=training, masks={**masks, **dropped})
        return [out, *states]

    def expected(weights, x, *states):
        dropped = {name: weights[name] * mask for name, mask in weight_masks.items()}
        states = reference_step(cell)(x, list(states), {**weights, **dropped}, masks)
        return [reference.output_of(states), *states]

    check_against_reference(call, cell.trainable_variables, [x, *states], expected)


# --- any layer


def check_against_reference(call, variables, inputs, expected, names=None):
    """Values and gradients of `call(*tensors)` are those of `expected(weights, *arrays)`.

    Both return a list of outputs. The gradient is that of a random projection of all
    outputs to a scalar, with respect to each of the inputs and `variables`; `expected`
    gets the latter as a dict by name, or by `names`. Its gradient is taken by central differences.
    """
    inputs = [keras.Variable(value, name=f"input_{i}") for i, value in enumerate(inputs)]
    names = list(names or [variable.name for variable in variables])
    start = [array(variable).astype("float64") for variable in [*variables, *inputs]]

    def reference_outputs(*arrays):
        return expected(dict(zip(names, arrays)), *arrays[len(names) :])

    outputs, slopes = outputs_and_gradients(
        lambda: call(*map(ops.convert_to_tensor, inputs)), [*variables, *inputs]
    )
    wanted = reference_outputs(*start)
    assert_close(outputs, wanted)
    projections = projections_of(wanted)

    def reference_scalar(*arrays):
        return sum(np.sum(p * out) for p, out in zip(projections, reference_outputs(*arrays)))

    differences = reference.differences(reference_scalar, start)
    names += [variable.name for variable in inputs]
    for name, a, b in zip(names, slopes, differences):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5, err_msg=f"gradient of {name}")


def check_layer(layer, *inputs, folder, dtypes=("bfloat16",), atol=0.1):
    """Check shapes, dtypes, configuration, saving, masks and gradients of `layer(*inputs)`.

    Args:
        layer: unbuilt, or built; its weights are overwritten.
        *inputs: arrays, or lists of arrays.
        folder: an empty folder to save in.
        dtypes: of the outputs under mixed_bfloat16, in order.
        atol: tolerance of the outputs under mixed_bfloat16.
    """
    symbolic = tree.map_structure(_symbolic, inputs)
    symbolic_outputs = layer(*symbolic)
    randomise(layer, np.random.default_rng(3))
    outputs = tree.flatten(layer(*inputs))

    # Symbolic and eager shapes and dtypes agree.
    for a, b in zip(tree.flatten(symbolic_outputs), outputs, strict=True):
        assert len(a.shape) == len(b.shape) and a.shape[-1] == b.shape[-1]
        assert all(n in (None, m) for n, m in zip(a.shape, b.shape)), (a.shape, b.shape)
        assert a.dtype == keras.backend.standardize_dtype(b.dtype)

    # The configuration goes through JSON and back, to the same layer.
    written = json.dumps(keras.saving.serialize_keras_object(layer))
    copy = keras.saving.deserialize_keras_object(json.loads(written))
    assert json.dumps(keras.saving.serialize_keras_object(copy)) == written
    _assert_same(_with_weights_of(layer, copy, inputs)(*inputs), outputs)

    # A functional model holds it. After a save and a load it gives the same outputs, and draws
    # the same masks.
    model, arrays = keras.Model(tree.flatten(symbolic), symbolic_outputs), tree.flatten(inputs)
    trains = "training" in inspect.signature(layer.call).parameters and not hasattr(layer, "step")
    if trains:
        model(arrays, training=True)  # moves its generator on
    model.save(folder / "model.keras")
    reloaded = keras.models.load_model(folder / "model.keras")
    _assert_same(reloaded(arrays), outputs)
    if trains:
        _assert_same(reloaded(arrays, training=True), tree.flatten(model(arrays, training=True)))

    # bfloat16 comes near.
    coarse = keras.saving.deserialize_keras_object(_in_bfloat16(json.loads(written)))
    coarse_outputs = tree.flatten(_with_weights_of(layer, coarse, inputs)(*inputs))
    assert [keras.backend.standardize_dtype(out.dtype) for out in coarse_outputs] == list(dtypes)
    assert_close(coarse_outputs, outputs, rtol=0.05, atol=atol)

    # The gradient reaches every weight.
    if weights := layer.trainable_variables:
        _, slopes = outputs_and_gradients(lambda: tree.flatten(layer(*inputs)), weights)
    for weight, gradient in zip(weights, slopes if weights else []):
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
    assert_close(tree.flatten(found), outputs, rtol=1e-6)


def _in_bfloat16(config):
    """Return `config` with every dtype policy in it, nested ones too, mixed_bfloat16."""
    if isinstance(config, dict):
        return {k: "mixed_bfloat16" if k == "dtype" else _in_bfloat16(v) for k, v in config.items()}
    return [_in_bfloat16(v) for v in config] if isinstance(config, list) else config
