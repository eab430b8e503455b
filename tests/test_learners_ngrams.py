"""Learners, and weights that learn, with a cache of n-grams: the cache against counts in NumPy."""

import copy
import io
import json
import pickle

import numpy as np
import pytest

import dualnet
from dualnet import rescoring, zoo
from dualnet.builders import encoder_decoder, with_cache, with_gate
from dualnet.layers.ngram_cache import WEIGHTS
from dualnet.learners import Learner, read_many
from dualnet.text import Vocabulary
from tests import reference
from tests.checks import array, assert_same, nll, strong, values

WORDS, LENGTH, SIZE = 7, 4, 8
VOCABULARY = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, WORDS))))
TINY = 1e-9  # a rate at which nothing is learnt
SETTINGS = {"rule": "sgd", "learning_rate": 0.7, "sequence_length": LENGTH}

pytestmark = pytest.mark.usefixtures("without_tracing")


@pytest.fixture(scope="module")
def model():
    return strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=3), VOCABULARY)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(1, WORDS, size=(3, 11)).astype("int32")


def learner(model, adapt="connection", cache=SIZE, **settings):
    return Learner(model, adapt, cache=cache, **{**SETTINGS, **settings})


def mixed(logits, tokens, size=SIZE):
    """Return log p with the n-grams of the last `size` of `tokens`."""
    return reference.ngram_cache(tokens[None], logits[None], size=size, weights=WEIGHTS)[0]


def logits_of(model, tokens):
    return array(model(tokens[None])[0]).astype("float64")


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_token_of_a_text_is_in_the_cache_of_the_next(model, end):
    texts = [f"{text}{end}" for text in ("w1 w2", "w3 w2", "w1 w2", "w2")]
    rule = {"rule": "sgd", "learning_rate": TINY}
    rows = learner(model, **rule).surprisal(texts)
    settings = {"adapt_weights": "connection", "cache": SIZE, **rule}
    expected = dualnet.surprisal(model, texts, adapt=True, **settings)
    for row, same in zip(rows, expected, strict=True):
        assert row["surprisal"] == pytest.approx(same["surprisal"], rel=1e-5)


@pytest.mark.parametrize("adapt", ["connection", "matrix:2", "embedding"])
def test_the_weights_learn_as_without_ngrams_which_are_mixed_in_after(adapt, model, ids):
    one, plain, logits = learner(model, adapt), learner(model, adapt, cache=0), []
    found, stream = one.read(ids[0]), np.append(np.int32(0), ids[0])
    for first in range(0, len(ids[0]), LENGTH):
        part = stream[first : first + LENGTH + 1]
        with plain.taught() as taught:
            states = [state[None] for state in plain._state.states]
            logits.append(array(taught.advance(part[None, :-1], states)[0])[0])
        plain.read(part[1:])
    expected = nll(mixed(np.concatenate(logits), stream[:-1])[None], stream[None, 1:])[0]
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected - nll(np.concatenate(logits)[None], stream[None, 1:])).max() > 0.1
    np.testing.assert_allclose(one._state.memory, plain._state.memory, rtol=1e-4, atol=1e-6)
    ring = one._state.states[-1]
    assert ring.dtype == np.uint8 and one.size == plain.size + SIZE
    assert_same([ring], [stream[:-1][-SIZE:] + 1])
    dynamic = dualnet.dynamic_evaluation(model, stream, adapt=adapt, cache=SIZE, **SETTINGS)
    np.testing.assert_allclose(dynamic.token_losses, expected, rtol=1e-4, atol=1e-5)
    assert dynamic.settings["cache"] == found.settings["cache"] == one.cache == SIZE


def test_all_weights_learn_as_without_ngrams(model, ids):
    learnt = []
    for cache in (None, SIZE):
        twin = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=3), VOCABULARY)
        settings = {"cache": cache, "keep": True, **SETTINGS}
        found = dualnet.dynamic_evaluation(twin, ids.ravel(), **settings)
        learnt.append((values(twin), found.perplexity))
    for found, expected in zip(*(weights for weights, _ in learnt)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert learnt[0][1] != learnt[1][1]


def test_it_does_not_matter_to_ngrams_where_a_text_is_cut(model, ids):
    whole, expected = learner(model, learning_rate=TINY), []
    expected = whole.read(ids.ravel()).token_losses
    cut = learner(model, learning_rate=TINY, sequence_length=7)
    found = [cut.read(part).token_losses for part in np.split(ids.ravel(), [1, 5, 20])]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5, atol=1e-6)
    assert_same(cut._state.states[-1:], whole._state.states[-1:])


def test_learners_with_ngrams_read_side_by_side_as_alone(model, ids):
    texts = [ids[0], ids[1][:6], ids[2][:1]]
    together, alone = ([learner(model) for _ in texts] for _ in range(2))
    results = read_many(together, texts)
    for one, other, text, result in zip(together, alone, texts, results):
        expected = other.read(text)
        np.testing.assert_allclose(result.token_losses, expected.token_losses, rtol=1e-4)
        np.testing.assert_allclose(one._state.memory, other._state.memory, rtol=1e-3, atol=1e-6)
        assert_same(one._state.states[-1:], other._state.states[-1:])


def test_a_learner_with_ngrams_does_not_look_ahead(model, ids):
    found = dualnet.check_causal(lambda text: -learner(model).read(text).token_losses, ids[0])
    assert found.causal


@pytest.mark.parametrize("how", ["file", "copy", "pickle"])
def test_a_saved_learner_has_its_ngrams(how, model, ids, tmp_path):
    one = learner(model)
    one.read(ids[0])
    if how == "file":
        one.save(tmp_path / "one")
        other = Learner.load(tmp_path / "one", model)
    else:
        other = copy.copy(one) if how == "copy" else pickle.loads(pickle.dumps(one))
    assert (other.cache, other.size) == (SIZE, one.size)
    assert_same(other._state.states, one._state.states)
    expected = one.score(ids[1]).token_losses
    np.testing.assert_allclose(other.score(ids[1]).token_losses, expected, rtol=1e-6)


def test_files_without_a_cache_load_and_ids_that_are_none_are_refused(model, ids, tmp_path):
    one, other = learner(model, cache=0), learner(model)
    for learnt, name in ((one, "one"), (other, "other")):
        learnt.read(ids[0])
        learnt.save(tmp_path / name)

    def change(name, change):
        with np.load(tmp_path / name) as file:
            arrays = {**file}
        about = json.loads(arrays["about"].tobytes())
        change(about, arrays)
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        (tmp_path / name).write_bytes(buffer.getvalue())

    # As 0.2.0 wrote it.
    change("one", lambda about, _: [about.pop(name) for name in ("cache", "words", "reads")])
    old = Learner.load(tmp_path / "one", model)
    assert old.cache == 0 and np.array_equal(old._state.memory, one._state.memory)
    change("other", lambda _, arrays: arrays["state_2"].fill(WORDS + 1))
    with pytest.raises(ValueError, match="must be a file that Learner.save wrote.*`cache`"):
        Learner.load(tmp_path / "other", model)


def test_a_new_learner_has_few_weights_a_cache_and_clips(model):
    one = Learner(model)
    assert (one.adapt, one.cache, one.settings["clipnorm"]) == (["matrix:16"], 4000, 1.0)
    assert (Learner(model, cache=9).cache, Learner(model, cache=0).cache) == (9, 0)
    assert Learner(model, clipnorm=0.5).settings["clipnorm"] == 0.5
    named = Learner(model, "matrix:16")
    assert named.cache == 0 and "clipnorm" not in named.settings
    gated = with_gate(model, units=2)
    assert (Learner(gated).adapt, Learner(gated).cache) == (["output_bias"], 4000)
    cached = with_cache(model, 5)
    assert (Learner(cached).adapt, Learner(cached).cache) == (["output_bias"], 0)
    with pytest.raises(ValueError, match="`cache` must be 0 for a translator, and for a model tha"):
        Learner(with_cache(model, 5, kind="ngram"), cache=5)
    arguments = {"source_vocabulary_size": 9, "units": 4, "connection": "dual"}
    translator = encoder_decoder(9, **arguments)
    one = Learner(translator)
    assert (one.adapt, one.cache, "clipnorm" in one.settings) == (["connection"], 0, False)
    plain = encoder_decoder(9, source_vocabulary_size=9, units=4)
    assert (Learner(plain).adapt, Learner(plain).cache) == (["matrix:16"], 0)


def test_what_a_learner_writes_has_its_ngrams(model, ids):
    one = learner(model, cache=30, learning_rate=TINY)
    text = [*ids[0], 0, *ids[1]]
    one.read(text)
    after = np.append(np.int32(0), ids[2])
    logits, whole = logits_of(model, after), np.array([0, *text, *after])
    expected = reference.ngram_cache(
        whole[None],
        np.concatenate([np.zeros((len(text) + 1, WORDS)), logits])[None],
        size=30,
        weights=WEIGHTS,
    )[0, -len(after) :]
    with one.taught() as taught:
        found = dualnet.evaluate(taught, after).token_losses
        np.testing.assert_allclose(found, nll(expected[None, :-1], after[None, 1:])[0], rtol=1e-4)
        np.testing.assert_allclose(logits_of(taught, after), expected, rtol=1e-4, atol=1e-5)
        dynamic = dualnet.dynamic_evaluation(taught, after, rule="sgd", learning_rate=TINY)
        np.testing.assert_allclose(dynamic.token_losses, found, rtol=1e-4)
        scored = dualnet.score(taught, VOCABULARY.decode(after[1:])).log_probabilities
        np.testing.assert_allclose(-np.array(scored), found, rtol=1e-4)
    prompt = VOCABULARY.decode(after[1:])
    written = one.generate(prompt, max_tokens=1, temperature=0)
    assert VOCABULARY.encode(written)[-1] == expected[-1].argmax()
    p = np.exp(expected[-1, 1:])  # of words alone
    [word] = dualnet.complete(one, f"{prompt} ", k=1)
    assert word == (f"w{p.argmax() + 1}", pytest.approx(p.max() / p.sum(), rel=1e-3))


def test_texts_that_weights_learn_from_are_remembered(model, ids):
    texts = [VOCABULARY.decode(part) for part in ids[:, :6]]
    settings = {"adapt": True, "rule": "sgd", "learning_rate": TINY}
    records = dualnet.surprisal(model, texts, cache=30, **settings)
    found = np.array([record["surprisal"] for record in records]) * np.log(2)
    streams = [np.append(np.int32(0), part) for part in ids[:, :6]]
    logits = np.concatenate([logits_of(model, stream) for stream in streams])
    whole = np.concatenate(streams)
    log_p = mixed(logits, whole, 30)
    expected = nll(log_p[None, :-1], whole[None, 1:])[0]
    np.testing.assert_allclose(found, expected[whole[1:] != 0], rtol=1e-4)

    lists = [rescoring.NBest(i, (rescoring.Hypothesis(text),)) for i, text in enumerate(texts)]
    rescored = dualnet.rescore({"lm": model}, lists, cache=30, **settings)
    scores = [item.hypotheses[0].features["lm"] for item in rescored]
    ends = np.flatnonzero(np.append(whole[1:], 0) == 0)
    losses = -log_p[np.arange(len(whole)), np.append(whole[1:], 0)]
    totals = [part.sum() for part in np.split(losses, ends[:-1] + 1)]
    np.testing.assert_allclose(scores, -np.array(totals), rtol=1e-4)
