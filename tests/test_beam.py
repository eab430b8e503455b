"""Beam search finds what exhaustive search finds, and its scores are those of the model."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import zoo
from dualnet.generation import beam_search, ensemble_step, sampling
from dualnet.text import Vocabulary
from tests.checks import strong
from tests.reference import log_softmax

SIZE, LENGTH, EOS = 6, 4, 2
EVERY_PREFIX = SIZE**3


def language_model_step(model):
    """Return the step of `model` for `beam_search`, on states that are NumPy arrays."""

    def step(tokens, states):
        logits, *states = model.core.predict_on_batch([tokens, *states])
        return log_softmax(logits[:, -1]), states

    return step


def candidates(length=LENGTH, eos_id=EOS, excluded=()):
    """Yield every hypothesis: ids and whether `<eos>` follows them."""
    words = [i for i in range(SIZE) if i != eos_id and i not in excluded]
    for count in range(length):
        yield from ((ids, True) for ids in itertools.product(words, repeat=count))
    yield from ((ids, False) for ids in itertools.product(words, repeat=length))


class Table:
    """Random log-probabilities after each first token and ids; the state is what was read."""

    def __init__(self, seed, length=LENGTH, scale=2.0):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=((SIZE + 1) ** length, SIZE), scale=scale)
        self.log_probabilities = log_softmax(logits)
        self.shapes = []

    def state(self, sentences):
        return [np.zeros((sentences, 1), "int64")]

    def step(self, tokens, states):
        self.shapes.append(tokens.shape)
        read = np.asarray(states[0]) * (SIZE + 1) + tokens + 1
        return self.log_probabilities[read[:, 0] % len(self.log_probabilities)], [read]

    def score(self, first_id, ids, ended):
        tokens = [*ids, EOS] if ended else ids
        state, total = self.state(1), 0.0
        for before, token in zip([first_id, *ids], tokens):
            rows, state = self.step(np.array([[before]]), state)
            total += rows[0, token]
        return total

    def search(self, first_ids=(EOS,), **settings):
        settings = {"beam": 2, "max_tokens": LENGTH, "eos_id": EOS, **settings}
        return beam_search(self.step, self.state(len(first_ids)), first_ids=first_ids, **settings)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    model = zoo.build("lstm", vocabulary_size=SIZE, units=4)
    words = Vocabulary(("the", "<unk>", "<eos>", "cat", "dog", "sees"))
    return strong(model, words, seed=1, scale=1.0)


def zeros(model, rows):
    return [np.zeros((rows, size), "float32") for size in model.state_size]


@pytest.mark.parametrize("excluded", [(), (1,)])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_beam_of_every_prefix_finds_the_argmax_of_exhaustive_search(alpha, excluded):
    table = Table(0)
    ranked = sorted(
        (table.score(0, ids, ended) / (len(ids) + ended) ** alpha, ids, ended)
        for ids, ended in candidates(excluded=excluded)
    )[::-1]
    [found] = table.search(
        [0], beam=EVERY_PREFIX, n_best=5, length_normalization=alpha, excluded_ids=excluded
    )
    assert [(item.ids, item.ended) for item in found] == [row[1:] for row in ranked[:5]]
    for item, (normalized, ids, ended) in zip(found, ranked):
        assert item.normalized_score == pytest.approx(normalized, rel=1e-12)
        assert item.score == pytest.approx(table.score(0, ids, ended), rel=1e-12)


PROMPTS = ["the cat", "", "dog dog sees", "cat"]


@pytest.mark.parametrize("allow_unknown", [True, False])
def test_a_beam_of_one_is_greedy(model, allow_unknown):
    settings = {"max_tokens": 7, "allow_unknown": allow_unknown}
    greedy = dualnet.generate(model, PROMPTS, temperature=0, stop_at_eos=True, **settings)
    texts = dualnet.generate(model, PROMPTS, beam=1, length_normalization=2.0, **settings)
    assert texts == greedy and len({len(text.split()) for text in texts}) > 1


def test_n_best_texts_are_lists_in_place_of_texts(model):
    settings = {"max_tokens": 4, "beam": 5}
    several = dualnet.generate(model, PROMPTS, n_best=3, **settings)
    assert [len({*texts}) for texts in several] == [3] * 4
    assert [texts[0] for texts in several] == dualnet.generate(model, PROMPTS, **settings)
    assert "<unk>" not in str(several)
    for prompt, texts in zip(PROMPTS, several):  # batch composition changes nothing
        assert dualnet.generate(model, prompt, n_best=3, **settings) == texts
    assert dualnet.generate(model, "the", n_best=1, **settings) == [
        dualnet.generate(model, "the", **settings)
    ]


@pytest.mark.parametrize(("beam", "allow_unknown"), [(2, False), (SIZE, True)])
def test_texts_are_those_of_a_search_among_all_words(model, beam, allow_unknown):
    settings = {"beam": beam, "n_best": beam, "max_tokens": 9}
    texts = dualnet.generate(model, PROMPTS, allow_unknown=allow_unknown, **settings)
    for prompt, found in zip(PROMPTS, texts):
        start = [EOS, *model.vocabulary.encode(prompt).tolist()]
        _, states = sampling.read(model, [np.array(start[:-1], "int32")])
        [expected] = beam_search(
            language_model_step(model), states, first_ids=start[-1:], eos_id=EOS,
            excluded_ids=() if allow_unknown else model.vocabulary.unknown_ids, **settings,
        )  # fmt: skip
        assert found == [model.vocabulary.decode([*start[1:], *one.ids]) for one in expected]
        ends = [[*one.ids, EOS] if one.ended else one.ids for one in expected]
        whole = dualnet.score(model, [model.vocabulary.decode([*start[1:], *ids]) for ids in ends])
        for one, score in zip(expected, whole):
            log_p = score.log_probabilities[len(start) - 1 :].sum(dtype="float64")
            assert one.score == pytest.approx(log_p, rel=1e-5)


def test_an_ensemble_of_steps_searches_as_one_model_with_the_mean_of_the_probabilities():
    members, mean = [Table(0), Table(1)], Table(2)
    mean.log_probabilities = np.log(
        np.mean([np.exp(member.log_probabilities) for member in members], axis=0)
    )
    settings = {"first_ids": [0, 4], "beam": 4, "max_tokens": LENGTH, "eos_id": EOS, "n_best": 4}
    step = ensemble_step([member.step for member in members])
    found = beam_search(step, [member.state(2) for member in members], **settings)
    for several, expected in zip(found, mean.search(**settings), strict=True):
        assert [item.ids for item in several] == [item.ids for item in expected]
        scores = [[item.score for item in items] for items in (several, expected)]
        np.testing.assert_allclose(*scores, rtol=1e-12)


def test_sentences_do_not_depend_on_each_other():
    table = Table(4)
    limits, first_ids = [4, 1, 3, 4], [0, 1, 3, 0]
    settings = {"beam": 3, "n_best": 3, "length_normalization": 0.6, "eos_id": EOS}
    states = {"read": [ops.convert_to_tensor(table.state(4)[0].astype("int32"))]}

    def step(tokens, states):
        rows, new = table.step(tokens, [ops.convert_to_numpy(states["read"][0])])
        return ops.convert_to_tensor(rows), {"read": [ops.convert_to_tensor(new[0])]}

    together = beam_search(step, states, first_ids=first_ids, max_tokens=limits, **settings)
    assert {*table.shapes} == {(12, 1)}  # one shape for the whole search
    for first_id, limit, found in zip(first_ids, limits, together):
        [alone] = table.search([first_id], max_tokens=limit, **settings)
        assert [item.ids for item in alone] == [item.ids for item in found]
        np.testing.assert_allclose(
            [item.score for item in alone], [item.score for item in found], rtol=1e-6
        )
        assert all(len(item.ids) + item.ended <= limit for item in found)
    assert together[0] == together[3]


def test_a_search_ends_as_soon_as_no_open_hypothesis_can_overtake():
    # After the first token, `<eos>` has probability 0.6: nothing open can be likelier.
    table = Table(0)
    table.log_probabilities[:] = np.log([0.1, 0.1, 0.6, 0.1, 0.05, 0.05])
    [[best]] = table.search()
    assert (best.ids, best.ended, len(table.shapes)) == ((), True, 1)
    table.shapes.clear()
    [[first, second]] = table.search(n_best=2)  # the second needs a step more
    assert (first, second.ids, len(table.shapes)) == (best, (0,), 2)
    table.shapes.clear()
    # The mean over tokens grows with `<eos>` later: -0.51 / 1 is still higher.
    assert table.search(length_normalization=1.0) == [[best]]
    [[longest]] = table.search(length_normalization=9.0)
    assert len(longest.ids) == 3 and longest.ended and len(table.shapes) > 3


def test_ties_go_to_the_lower_id_and_then_to_the_likelier_parent():
    table = Table(0)
    table.log_probabilities[:] = np.log(1 / SIZE)
    [found] = table.search(beam=4, n_best=4, eos_id=None, max_tokens=2)
    assert [item.ids for item in found] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    [found] = table.search(beam=4, n_best=4, eos_id=EOS, max_tokens=2)
    assert [item.ids for item in found] == [(), (0, 0), (1, 0), (3, 0)]
