"""What nobody refers to any more is let go: notebooks build and train one model after another."""

import gc
import weakref

import keras
import numpy as np
import pytest

import dualnet
from dualnet.training import Recipe
from tests.checks import array

TENSORFLOW = keras.config.backend() == "tensorflow"


def collect():
    for _ in range(2):  # once for the model, then for what was kept for it
        gc.collect()


def used(model, corpus):
    """Train `model` for a step, evaluate it and let it adapt."""
    optimizer = Recipe(optimizer="nadam", batch_size=2, sequence_length=5).make_optimizer()
    model.compile(optimizer=optimizer, jit_compile=keras.config.backend() == "jax")
    model.train_on_batch(*corpus.batches("train", batch_size=2, sequence_length=5)[0])
    dualnet.evaluate(model, corpus.test[:7])
    dualnet.dynamic_evaluation(model, corpus.test[:7], sequence_length=3)


@pytest.mark.parametrize(
    ("name", "more"), [("dual_mdlstm", {"rounds": 1}), ("lstm", {"experts": 2})]
)
def test_a_model_that_was_trained_evaluated_and_adapted_is_let_go(build, corpus, name, more):
    model = build(name, **more)
    used(model, corpus)
    parts = [model, *model.core.layers]
    parts += [layer.cell for layer in model.core.layers if hasattr(layer, "cell")]
    left = {part.name: weakref.ref(part) for part in parts}
    assert "cell_1" in left and "output" in left
    del model, parts
    collect()
    assert [name for name, part in left.items() if part() is not None] == []


@pytest.mark.skipif(not TENSORFLOW, reason="JAX and torch make no graphs of TensorFlow")
def test_a_step_and_an_evaluation_leave_no_graph_behind(build, corpus):
    def graphs():
        collect()
        return sum(type(each).__name__ == "FuncGraph" for each in gc.get_objects())

    model = build("dual_lstm")
    used(model, corpus)
    before = graphs()
    for _ in range(2):
        dualnet.dynamic_evaluation(model, corpus.test[:7], sequence_length=3)
    assert graphs() == before


@pytest.mark.skipif(not TENSORFLOW, reason="tf.function is of TensorFlow alone")
@pytest.mark.parametrize(("name", "more"), [("dual_mdlstm", {}), ("lstm", {"experts": 2})])
def test_gradients_go_through_a_function_of_tensorflow(build, name, more):
    import tensorflow as tf

    random = np.random.default_rng(3)
    model = build(name, **more)
    tokens = random.integers(model.vocabulary_size, size=(2, 6)).astype("int32")

    def loss():
        return tf.reduce_mean(model(tokens) ** 2)

    def gradients(function):
        with tf.GradientTape() as tape:
            value = function()
        return [
            array(tf.convert_to_tensor(g)) for g in tape.gradient(value, model.trainable_weights)
        ]

    for one, two in zip(gradients(tf.function(loss)), gradients(loss)):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
