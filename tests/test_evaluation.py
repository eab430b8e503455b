import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet import zoo

WORDS = 12


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(5)
    return zoo.build("dual_lstm", vocabulary_size=WORDS, units=6)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(WORDS, size=41).astype("int32")


def losses(model, tokens, temperature=1.0):
    """-log p of each token but the first, in float64, from one pass over the whole."""
    logits = ops.convert_to_numpy(model(tokens[None, :-1]))[0].astype("float64") / temperature
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return -logits[np.arange(len(tokens) - 1), tokens[1:]]


def test_perplexity_is_exp_of_the_mean_loss_of_all_tokens_but_the_first(model, tokens):
    expected = losses(model, tokens)
    found = dualnet.evaluate(model, tokens)
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.perplexity, np.exp(expected.mean()), rtol=1e-6)
    assert (found.tokens, found.batch_size) == (40, 1)
    assert dualnet.perplexity(model, tokens) == found.perplexity


@given(sequence_length=st.sampled_from([1, 3, 7, 13, 40, 99]), batch_size=st.integers(1, 5))
def test_the_value_does_not_depend_on_the_sequence_length(
    model, tokens, sequence_length, batch_size
):
    reference = dualnet.evaluate(model, tokens, batch_size=batch_size, sequence_length=40)
    found = dualnet.evaluate(model, tokens, batch_size=batch_size, sequence_length=sequence_length)
    assert found.tokens == 40
    np.testing.assert_allclose(found.perplexity, reference.perplexity, rtol=1e-6)


def test_each_of_several_streams_starts_from_the_zero_state_and_no_token_is_lost(model, tokens):
    found = dualnet.evaluate(model, tokens, batch_size=3)  # streams of 14, 14 and 12
    pieces = [tokens[0:15], tokens[14:29], tokens[28:41]]
    expected = np.concatenate([losses(model, piece) for piece in pieces])
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-6)
    assert found.tokens == 40 and found.batch_size == 3


def test_more_streams_than_whole_columns_count_every_token_once(model, tokens):
    found = dualnet.evaluate(model, tokens[:12], batch_size=8)
    assert found.tokens == len(found.token_losses) == 11


def test_logits_are_divided_by_the_temperature(model, tokens):
    found = dualnet.evaluate(model, tokens, temperature=1.3)
    expected = losses(model, tokens, temperature=1.3)
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-6)


def test_evaluation_sees_changed_weights(model, tokens):
    before = dualnet.perplexity(model, tokens)
    weight = model.weights[0]
    kept = ops.convert_to_numpy(weight).copy()
    weight.assign(kept * 2)
    assert dualnet.perplexity(model, tokens) != before
    weight.assign(kept)
    assert dualnet.perplexity(model, tokens) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0}, "`temperature` must be a finite number above 0"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ({"batch_size": 41}, "`batch_size` must be at most the 40 predicted tokens"),
        ({"sequence_length": 0}, "`sequence_length` must be an integer of at least 1"),
        ({"tokens": np.array([1])}, "`tokens` must hold at least 2 tokens. Received: 1"),
        ({"tokens": np.array([1, WORDS])}, "`tokens` must be ids of the model's vocabulary"),
        ({"tokens": np.array([[1, 2]])}, "`tokens` must be a one-dimensional array"),
        ({"tokens": np.array([1.0, 2.0])}, "`tokens` must be a one-dimensional array of integer"),
    ],
)
def test_bad_arguments_are_refused_by_name(model, tokens, arguments, message):
    arguments = {"tokens": tokens, **arguments}
    with pytest.raises(ValueError, match=message):
        dualnet.evaluate(model, arguments.pop("tokens"), **arguments)
