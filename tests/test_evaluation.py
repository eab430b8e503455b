import math
import tracemalloc
import types

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualnet
from dualnet import zoo
from dualnet.corpora import Vocabulary
from dualnet.evaluation import arguments
from tests.checks import nll, once, strong

WORDS = 12
VOCABULARY = Vocabulary(("a", "<unk>", "b", "<eos>", *"cdefghij"[: WORDS - 4]))
EOS = 3


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(5)
    return zoo.build("dual_lstm", vocabulary_size=WORDS, units=6)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(WORDS, size=41).astype("int32")


def losses(model, tokens, temperature=1.0):
    """-log p of each token but the first, in float64, from one pass over the whole."""
    return nll(model(tokens[None, :-1]) / temperature, tokens[None, 1:])[0]


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_perplexity_is_exp_of_the_mean_loss_of_all_tokens_but_the_first(model, tokens, temperature):
    expected = losses(model, tokens, temperature)
    found = dualnet.evaluate(model, tokens, temperature=temperature)
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.perplexity, np.exp(expected.mean()), rtol=1e-6)
    assert (found.tokens, found.batch_size) == (40, 1)
    assert dualnet.perplexity(model, tokens, temperature=temperature) == found.perplexity


@given(
    sequence_length=st.sampled_from([1, 3, 7, 13, 40, 99]),
    batch_size=st.sampled_from([1, 2, 3, 5, 9, 30]),  # some rows may be shorter, or empty
)
def test_the_value_does_not_depend_on_the_sequence_length(
    model, tokens, sequence_length, batch_size
):
    reference = dualnet.evaluate(model, tokens, batch_size=batch_size, sequence_length=40)
    found = dualnet.evaluate(model, tokens, batch_size=batch_size, sequence_length=sequence_length)
    assert found.tokens == len(found.token_losses) == 40
    np.testing.assert_allclose(found.perplexity, reference.perplexity, rtol=1e-6)


def test_each_of_several_streams_starts_from_the_zero_state_and_no_token_is_lost(model, tokens):
    found = dualnet.evaluate(model, tokens, batch_size=3)  # streams of 14, 14 and 12
    pieces = [tokens[0:15], tokens[14:29], tokens[28:41]]
    expected = np.concatenate([losses(model, piece) for piece in pieces])
    np.testing.assert_allclose(found.token_losses, expected, rtol=1e-5, atol=1e-6)
    assert found.tokens == 40 and found.batch_size == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 41}, "`batch_size` must be at most the 40 predicted tokens"),
        ({"tokens": np.array([1])}, "`tokens` must hold at least 2 tokens. Received: 1"),
        ({"tokens": np.array([1, WORDS])}, "`tokens` must hold ids of the model's vocabulary"),
        ({"tokens": np.array([1.0, 2.0])}, "`tokens` must be an integer array of shape"),
    ],
)
def test_bad_arguments_are_refused_by_name(model, tokens, arguments, message):
    arguments = {"tokens": tokens, **arguments}
    with pytest.raises(ValueError, match=message):
        dualnet.evaluate(model, arguments.pop("tokens"), **arguments)


class Constant:
    """A reader that finds a loss of 1 everywhere."""

    graph = types.SimpleNamespace(begin=lambda rows: [])

    def predict_on_batch(self, inputs):
        return {"losses": np.ones(inputs["tokens"].shape, "float32"), "states": inputs["states"]}


@once
def test_a_memory_mapped_stream_is_never_copied_whole(model, tokens, tmp_path, monkeypatch):
    path = tmp_path / "tokens.npy"
    np.save(path, np.tile(tokens, 50_000))
    stream = np.load(path, mmap_mode="r")
    assert np.shares_memory(arguments.check_tokens(stream, WORDS, least=2), stream)
    monkeypatch.setattr("dualnet.evaluation.perplexities.reader_of", lambda *_: Constant())
    tracemalloc.start()
    found = dualnet.evaluate(model, stream, batch_size=3, sequence_length=20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.tokens == len(stream) - 1 and found.perplexity == math.e
    assert (found.token_losses == 1).all()
    # The losses are returned; a copy of the stream would need as much again.
    assert peak < found.token_losses.nbytes + stream.nbytes / 2


# --- scores of texts


@pytest.fixture(scope="module")
def reader():
    return strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=6), VOCABULARY)


def text_of(length, seed):
    """Return `length` tokens as text: words, newlines and a few unknown words."""
    words = np.random.default_rng(seed).choice([*"abcdefgh", "zebra", "\n"], size=length)
    return " ".join(words)


@once
@pytest.mark.slow
def test_scores_are_those_of_one_forward_pass_whatever_the_lengths(reader):
    lengths = [3, 600, 0, 17, 1, 513, 40, 16, 5]
    texts = [text_of(length, seed) for seed, length in enumerate(lengths)]
    read = np.full((len(texts), 1 + max(lengths)), EOS, "int32")
    for row, text in enumerate(texts):
        ids = VOCABULARY.encode(text)
        read[row, 1 : 1 + len(ids)] = ids
    expected = -nll(reader(read[:, :-1]), read[:, 1:])
    found = dualnet.score(reader, texts)
    assert [each.tokens for each in found] == lengths
    for row, each in enumerate(found):
        assert each.log_probabilities.dtype == "float32"
        assert each.log_probabilities.shape == (len(each.words),) == (each.tokens,)
        np.testing.assert_allclose(
            each.log_probabilities, expected[row, : each.tokens], rtol=1e-5, atol=1e-5
        )
        if each.tokens:
            mean = -expected[row, : each.tokens].mean()
            np.testing.assert_allclose(each.perplexity, np.exp(mean), rtol=1e-5)


def test_a_text_alone_gives_one_score_and_a_sequence_a_list(reader):
    one = dualnet.score(reader, "a b\nzebra")
    assert isinstance(one, dualnet.evaluation.Score)
    assert one.words == ("a", "b", "<eos>", "<unk>") and one.tokens == 4
    (only,) = dualnet.score(reader, ("a b\nzebra",))
    np.testing.assert_array_equal(only.log_probabilities, one.log_probabilities)
    assert dualnet.score(reader, []) == []
    blank = dualnet.score(reader, " \t")
    assert blank.words == () and blank.tokens == 0 and blank.perplexity == 1


def test_a_joined_text_carries_its_state_over_the_newline(reader):
    first, second, joined = dualnet.score(reader, ["a b\n", "c a\n", "a b\nc a\n"])
    assert joined.words == first.words + second.words
    np.testing.assert_allclose(
        joined.log_probabilities[:3], first.log_probabilities, rtol=1e-5, atol=1e-6
    )
    # The same word after the same `<eos>`, but not from the zero state.
    assert abs(joined.log_probabilities[3] - second.log_probabilities[0]) > 1e-3


@once
@pytest.mark.slow
def test_texts_are_read_in_few_shapes_and_none_with_more_than_the_work_of_a_call(
    reader, monkeypatch
):
    shapes = []

    class Recording(Constant):
        def predict_on_batch(self, inputs):
            shapes.append(inputs["tokens"].shape)
            return super().predict_on_batch(inputs)

    monkeypatch.setattr("dualnet.evaluation.texts.reader_of", lambda *_: Recording())
    lengths = np.random.default_rng(0).integers(1, 1400, size=300)
    found = dualnet.score(reader, [text_of(length, 0) for length in lengths])
    assert [each.tokens for each in found] == lengths.tolist()
    assert len(set(shapes)) <= 12 and max(rows * time for rows, time in shapes) <= 2048
    read = sum(rows * time for rows, time in shapes)
    assert read < 1.25 * lengths.sum()  # little is padding


def test_a_model_without_the_words_that_scores_and_sentences_need_is_refused():
    model = zoo.build("lstm", vocabulary_size=2, units=4)
    with pytest.raises(ValueError, match=r"with a vocabulary.*Set model\.vocabulary"):
        dualnet.score(model, "a")
    model.vocabulary = Vocabulary(("a", "<unk>"))
    with pytest.raises(ValueError, match="`model` must have a vocabulary with <eos>.*`evaluate`"):
        dualnet.score(model, "a")
    with pytest.raises(ValueError, match="`model` must have a vocabulary with <eos>.*by_sentence"):
        dualnet.evaluate(model, np.array([0, 1]), by_sentence=True)
