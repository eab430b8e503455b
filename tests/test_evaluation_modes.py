"""Evaluation by sentence, with averaged dropout samples, and at the best temperature."""

import random
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet import zoo
from dualnet.corpora import Vocabulary
from dualnet.evaluation import perplexities, scoring
from dualnet.evaluation.mc_dropout import DropoutReader
from tests.checks import NO_DROPOUT, assert_same, few_elsewhere, nll, once, strong

VOCABULARY = Vocabulary(("a", "<unk>", "b", "<eos>", *"cdef"))
WORDS, EOS = len(VOCABULARY), 3
TEXT = "a b c\n\nd\n" + "e f a b c d " * 5 + "\nf f\na\n"
TOKENS = VOCABULARY.encode(TEXT)
RATES = {"input_dropout": 0.5, "recurrent_dropout": 0.4, "output_dropout": 0.3}


def model_of(**rates):
    model = zoo.build("dual_lstm", vocabulary_size=WORDS, units=6, **{**NO_DROPOUT, **rates})
    return strong(model, VOCABULARY)


@pytest.fixture(scope="module")
def plain():
    return model_of()


@pytest.fixture(scope="module")
def model():
    return model_of(**RATES)


# --- by sentence


@pytest.mark.parametrize(("end", "temperature"), [(None, 1.4), (-1, 1.0), (-2, 1.0)])
def test_by_sentence_each_line_is_scored_for_itself_in_reading_order(plain, end, temperature):
    tokens = TOKENS[:end]
    lines = VOCABULARY.decode(tokens).splitlines(keepends=True)
    scores = dualnet.score(plain, lines, temperature=temperature)
    found = dualnet.evaluate(plain, tokens, by_sentence=True, temperature=temperature)
    expected = np.concatenate([-each.log_probabilities for each in scores])
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.perplexity, np.exp(expected.mean()), rtol=1e-5)
    assert found.tokens == len(tokens) == len(expected)
    assert (found.by_sentence, found.batch_size, found.sequence_length) == (True, 1, None)
    alone = dualnet.perplexity(plain, tokens, by_sentence=True, temperature=temperature)
    assert alone == found.perplexity


@pytest.mark.slow
@pytest.mark.parametrize("text", few_elsewhere(["a b c d e\n", "a", "\n", "a b " * 60]))
def test_a_text_of_one_sentence_is_read_after_eos(plain, text):
    tokens = VOCABULARY.encode(text)
    found = dualnet.evaluate(plain, tokens, by_sentence=True)
    expected = dualnet.evaluate(plain, np.append(EOS, tokens))
    np.testing.assert_allclose(found.token_losses, expected.token_losses, rtol=1e-5, atol=1e-5)
    assert found.tokens == len(tokens)


# --- side by side


class Sums:
    """A reader whose state is the sum of all tokens, which it also answers."""

    graph = types.SimpleNamespace(begin=lambda rows: [np.zeros((rows, 1), "float32")])

    def predict_on_batch(self, segment):
        [state] = segment["states"]
        sums = state + np.cumsum(segment["tokens"], axis=1)
        return {"losses": sums.astype("float32"), "states": [sums[:, -1:].astype("float32")]}


@given(
    st.lists(st.integers(0, 60), max_size=40), st.integers(0, 3), st.integers(0, 4), st.booleans()
)
def test_each_of_many_texts_is_read_from_the_zero_state_whatever_is_beside_it(
    lengths, log_rows, log_steps, chosen
):
    streams = [np.arange(1, length + 2) for length in lengths]
    if chosen:
        found = scoring.read(Sums(), streams)["losses"]
    else:
        found = [np.empty(length, "float32") for length in lengths]
        sizes = 1 << log_rows, 1 << log_steps
        scoring.score_streams(Sums(), streams, {"losses": found}, *sizes, 1.0)
    for stream, losses in zip(streams, found):
        np.testing.assert_array_equal(losses, np.cumsum(stream[:-1]))


# --- in windows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "work"),  # 6: several calls, and windows in several pieces
    few_elsewhere([(4, 6), (1, 2048), (4, 2048), (500, 2048), (7, 6)], 2),
)
def test_the_state_is_zeroed_every_so_many_tokens(plain, window, work, monkeypatch):
    expected, state = [], None
    for position, target in enumerate(TOKENS[1:]):
        if position % window == 0:
            state = plain.initial_state(1)
        logits, state = plain.advance(TOKENS[None, position : position + 1], state)
        expected.append(nll(ops.convert_to_numpy(logits) / 1.2, np.array([[target]])).item())
    monkeypatch.setattr(scoring, "WORK", work)
    found = dualnet.evaluate(plain, TOKENS, window=window, temperature=1.2)
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-5)
    assert found.perplexity == pytest.approx(np.exp(np.mean(expected)), rel=1e-5)
    assert (found.tokens, found.window, found.sequence_length) == (len(TOKENS) - 1, window, None)


# --- samples


def explicit(model, seed, length, *, samples, scale):
    """-log of the mean probability over passes that are made here, segment by segment."""
    reader = DropoutReader(model, scale)
    reader.set_seeds(seed, 0)
    states = [np.zeros((samples, size), "float32") for size in model.state_size]
    found = []
    for start in range(0, len(TOKENS) - 1, length):
        rows = np.tile(TOKENS[start : start + length + 1], (samples, 1))
        padding = np.zeros((samples, length - rows.shape[1] + 1), "int32")
        rows = np.concatenate([rows, padding], axis=1)
        result = reader.predict_on_batch(
            {"tokens": rows[:, :-1], "targets": rows[:, 1:], "states": states}
        )
        states = result["states"]
        found.append(np.exp(-result["losses"].astype("float64")))
    return -np.log(np.concatenate(found, axis=1).mean(axis=0))[: len(TOKENS) - 1]


@pytest.mark.parametrize(
    "arguments",
    [{"locked_dropouts": ("input", "recurrent")}, {"locked_dropouts": ()},
     {"past_decode_regularization": 0.1}],
)  # fmt: skip
def test_the_probability_of_samples_is_the_mean_of_passes_that_carry_their_state(arguments):
    model = model_of(**RATES, **arguments)
    expected = explicit(model, 3, 11, samples=4, scale=0.8)
    found = dualnet.evaluate(
        model, TOKENS, mc_dropout_samples=4, dropout_scale=0.8, seed=3, sequence_length=11
    )
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.perplexity, np.exp(expected.mean()), rtol=1e-5)
    assert (found.mc_dropout_samples, found.dropout_scale, found.seed) == (4, 0.8, 3)
    assert (found.tokens, found.sequence_length) == (len(TOKENS) - 1, 11)


@once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("samples", "settings"),
    [(5, {"batch_size": 3}), (1, {"by_sentence": True}), (2, {"window": 5})],
)
def test_with_hardly_any_dropout_samples_are_the_plain_evaluation(
    model, settings, samples, monkeypatch
):
    settings = {**settings, "temperature": 1.2}
    expected = dualnet.evaluate(model, TOKENS, **settings)
    monkeypatch.setattr(scoring, "WORK", 16)  # a long sentence is read in pieces
    found = dualnet.evaluate(
        model, TOKENS, mc_dropout_samples=samples, dropout_scale=1e-6, **settings
    )
    np.testing.assert_allclose(found.token_losses, expected.token_losses, rtol=1e-3, atol=1e-3)
    whole = dualnet.perplexity(model, TOKENS, mc_dropout_samples=samples, **settings)
    assert abs(whole - expected.perplexity) > 1e-2


def test_masks_are_those_of_the_seed_and_differ_between_passes_and_segments(model):
    reader = DropoutReader(model, 1.0)
    assert reader.masks_differ_by_row
    assert reader.core.get_layer("input_dropout").rate == 0.5
    assert DropoutReader(model, 0.5).core.get_layer("input_dropout").rate == 0.25
    inputs = {
        "tokens": np.tile(TOKENS[:9], (3, 1)),
        "targets": np.tile(TOKENS[1:10], (3, 1)),
        "states": [np.zeros((3, size), "float32") for size in model.state_size],
    }

    def losses(*seeds):
        if seeds:
            reader.set_seeds(*seeds)
        return reader.predict_on_batch(inputs)["losses"]

    first = losses(0, 0)
    assert len({tuple(row) for row in first}) == 3
    assert abs(losses() - first).max() > 1e-3  # the next segment
    np.testing.assert_array_equal(losses(0, 0), first)
    assert abs(losses(0, 1) - first).max() > 1e-3
    assert abs(losses(1, 0) - first).max() > 1e-3


def test_the_seed_fixes_samples_and_the_model_stays_as_it_was(model):
    before = [ops.convert_to_numpy(variable).copy() for variable in model.variables]
    random.seed(1)
    state = random.getstate()
    settings = {"mc_dropout_samples": 2, "sequence_length": 9}
    first = dualnet.evaluate(model, TOKENS, seed=5, **settings)
    assert random.getstate() == state
    again = dualnet.evaluate(model, TOKENS, seed=5, **settings)
    np.testing.assert_array_equal(again.token_losses, first.token_losses)
    assert dualnet.perplexity(model, TOKENS, seed=6, **settings) != first.perplexity
    assert_same(model.variables, before)


# --- temperature


def test_the_best_temperature_is_that_of_the_lowest_perplexity(plain):
    tried = [0.5, 1.0, 2.0, 4.0, 8.0]
    for settings in ({}, {"batch_size": 2, "sequence_length": 5}):
        found = dualnet.best_temperature(plain, TOKENS, temperatures=tried, **settings)
        measured = [
            dualnet.perplexity(plain, TOKENS, temperature=temperature, **settings)
            for temperature in tried
        ]
        assert found == tried[int(np.argmin(measured))] > 1  # the large weights are too sure


@once
@pytest.mark.parametrize(("best", "num_tried"), [(100 / 106, 3), (100 / 98, 7), (100 / 80, 14)])
def test_temperatures_are_tried_until_two_are_no_better(monkeypatch, plain, best, num_tried):
    tried = []

    def perplexity(model, tokens, *, temperature, **settings):
        tried.append(temperature)
        return abs(temperature - best)

    monkeypatch.setattr(perplexities, "perplexity", perplexity)
    assert dualnet.best_temperature(plain, TOKENS) == pytest.approx(best)
    expected = [1 / (factor / 100) for factor in range(106, 78, -2)]
    assert tried == pytest.approx(expected[:num_tried])
