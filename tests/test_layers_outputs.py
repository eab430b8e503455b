"""Layers on top of the logits: gates, the continuous cache and the mean of an ensemble."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from dualnet.layers import FeatureGate, IOGate, MeanOfProbabilities, NeuralCache, NGramCache
from tests import reference
from tests.checks import (
    array,
    assert_close,
    assert_same,
    by_name,
    check_against_reference,
    check_layer,
    gradients,
    normal,
    randomise,
)

BATCH, TIME, UNITS, HIDDEN, WORDS, SIZE = 2, 5, 3, 4, 6, 3


def some_tokens(rng, batch=BATCH, time=TIME):
    return rng.integers(0, WORDS, (batch, time)).astype("int32")


def some_logits(rng, count=1, batch=BATCH, time=TIME):
    return [normal(rng, batch, time, WORDS) for _ in range(count)]


# --- gates


def numpy_gates(tokens, weights, hidden=None):
    """Return sigmoid(W_g [h ; e'] + b_g)."""
    features = weights["embeddings"][np.maximum(tokens, 0)]
    if hidden is not None:
        features = np.concatenate([hidden, features], axis=-1)
    return reference.gates(features, weights)


def a_gate(rng, **arguments):
    gate = IOGate(WORDS, UNITS, seed=3, **arguments)
    hidden = [(BATCH, TIME, HIDDEN)] if gate.use_hidden else []
    gate.build([(BATCH, TIME), *hidden, (BATCH, TIME, WORDS)])
    return randomise(gate, rng)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("use_hidden", [False, True])
def test_gate_and_its_gradients_match_the_paper(use_hidden, members, rng):
    gate, tokens = a_gate(rng, use_hidden=use_hidden), some_tokens(rng)
    tokens[0, :2] = -1  # padding, read as word 0
    hidden = [normal(rng, BATCH, TIME, HIDDEN)] if use_hidden else []

    def call(*inputs):
        gated = gate([ops.convert_to_tensor(tokens), *inputs])
        return gated if members > 1 else [gated]

    def expected(weights, *inputs):
        g = numpy_gates(tokens, weights, *inputs[: len(hidden)])
        return [g * s for s in inputs[len(hidden) :]]

    inputs = [*hidden, *some_logits(rng, members)]
    check_against_reference(call, gate.trainable_variables, inputs, expected)
    assert_close([gate.gates(tokens, *hidden)], [numpy_gates(tokens, by_name(gate), *hidden)])


def test_gate_of_features_and_its_gradients_match_the_paper(rng):
    gate = FeatureGate(WORDS)
    inputs = [normal(rng, BATCH, TIME, HIDDEN), *some_logits(rng, 2)]
    gate(inputs)
    randomise(gate, rng)

    def expected(weights, f, *logits):
        return [reference.gates(f, weights) * s for s in logits]

    check_against_reference(
        lambda *inputs: gate(list(inputs)), gate.trainable_variables, inputs, expected
    )
    assert_close([gate.gates(inputs[0])], expected(by_name(gate), inputs[0], 1.0))


def test_a_gate_starts_as_the_released_code_does():
    gate = IOGate(200, 100)
    gate.build([(1, 2), (1, 2, 200)])
    assert [w.name for w in gate.weights] == ["embeddings", "kernel", "bias"]
    assert [tuple(w.shape) for w in gate.weights] == [(200, 100), (100, 200), (200,)]
    embeddings, kernel, bias = (array(weight) for weight in gate.weights)
    for matrix in (embeddings, kernel):
        assert 0.0499 < np.abs(matrix).max() <= 0.05
        assert abs(matrix.std() * np.sqrt(12) - 0.1) < 0.002
    assert not np.array_equal(embeddings, kernel.T) and not bias.any()


def test_gate_dropout_is_fresh_at_every_step_and_element(rng):
    gate = IOGate(WORDS, WORDS, dropout=0.4, seed=3)
    tokens = np.zeros((20, 50), "int32")
    ones = np.ones((20, 50, WORDS), "float32")
    gate([tokens, ones])
    # What is seen of e' = 1 through the identity is a mask.
    gate.set_weights([np.ones((WORDS, WORDS)), np.eye(WORDS), np.zeros(WORDS)])
    g, second = (array(gates) for gates in gate([tokens, ones, ones], training=True))
    np.testing.assert_array_equal(g, second)  # all members are under one gate
    mask = np.log(g / (1 - g))
    kept = mask > 0.1
    np.testing.assert_allclose(mask[kept], 1 / 0.6, rtol=1e-4)
    np.testing.assert_allclose(mask[~kept], 0, atol=1e-6)
    assert abs(kept.mean() - 0.6) < 0.03
    for axis in range(3):  # neither rows, steps nor elements share a draw
        first, *others = np.moveaxis(kept, axis, 0)
        for other in others:
            assert 0.3 < (other == first).mean() < 0.75  # 0.52 where they are independent
    assert not np.array_equal(g, array(gate([tokens, ones], training=True)))


def test_logits_keep_float32_under_every_policy(rng):
    gate, tokens = a_gate(rng, dtype="mixed_bfloat16"), some_tokens(rng)
    gate.bias.assign(np.full(WORDS, 40.0))
    logits = some_logits(rng, 2)
    assert_same(gate([tokens, *logits]), logits)
    mean = MeanOfProbabilities(dtype="mixed_bfloat16")([logits[0]])
    np.testing.assert_array_equal(array(mean), array(MeanOfProbabilities()([logits[0]])))


# --- continuous cache


def a_text(rng, batch=BATCH, time=TIME):
    """Return tokens, hidden vectors and logits."""
    hidden = normal(rng, batch, time, HIDDEN)
    return [some_tokens(rng, batch, time), hidden, *some_logits(rng, 1, batch, time)]


def compiled(cache):
    """Return `cache`, compiled as a whole on JAX, which otherwise compiles each operation."""
    if keras.backend.backend() != "jax":
        return cache
    import jax

    return jax.jit(cache)


def read_in_segments(cache, text, lengths):
    """Return log p of all segments, joined, and the final states."""
    batch, read = len(text[0]), compiled(cache)
    states = [np.zeros((batch, n), "float32") for n in cache.state_sizes(text[1].shape[-1])]
    parts, at = [], 0
    for length in lengths:
        segment = [part[:, at : at + length] for part in text]
        log_p, *states = read(segment, states)
        parts.append(array(log_p))
        at += length
    return np.concatenate(parts, axis=1), [array(state) for state in states]


START = pytest.mark.parametrize("start", ["at_once", "when_full"])


@START
@pytest.mark.parametrize(("size", "weight", "scale"), [(3, 0.2, 0.3), (9, 0.5, 0)])
def test_cache_and_its_gradients_match_the_paper(size, weight, scale, start, rng):
    options = {"size": size, "weight": weight, "scale": scale, "start": start}
    cache, (tokens, hidden, logits) = NeuralCache(**options), a_text(rng)

    def call(hidden, logits):
        return [compiled(cache)([ops.convert_to_tensor(tokens), hidden, logits])[0]]

    def expected(_, hidden, logits):
        return [reference.neural_cache(tokens, hidden, logits, **options)]

    check_against_reference(call, [], [hidden, logits], expected)


@given(
    cuts=st.sets(st.sampled_from([1, 2, 5])),
    size=st.sampled_from([2, 12]),
    start=st.sampled_from(["at_once", "when_full"]),
)
def test_the_cut_into_segments_changes_nothing(cuts, size, start):
    rng, time = np.random.default_rng(5), 9
    lengths = np.diff([0, *sorted(cuts), time])
    options = {"size": size, "weight": 0.4, "scale": 0.8, "start": start}
    cache, text = NeuralCache(**options), a_text(rng, time=time)
    whole, states = read_in_segments(cache, text, [time])
    cut, cut_states = read_in_segments(cache, text, lengths)
    assert_close([whole, cut], [reference.neural_cache(*text, **options)] * 2)
    assert_same(states, cut_states)


def test_rows_may_have_read_different_numbers_of_tokens(rng):
    cache = NeuralCache(SIZE, start="when_full")
    texts = [a_text(rng, batch=1, time=time) for time in (5, 9)]
    expected = [read_in_segments(cache, text, [text[0].shape[1]])[0][0, -4:] for text in texts]
    heads = [[part[:, :-4] for part in text] for text in texts]  # 1 and 5 tokens
    states = [read_in_segments(cache, head, [head[0].shape[1]])[1] for head in heads]
    joined = [np.concatenate(pair) for pair in zip(*states)]
    tails = [np.concatenate([a[:, -4:], b[:, -4:]]) for a, b in zip(*texts)]
    assert_close(array(compiled(cache)(tails, joined)[0]), expected)


def test_large_scores_and_unlikely_words_stay_finite(rng):
    tokens, hidden, logits = a_text(rng)
    hidden, logits = 100 * hidden, 200 * logits
    options = {"size": SIZE, "weight": 0.2, "scale": 0.01, "start": "at_once"}
    cache, variables = NeuralCache(**options), [keras.Variable(hidden), keras.Variable(logits)]

    def log_p(scale=0.01):
        cache.scale = scale
        return cache([tokens, *[ops.convert_to_tensor(v) for v in variables]])[0]

    values = array(log_p()).astype("float64")
    assert values.min() < -100  # far below what float32 can hold as a probability
    np.testing.assert_allclose(np.exp(values).sum(-1), 1, rtol=1e-4)
    for scale in (0.01, 1.0, 50.0):  # exp would overflow
        assert np.isfinite(array(log_p(scale))).all()
        for gradient in gradients(lambda scale=scale: ops.sum(log_p(scale)), variables):
            assert np.isfinite(gradient).all()


def test_ids_survive_a_coarse_policy(rng):
    """bfloat16 is exact for integers up to 256 only."""
    words, units = 5000, 2
    tokens = np.array([[4321, 7, 4321, 300, 4999]], "int32")
    hidden = normal(rng, 1, 5, units)
    logits = normal(rng, 1, 5, words)
    exact = reference.neural_cache(
        tokens, hidden, logits, size=2, weight=0.5, scale=0.3, start="at_once"
    )
    coarse = NeuralCache(2, weight=0.5, dtype="mixed_bfloat16")
    found, states = read_in_segments(coarse, [tokens, hidden, logits], [1] * 5)
    assert_close([found], [exact], atol=1e-5)
    np.testing.assert_array_equal(states[1], [[300, 4999]])


def test_the_cache_passes_the_common_checks(rng, tmp_path):
    options = {"weight": 0.3, "scale": 0.7, "start": "when_full"}
    _, states = read_in_segments(NeuralCache(SIZE, **options), a_text(rng, time=3), [3])
    cache = NeuralCache(SIZE, **options)
    check_layer(cache, a_text(rng), states, folder=tmp_path, dtypes=["float32"] * 4)


# --- cache of n-grams


@pytest.mark.parametrize("weights", [(0.02, 0.2, 0.4, 0.6), (0.5,), (0.0, 0.3, 0.9)])
@pytest.mark.parametrize("size", [1, 3, 8, 40])
def test_ngrams_are_counted_as_they_stand_in_the_cache(size, weights, rng):
    tokens, [logits] = rng.integers(0, 4, (2, 30)), some_logits(rng, 1, 2, 30)
    expected = reference.ngram_cache(tokens, logits, size=size, weights=weights)
    cache = compiled(NGramCache(size, weights=weights))
    assert_close([cache([tokens, logits])[0]], [expected])
    states, found = np.zeros((2, size), "float32"), []
    for start, end in ((0, 1), (1, 14), (14, 16), (16, 30)):
        log_p, states = cache([tokens[:, start:end], logits[:, start:end]], states)
        found.append(array(log_p))
    assert_close([np.concatenate(found, axis=1)], [expected])
    assert_same(states, np.pad(tokens + 1.0, ((0, 0), (size, 0)))[:, -size:])


def test_padding_at_the_end_of_a_row_is_not_remembered(rng):
    tokens, [logits] = rng.integers(0, 4, (2, 9)), some_logits(rng, 1, 2, 9)
    cache = NGramCache(5)
    alone, state = cache([tokens[:1, :6], logits[:1, :6]])
    padded = tokens.copy()
    padded[0, 6:] = -1
    log_p, states = cache([padded, logits])
    assert_close([log_p[:1, :6], states[:1]], [alone, state])
    assert np.isfinite(array(log_p)).all()


def test_no_gradient_flows_through_what_the_ngrams_add(rng):
    tokens, logits = np.array([[1, 2, 1, 2, 1]]), keras.Variable(normal(rng, 1, 5, 4))
    cache, weights = NGramCache(9), ops.convert_to_tensor(normal(rng, 1, 5, 4))
    [found], [expected] = (
        gradients(lambda log_p=log_p: ops.sum(log_p(logits.value) * weights), [logits])
        for log_p in (lambda s: cache([tokens, s])[0], ops.log_softmax)
    )
    assert_close([found], [expected])


def test_the_cache_of_ngrams_passes_the_common_checks(rng, tmp_path):
    inputs = [some_tokens(rng), *some_logits(rng, 1)]
    state = np.pad(some_tokens(rng) + 1.0, ((0, 0), (9, 0)))[:, -9:].astype("float32")
    cache = NGramCache(9, weights=[0.1, 0.5])
    check_layer(cache, inputs, state, folder=tmp_path, dtypes=["float32"] * 2)


# --- ensemble


@pytest.mark.parametrize("members", [1, 3])
def test_mean_of_probabilities_and_its_gradients_match_the_paper(members, rng):
    layer = MeanOfProbabilities()

    def expected(_, *logits):
        return [np.log(sum(reference.softmax(s) for s in logits) / members)]

    check_against_reference(
        lambda *logits: [layer(list(logits))], [], some_logits(rng, members), expected
    )


def test_an_ensemble_of_sure_members_stays_finite():
    sure = np.array([[[500.0, 0.0, -500.0]]], "float32")
    mean = MeanOfProbabilities()([sure, sure[..., ::-1].copy()])
    np.testing.assert_allclose(array(mean), [[[-np.log(2), -500, -np.log(2)]]], rtol=1e-6)
