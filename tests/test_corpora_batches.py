import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.corpora import Corpus, Vocabulary, streams
from dualnet.corpora.token_batches import TokenBatches
from tests.checks import once

pytestmark = once


def corpus_of(tokens):
    tokens = np.asarray(tokens, "int32")
    vocabulary = Vocabulary(tuple("abcdefgh"))
    return Corpus("toy", tokens, tokens, tokens[:3], vocabulary, "", False, "")


def batches_of(num_tokens, **settings):
    return TokenBatches(np.arange(num_tokens), **settings)


def test_streams_are_views_of_the_tokens():
    tokens = np.arange(11)
    inputs, targets = streams(tokens, 3)
    assert inputs.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    np.testing.assert_array_equal(targets, inputs + 1)
    assert np.shares_memory(inputs, tokens) and np.shares_memory(targets, tokens)


def test_a_split_must_be_known_and_hold_a_batch():
    with pytest.raises(ValueError, match="`split` must be one of.*split='dev'"):
        corpus_of(np.zeros(9)).batches("dev", batch_size=1, sequence_length=1)
    with pytest.raises(ValueError, match=r"at least batch_size \+ 1 = 4 ids. Received: 3 ids"):
        corpus_of(np.zeros(9)).batches("test", batch_size=3, sequence_length=1)


# --- random lengths and partial shuffle

random_layouts = st.fixed_dictionaries(
    {
        "num_tokens": st.integers(2, 900),
        "batch_size": st.integers(1, 5),
        "sequence_length": st.integers(1, 30),
        "length_deviation": st.sampled_from([0.0, 1e-3, 1.0, 5.0, 1e4]),
        "partial_shuffle": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
).filter(lambda layout: layout["num_tokens"] > layout["batch_size"])


@given(random_layouts, st.integers(0, 20))
def test_every_pair_comes_once_in_each_epoch(layout, epoch):
    batches = batches_of(**layout)
    steps = len(batches)
    batches.epoch = epoch
    read = list(batches)
    assert len(read) == len(batches) == steps
    assert batches.lengths == tuple(inputs.shape[1] for inputs, _ in read)
    if not layout["length_deviation"]:  # only the first segment may be shorter
        first, *others = batches.lengths
        assert 1 <= first <= layout["sequence_length"] and {*others} <= {layout["sequence_length"]}
    inputs, targets = (np.concatenate(part, axis=1) for part in zip(*read, strict=True))
    np.testing.assert_array_equal(targets, inputs + 1)
    size = layout["batch_size"]
    length = (layout["num_tokens"] - 1) // size
    assert sum(batches.lengths) == length and batches.num_tokens == size * length
    # Each stream holds its own part of the text, from its cut on and then up to it.
    np.testing.assert_array_equal(
        np.sort(inputs, axis=1), np.arange(size * length).reshape(size, -1)
    )
    assert ((np.diff(inputs, axis=1) != 1).sum(axis=1) <= layout["partial_shuffle"]).all()


@given(random_layouts)
def test_the_first_two_lengths_differ_in_every_epoch(layout):
    batches = batches_of(**{**layout, "length_deviation": layout["length_deviation"] or 0.5})
    for epoch in range(4):
        batches.epoch = epoch
        lengths = batches.lengths
        assert len(lengths) == 1 or lengths[0] != lengths[1]


@given(random_layouts, st.integers(0, 9), st.integers(0, 9))
def test_batches_are_a_function_of_seed_epoch_and_index(layout, epoch, other):
    one, two = batches_of(**layout), batches_of(**layout)
    one.epoch = other
    for inputs, _ in one:
        inputs[:] = -1  # a copy
    one.epoch = epoch
    expected = list(one)
    two.epoch = epoch
    for index in reversed(range(len(two))):
        for array, wanted in zip(two[index], expected[index]):
            assert array.dtype == np.int32
            np.testing.assert_array_equal(array, wanted)


def test_lengths_follow_the_published_distribution():
    batches = batches_of(num_tokens=700_000, batch_size=1, sequence_length=70, length_deviation=5.0)
    lengths = np.array(batches.lengths)
    half = lengths < 52
    assert 0.04 < half.mean() < 0.06
    # int() cuts off half a token on average.
    assert lengths[~half].mean() == pytest.approx(69.5, abs=0.2)
    assert lengths[half].mean() == pytest.approx(34.5, abs=0.8)
    assert lengths[~half].std() == pytest.approx(5.0, abs=0.2)
    assert len(batches) == pytest.approx(700_000 / (0.95 * 69.5 + 0.05 * 34.5), rel=0.01)


def test_lengths_keep_their_bounds():
    settings = {"num_tokens": 50_000, "batch_size": 2, "sequence_length": 20}
    lengths = batches_of(**settings, length_deviation=30.0, longest_length=40).lengths
    assert max(lengths) == 40
    assert sum(length < 5 for length in lengths) <= 1  # what remained of the text


def test_lengths_are_drawn_once_and_come_in_another_order_each_epoch():
    settings = {"num_tokens": 9000, "batch_size": 2, "sequence_length": 20, "length_deviation": 3}
    batches = batches_of(**settings, seed=1)
    first = batches.lengths
    batches.epoch = 1
    assert batches.lengths != first and sorted(batches.lengths) == sorted(first)
    assert sorted(batches_of(**settings, seed=2).lengths) != sorted(first)


def test_every_epoch_cuts_every_stream_elsewhere():
    settings = {"num_tokens": 4001, "batch_size": 4, "sequence_length": 50}
    batches = batches_of(**settings, partial_shuffle=True)
    assert batches.lengths == batches_of(**settings).lengths
    starts = []
    for epoch in range(3):
        batches.epoch = epoch
        starts.extend((batches[0][0][:, 0] % 1000).tolist())
    assert len(set(starts)) == 12


def test_rows_are_read_as_slices_of_the_text():
    tokens = np.arange(1001)
    batches = TokenBatches(
        tokens, batch_size=2, sequence_length=9, length_deviation=3.0, partial_shuffle=True
    )
    kept = [value for value in vars(batches).values() if isinstance(value, np.ndarray)]
    assert all(np.shares_memory(array, tokens) for array in kept if array.size > 500)


def test_a_maximum_below_the_mean_of_the_lengths_is_refused():
    settings = {"batch_size": 2, "sequence_length": 9, "length_deviation": 1.0}
    with pytest.raises(ValueError, match="`longest_length` must be 0, for no limit"):
        corpus_of(np.zeros(99)).batches("train", longest_length=8, **settings)
