"""Fused cross-entropy of the plain output, with rows that are saved and rows recomputed."""

import keras
import numpy as np
import pytest
from keras import ops

from dualnet.layers import MixtureSoftmax, OutputProjection, _fused_cross_entropy
from tests import reference
from tests.checks import (
    array,
    assert_close,
    check_against_reference,
    gradients,
    normal,
    once,
    randomise,
)

BATCH, TIME, UNITS, WORDS = 2, 3, 4, 7
TEMPERATURE = 1.7
ROW = WORDS * 4  # bytes of the logits of a row


@pytest.fixture(params=["all saved at once", "all saved", "some saved", "none saved"])
def saved(request, monkeypatch):
    """What the backward pass may save: of 6 rows all, 4 or none; in chunks of 3, or one of 6."""
    monkeypatch.setattr(_fused_cross_entropy, "CHUNK_BYTES", 3 * ROW)
    if request.param != "all saved at once":
        monkeypatch.setattr(_fused_cross_entropy, "SAVED_CHUNK_BYTES", 3 * ROW)
        rows = {"all saved": 6, "some saved": 4, "none saved": 0}[request.param]
        monkeypatch.setattr(_fused_cross_entropy, "SAVED_BYTES", rows * ROW)


def some_targets(rng):
    return rng.integers(0, WORDS, (BATCH, TIME)).astype("int32")


def an_output(rng, tied=False, use_bias=True, dtype=None):
    embedding = keras.layers.Embedding(WORDS, UNITS, name="embedding") if tied else None
    output = OutputProjection(WORDS, tied_to=embedding, use_bias=use_bias, dtype=dtype)
    output.build((None, None, UNITS))
    return randomise(output, rng)  # and the embedding


def hidden_of(rng):
    return normal(rng, BATCH, TIME, UNITS)


@pytest.mark.parametrize(
    ("tied", "use_bias", "temperature"),
    [(True, True, TEMPERATURE), (True, False, None), (False, True, None)],
)
def test_values_and_gradients_are_those_of_the_softmax(tied, use_bias, temperature, saved, rng):
    output, targets = an_output(rng, tied, use_bias), some_targets(rng)

    def call(hidden):
        return [output(hidden, targets=targets, temperature=temperature)]

    def expected(weights, hidden):
        W = weights["embeddings"].T if tied else weights["kernel"]
        s = (hidden @ W + weights.get("bias", 0.0)) / (temperature or 1.0)
        return [-np.log(np.take_along_axis(reference.softmax(s), targets[..., None], -1))[..., 0]]

    check_against_reference(call, output.trainable_variables, [hidden_of(rng)], expected)


def test_fused_cross_entropy_get_what_all_words_get_and_padding_what_word_0_gets(saved, rng):
    output, hidden, targets = an_output(rng, tied=True), hidden_of(rng), some_targets(rng)
    targets[0, 1] = -1
    log_p = array(ops.log_softmax(output(hidden, temperature=TEMPERATURE)))
    losses = output(hidden, targets=targets, temperature=TEMPERATURE)
    words = np.maximum(targets, 0)[..., None]
    assert_close([losses], [-np.take_along_axis(log_p, words, -1)[..., 0]])


@pytest.mark.slow
@once
def test_a_graph_that_takes_any_number_of_rows_computes_the_same(saved, rng):
    import tensorflow as tf

    matrix, all_rows = normal(rng, UNITS, WORDS), normal(rng, 6, UNITS)
    all_targets = rng.integers(0, WORDS, 6).astype("int32")

    def losses_and_gradients(rows, targets):
        weight = tf.convert_to_tensor(matrix)
        with tf.GradientTape() as tape:
            tape.watch([rows, weight])
            losses = _fused_cross_entropy.target_log_probabilities(rows, weight, None, targets)
        return losses, *tape.gradient(losses, [rows, weight])

    graph = tf.function(
        losses_and_gradients,
        input_signature=[tf.TensorSpec((None, UNITS)), tf.TensorSpec((None,), "int32")],
    )
    for count in range(7):  # 0 to 6 of them are recomputed, depending on what may be saved
        rows, targets = tf.constant(all_rows[:count]), tf.constant(all_targets[:count])
        expected = losses_and_gradients(rows, targets)
        assert_close([*graph(rows, targets)], [array(result) for result in expected])


def test_a_sure_word_and_an_impossible_one_are_exact(rng):
    output = an_output(rng, use_bias=True)
    output.kernel.assign(np.zeros((UNITS, WORDS)))
    output.bias.assign([0.0, 300.0, *[0.0] * (WORDS - 2)])
    hidden, targets = normal(rng, 1, 2, UNITS), np.array([[1, 0]])
    np.testing.assert_array_equal(array(output(hidden, targets=targets)), [[0.0, 300.0]])


@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_is_near_float32(tied, saved, rng):
    hidden, targets = hidden_of(rng), some_targets(rng)
    results = []
    for dtype in ("float32", "mixed_bfloat16"):
        output = an_output(np.random.default_rng(0), tied, dtype=dtype)

        def losses(output=output):
            return output(ops.cast(hidden, output.compute_dtype), targets=targets)

        assert keras.backend.standardize_dtype(losses().dtype) == "float32"
        steps = gradients(lambda losses=losses: ops.mean(losses()), output.trainable_variables)
        assert all(step.dtype == "float32" for step in steps)  # as the weights are
        results.append([array(losses()), *steps])
    for exact, coarse in zip(*results):
        np.testing.assert_allclose(coarse, exact, atol=0.02 * np.abs(exact).max())


def test_no_logits_are_of_more_rows_than_a_chunk(saved, rng, monkeypatch):
    output, hidden, targets = an_output(rng, tied=True), hidden_of(rng), some_targets(rng)
    sizes = sizes_of_logits(monkeypatch)
    gradients(lambda: ops.sum(output(hidden, targets=targets)), [output.bias])
    chunk = min(_fused_cross_entropy.SAVED_CHUNK_BYTES // ROW, 6)
    assert sizes and max(sizes) <= chunk * WORDS


def test_no_tensor_of_all_words_is_of_all_experts_of_all_tokens(rng, monkeypatch):
    experts = 4
    output = MixtureSoftmax(WORDS, experts, UNITS)
    output.build((None, None, UNITS))
    hidden, targets = hidden_of(rng), some_targets(rng)
    monkeypatch.setattr(_fused_cross_entropy, "SAVED_CHUNK_BYTES", 3 * ROW)
    sizes = sizes_of_logits(monkeypatch)
    gradients(lambda: ops.sum(output(hidden, targets=targets)), [output.bias])
    assert sizes and max(sizes) <= 3 * WORDS


def sizes_of_logits(monkeypatch):
    """Return a list that the sizes of all logits are appended to."""
    sizes, compute = [], _fused_cross_entropy.logits

    def recording(rows, kernel, bias):
        logits = compute(rows, kernel, bias)
        sizes.append(int(np.prod(logits.shape)))
        return logits

    monkeypatch.setattr(_fused_cross_entropy, "logits", recording)
    return sizes
