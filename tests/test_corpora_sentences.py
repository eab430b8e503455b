import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.builders import language_model
from dualnet.corpora import Corpus, Vocabulary
from dualnet.corpora.sentence_batches import SentenceBatches
from tests.checks import assert_same, once

pytestmark = once
EOS = 2
VOCABULARY = Vocabulary(("a", "b", "<eos>", *"cdefgh"))


def corpus_of(tokens, vocabulary=VOCABULARY):
    tokens = np.asarray(tokens, "int32")
    return Corpus("toy", tokens, tokens, tokens, vocabulary, "", False, "")


def batches_of(text, **settings):
    return corpus_of(VOCABULARY.encode(text)).sentence_batches("train", **settings)


def sentences(batch):
    """Return the targets of each row; inputs and padding must be right for them."""
    inputs, targets, weight = batch
    assert inputs.dtype == targets.dtype == np.int32 and weight.dtype == np.float32
    assert inputs.shape == targets.shape == weight.shape
    rows = []
    for row in range(len(inputs)):
        is_word = weight[row] == 1
        assert (inputs[row, ~is_word] == -1).all() and (targets[row, ~is_word] == 0).all()
        assert (weight[row, ~is_word] == 0).all()
        words = targets[row, is_word].tolist()
        assert inputs[row, is_word].tolist() == [EOS, *words[:-1]]
        rows.append(tuple(words))
    return rows


texts = st.lists(st.sampled_from([0, 1, EOS, EOS, 3, 4]), min_size=1, max_size=60)


orders = st.fixed_dictionaries({"shuffle": st.booleans(), "group_by_length": st.booleans()})


@given(texts, st.integers(1, 7), st.sampled_from(["pre", "post"]), orders, st.integers(0, 5))
def test_every_sentence_comes_exactly_once_per_epoch(tokens, batch_size, padding, order, epoch):
    batches = corpus_of(tokens).sentence_batches(
        "train", batch_size=batch_size, padding=padding, **order
    )
    batches.epoch = epoch
    read = [sentences(batch) for batch in batches]
    rows = list(itertools.chain(*read))
    text = "".join("xy|zw"[token] for token in tokens)
    expected = [tuple("xy|zw".index(mark) for mark in line) for line in text.split("|")]
    expected = [(*line, EOS) for line in expected[:-1]] + [expected[-1]] * bool(expected[-1])
    assert sorted(rows) == sorted(expected)
    assert any(order.values()) or rows == expected
    assert batches.num_tokens == len(tokens) == sum(batch[2].sum() for batch in batches)
    assert [len(rows) for rows in read[:-1]] == [batch_size] * (len(batches) - 1)
    assert 1 <= len(read[-1]) <= batch_size


@given(texts, st.integers(1, 7), st.integers(0, 3))
def test_a_batch_is_as_long_as_its_longest_sentence_but_the_first_two_differ(
    tokens, batch_size, epoch
):
    batches = corpus_of(tokens).sentence_batches("train", batch_size=batch_size)
    batches.epoch = epoch
    lengths = [batch[0].shape[1] for batch in batches]
    longest = [max(map(len, sentences(batch))) for batch in batches]
    assert lengths[1:] == longest[1:]
    if len(lengths) == 1:
        assert lengths == longest
    else:
        assert lengths[0] == longest[0] + (longest[0] == longest[1]) != lengths[1]


def test_padding_stands_before_or_after_the_words():
    text = "a b\nc\n\n"
    inputs, targets, weight = batches_of(text, batch_size=3, shuffle=False)[0]
    assert inputs.tolist() == [[EOS, 0, 1], [-1, EOS, 3], [-1, -1, EOS]]
    assert targets.tolist() == [[0, 1, EOS], [0, 3, EOS], [0, 0, EOS]]
    assert weight.tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    inputs, _, _ = batches_of(text, batch_size=3, shuffle=False, padding="post")[0]
    assert inputs.tolist() == [[EOS, 0, 1], [EOS, 3, -1], [EOS, -1, -1]]


def order_of(batches):
    return [words[:-1] for batch in batches for words in sentences(batch)]


def test_each_epoch_has_an_order_of_its_own_that_seed_and_epoch_give():
    text = "".join(f"{one} {two}\n" for one in "abcdefgh" for two in "abcdefgh")
    batches = batches_of(text, batch_size=5)
    epochs = []
    for epoch in range(3):
        assert batches.epoch == epoch
        epochs.append(order_of(batches))
        batches.on_epoch_end()
    assert len({tuple(order) for order in epochs}) == 3
    assert sorted(epochs[0]) == sorted(epochs[1]) != epochs[0]
    other = batches_of(text, batch_size=9)  # no function of the batch size
    other.epoch = 2
    assert order_of(other) == epochs[2]
    assert order_of(batches_of(text, batch_size=5, seed=1)) != epochs[0]
    plain = batches_of(text, batch_size=5, shuffle=False)
    first = order_of(plain)
    plain.on_epoch_end()
    assert order_of(plain) == first == [tuple(VOCABULARY.encode(x)) for x in text.splitlines()]


@given(st.integers(1, 9), st.integers(0, 5))
def test_the_sentences_of_50_batches_are_sorted_by_length(batch_size, epoch):
    lengths = np.random.default_rng(epoch).integers(1, 40, 120 * batch_size + 1)
    text = "".join("a " * length + "\n" for length in lengths)

    def lengths_of(**order):
        batches = batches_of(text, batch_size=batch_size, **order)
        batches.epoch = epoch
        return [[*map(len, sentences(batch))] for batch in batches]

    def sorted_pools(read):
        lengths, size = [*itertools.chain(*read)], 50 * batch_size
        pools = (lengths[start : start + size] for start in range(0, len(lengths), size))
        return [*itertools.chain(*map(sorted, pools))]

    in_turn, shuffled = (lengths_of(shuffle=s, group_by_length=True) for s in (False, True))
    assert [*itertools.chain(*in_turn)] == sorted_pools(lengths_of(shuffle=False))
    rows = sorted_pools(lengths_of(shuffle=True))
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    assert sorted(shuffled) == sorted(batches) != shuffled
    assert len(shuffled[-1]) == len(batches[-1])  # the smaller one stays at the end


def test_a_batch_depends_on_its_index_and_the_epoch_alone():
    batches = batches_of("a b c\nb\nc d\na\nh h\n" * 4, batch_size=3)
    later = batches[2]
    batches[0][0][:] = 7
    assert_same(batches[2], later)
    assert 7 not in batches[0][0]
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_a_memory_mapped_text_is_never_copied_whole(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.tile(VOCABULARY.encode("a b c d e f g h a b c d e f g\n"), 400_000))
    stream = np.asarray(np.load(path, mmap_mode="r"))
    tracemalloc.start()
    batches = SentenceBatches(stream, vocabulary=VOCABULARY, batch_size=64, shuffle=False)
    for index in range(0, len(batches), 500):
        assert batches[index][2].all() or index == 0  # which has one more column
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(batches._tokens, stream)
    assert batches.num_tokens == len(stream) and len(batches) == 6250
    # int64 ends and the order of one in sixteen tokens are kept, and pieces were there for a while
    assert peak < stream.nbytes


def test_the_vocabulary_must_have_an_end_of_sentences():
    corpus = corpus_of([0, 1], Vocabulary(("a", "b")))
    with pytest.raises(ValueError, match="`vocabulary` must contain <eos>.*Use `batches`"):
        corpus.sentence_batches("train", batch_size=1)


def test_a_model_that_knows_no_padding_refuses_sentences():
    model = language_model(len(VOCABULARY), units=2)
    model.compile("sgd")
    with pytest.raises(ValueError, match="`x` must hold no padding.*padded=True"):
        model.fit(batches_of("a b\nc\n", batch_size=2), verbose=0)


def test_a_padded_model_takes_padding_in_arrays():
    model = language_model(len(VOCABULARY), units=2, padded=True)
    model.compile("sgd")
    x = np.array([[-1, 0, 1], [1, 2, 0]], "int32")
    weights = (x >= 0).astype("float32")
    history = model.fit(x, np.maximum(x, 0), sample_weight=weights, batch_size=2, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    with pytest.raises(ValueError, match="or -1 for padding. Received: -2 to 2"):
        model.fit(x - (x < 0), np.maximum(x, 0), batch_size=2, verbose=0)
