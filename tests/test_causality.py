"""The check that no score looks ahead, on scorers that do not, and on some that cheat."""

import numpy as np
import pytest

import dualnet
from dualnet import zoo
from tests.checks import array, once, strong

WORDS = 7

pytestmark = pytest.mark.usefixtures("without_tracing")


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(WORDS, size=20)


@pytest.fixture(scope="module")
def model():
    return strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=4))


def bigrams(ids, after=None):
    """Return log-probabilities of all words after each one, learnt from `after` or the past."""
    rows = []
    for t in range(len(ids)):
        seen = ids[:t] if after is None else after
        counts = np.ones((WORDS, WORDS))
        np.add.at(counts, (seen[:-1], seen[1:]), 1)
        rows.append(np.log(counts[ids[t - 1] if t else 0] / counts[ids[t - 1] if t else 0].sum()))
    return np.array(rows)


def of_each(log_p, ids):
    return log_p[np.arange(len(ids)), ids]


def learns_before_it_scores(ids):
    return of_each(bigrams(ids, after=ids), ids)


def knows_the_words_of_a_segment(ids):
    """Score segments of 5, knowing how many words each holds, but not where they stand."""
    segments = np.split(ids, range(5, len(ids), 5))
    return np.concatenate([-np.log(np.full(len(part), len(set(part)))) for part in segments])


@once
def test_a_scorer_that_learns_from_the_past_alone_is_causal(tokens):
    for scorer in (bigrams, lambda ids: of_each(bigrams(ids), ids)):
        found = dualnet.check_causal(scorer, tokens)
        assert found.causal and found.difference == 0 and len(found.positions) == 8
        assert found.positions[0] == len(tokens) - 1
        assert str(found) == "Causal, as far as 8 positions show."


@once
@pytest.mark.parametrize("cheat", [learns_before_it_scores, knows_the_words_of_a_segment])
def test_a_scorer_that_cheats_is_found_out_with_the_first_score_that_moves(cheat, tokens):
    found = dualnet.check_causal(cheat, tokens, positions=len(tokens))
    assert not found.causal
    assert found.moved < found.changed
    changed = tokens.copy()
    assert f"the score of token {found.moved} moves" in str(found)
    # Its own scores say so, too: some change at that place moves it.
    random = np.random.default_rng(0)
    for _ in range(99):
        changed[found.changed :] = random.integers(WORDS, size=len(tokens) - found.changed)
        if cheat(changed)[found.moved] != cheat(tokens)[found.moved]:
            return
    pytest.fail("the score does not move")


@once
def test_probabilities_of_all_words_are_known_before_the_word_and_sum_to_one(tokens):
    def knows_the_word(ids):
        log_p = np.full((len(ids), WORDS), np.log(0.1))
        log_p[np.arange(len(ids)), ids] = np.log(1 - 0.1 * (WORDS - 1))
        return log_p

    found = dualnet.check_causal(knows_the_word, tokens)
    assert not found.causal and found.moved == found.changed
    found = dualnet.check_causal(lambda ids: bigrams(ids) + 0.01 * (ids == 3)[:, None], tokens)
    assert not found.causal and tokens[found.moved] == 3
    assert found.excess == pytest.approx(np.expm1(0.01)) and "do not sum to 1: +0.01" in str(found)


@once
def test_a_scorer_that_remembers_the_text_is_no_function(tokens):
    read = []

    def remembers(ids):
        read.extend(ids)
        return of_each(bigrams(ids, after=np.array(read[: -len(ids)], int)), ids)

    assert "Not a function" in str(dualnet.check_causal(remembers, tokens))


@pytest.mark.parametrize(
    "score", [dualnet.evaluate, dualnet.dynamic_evaluation], ids=lambda score: score.__name__
)
def test_static_and_dynamic_evaluation_do_not_look_ahead(score, model, tokens):
    settings = {"sequence_length": 5}
    if score is dualnet.dynamic_evaluation:
        settings |= {"rule": "sgd", "learning_rate": 1.0}
    found = dualnet.check_causal(
        lambda ids: -score(model, ids, **settings).token_losses, tokens, positions=3
    )
    assert found.causal


@pytest.mark.parametrize("cache", [None, "neural", "ngram"])
def test_the_probabilities_of_a_model_do_not_look_ahead(cache, model, tokens):
    if cache:
        model = dualnet.with_cache(model, size=5, kind=cache)

    def all_words(ids):
        log_p = array(model(ids[None])[0]).astype("float64")
        log_p = log_p - np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        return log_p[:-1]  # row t is of token t + 1

    assert dualnet.check_causal(all_words, tokens).causal


@pytest.mark.parametrize(
    ("scorer", "ids", "message"),
    [
        (bigrams, [1, 1, 1], "`tokens` must hold different ids"),
        (lambda ids: np.zeros(9), [1, 2], r"`scorer` must return one .* shape \(9,\) for 2 ids"),
        (lambda ids: np.full(2, 0.5), [1, 2], "`scorer` must return logarithms"),
    ],
)
def test_what_cannot_be_checked_is_refused(scorer, ids, message):
    with pytest.raises(dualnet.ArgumentError, match=message):
        dualnet.check_causal(scorer, ids)
