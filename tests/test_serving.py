"""Exported models answer as the Keras model does, in every format and for every client."""

import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet import serving, zoo
from dualnet._files import LOCK
from dualnet.builders import language_model
from dualnet.cli import main
from dualnet.serving import exporting, one_step, sampling, saved_model
from dualnet.serving.saved_model import in_graph
from dualnet.serving.served_reader import ServedReader
from dualnet.text import ByteTokenizer, Tokenizer, Vocabulary, load_tokenizer, train_tokenizer
from tests.checks import dtype_policy, limited_files, needed, normal, once, strong
from tests.reference import drawing, log_softmax
from tests.serving_clients import (
    check_table,
    client_of,
    close,
    graph_client,
    remote_process,
    warm_up_requests,
)

pytestmark = once

ROOT = pathlib.Path(dualnet.__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "saved_model_cli.txt"
SERVING_PAGE = ROOT / "docs" / "guides" / "serving.md"

# <eos> and <unk> are in the middle: their ids are neither first nor last.
WORDS = ("the", "cat", "<eos>", "dog", "sees", "<unk>", "likes", "a", "bird")
EOS_ID, UNK_ID = 2, 5
ENDPOINTS = [
    "score", "step", "predict_next", "score_text", "generate_text", "predict_next_text",
    "complete_text",
]  # fmt: skip


@pytest.fixture(scope="module")
def remote():
    """Return `remote(folder, endpoint, **columns)`, answered by a process without dualnet."""
    with remote_process() as ask:
        yield ask


def a_model(words=WORDS, name="dual_lstm", **arguments):
    """Return a model whose random weights are large enough for words to differ in likelihood."""
    keras.utils.set_random_seed(3)
    mogrifier = {"rounds": 2, "rank": 2} if "mdlstm" in name else {}
    model = zoo.build(name, **{"vocabulary_size": len(words), "units": 8, **mogrifier, **arguments})
    model.vocabulary = words if isinstance(words, Tokenizer) else Vocabulary(tuple(words))
    for weight in model.trainable_weights:
        weight.assign(weight * 1.5)
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, its exported folder, and `served.ask(endpoint, **columns)`."""
    model = a_model()
    path = dualnet.export(model, tmp_path_factory.mktemp("served") / "model", max_tokens=100)
    return SimpleNamespace(model=model, path=path, ask=client_of(path))


def text_client(model):
    """Return a function that sends requests to the text endpoints as graphs, without export."""
    parts = ServedReader(model), in_graph(model.vocabulary)
    generate = sampling.generate_text(*parts, model.vocabulary.unknown_ids, 100)
    return graph_client({"score_text": saved_model._score_text(*parts), "generate_text": generate})


def generate(ask, prompts, **settings):
    """Request `generate_text`; a setting is one value for all rows, or a list."""
    defaults = {"max_tokens": 9, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0,
                "stop_at_eos": False}  # fmt: skip
    columns = {
        name: value if isinstance(value, list) else [value] * len(prompts)
        for name, value in {**defaults, **settings}.items()
    }
    return ask("generate_text", prompts=prompts, **columns)


def state_names(model):
    return [f"state_{i}" for i in range(1, len(model.state_size) + 1)]


def log_p(model, ids):
    """Return the log-probabilities of all words after each of `ids`, `(time, words)`."""
    return log_softmax(ops.convert_to_numpy(model(np.array([ids], "int32"))))[0]


def log_p_of_text(model, ids):
    """Return the log-probability of each of `ids`, read after `<eos>`."""
    return log_p(model, [EOS_ID, *ids])[np.arange(len(ids)), ids]


# --- ids in


@pytest.mark.slow
def test_a_process_without_dualnet_and_keras_gets_the_numbers_of_the_model(
    served, remote, tmp_path
):
    model, rng = served.model, np.random.default_rng(0)
    ask = functools.partial(remote, shutil.copytree(served.path, tmp_path / "moved"))
    for shape, lengths in [((1, 1), [1]), ((1, 9), [7]), ((3, 5), [5, 3, 0])]:
        ids = rng.integers(len(WORDS), size=shape)
        scores = log_softmax(ops.convert_to_numpy(model(ids)))
        expected = np.zeros(shape)
        for row, length in enumerate(lengths):
            for t in range(1, length):
                expected[row, t] = scores[row, t - 1, ids[row, t]]
        answer = ask("score", ids=ids, lengths=lengths)
        close(answer["log_probabilities"], expected, rtol=1e-5)
        names, states = state_names(model), [normal(rng, len(ids), n) for n in model.state_size]
        logits, new_states = model.advance(ids, states)
        answer = ask("step", ids=ids, **dict(zip(names, states)))
        for name, expected in {"logits": logits, **dict(zip(names, new_states))}.items():
            close(answer[name], expected, rtol=1e-5)
    texts = ["the cat sees", "", "the dog\nthe bird"]
    expected = served.ask("score_text", texts=texts)["log_probabilities"]
    close(ask("score_text", texts=texts)["log_probabilities"], expected, rtol=1e-5)
    expected = generate(served.ask, texts, temperature=0.0)["texts"]
    assert generate(ask, texts, temperature=0.0)["texts"] == expected.astype("U").tolist()


@pytest.mark.slow
def test_reading_in_chunks_of_any_length_equals_reading_at_once(served):
    model, rng = served.model, np.random.default_rng(0)
    spec = tf.TensorSpec((None, None), tf.int32)
    for max_tokens in (1, 5):
        reader = ServedReader(model)
        reader.max_tokens = max_tokens
        score = tf.function(reader.log_probabilities, input_signature=[spec, spec])
        last = tf.function(reader.last, input_signature=[spec, tf.TensorSpec((None,), tf.int32)])
        for lengths in ([1], [7], [4, 1, 3], [2, 11]):
            shape = (2, len(lengths), max(lengths))
            ids, targets = rng.integers(len(WORDS), size=shape, dtype="int32")
            scores = log_softmax(ops.convert_to_numpy(model(ids)))
            expected = np.take_along_axis(scores, targets[..., None], -1)[..., 0]
            close(score(tf.constant(ids), tf.constant(targets)), expected)
            logits, states = last(tf.constant(ids), tf.constant(lengths))
            for row, length in enumerate(lengths):
                row_ids = ids[row : row + 1, :length]
                row_logits, row_states = model.advance(row_ids, model.initial_state(1))
                close(logits[row], row_logits[0, -1])
                for state, row_state in zip(states, row_states):
                    close(state[row], row_state[0])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_an_empty_request_gets_an_empty_answer(served, shape):
    answer = served.ask("score", ids=np.zeros(shape), lengths=np.zeros(shape[0]))
    assert answer["log_probabilities"].shape == shape
    answer = served.ask("score_text", texts=np.full(shape[0], "", object))
    assert answer["words"].shape == answer["log_probabilities"].shape == (shape[0], 0)
    np.testing.assert_array_equal(answer["perplexity"], np.ones(shape[0]))
    answer = generate(served.ask, [""] * shape[0], max_tokens=0)
    assert answer["texts"].tolist() == [b""] * shape[0]
    assert answer["log_probabilities"].shape == (shape[0], 0)


def test_padding_beyond_the_lengths_is_not_read(served):
    ids, lengths = [[1, 3, 4], [2, 0, 0], [0, 0, 0]], [3, 1, 0]
    expected = served.ask("score", ids=ids, lengths=lengths)["log_probabilities"]
    ids[1][1:], ids[2] = [-1, 99], [-7, -1, 2**31 - 1]
    answer = served.ask("score", ids=ids, lengths=lengths)["log_probabilities"]
    np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize(
    ("endpoint", "changed", "message"),
    [
        ("score", {"lengths": [-1]}, "`lengths` must be at least 0 and at most the number of col"),
        ("step", {"ids": [[9]]}, "`ids` must be ids of the vocabulary, 0 to 8. Received:] [9]"),
        ("step", {"state_2": np.zeros((2, 8))}, "`state_2` must have one row for each row of `ids"),
        ("predict_next", {"k": [0]}, "`k` must be at least 1 and at most the number of words, 9."),
        ("predict_next", {"state_1": np.full((1, 8), np.nan)}, "`state_1` must be finite."),
        ("generate_text", {"top_p": [0.0]}, "`top_p` must be above 0 and at most 1. Received:"),
        ("generate_text", {"max_tokens": [101]}, "at most 100, the bound of this"),
    ],
)
def test_a_bad_request_is_refused_and_says_which_input(served, endpoint, changed, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        if endpoint == "generate_text":
            generate(served.ask, ["the"], **changed)
        inputs = {"ids": [[1]], "lengths": [1], "k": [2]}
        sizes = zip(state_names(served.model), served.model.state_size)
        inputs |= {name: np.zeros((1, size)) for name, size in sizes} | changed
        _, specs = served.ask.signatures[endpoint].structured_input_signature
        served.ask(endpoint, **{name: inputs[name] for name in specs})


def likeliest(logits, k):
    """Return the ids and the probabilities of the `k` likeliest words, with NumPy."""
    p = np.exp(log_softmax(np.array(logits, "float64")))
    ids = np.argsort(-p, kind="stable")[:k]
    return ids, p[ids]


def test_the_likeliest_next_words_are_those_of_the_models_probabilities(served):
    model, rng = served.model, np.random.default_rng(0)
    names = state_names(model)
    ids, lengths, k = rng.integers(len(WORDS), size=(3, 4)), [4, 2, 1], [3, 9, 1]
    states = [normal(rng, 3, size) for size in model.state_size]
    answer = served.ask("predict_next", ids=ids, lengths=lengths, k=k, **dict(zip(names, states)))
    assert answer["ids"].shape == answer["probabilities"].shape == answer["words"].shape == (3, 9)
    for row, (length, count) in enumerate(zip(lengths, k)):
        before = [state[row : row + 1] for state in states]
        logits, after = model.advance(ids[row : row + 1, :length], before)
        expected, probabilities = likeliest(ops.convert_to_numpy(logits)[0, -1], count)
        assert answer["ids"][row].tolist() == [*expected, *[-1] * (9 - count)]
        close(answer["probabilities"][row], [*probabilities, *[0] * (9 - count)])
        words = [*(WORDS[i].encode() for i in expected), *[b""] * (9 - count)]
        assert answer["words"][row].tolist() == words
        for name, state in zip(names, after):
            close(answer[name][row], state[0])
    assert answer["probabilities"][1].sum() == pytest.approx(1)  # all nine words
    # Of text, after <eos> and in the zero state; the states lead on.
    texts = ["the cat", "", "the dog\nthe zebra"]
    of_text = served.ask("predict_next_text", prompts=texts, k=[3, 3, 3])
    for row, text in enumerate(texts):
        read = [EOS_ID, *model.vocabulary.encode(text)]
        zeros = {name: np.zeros((1, size)) for name, size in zip(names, model.state_size)}
        of_ids = served.ask("predict_next", ids=[read], lengths=[len(read)], k=[3], **zeros)
        for name, values in of_ids.items():
            same = np.testing.assert_array_equal if values.dtype.kind in "iO" else close
            same(of_text[name][row], values[0])


# --- text in

NASTY = [*"\x00\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u200b\u2028\u2029\u202f\u3000"]
NASTY += [*"\ufeff\u00ad\u0301.'A\u00df\u0130\u03a3\u03c3\u03c2\ua7c0\U00010400\U00010570"]
NASTY += ["<eos>", "<EOS>", "<unk>", "the", "The", "cat", "\u0391\u03a3", "\r\n", "\n \n", "\n\n"]
KNOWN = [*"\x00\u200b", "<unk>", "the", "The", "<eos>", "\u03b1\u03c2", "\u03b1\u03c3", "i\u0307"]


READERS = {
    "as_is": Vocabulary(tuple(KNOWN)),
    "lowercase": Vocabulary(tuple(KNOWN), lowercase=True),
    "words_of_blocks": Vocabulary(tuple(KNOWN), documents="blank-line"),
    "words_of_files": Vocabulary(tuple(KNOWN), documents="file"),
    "bytes": ByteTokenizer(),
    "bytes_of_blocks": ByteTokenizer("blank-line"),
    "bytes_of_files": ByteTokenizer("file"),
}


@functools.cache
def encoder_of(name):
    """Return a tokeniser, what stands for it in a graph, and `encode` of that as a graph."""
    tokenizer = in_graph(READERS[name])
    spec = tf.TensorSpec((None,), tf.string)
    graph = tf.function(lambda texts: tokenizer.encode(texts, "texts"), input_signature=[spec])
    return READERS[name], tokenizer, graph


@pytest.fixture(params=["as_is", "lowercase"])
def encoder(request):
    return encoder_of(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_the_graph_reads_any_text_as_the_tokenizer_does(name):
    vocabulary, tokenizer, graph = encoder_of(name)
    anything = st.text(st.characters(exclude_categories=["Cs"]))
    nasty = st.lists(st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"])))

    @hypothesis.settings(max_examples=50 if vocabulary.documents == "line" else 20)
    @given(st.lists(st.one_of(anything, nasty.map("".join)), max_size=20))
    @example([])
    @example(["a\n", "\nb\n\n", "\n \t\n\n", "\n\n\n c\n"])
    @example(["\u0391\u03a3\u03a3 \u0391\u03a3. '\u03a3 \u0391\u00ad\u03a3\u0301\u0391\x00"])
    def check(texts):
        ids = graph(tf.constant(texts, tf.string))
        assert ids.to_list() == [vocabulary.encode(text).tolist() for text in texts]
        decoded = tokenizer.decode(ids).numpy().tolist()
        assert decoded == [vocabulary.decode(row).encode() for row in ids.to_list()]

    check()


@pytest.mark.slow
def test_white_space_and_lower_case_of_every_character_are_those_of_python(encoder):
    vocabulary, tokenizer, graph = encoder
    characters = [chr(i) for i in range(0x110000) if not 0xD800 <= i <= 0xDFFF]
    groups = [characters[i : i + 64] for i in range(0, len(characters), 64)]
    if not vocabulary.lowercase:
        texts = ["a".join(["", *group, ""]) for group in groups]
        lengths = graph(tf.constant(texts)).row_lengths().numpy()
        expected = [len(text.replace("\n", " x ").split()) for text in texts]
        np.testing.assert_array_equal(lengths, expected)
    else:
        words = ["1".join(group) for group in groups]
        lower = tokenizer.lower(tf.constant(words)).numpy()
        assert [word.decode() for word in lower] == [word.lower() for word in words]
        # A final sigma in every place: before and after what is cased, ignorable or neither.
        pieces = itertools.product(["\u03a3", "A", ".", "\u0301", ""], repeat=4)
        words = [a + b + "\u03a3" + c + d for a, b, c, d in pieces]
        lower = tokenizer.lower(tf.constant(words)).numpy()
        assert [word.decode() for word in lower] == [word.lower() for word in words]


@pytest.mark.slow
def test_bytes_that_are_not_utf_8_are_unknown_words(encoder):
    vocabulary, _, graph = encoder
    texts = [b"\xff", b"the \xe2\x82 the", b"the\xc3\xa0\xffthe\xc2\xa0the", b"\xed\xa0\x80 \x80\n"]
    texts += [b"the\xff \xffthe"]  # a known word with a stray byte is unknown, too
    unk, the, eos = (vocabulary.id(word) for word in ("<unk>", "the", "<eos>"))
    expected = [[unk], [the, unk, the], [unk, the], [unk, unk, eos], [unk, unk]]
    assert graph(tf.constant(texts)).to_list() == expected


@pytest.mark.parametrize(
    ("name", "ids", "text"),
    [
        ("bytes", [255, 256, 195, 256, 256, 228, 97], "\ufffd\n\ufffd\n\n\ufffda"),
        ("bytes_of_blocks", [255, 10, 195, 256, 228, 97], "\ufffd\n\ufffd\n\n\ufffda"),
        ("bytes_of_files", [255, 10, 195, 10, 10, 228, 97], "\ufffd\n\ufffd\n\n\ufffda"),
    ],
)
def test_bytes_that_are_not_utf_8_are_read_as_they_are_and_written_as_python_does(name, ids, text):
    tokenizer, in_graph, graph = encoder_of(name)
    read = graph(tf.constant([b"\xff\n\xc3\n\n\xe4a", b"\n", b""]))
    assert read.to_list() == [ids, [10] if name != "bytes" else [256], []]
    assert in_graph.decode(read)[0].numpy().decode() == tokenizer.decode(ids) == text
    rows = np.random.default_rng(0).integers(0x60, 257, (500, 6))  # valid sequences among them
    decoded = in_graph.decode(tf.RaggedTensor.from_tensor(rows)).numpy().tolist()
    assert [row.decode() for row in decoded] == [tokenizer.decode(row) for row in rows]


def test_texts_are_scored_as_by_the_model(served):
    vocabulary = served.model.vocabulary
    texts = ["the cat", "", "cat\n\nthe zebra \xa0 sees\n", "\n", "bird " * 50, "zebra"]
    answer = served.ask("score_text", texts=texts)
    assert answer["lengths"].tolist() == [2, 0, 7, 1, 50, 1]
    assert answer["words"].shape == answer["log_probabilities"].shape == (6, 50)
    words = ["cat", "<eos>", "<eos>", "the", "<unk>", "sees", "<eos>"]
    assert [word.decode() for word in answer["words"][2]] == words + [""] * 43
    for row, text in enumerate(texts):
        ids = vocabulary.encode(text)
        expected = log_p_of_text(served.model, ids)
        scores = answer["log_probabilities"][row]
        close(scores[: len(ids)], expected)
        assert not scores[len(ids) :].any()
        perplexity = np.exp(-expected.mean()) if len(ids) else 1
        assert answer["perplexity"][row] == pytest.approx(perplexity, rel=1e-5)


@pytest.mark.slow
def test_a_long_text_is_scored_in_little_memory(remote, tmp_path):
    model = a_model([*WORDS, *(f"w{i}" for i in range(30_000))], "lstm", units=2)
    saved_model.write_saved_model(model, str(tmp_path / "model"), ["score_text"], 100, None)
    ask = functools.partial(remote, tmp_path / "model", "score_text")
    before = ask(texts=["the cat"])["peak"]
    answer = ask(texts=["the cat\n" * 1666 + "the"])
    assert answer["lengths"] == [4999]
    # Read at once, the logits alone would take 600 MB.
    assert answer["peak"] - before < 300
    scores = log_p_of_text(model, model.vocabulary.encode("the cat\n" * 60))
    # The state soon repeats itself from line to line.
    assert answer["perplexity"][0] == pytest.approx(np.exp(-scores[-90:].mean()), rel=1e-2)


@pytest.mark.slow
def test_without_unk_an_unknown_word_fails_the_request_and_is_named():
    ask = text_client(a_model([word for word in WORDS if word != "<unk>"], "lstm"))
    assert ask("score_text", texts=["the cat"])["lengths"].tolist() == [2]
    message = "`{}` must be words of the vocabulary, which has no <unk>.*zebra"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message.format("texts")):
        ask("score_text", texts=["the cat", "the zebra"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message.format("prompts")):
        generate(ask, ["the zebra"])
    assert generate(ask, ["the", ""], max_tokens=40)["lengths"].tolist() == [40, 40]


def test_without_eos_there_are_no_text_endpoints():
    model = a_model([word for word in WORDS if word != "<eos>"], "lstm")
    assert serving.endpoints(model) == ENDPOINTS[:3]


# --- text out


def test_greedy_text_takes_the_likeliest_word_of_a_full_pass(served):
    vocabulary, prompts = served.model.vocabulary, ["the cat", "", "a zebra\n\nthe"]
    counts = [12, 7, 1]
    answer = generate(served.ask, prompts, temperature=0.0, max_tokens=counts, seed=[1, 2, 3])
    assert answer["lengths"].tolist() == counts
    for row, (prompt, count) in enumerate(zip(prompts, counts)):
        start = len(vocabulary.encode(prompt))
        ids = vocabulary.encode(answer["texts"][row].decode())
        assert vocabulary.decode(ids[:start]) == vocabulary.decode(vocabulary.encode(prompt))
        expected = log_p(served.model, [EOS_ID, *ids[:-1]])[start:]
        expected[:, UNK_ID] = -np.inf
        np.testing.assert_array_equal(ids[start:], expected.argmax(-1))
        scores = answer["log_probabilities"][row]
        close(scores[:count], expected.max(-1))
        assert not scores[count:].any()
    for only in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-30}):
        other = generate(served.ask, prompts, max_tokens=counts, seed=5, **only)
        assert other["texts"].tolist() == answer["texts"].tolist()


@pytest.mark.slow
def test_a_row_draws_with_its_own_seed_and_gives_the_log_probabilities_of_a_full_pass(served):
    vocabulary = served.model.vocabulary
    prompts = ["the cat", "", "a zebra\nthe dog sees a", "bird"] * 3
    settings = {
        "seed": [*range(10), -5, 2**31 - 1], "temperature": [0.0, 0.8, 1.0, 2.0] * 3,
        "top_k": [0, 3, 5] * 4, "top_p": [1.0, 0.7] * 6, "max_tokens": [3, 20, 0, 8, 15, 1] * 2,
        "stop_at_eos": [True, False, True] * 4,
    }  # fmt: skip
    batch = generate(served.ask, prompts, **settings)
    assert generate(served.ask, prompts, **settings)["texts"].tolist() == batch["texts"].tolist()
    for row, prompt in enumerate(prompts):
        own_settings = {key: values[row : row + 1] for key, values in settings.items()}
        alone = generate(served.ask, [prompt], **own_settings)
        length = alone["lengths"][0]
        assert alone["texts"][0] == batch["texts"][row] and length == batch["lengths"][row]
        ids, start = vocabulary.encode(alone["texts"][0].decode()), len(vocabulary.encode(prompt))
        assert len(ids) == start + length and UNK_ID not in ids[start:]
        for scores in (alone["log_probabilities"][0], batch["log_probabilities"][row]):
            close(scores[:length], log_p_of_text(served.model, ids)[start:])
    assert len(set(generate(served.ask, ["the"] * 20, seed=list(range(20)))["texts"])) > 15
    assert len(set(generate(served.ask, ["the"] * 3, seed=4)["texts"])) == 1


def test_a_row_that_stops_at_eos_ends_before_the_first(served):
    prompts, settings = ["the cat\n"] * 100, {"seed": list(range(100)), "max_tokens": 12}
    free = generate(served.ask, prompts, **settings)
    stopped = generate(served.ask, prompts, stop_at_eos=True, **settings)
    vocabulary = served.model.vocabulary
    for row, length in enumerate(stopped["lengths"]):
        ids = vocabulary.encode(free["texts"][row].decode())
        ends = np.flatnonzero(ids[3:] == EOS_ID)
        assert length == (ends[0] if len(ends) else 12)
        assert stopped["texts"][row].decode() == vocabulary.decode(ids[: 3 + length])
        scores = stopped["log_probabilities"][row]
        close(scores[:length], free["log_probabilities"][row, :length])
        assert not scores[length:].any()
    assert {0, 12} < set(stopped["lengths"].tolist())


PEAKED = 1.5 * np.random.default_rng(8).normal(size=len(WORDS)).astype("float32")
PEAKED[UNK_ID] = 3.0
EQUAL = np.zeros(len(WORDS), "float32")  # eight words of exactly 1/8, and <unk>


SETTINGS = [
    (PEAKED, 1.0, 0, 1.0), (PEAKED, 0.5, 0, 1.0), (PEAKED, 2.0, 3, 1.0), (PEAKED, 1.0, 0, 0.7),
    (PEAKED, 1.7, 4, 0.8), (PEAKED, 1.0, 99, 0.3),
    # Ties go to the lower id, and `top_p` keeps the fewest words that reach it.
    (EQUAL, 1.0, 0, 0.5), (EQUAL, 1.0, 0, 0.51), (EQUAL, 1.0, 3, 1.0),
]  # fmt: skip


def test_each_row_draws_words_with_the_probabilities_of_its_settings():
    count = 1000
    logits, *settings = (np.repeat(np.array(column), count, axis=0) for column in zip(*SETTINGS))
    logits[:, UNK_ID] = -np.inf
    columns = dict(zip(("temperature", "top_k", "top_p"), settings))
    declared = sampling.settings_of(100)
    columns = {name: tf.constant(x, declared[name].dtype) for name, x in columns.items()}
    random = np.tile((np.arange(count) + 0.5) / count, len(SETTINGS))[:, None]
    drawn = sampling.drawing(len(WORDS), columns)(tf.constant(logits), tf.constant(random))
    for ids, (row, temperature, top_k, top_p) in zip(np.split(drawn, len(SETTINGS)), SETTINGS):
        shares = np.bincount(ids, minlength=len(WORDS)) / count
        expected = drawing(row.astype("float64"), temperature, top_k, top_p, excluded=[UNK_ID])
        assert not shares[expected == 0].any()
        np.testing.assert_allclose(shares, expected, atol=0.0011)


def test_the_random_numbers_of_a_row_are_uniform_and_differ_by_step():
    uniform = tf.function(sampling._uniform)
    first, second = (uniform(tf.range(4000), tf.constant(step)) for step in (0, 1))
    joint = np.histogram2d(first, second, bins=4, range=[(0, 1)] * 2)[0] / 4000
    np.testing.assert_allclose(joint, np.full((4, 4), 1 / 16), atol=0.016)  # four deviations


# --- clients


@pytest.mark.slow
def test_200_interleaved_clients_each_get_the_answers_they_would_get_alone(served):
    names = state_names(served.model)

    def client(row):
        words = np.random.default_rng(row).integers(len(WORDS), size=3)
        text = " ".join(WORDS[i] for i in words)
        if row % 20 == 0:
            return [served.ask("score_text", texts=[text])]
        if row % 20 == 1:
            return [generate(served.ask, [text], seed=row)]
        states = {name: np.zeros((1, n)) for name, n in zip(names, served.model.state_size)}
        answers = []
        for word in words:
            answers.append(served.ask("step", ids=[[word]], **states))
            states = {name: answers[-1][name] for name in names}
        return answers

    alone = [client(row) for row in range(200)]
    order = np.random.default_rng(0).permutation(200)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = dict(zip(order, pool.map(client, order)))
    for row, answers in enumerate(alone):
        for answer, among_others in zip(answers, together[row], strict=True):
            for name, values in answer.items():
                np.testing.assert_array_equal(values, among_others[name])
    # With the state of another client there would be another answer.
    assert np.any(alone[2][1]["state_1"] != alone[3][1]["state_1"])


# --- the folder


def test_a_saved_model_holds_each_weight_once(served):
    saved = tf.train.list_variables(served.path / "variables" / "variables")
    sizes = [np.prod(shape) for name, shape in saved if name.endswith("VARIABLE_VALUE")]
    assert sum(sizes) == served.model.count_params()


def test_the_server_warms_up_with_a_request_of_each_endpoint(served):
    requests = warm_up_requests(served.path)
    assert [name for name, _ in requests] == ENDPOINTS
    for name, inputs in requests:
        served.ask(name, **inputs)  # one that is refused would keep the server from loading


def test_an_export_leaves_nothing_else_and_refuses_a_folder_with_files(served, tmp_path):
    parent = served.path.parent
    assert served.path.is_absolute() and [path.name for path in parent.iterdir()] == ["model"]
    assert served.path.stat().st_mode & 0o777 == 0o755  # a server may run as another user
    with pytest.raises(FileExistsError, match="`path` must be new or empty"):
        dualnet.export(served.model, served.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit", "place"),
    [  # The bytes that fit: less than the graph, the file, what LiteRT converts.
        ("model", 20_000, "path"),
        ("model.onnx", 100, "path"),
        ("model.tflite", 100, "TMPDIR"),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, name, limit, place):
    model = zoo.build("lstm", vocabulary_size=9, units=2)
    if name == "model.onnx":
        needed("onnx", "onnx", "tf2onnx")
        model.vocabulary = Vocabulary(WORDS)
    (tmp_path / "model.onnx").write_text("the earlier one")
    with limited_files(limit), pytest.raises(OSError) as caught:  # the whole text is compared
        dualnet.export(model, tmp_path / name)
    received = tempfile.gettempdir() if place == "TMPDIR" else str(tmp_path / name)
    assert str(caught.value) == (
        f"`{place}` must be a place where files can be written. Received: {received!r} "
        "(File too large). Choose another place."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "the earlier one"


# Takes a text for a model, as `stub_write` does.


def stub_write(monkeypatch, before=lambda: None):
    """Make an export write one file instead of a model, after `before()`."""

    def write(model, directory, names, max_tokens, memories):
        before()
        (pathlib.Path(directory) / "saved_model.pb").write_text(model)

    monkeypatch.setattr(exporting, "endpoints", lambda model, learn: [])
    monkeypatch.setattr(saved_model, "write_saved_model", write)


def test_of_two_simultaneous_exports_the_first_wins_and_the_other_says_so(monkeypatch, tmp_path):
    directory = tmp_path / "new" / "model"
    directory.mkdir(parents=True)

    def export_another():
        (unfinished,) = (path for path in directory.parent.iterdir() if path != directory)
        assert unfinished.name.startswith(".")  # so that no server takes it for a version
        stub_write(monkeypatch)
        dualnet.export("the other", directory)

    stub_write(monkeypatch, export_another)
    with pytest.raises(FileExistsError, match="`path` must be new or empty"):
        dualnet.export("this one", directory)
    assert (directory / "saved_model.pb").read_text() == "the other"
    assert list(directory.parent.iterdir()) == [directory]


@pytest.mark.parametrize("moment", range(7))
@pytest.mark.parametrize("tokenizer", [Vocabulary(("<eos>", "a", "b")), ByteTokenizer()], ids=str)
def test_a_killed_export_leaves_no_model_beside_the_tokeniser_of_another(
    monkeypatch, tmp_path, tokenizer, moment
):
    model = zoo.build("lstm", vocabulary_size=len(tokenizer), units=2)
    model.vocabulary = Vocabulary([f"w{i}" for i in range(len(tokenizer))])

    def export(name):
        monkeypatch.setattr(one_step, "litert_files", lambda *_: {"": name.encode()})
        dualnet.export(model, tmp_path / "model.tflite")
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    before = export("old")
    model.vocabulary = tokenizer
    moves = itertools.count()

    def killed(change):
        def changed(*arguments, **settings):
            if next(moves) >= moment:
                raise KeyboardInterrupt
            return change(*arguments, **settings)

        return changed

    with monkeypatch.context() as patch:
        patch.setattr(exporting.os, "replace", killed(os.replace))
        patch.setattr(pathlib.Path, "unlink", killed(pathlib.Path.unlink))
        with contextlib.suppress(KeyboardInterrupt):
            export("new")
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    after = export("new")
    assert "model.tflite" not in left or left in (before, after)


def test_an_export_removes_what_killed_ones_left_but_none_under_way(monkeypatch, tmp_path):
    model = tmp_path / "model"
    names = ("model.unfinished-1", "model.unfinished-2", "models.unfinished-1")
    killed, under_way, of_other_path = folders = [tmp_path / f".{name}" for name in names]
    for folder in folders:
        folder.mkdir()
        (folder / "half").write_text("")
        (folder / LOCK).write_text("")
    (killed / LOCK).unlink()  # of an earlier version, or killed before it had one
    stub_write(monkeypatch)
    holds = (
        "import sys, filelock\n"
        "with filelock.FileLock(sys.argv[1]):\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()"
    )
    command = [sys.executable, "-c", holds, under_way / LOCK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        dualnet.export("a model", model)
        assert set(tmp_path.iterdir()) == {model, under_way, of_other_path}
        other.kill()
    dualnet.export("a model", tmp_path / "models")
    shutil.rmtree(model)
    dualnet.export("a model", model)
    assert set(tmp_path.iterdir()) == {model, tmp_path / "models"}


# --- the documentation


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """A client of the SavedModel that the Python lines of the documentation export."""
    folder = tmp_path_factory.mktemp("documented")
    blocks = re.findall(r"```python\n(.*?)```", SERVING_PAGE.read_text(), re.DOTALL)
    (lines,) = (block for block in blocks if "models/tiny/1" in block)
    with contextlib.chdir(folder):
        exec(lines, {})
    path = folder / "models" / "tiny" / "1"
    return SimpleNamespace(path=path, ask=client_of(path))


@pytest.mark.slow
def test_saved_model_cli_shows_the_golden_signatures(documented, capsys):
    from tensorflow.python.tools import saved_model_cli

    capsys.readouterr()
    saved_model_cli._show_all(str(documented.path))
    shown = capsys.readouterr().out
    shown = shown.partition("The MetaGraph")[0]  # what follows is a set, in no order
    if os.environ.get("DUALNET_NEW_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text(), (
        "The signatures of an export have changed, and clients depend on them. If that is "
        "intended, update them: DUALNET_NEW_GOLDEN=1 pytest tests/test_serving.py -k golden"
    )


URL = "http://localhost:8501/v1/models/dualnet:predict"


@pytest.mark.slow
def test_the_documented_requests_fit_the_signatures_and_are_answered(documented):
    page = SERVING_PAGE.read_text()
    commands = re.findall(r"^```sh\n(curl .*?)\n```", page, re.DOTALL | re.MULTILINE)
    *requests, (_, metadata) = map(shlex.split, commands)
    assert metadata == URL.replace(":predict", "/metadata")
    names = []
    for _, url, option, body in requests:
        assert (url, option) == (URL, "-d")
        body = json.loads(body)
        names.append(body["signature_name"])
        columns = body.get("inputs") or {
            name: [row[name] for row in body["instances"]] for name in body["instances"][0]
        }
        signature = documented.ask.signatures[names[-1]]
        assert set(columns) == set(signature.structured_input_signature[1])
        answer = documented.ask(names[-1], **columns)
        # A row of the answer for each row of the request.
        assert len({len(rows) for rows in (*columns.values(), *answer.values())}) == 1
        for value in answer.values():
            values = np.char.decode(value.astype(bytes)) if value.dtype == object else value
            json.dumps(values.tolist(), allow_nan=False)
    assert names == ["score", "step", "generate_text", "complete_text"]


@pytest.mark.slow
def test_the_documented_table_names_all_inputs_and_outputs(documented):
    section = SERVING_PAGE.read_text().partition("\n## Translators\n")[0]
    check_table(section, ENDPOINTS, documented.ask.signatures)


# --- a single step


def an_ensemble():
    """Return an ensemble of mixtures without vocabulary."""
    keras.utils.set_random_seed(4)
    sizes = {4: [1, 2], 5: 2}.items()
    models = [language_model(9, units=n, experts=k, cell="elman") for n, k in sizes]
    for model in models:
        for weight in model.weights:
            weight.assign(weight * 2)
    return dualnet.ensemble(models)


@pytest.fixture(scope="module", params=["dual_mdlstm", "ensemble"])
def stepped(request):
    """A model, and for two batch sizes tokens `(steps, batch, 1)` with what the model computes."""
    model = an_ensemble() if request.param == "ensemble" else a_model(name=request.param)
    rng = np.random.default_rng(0)
    runs = []
    for batch in (1, 3):
        ids = rng.integers(9, size=(4, batch, 1)).astype("int32")
        start = [rng.normal(size=(batch, size)).astype("float32") for size in model.state_size]
        logits, states = model.advance(ids[:, :, 0].T, start)
        runs.append((ids, start, ops.convert_to_numpy(logits), states))
    return model, runs


def check_steps(step, runs):
    """Check that `step(ids, states)`, with carried state, computes what one pass does."""
    for ids, states, logits, last_states in runs:
        for t, token in enumerate(ids):
            step_logits, states = step(token, states)
            assert step_logits.dtype == np.float32
            close(step_logits, logits[:, t : t + 1], rtol=1e-5)
        for state, last_state in zip(states, last_states, strict=True):
            close(state, last_state, rtol=1e-5)


def check_refuses_other_ids(step, model):
    states = [np.zeros((1, size), "float32") for size in model.state_size]
    for wrong in (-1, -model.vocabulary_size, model.vocabulary_size, 10**6):
        with pytest.raises(Exception, match="out of (data )?bounds"):
            step(np.array([[wrong]], "int32"), states)


@pytest.mark.slow
def test_the_onnx_file_computes_what_the_model_does_without_a_loop(stepped, tmp_path):
    onnx, onnxruntime, _ = needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model, runs = stepped
    path = dualnet.export(model, tmp_path / "new" / "model.onnx", format="onnx")
    files = ["model.onnx", *(["model.onnx.vocabulary.txt"] if model.vocabulary else [])]
    assert sorted(file.name for file in path.parent.iterdir()) == files
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert not {node.op_type for node in proto.graph.node} & {"Loop", "Scan", "If"}
    arrays = [onnx.numpy_helper.to_array(part) for part in proto.graph.initializer]
    large = [array for array in arrays if array.ndim > 1]  # each weight once, not turned
    assert sum(array.size for array in large) <= model.core.count_params()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = state_names(model)
    types = {"ids": "tensor(int32)", **dict.fromkeys(names, "tensor(float)")}
    assert {spec.name: spec.type for spec in session.get_inputs()} == types
    outputs = ["logits", *(f"new_{name}" for name in names)]
    assert [spec.name for spec in session.get_outputs()] == outputs

    def step(ids, states):
        logits, *new_states = session.run(None, {"ids": ids, **dict(zip(names, states))})
        return logits, new_states

    check_steps(step, runs)
    check_refuses_other_ids(step, model)


@pytest.mark.slow
def test_the_litert_file_computes_what_the_model_does_without_a_loop(stepped, tmp_path):
    (litert,) = needed("litert", "ai_edge_litert.interpreter")
    model, runs = stepped
    path = dualnet.export(model, tmp_path / "model.tflite", format="litert")
    interpreter = litert.Interpreter(model_path=str(path))
    operators = {operator["op_name"] for operator in interpreter._get_ops_details()}
    assert "FULLY_CONNECTED" in operators and not operators & {"WHILE", "IF"}
    assert not any(name.startswith("Flex") for name in operators)  # the plain runtime suffices
    names = state_names(model)
    (signature,) = interpreter.get_signature_list().items()
    assert signature[0] == "step"
    assert sorted(signature[1]["inputs"]) == ["ids", *names]
    assert sorted(signature[1]["outputs"]) == ["logits", *names]

    def step(ids, states):
        outputs = interpreter.get_signature_runner("step")(ids=ids, **dict(zip(names, states)))
        return outputs["logits"], [outputs[name] for name in names]

    check_steps(step, runs)
    check_refuses_other_ids(step, model)


@pytest.mark.slow
def test_a_saved_model_has_experts_gates_ensembles_and_a_cache(tmp_path):
    model = dualnet.with_cache(dualnet.with_gate(an_ensemble(), units=3), 3, weight=0.4)
    with pytest.raises(ValueError, match="`format` must be 'saved_model' for a model with a cache"):
        dualnet.export(model, tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.iterdir())
    ask = client_of(dualnet.export(model, tmp_path / "model"))
    assert {*ask.signatures} - {"serving_default"} == {"score", "step", "predict_next"}
    ids = np.random.default_rng(1).integers(9, size=(2, 9)).astype("int32")
    logits = ops.convert_to_numpy(model(ids))
    scores = ask("score", ids=ids, lengths=[9, 5])["log_probabilities"]
    expected = np.take_along_axis(log_softmax(logits[:, :-1]), ids[:, 1:, None], -1)[..., 0]
    close(scores[0, 1:], expected[0])
    close(scores[1, 1:5], expected[1, :4])
    assert not scores[:, 0].any() and not scores[1, 5:].any()
    states = dict(zip(state_names(model), map(ops.convert_to_numpy, model.initial_state(2))))
    for span in (slice(0, 2), slice(2, 9)):
        states = ask("step", ids=ids[:, span], **states)
        close(states.pop("logits"), logits[:, span])


@pytest.mark.slow
def test_a_mixed_precision_model_is_exported_too(tmp_path):
    (litert,) = needed("litert", "ai_edge_litert.interpreter")
    with dtype_policy("mixed_bfloat16"):
        mixed = a_model(name="lstm")
        mixed.vocabulary = None
        exported = dualnet.export(mixed, tmp_path / "model")
        one_step = dualnet.export(mixed, tmp_path / "model.tflite", format="litert")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    ids = [0, 1, 3]
    scores = client_of(exported)("score", ids=[[EOS_ID, *ids]], lengths=[4])["log_probabilities"]
    close(scores[0, 1:], log_p_of_text(mixed, ids), rtol=0.02, atol=0.02)

    copy = a_model(name="lstm")
    copy.set_weights(mixed.get_weights())
    states = [np.ones((1, size), "float32") for size in copy.state_size]
    expected, _ = copy.advance([[3]], states)
    step = litert.Interpreter(model_path=str(one_step)).get_signature_runner("step")
    logits = step(ids=np.array([[3]], "int32"), **dict(zip(state_names(copy), states)))["logits"]
    close(logits, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "share", "rtol"),
    [
        ("model.onnx", {}, 1.01, 1e-5),
        ("model.onnx", {"quantize": "int8"}, 0.5, 0.02),
        ("model.tflite", {}, 1.01, 1e-5),
        ("model.tflite", {"quantize": "int8"}, 0.5, 0.02),
        ("model.tflite", {"dtype": "float16"}, 0.6, 1e-3),
        ("model.tflite", {"dtype": "float16", "learn": "matrix:2"}, 0.7, 1e-3),
        ("model.onnx", {"learn": "matrix:2"}, 1.01, 1e-5),
    ],
)
def test_a_file_of_few_bytes_is_measured_on_a_text(tmp_path, name, settings, share, rtol):
    needed("litert", "ai_edge_litert.interpreter")
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    words = [*WORDS, *(f"w{i}" for i in range(60 - len(WORDS)))]
    model = zoo.build("dual_lstm", vocabulary_size=len(words), units=64)
    model = strong(model, Vocabulary(words), scale=0.3)
    text = " ".join(np.random.default_rng(0).choice(words[3:], size=200))
    (tmp_path / "text").write_text(text)
    plain = dualnet.export(model, tmp_path / f"plain-{name}")
    path = dualnet.export(model, tmp_path / name, check_file=tmp_path / "text", **settings)
    assert path.stat().st_size <= share * plain.stat().st_size
    figures = json.loads((tmp_path / f"{name}.check.json").read_text())
    assert figures["tokens"] == 200
    assert figures["of_model"] == pytest.approx(dualnet.score(model, text).perplexity, rel=1e-5)
    assert figures["perplexity"] == pytest.approx(figures["of_model"], rel=rtol)
    dualnet.export(model, path)  # replaces it, and what was measured
    assert not (tmp_path / f"{name}.check.json").exists()


def test_settings_for_other_formats_are_refused(served, tmp_path):
    for name, settings in (
        ("model", {"quantize": "int8"}),
        ("model", {"check_file": "text"}),
        ("model.onnx", {"dtype": "float16"}),
    ):
        [argument] = settings
        with pytest.raises(ValueError, match=f"`{argument}` must be None for format"):
            dualnet.export(served.model, tmp_path / name, **settings)
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="`check_file` must hold text. Received: file="):
        dualnet.export(served.model, tmp_path / "m.tflite", check_file=tmp_path / "empty")


def test_without_the_onnx_packages_it_says_what_to_install(served, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r'pip install "dualnet\[onnx\]"'):
        dualnet.export(served.model, tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_of_a_model_is_exported_with_it(served, tmp_path, monkeypatch):
    words = served.path / "assets.extra" / "vocabulary.txt"
    assert words.read_text() == "".join(f"{word}\n" for word in WORDS)
    monkeypatch.setattr(one_step, "litert_files", lambda *_: {"": b"a model"})
    path, model = tmp_path / "model.tflite", a_model(name="lstm")
    characters = train_tokenizer(["abcdefg"], "characters")  # as many units as `WORDS`
    for tokenizer in (model.vocabulary, characters, model.vocabulary, None):
        model.vocabulary = tokenizer
        dualnet.export(model, path)  # replaces the last
        (beside,) = (file for file in tmp_path.iterdir() if file != path) if tokenizer else (path,)
        if tokenizer:
            assert beside.name == f"model.tflite.{tokenizer.file_name}"
            assert load_tokenizer(beside) == tokenizer
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.slow
def test_a_model_whose_tokenizer_no_graph_holds_is_served_ids(tmp_path, capsys):
    text = "The cat l\u00e4uft.\n\u732b the dog\n"
    model = a_model(train_tokenizer([text], "characters"))
    model.save(tmp_path / "model.keras")
    assert main(["export", str(tmp_path / "model.keras"), str(tmp_path / "served")]) == 0
    shown = capsys.readouterr().out
    assert "No text endpoints" in shown and "Send ids, which the package `tokenizers`" in shown
    assert load_tokenizer(tmp_path / "served/assets.extra/tokenizer.json") == model.vocabulary
    ids = [model.vocabulary.eos_id, *model.vocabulary.encode(text)]
    answer = client_of(tmp_path / "served")("score", ids=[ids], lengths=[len(ids)])
    scores = dualnet.score(model, text).log_probabilities
    close(answer["log_probabilities"][0, 1:], scores)
    assert serving.endpoints(model) == ENDPOINTS[:3]


def test_a_format_has_its_suffix(tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    for path in ("a.tflite", "folder.onnx"):
        with pytest.raises(ValueError, match="`path` must be a file that ends in '.onnx'"):
            dualnet.export("a model", tmp_path / path, format="onnx")


def test_a_path_that_cannot_be_written_to_is_refused_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(saved_model, "write_saved_model", None)  # not called
    file = tmp_path / "file"
    file.write_text("untouched")
    with pytest.raises(FileExistsError, match="`path` must be new or empty.*which is a file"):
        dualnet.export("a model", file)
    with pytest.raises(
        OSError, match=r"`path` must be a place where files can be written\..*/file"
    ):
        dualnet.export("a model", file / "model")
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "untouched"
