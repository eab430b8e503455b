import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.corpora import Corpus, Vocabulary, streams
from dualnet.corpora.token_batches import TokenBatches


def corpus_of(tokens):
    tokens = np.asarray(tokens, "int32")
    vocabulary = Vocabulary(tuple("abcdefgh"))
    return Corpus("toy", tokens, tokens, tokens[:3], vocabulary, "", False, "")


layouts = st.tuples(st.integers(2, 200), st.integers(1, 9), st.integers(1, 30)).filter(
    lambda layout: layout[0] > layout[1]
)


@given(layouts)
def test_every_pair_is_predicted_exactly_once_in_reading_order(layout):
    num_tokens, batch_size, sequence_length = layout
    batches = TokenBatches(
        np.arange(num_tokens), batch_size=batch_size, sequence_length=sequence_length
    )
    inputs, targets = (np.concatenate(part, axis=1) for part in zip(*batches, strict=True))
    kept = (num_tokens - 1) // batch_size * batch_size
    # Ids count up, so that reading the rows one after the other gives the text.
    np.testing.assert_array_equal(inputs.ravel(), np.arange(kept))
    np.testing.assert_array_equal(targets.ravel(), np.arange(1, kept + 1))
    assert batches.num_tokens == kept


@given(layouts)
def test_streams_go_on_from_batch_to_batch(layout):
    num_tokens, batch_size, sequence_length = layout
    batches = TokenBatches(
        np.arange(num_tokens), batch_size=batch_size, sequence_length=sequence_length
    )
    for k in range(len(batches)):
        inputs, targets = batches[k]
        assert inputs.dtype == targets.dtype == np.int32
        assert inputs.shape[0] == batch_size
        np.testing.assert_array_equal(targets, inputs + 1)
        if k:
            assert inputs.shape[1] == sequence_length  # the first one alone may be short
            np.testing.assert_array_equal(inputs[:, 0], batches[k - 1][1][:, -1])
        else:
            assert 1 <= inputs.shape[1] <= sequence_length


def test_a_batch_depends_on_its_index_alone():
    batches = corpus_of(np.arange(50) % 8).batches("train", batch_size=3, sequence_length=5)
    later = batches[2]
    batches[0][0][:] = -1  # neither by order nor by what was done to another
    np.testing.assert_array_equal(batches[2], later)
    assert batches[0][0].min() >= 0


def test_batches_carry_what_training_needs():
    corpus = corpus_of(np.arange(50) % 8)
    batches = corpus.batches("valid", batch_size=3, sequence_length=5)
    assert isinstance(batches, keras.utils.PyDataset)
    assert batches.vocabulary is corpus.vocabulary
    assert (batches.batch_size, batches.sequence_length, batches.num_tokens) == (3, 5, 48)
    assert (batches.workers, batches.use_multiprocessing) == (1, False)
    assert [inputs.shape for inputs, _ in batches] == [(3, 1), (3, 5), (3, 5), (3, 5)]
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_keras_takes_batches_of_two_lengths():
    batches = corpus_of(np.arange(50) % 8).batches("train", batch_size=3, sequence_length=5)
    model = keras.Sequential([keras.layers.Embedding(8, 4), keras.layers.Dense(8)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    history = model.fit(batches, epochs=1, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_streams_are_views_of_the_tokens():
    tokens = np.arange(11)
    inputs, targets = streams(tokens, 3)
    assert inputs.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert targets.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert np.shares_memory(inputs, tokens)
    assert np.shares_memory(targets, tokens)


@pytest.mark.parametrize("name", ["batch_size", "sequence_length"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None])
def test_bad_batch_sizes_are_refused(name, value):
    sizes = {"batch_size": 2, "sequence_length": 2, name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1"):
        corpus_of(np.zeros(9)).batches("train", **sizes)


def test_a_split_must_be_known():
    with pytest.raises(ValueError, match="`split` must be one of.*split='dev'"):
        corpus_of(np.zeros(9)).batches("dev", batch_size=1, sequence_length=1)


def test_a_split_shorter_than_one_batch_is_refused():
    with pytest.raises(ValueError, match=r"at least batch_size \+ 1 = 4 ids. Received: 3 ids"):
        corpus_of(np.zeros(9)).batches("test", batch_size=3, sequence_length=1)


@pytest.mark.parametrize("tokens", [np.zeros((2, 5), "int32"), np.zeros(5)])
def test_tokens_must_be_a_vector_of_integers(tokens):
    with pytest.raises(ValueError, match=r"`tokens` must be an integer array of shape"):
        streams(tokens, 1)
