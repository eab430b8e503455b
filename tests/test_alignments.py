"""Alignments: the attention of translators against NumPy and step by step, and its picture."""

import itertools

import numpy as np
import pytest

from dualnet import corpora, plots, zoo
from dualnet.generation import alignments, translations
from dualnet.text import ByteTokenizer
from tests import reference
from tests.checks import array, once, strong

pytestmark = [once, pytest.mark.usefixtures("without_tracing")]
TEXTS, TRANSLATIONS = ["4 0 2", "1", "3 9"], ["four hundred two", "one", "nine"]


@pytest.fixture(scope="module")
def words():
    return corpora.load_pairs("numbers").vocabulary


@pytest.fixture(scope="module", params=["encdec", "attention_dglstm"])
def model(request, words):
    sizes = {"units": 4} | ({"depth": 2} if "dglstm" in request.param else {})
    model = zoo.build(request.param, vocabulary_size=len(words), **sizes)
    model.source_vocabulary = words
    return strong(model, words, seed=0, scale=1.0)


def step_by_step(model, source, target):
    """Return the weights of one pair in float64, a step of the model for each row."""
    weights = {w.path.split("decoder/")[-1]: array(w).astype(float) for w in model.weights}
    additive = model.arguments["attention"] == "additive"
    state = model.encode(source[None])
    keys = array(state[1])[0].astype(float)
    rows = []
    for word in np.concatenate([[model.vocabulary.eos_id], target[:-1]]):
        before = state
        _, state = model.advance([[word]], state)
        # The query: h of the highest cell, before the step or after it; the last pair of states.
        query = array((before if additive else state)[-2])[0].astype(float)
        if not additive:
            scores = keys @ query
        else:
            hidden = np.tanh(query @ weights["attention/alignment_kernel"] + keys)
            scores = hidden @ weights["attention/alignment_vector"]
        rows.append(reference.softmax(scores))
    return np.stack(rows)


def test_weights_are_those_of_the_papers_step_by_step_and_sum_to_1(model, words):
    for text, translation, found in zip(
        TEXTS, TRANSLATIONS, alignments(model, TEXTS, TRANSLATIONS)
    ):
        assert found.source == tuple(text.split())
        assert found.target == (*translation.split(), "<eos>")
        assert found.weights.shape == (len(found.target), len(found.source))
        np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)
        ids = np.append(words.encode(translation), words.eos_id)
        expected = step_by_step(model, words.encode(text), ids)
        np.testing.assert_allclose(found.weights, expected, rtol=1e-3, atol=1e-5)


@once
def test_weights_of_the_translations_that_a_beam_finds(model):
    settings = {"beam": 2, "max_tokens": 3}
    found = alignments(model, ["1 2", ""], **settings)
    [best], [_] = translations(model, ["1 2", ""], **settings)
    written = tuple(best.text.split())
    assert found[0].target in (written, (*written, "<eos>"))
    again = alignments(model, "1 2", best.text)[0]
    rows = len(found[0].target)
    np.testing.assert_allclose(found[0].weights, again.weights[:rows], rtol=1e-4, atol=1e-6)
    assert found[1].target == ("<eos>",) and found[1].weights.shape == (1, 0)


def test_units_of_one_character_are_one_row_and_one_column():
    letters = ByteTokenizer()
    model = zoo.build("encdec", vocabulary_size=len(letters), units=4)
    model.source_vocabulary = letters
    strong(model, letters, seed=0, scale=1.0)
    found = alignments(model, "aß", "“b")[0]
    assert (found.source, found.target) == (("a", "ß"), ("“", "b", "<eos>"))
    expected = step_by_step(model, letters.encode("aß"), np.append(letters.encode("“b"), 256))
    joined = [expected[:3].mean(axis=0), *expected[3:]]
    joined = [[first, second + third] for first, second, third in joined]
    np.testing.assert_allclose(found.weights, joined, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("count", "most"), [(8, 800), (60, 1800)])
def test_a_picture_has_the_text_and_a_size_that_can_be_read(count, most, tmp_path, pictures):
    words = [" läuft", "“", "\u00a0", "…", "5\u00a0kg"] * (count // 4)
    plots.plot_attention(words[:count], words[:count], np.eye(count), tmp_path / "a.png")
    figure = pictures[0]
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()][:5]
    assert labels == [" läuft", "“", "␣", "…", "5\u00a0kg"]
    assert max(figure.get_size_inches()) * figure.dpi < most
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()[:count]]
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in itertools.pairwise(boxes))


def test_what_cannot_be_aligned_is_refused(model):
    with pytest.raises(ValueError, match="`translations` must be one for each text"):
        alignments(model, ["1"], ["one", "two"])
    with pytest.raises(ValueError, match="`beam` cannot be combined with `translations`"):
        alignments(model, ["1"], ["one"], beam=2)
