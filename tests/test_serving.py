import json
import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet import serving, zoo
from dualnet.builders import language_model
from dualnet.corpora import Vocabulary

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    from dualnet.serving import drawing, saved_model
    from dualnet.serving.reading import Reader
    from dualnet.serving.text import Text

ROOT = pathlib.Path(dualnet.__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "saved_model_cli.txt"

tensorflow_only = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="a SavedModel is a TensorFlow format"
)

# <eos> and <unk> stand in the midst: their ids are neither first nor last.
WORDS = ("the", "cat", "<eos>", "dog", "sees", "<unk>", "likes", "a", "bird")
EOS_ID, UNK_ID = 2, 5

# A process in which neither dualnet nor Keras can be imported.
CLIENT = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = None
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures
answers = []
for request in json.loads(sys.stdin.read()):
    endpoint = served[request.pop("endpoint")]
    specs = endpoint.structured_input_signature[1]
    inputs = {key: tf.constant(value, specs[key].dtype) for key, value in request.items()}
    answers.append({
        key: [text.decode() for text in value.numpy()] if value.dtype == tf.string
        and value.shape.rank == 1 else value.numpy().astype(str).tolist()
        if value.dtype == tf.string else value.numpy().tolist()
        for key, value in endpoint(**inputs).items()
    })
print(json.dumps({"signatures": sorted(served), "answers": answers}))
"""


def a_model(words=WORDS, name="dual_mdlstm", lowercase=False, seed=3, **arguments):
    """Return a model with random weights, strong enough that its words differ in likelihood."""
    keras.utils.set_random_seed(seed)
    own = {"rounds": 2, "rank": 2} if "mdlstm" in name else {}
    model = zoo.build(name, **{"vocabulary_size": len(words), "units": 8, **own, **arguments})
    model.vocabulary = Vocabulary(tuple(words), lowercase=lowercase)
    for weight in model.trainable_weights:
        weight.assign(weight * 1.5)
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, and what its SavedModel answers: `served.ask(endpoint, **columns)`."""
    model = a_model()
    found = dualnet.export(model, tmp_path_factory.mktemp("served") / "model")
    signatures = tf.saved_model.load(found).signatures
    return SimpleNamespace(model=model, found=found, signatures=signatures, ask=asker(signatures))


def asker(signatures):
    def ask(endpoint, **columns):
        specs = signatures[endpoint].structured_input_signature[1]
        inputs = {name: tf.constant(value, specs[name].dtype) for name, value in columns.items()}
        return {name: value.numpy() for name, value in signatures[endpoint](**inputs).items()}

    return ask


def go_on(ask, prompts, **settings):
    """Ask `generate_text`; a setting is one value for all rows, or a list."""
    usual = {"max_tokens": 9, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0,
             "stop_at_eos": False}  # fmt: skip
    columns = {
        name: value if isinstance(value, list) else [value] * len(prompts)
        for name, value in {**usual, **settings}.items()
    }
    return ask("generate_text", prompts=prompts, **columns)


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def log_p(model, ids):
    """Return the log-probabilities of all words after each of `ids`, `(time, words)`."""
    return log_softmax(ops.convert_to_numpy(model(np.array([ids], "int32"))))[0]


# --- ids in


@tensorflow_only
def test_a_process_without_dualnet_and_keras_gets_the_models_numbers(build, corpus, tmp_path):
    model = build("dual_mdlstm")
    model.vocabulary = corpus.vocabulary
    exported = dualnet.export(model, tmp_path / "saved_model")
    directory = exported.rename(tmp_path / "moved")
    ids = [
        corpus.test[:length][None].repeat(batch, 0) for batch, length in [(1, 1), (1, 9), (3, 5)]
    ]
    ids[2][1:] = corpus.test[5:15].reshape(2, 5)
    lengths = [[1], [7], [5, 3, 0]]
    requests = [
        {"endpoint": "score", "ids": i.tolist(), "lengths": n} for i, n in zip(ids, lengths)
    ]
    random = np.random.default_rng(0)
    states = [
        {f"state_{k}": random.normal(size=(len(i), size)).astype("float32").tolist()
         for k, size in enumerate(model.state_size, start=1)}
        for i in ids
    ]  # fmt: skip
    requests += [{"endpoint": "step", "ids": i.tolist(), **s} for i, s in zip(ids, states)]
    texts = ["the cat sees", "", "the dog\nthe bird"]
    requests += [{"endpoint": "score_text", "texts": texts}]
    requests += [
        {"endpoint": "generate_text", "prompts": texts, "max_tokens": [4, 0, 2],
         "temperature": [0.0] * 3, "top_k": [0] * 3, "top_p": [1.0] * 3, "seed": [0] * 3,
         "stop_at_eos": [False] * 3}
    ]  # fmt: skip
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, str(directory)],
        input=json.dumps(requests), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(client.stdout.splitlines()[-1])
    endpoints = ["generate_text", "score", "score_text", "serving_default", "step"]
    assert found["signatures"] == endpoints
    for i, n, answer in zip(ids, lengths, found["answers"]):
        scores = log_softmax(ops.convert_to_numpy(model(i)))
        expected = np.zeros(i.shape)
        for row, length in enumerate(n):
            for t in range(1, length):
                expected[row, t] = scores[row, t - 1, i[row, t]]
        np.testing.assert_allclose(answer["log_probabilities"], expected, rtol=1e-5, atol=1e-5)
    for i, state, answer in zip(ids, states, found["answers"][3:]):
        logits, new = model.advance(i, list(state.values()))
        np.testing.assert_allclose(
            answer["logits"], ops.convert_to_numpy(logits), rtol=1e-5, atol=1e-5
        )
        for k, one in enumerate(new, start=1):
            np.testing.assert_allclose(
                answer[f"state_{k}"], ops.convert_to_numpy(one), rtol=1e-5, atol=1e-5
            )
    scored, generated = found["answers"][6:]
    eos = corpus.vocabulary.eos_id
    for row, text in enumerate(texts):
        read = corpus.vocabulary.encode(text)
        expected = log_p(model, [eos, *read])[np.arange(len(read)), read]
        found_row = scored["log_probabilities"][row][: len(read)]
        np.testing.assert_allclose(found_row, expected, rtol=1e-5, atol=1e-5)
    assert generated["lengths"] == [4, 0, 2]
    assert [text[: len(begun)] for text, begun in zip(generated["texts"], texts)] == texts


@tensorflow_only
@pytest.mark.parametrize("tokens", [1, 5, 1000])
def test_reading_in_chunks_of_any_length_is_reading_at_once(tokens):
    model, random = a_model(), np.random.default_rng(tokens)
    reader = Reader(model)
    reader.tokens = tokens
    spec = tf.TensorSpec((None, None), tf.int32)
    score = tf.function(reader.log_probabilities, input_signature=[spec, spec])
    last = tf.function(reader.last, input_signature=[spec, tf.TensorSpec((None,), tf.int32)])
    for batch, time_ in [(1, 1), (1, 7), (3, 4), (2, 11)]:
        ids, targets = random.integers(len(WORDS), size=(2, batch, time_))
        expected = log_softmax(ops.convert_to_numpy(model(ids)))
        chosen = np.take_along_axis(expected, targets[..., None], -1)[..., 0]
        found = score(tf.constant(ids, tf.int32), tf.constant(targets, tf.int32))
        np.testing.assert_allclose(found, chosen, rtol=1e-4, atol=1e-5)

        lengths = random.integers(1, time_ + 1, size=batch)
        logits, states = last(tf.constant(ids, tf.int32), tf.constant(lengths, tf.int32))
        for row, length in enumerate(lengths):
            right, right_states = model.advance(ids[row : row + 1, :length], model.initial_state(1))
            np.testing.assert_allclose(logits[row], right[0, -1], rtol=1e-4, atol=1e-5)
            for found_state, state in zip(states, right_states):
                np.testing.assert_allclose(found_state[row], state[0], rtol=1e-4, atol=1e-5)


@tensorflow_only
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_a_request_of_nothing_is_answered_with_nothing(served, shape):
    answer = served.ask("score", ids=np.zeros(shape), lengths=np.zeros(shape[0]))
    assert answer["log_probabilities"].shape == shape
    answer = served.ask("score_text", texts=np.full(shape[0], "", object))
    assert answer["words"].shape == answer["log_probabilities"].shape == (shape[0], 0)
    np.testing.assert_array_equal(answer["perplexity"], np.ones(shape[0]))
    answer = go_on(served.ask, [""] * shape[0], max_tokens=0)
    assert answer["texts"].tolist() == [b""] * shape[0]
    assert answer["log_probabilities"].shape == (shape[0], 0)


# --- text in

NASTY = [*"\x00\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u200b\u2028\u2029\u202f\u3000"]
NASTY += [*"\ufeff\u00ad\u0301.'A\u00df\u0130\u03a3\u03c3\u03c2\ua7c0\U00010400\U00010570"]
NASTY += ["<eos>", "<EOS>", "<unk>", "the", "The", "cat", "\u0391\u03a3", "\r\n"]
KNOWN = [*"\x00\u200b", "<unk>", "the", "The", "<eos>", "\u03b1\u03c2", "\u03b1\u03c3", "i\u0307"]


@pytest.fixture(scope="module", params=[False, True], ids=["as_is", "lowercase"])
def encoder(request):
    """A vocabulary and its tokeniser as a graph."""
    vocabulary = Vocabulary(tuple(KNOWN), lowercase=request.param)
    text = Text(vocabulary)
    spec = tf.TensorSpec((None,), tf.string)
    graph = tf.function(lambda texts: text.encode(texts, "texts"), input_signature=[spec])
    return vocabulary, text, graph


@tensorflow_only
def test_the_graph_reads_any_text_as_the_vocabulary_does(encoder):
    vocabulary, text, graph = encoder
    anything = st.text(st.characters(exclude_categories=["Cs"]))
    nasty = st.lists(st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"])))

    @hypothesis.settings(max_examples=200)
    @given(st.lists(st.one_of(anything, nasty.map("".join)), max_size=20))
    @example([])
    @example(["\u0391\u03a3\u03a3 \u0391\u03a3. '\u03a3 \u0391\u00ad\u03a3\u0301\u0391\x00"])
    def check(texts):
        found = graph(tf.constant(texts, tf.string))
        assert found.to_list() == [vocabulary.encode(text).tolist() for text in texts]
        written = text.decode(found).numpy().tolist()
        assert written == [vocabulary.decode(row).encode() for row in found.to_list()]

    check()


@tensorflow_only
def test_each_character_is_white_space_or_lower_case_as_in_python(encoder):
    vocabulary, text, graph = encoder
    characters = [chr(i) for i in range(0x110000) if not 0xD800 <= i <= 0xDFFF]
    lengths = graph(tf.constant([f"a{c}a" for c in characters])).row_lengths().numpy()
    expected = np.array([len(f"a{c}a".replace("\n", " x ").split()) for c in characters])
    np.testing.assert_array_equal(lengths, expected)
    if vocabulary.lowercase:
        found = text.lower(tf.constant(characters)).numpy()
        assert [f.decode() for f in found] == [c.lower() for c in characters]
        # All places of a final sigma: before and after what is cased, ignorable or neither.
        pieces = ["\u03a3", "A", ".", "\u0301", ""]
        words = [a + b + "\u03a3" + c + d for a in pieces for b in pieces for c in pieces
                 for d in pieces]  # fmt: skip
        found = text.lower(tf.constant(words)).numpy()
        assert [f.decode() for f in found] == [word.lower() for word in words]


@tensorflow_only
def test_bytes_that_are_not_utf_8_are_unknown_words(encoder):
    vocabulary, _, graph = encoder
    texts = [b"\xff", b"the \xe2\x82 the", b"the\xc3\xa0\xffthe\xc2\xa0the", b"\xed\xa0\x80 \x80\n"]
    texts += [b"the\xff \xffthe"]  # no known word with a byte too many, either
    unk, the, eos = (vocabulary.id(word) for word in ("<unk>", "the", "<eos>"))
    expected = [[unk], [the, unk, the], [unk, the], [unk, unk, eos], [unk, unk]]
    assert graph(tf.constant(texts)).to_list() == expected


@tensorflow_only
def test_scores_of_texts_are_those_of_the_model(served):
    vocabulary = served.model.vocabulary
    texts = ["the cat", "", "cat\n\nthe zebra \xa0 sees\n", "\n", "bird " * 50, "zebra"]
    answer = served.ask("score_text", texts=texts)
    assert answer["lengths"].tolist() == [2, 0, 7, 1, 50, 1]
    assert answer["words"].shape == answer["log_probabilities"].shape == (6, 50)
    read = ["cat", "<eos>", "<eos>", "the", "<unk>", "sees", "<eos>"]
    assert [word.decode() for word in answer["words"][2]] == read + [""] * 43
    for row, text in enumerate(texts):
        ids = vocabulary.encode(text)
        expected = log_p(served.model, [EOS_ID, *ids])[np.arange(len(ids)), ids]
        found = answer["log_probabilities"][row]
        np.testing.assert_allclose(found[: len(ids)], expected, rtol=1e-4, atol=1e-5)
        assert not found[len(ids) :].any()
        perplexity = np.exp(-expected.mean()) if len(ids) else 1
        assert answer["perplexity"][row] == pytest.approx(perplexity, rel=1e-5)


LONG = """
import resource, sys
import tensorflow as tf
endpoint = tf.saved_model.load(sys.argv[1]).signatures["score_text"]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
endpoint(texts=tf.constant(["the cat"]))
before = peak()
answer = endpoint(texts=tf.constant(["the cat\\n" * 33_333 + "the"]))
print(answer["lengths"].numpy()[0], (peak() - before) >> 10, answer["perplexity"].numpy()[0])
"""


@tensorflow_only
def test_a_text_of_100_000_words_is_scored_in_little_memory(tmp_path):
    pytest.importorskip("resource")
    words = [*WORDS, *(f"w{i}" for i in range(3000))]
    model = a_model(words, "lstm", units=2)
    exported = dualnet.export(model, tmp_path / "model")
    client = subprocess.run(
        [sys.executable, "-c", LONG, str(exported)], capture_output=True, text=True, check=True
    )
    length, megabytes, perplexity = client.stdout.split()
    assert int(length) == 100_000
    # At once the logits alone were 1200 MB; words, texts and scores need some themselves.
    assert int(megabytes) < 300
    ids = model.vocabulary.encode("the cat\n" * 60)
    scores = log_p(model, [EOS_ID, *ids])[np.arange(180), ids]
    # The state soon repeats itself from line to line.
    assert float(perplexity) == pytest.approx(np.exp(-scores[-90:].mean()), rel=1e-2)


@tensorflow_only
def test_a_perplexity_beyond_float32_is_still_a_number(tmp_path):
    model = a_model(name="lstm")
    model.core.get_layer("embedding").embeddings.assign(
        1e4 * np.random.default_rng(0).normal(size=(len(WORDS), 8))
    )
    ask = asker(tf.saved_model.load(dualnet.export(model, tmp_path / "model")).signatures)
    answer = ask("score_text", texts=["the cat sees a bird"])
    assert answer["log_probabilities"].min() < -1000
    assert answer["perplexity"][0] == np.finfo("float32").max


@tensorflow_only
def test_a_vocabulary_in_lower_case_reads_capitals(tmp_path):
    model = a_model(name="lstm", lowercase=True)
    ask = asker(tf.saved_model.load(dualnet.export(model, tmp_path / "model")).signatures)
    words = ask("score_text", texts=["The CAT"])["words"]
    assert words.tolist() == [[b"the", b"cat"]]
    assert go_on(ask, ["The CAT"], max_tokens=0)["texts"].tolist() == [b"the cat"]


@tensorflow_only
def test_without_unk_an_unknown_word_fails_the_request_and_says_so(tmp_path):
    model = a_model([word for word in WORDS if word != "<unk>"], "lstm")
    found = dualnet.export(model, tmp_path / "model")
    assert serving.endpoints(model) == ["score", "step", "score_text", "generate_text"]
    ask = asker(tf.saved_model.load(found).signatures)
    assert ask("score_text", texts=["the cat"])["lengths"].tolist() == [2]
    message = "`{}` must hold words of the vocabulary alone, which has no <unk>.*zebra"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message.format("texts")):
        ask("score_text", texts=["the cat", "the zebra"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message.format("prompts")):
        go_on(ask, ["the zebra"])
    assert go_on(ask, ["the", ""], max_tokens=40)["lengths"].tolist() == [40, 40]


@tensorflow_only
@pytest.mark.parametrize("words", [None, [word for word in WORDS if word != "<eos>"]])
def test_without_words_or_eos_there_are_no_text_endpoints(words, tmp_path):
    model = a_model(words or WORDS, "lstm")
    if words is None:
        model.vocabulary = None
    found = dualnet.export(model, tmp_path / "model")
    assert serving.endpoints(model) == ["score", "step"]
    assert sorted(tf.saved_model.load(found).signatures) == ["score", "serving_default", "step"]


# --- text out


@tensorflow_only
def test_greedy_text_takes_the_likeliest_word_of_a_full_pass(served):
    vocabulary, prompts = served.model.vocabulary, ["the cat", "", "a zebra\n\nthe"]
    answer = go_on(served.ask, prompts, temperature=0.0, max_tokens=[12, 7, 1], seed=[1, 2, 3])
    for row, (prompt, count) in enumerate(zip(prompts, [12, 7, 1])):
        ids, scores = [int(i) for i in vocabulary.encode(prompt)], []
        for _ in range(count):
            given = log_p(served.model, [EOS_ID, *ids])[-1]
            ids.append(int(np.argmax(np.where(np.arange(len(WORDS)) == UNK_ID, -np.inf, given))))
            scores.append(given[ids[-1]])
        assert answer["texts"][row].decode() == vocabulary.decode(ids)
        assert answer["lengths"][row] == count
        found = answer["log_probabilities"][row]
        np.testing.assert_allclose(found[:count], scores, rtol=1e-4, atol=1e-5)
        assert not found[count:].any()


@tensorflow_only
def test_one_word_to_choose_from_is_the_likeliest(served):
    greedy = go_on(served.ask, ["the cat", "a"], temperature=0.0)
    for settings in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-30}):
        found = go_on(served.ask, ["the cat", "a"], **{"seed": [5, 6], **settings})
        assert found["texts"].tolist() == greedy["texts"].tolist()


@tensorflow_only
def test_drawn_words_have_the_log_probabilities_of_a_full_pass(served):
    prompts = ["the cat", "", "a zebra\n"]
    settings = {"temperature": [0.7, 1.5, 1.0], "top_k": [0, 4, 0], "top_p": [0.9, 1.0, 0.5]}
    answer = go_on(served.ask, prompts, max_tokens=15, seed=[4, -5, 2**31 - 1], **settings)
    for text, prompt, found in zip(answer["texts"], prompts, answer["log_probabilities"]):
        ids = served.model.vocabulary.encode(text.decode())
        begun = len(ids) - 15
        assert ids[:begun].tolist() == served.model.vocabulary.encode(prompt).tolist()
        assert UNK_ID not in ids[begun:]
        expected = log_p(served.model, [EOS_ID, *ids])[np.arange(len(ids)), ids]
        np.testing.assert_allclose(found, expected[begun:], rtol=1e-4, atol=1e-5)


@tensorflow_only
def test_a_row_is_the_same_whatever_is_beside_it_and_another_with_another_seed(served):
    prompts = ["the cat", "", "a zebra\nthe dog sees a", "bird"] * 3
    settings = {
        "seed": list(range(12)), "temperature": [0.0, 0.8, 1.0, 2.0] * 3, "top_k": [0, 3, 5] * 4,
        "top_p": [1.0, 0.7] * 6, "max_tokens": [3, 20, 0, 8, 15, 1] * 2,
        "stop_at_eos": [True, False, True] * 4,
    }  # fmt: skip
    together = go_on(served.ask, prompts, **settings)
    assert go_on(served.ask, prompts, **settings)["texts"].tolist() == together["texts"].tolist()
    for row, prompt in enumerate(prompts):
        own = {key: [value[row]] for key, value in settings.items()}
        alone = go_on(served.ask, [prompt], **own)
        assert alone["texts"][0] == together["texts"][row]
        length = alone["lengths"][0]
        assert length == together["lengths"][row]
        np.testing.assert_allclose(
            alone["log_probabilities"][0, :length],
            together["log_probabilities"][row, :length],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    drawn = go_on(served.ask, ["the"] * 20, seed=list(range(20)))["texts"]
    assert len(set(drawn)) > 15
    same = go_on(served.ask, ["the"] * 3, seed=4)["texts"]
    assert len(set(same)) == 1


@tensorflow_only
def test_a_row_that_stops_at_eos_ends_before_the_first(served):
    prompts, seeds = ["the cat\n"] * 40, list(range(40))
    free = go_on(served.ask, prompts, seed=seeds, max_tokens=12)
    stopped = go_on(served.ask, prompts, seed=seeds, max_tokens=12, stop_at_eos=True)
    vocabulary, seen = served.model.vocabulary, set()
    for row in range(40):
        drawn = vocabulary.encode(free["texts"][row].decode())[3:]
        ends = np.flatnonzero(drawn == EOS_ID)
        length = int(ends[0]) if len(ends) else 12
        seen.add(length)
        assert stopped["lengths"][row] == length
        expected = vocabulary.decode([*vocabulary.encode("the cat\n"), *drawn[:length]])
        assert stopped["texts"][row].decode() == expected
        found = stopped["log_probabilities"][row]
        np.testing.assert_allclose(found[:length], free["log_probabilities"][row, :length], 1e-4)
        assert not found[length:].any()
    assert {0, 12} < seen


def allowed(logits, temperature, top_k, top_p):
    """Return the probability of each word by the manual: temperature, top_k, top_p, no <unk>."""
    p = np.exp(log_softmax(logits) / temperature)
    p[UNK_ID] = 0
    order = np.argsort(-p, kind="stable")
    p = p / p.sum()
    if top_k:
        p[order[top_k:]] = 0
        p = p / p.sum()
    reached = np.cumsum(p[order])
    p[order[1 + np.searchsorted(reached, top_p) :]] = 0
    return p / p.sum()


def draws(logits, count, temperature=1.0, top_k=0, top_p=1.0):
    """Return the words that rows of seeds 0 to `count` draw at the steps 0 and 1."""

    def column(value, dtype):
        return tf.fill((count,), tf.constant(value, dtype))

    chosen = drawing.Settings(
        max_tokens=column(1, tf.int32),
        temperature=column(temperature, tf.float32),
        top_k=column(top_k, tf.int32),
        top_p=column(top_p, tf.float32),
        seed=tf.range(count),
        stop_at_eos=column(False, tf.bool),
    )
    rows = np.repeat(logits[None], count, axis=0)
    draw = tf.function(lambda step: drawing.draw(tf.constant(rows), step, chosen, UNK_ID))
    return [draw(tf.constant(step)).numpy() for step in (0, 1)]


@tensorflow_only
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7), (1.7, 4, 0.8), (1.0, 99, 0.3)],
)
def test_words_are_drawn_with_the_probabilities_that_are_left(temperature, top_k, top_p):
    logits = 1.5 * np.random.default_rng(8).normal(size=len(WORDS)).astype("float32")
    logits[UNK_ID] = 3.0
    count = 8000
    first, second = draws(logits, count, temperature, top_k, top_p)
    expected = allowed(logits.astype("float64"), temperature, top_k, top_p)
    for drawn in (first, second):
        found = np.bincount(drawn, minlength=len(WORDS)) / count
        assert not found[expected == 0].any()
        # Four standard deviations of a share.
        assert np.all(np.abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / count))
    both = np.histogram2d(first, second, bins=[np.arange(len(WORDS) + 1)] * 2)[0] / count
    np.testing.assert_allclose(both, np.outer(expected, expected), atol=0.025)


@tensorflow_only
def test_of_words_alike_the_first_are_kept_as_many_as_reach_top_p():
    equal = np.zeros(len(WORDS), "float32")  # eight words of exactly 1/8, and <unk>
    known = [i for i in range(len(WORDS)) if i != UNK_ID]
    for settings, kept in [({"top_p": 0.5}, 4), ({"top_p": 0.51}, 5), ({"top_k": 3}, 3), ({}, 8)]:
        drawn = draws(equal, 400, **settings)[0]
        assert sorted(set(drawn.tolist())) == known[:kept]


@tensorflow_only
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -0.5, "`temperature` must be finite and at least 0. Received:.*-0.5"),
        ("temperature", float("nan"), "`temperature` must be finite and at least 0"),
        ("temperature", float("inf"), "`temperature` must be finite and at least 0"),
        ("top_k", -1, "`top_k` must be at least 0 .*-1"),
        ("top_p", 0.0, "`top_p` must be above 0 and at most 1. Received:"),
        ("top_p", 1.5, "`top_p` must be above 0 and at most 1. Received:.*1.5"),
        ("max_tokens", -3, "`max_tokens` must be at least 0. Received:.*-3"),
        ("seed", [1, 2], "`seed` must have one value for each of `prompts`.*2"),
    ],
)
def test_a_request_out_of_range_says_what_is_required(served, name, value, message):
    rows = value if isinstance(value, list) else [1, value, 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        go_on(served.ask, ["the"] * 3, **{name: rows})


# --- clients


@tensorflow_only
@pytest.mark.parametrize("threads", [0, 8])
def test_200_interleaved_clients_get_each_the_answers_of_its_own_run(served, threads):
    random = np.random.default_rng(20)
    sizes = served.model.state_size
    zeros = {f"state_{i}": np.zeros((1, n), "float32") for i, n in enumerate(sizes, start=1)}

    def stepper(ids):
        """A client of `step`: each call reads one more token in the state of its own."""
        state, left = dict(zeros), list(ids)

        def call():
            answer = served.ask("step", ids=[[left.pop(0)]], **state)
            state.update({name: answer[name] for name in state})
            return answer

        return call

    def texter(texts):
        left = list(texts)
        return lambda: served.ask("score_text", texts=[left.pop(0)])

    def writer(texts):
        left = list(texts)
        return lambda: go_on(served.ask, [left[0]], seed=len(left.pop(0)), max_tokens=5)

    steps = 4
    kinds = [stepper] * 18 + [texter, writer]
    made = []
    for i in range(200):
        tokens = random.integers(len(WORDS), size=steps).tolist()
        words = [" ".join(WORDS[k] for k in random.integers(len(WORDS), size=4)) for _ in tokens]
        kind = kinds[i % len(kinds)]
        made.append((kind, tokens if kind is stepper else words))

    alone = []
    for kind, own in made:
        call = kind(own)
        alone.append([call() for _ in range(steps)])
    # A client's state matters: that of one which read another word would give another answer.
    other = next(i for i in range(18) if made[i][1][0] != made[0][1][0])
    mixed = served.ask("step", ids=[[made[0][1][1]]], **{k: alone[other][0][k] for k in zeros})
    assert np.any(mixed["logits"] != alone[0][1]["logits"])

    clients = [kind(own) for kind, own in made]
    turns = random.permutation(np.repeat(np.arange(200), steps))
    together = [[] for _ in clients]
    if not threads:
        for i in turns:
            together[i].append(clients[i]())
    else:
        # Client i is always one thread's, as a client waits for its answer; threads race.
        def serve(thread):
            for i in turns[turns % threads == thread]:
                together[i].append(clients[i]())

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(serve, range(threads)))
    for found, expected in zip(together, alone):
        assert len(found) == len(expected) == steps
        for one, other in zip(found, expected):
            for name in other:
                np.testing.assert_array_equal(one[name], other[name])


# --- the folder


@tensorflow_only
def test_an_export_leaves_nothing_else_and_refuses_a_folder_with_files(build, tmp_path):
    model = build()
    found = dualnet.export(model, tmp_path / "deep" / "saved_model")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["saved_model"]
    assert found == tmp_path / "deep" / "saved_model"
    assert found.stat().st_mode & 0o777 == 0o755  # a server may be another user
    with pytest.raises(FileExistsError, match="`directory` must be new or empty"):
        dualnet.export(model, tmp_path / "deep" / "saved_model")


def a_quick_write(monkeypatch, before=lambda: None):
    """Let an export write one file instead of a model, after `before()`."""

    def write(model, directory):
        before()
        (pathlib.Path(directory) / "saved_model.pb").write_text(model)
        return ["score", "step"]

    monkeypatch.setattr(saved_model, "write_saved_model", write)


@tensorflow_only
def test_the_first_of_two_exports_at_once_wins_and_the_other_says_so(monkeypatch, tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()

    def the_other():
        a_quick_write(monkeypatch)
        dualnet.export("the other", directory)

    a_quick_write(monkeypatch, the_other)
    with pytest.raises(FileExistsError, match="`directory` must be new or empty"):
        dualnet.export("this one", directory)
    assert (directory / "saved_model.pb").read_text() == "the other"
    assert list(tmp_path.iterdir()) == [directory]


@tensorflow_only
def test_an_export_that_is_stopped_leaves_nothing(monkeypatch, tmp_path):
    def stop():
        raise KeyboardInterrupt

    a_quick_write(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        dualnet.export("a model", tmp_path / "model")
    assert not list(tmp_path.iterdir())


@tensorflow_only
def test_what_a_killed_export_left_goes_with_a_later_one_and_one_under_way_stays(
    monkeypatch, tmp_path
):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = {
        name: tmp_path / f".{name}.unfinished"
        for name in (
            f"model.{serving._here(ended.pid)}.abc",  # killed
            "model.elsewhere-1.abc",  # of another machine, two days old
            f"model.{serving._here(os.getpid())}.abc",  # under way
            "model.elsewhere-2.abc",  # of another machine, today
            f"models.{serving._here(ended.pid)}.abc",  # of another path
        )
    }
    for i, folder in enumerate(left.values()):
        folder.mkdir()
        (folder / "half").write_text("")
        then = time.time() - (2 if i == 1 else 0) * 24 * 60 * 60
        os.utime(folder, (then, then))
    under_way = [folder.name for folder in left.values()][2:]
    a_quick_write(monkeypatch)
    dualnet.export("a model", tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model", *under_way}


@tensorflow_only
def test_where_nothing_can_be_written_is_said_before_the_work(monkeypatch, tmp_path):
    def too_late():
        raise AssertionError("the slow work has begun")

    a_quick_write(monkeypatch, too_late)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileExistsError, match="`directory` must be new or empty.*which is a file"):
        dualnet.export("a model", tmp_path / "file")
    for place in (tmp_path / "file" / "model", tmp_path / "file" / "deep" / "model"):
        with pytest.raises(
            OSError, match=r"`directory` must be where files can be written\..*/file"
        ):
            dualnet.export("a model", place)
        with pytest.raises(OSError, match=r"`path` must be where files can be written\..*/file"):
            dualnet.export("a model", place.with_suffix(".onnx"), format="onnx")

    def refuse(*args, **kwargs):  # for root, too
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(serving.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(serving.tempfile, "TemporaryFile", refuse)
    for name, path, kind in [("directory", "model", "saved_model"), ("path", "a.tflite", "litert")]:
        with pytest.raises(PermissionError, match=rf"`{name}` must be .*Permission denied"):
            dualnet.export("a model", tmp_path / path, format=kind)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.skipif(keras.config.backend() == "tensorflow", reason="TensorFlow can export")
def test_another_backend_says_how_to_export(build, tmp_path):
    with pytest.raises(ImportError, match="needs the TensorFlow backend.*KERAS_BACKEND=tensorflow"):
        dualnet.export(build(), tmp_path / "saved_model")


# --- what is written down


@pytest.fixture(scope="module")
def of_readme(tmp_path_factory):
    """The SavedModel that the README's Python lines export."""
    folder = tmp_path_factory.mktemp("readme")
    readme = (ROOT / "docs" / "guides" / "serving.md").read_text()
    lines = next(
        block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        if "models/tiny/1" in block
    )  # fmt: skip
    here = os.getcwd()
    os.chdir(folder)
    try:
        exec(lines, {})
    finally:
        os.chdir(here)
    return folder / "models" / "tiny" / "1"


@tensorflow_only
def test_saved_model_cli_shows_the_golden_signatures(of_readme):
    shown = subprocess.run(
        [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", "show", "--dir",
         str(of_readme), "--all"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    shown = shown.partition("The MetaGraph")[0]  # what follows is a set, in no order
    if os.environ.get("DUALNET_NEW_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text(), (
        "The signatures of an export have changed, and clients depend on them. If that is meant, "
        "write them anew: DUALNET_NEW_GOLDEN=1 pytest tests/test_serving.py -k golden"
    )


URL = "POST http://localhost:8501/v1/models/dualnet:predict"


def columns_of(body, signatures):
    """Return the endpoint and inputs of a TensorFlow Serving request, checked as a server does."""
    name = body["signature_name"]
    specs = signatures[name].structured_input_signature[1]
    assert set(body) == {"signature_name", "instances" if "instances" in body else "inputs"}
    if "instances" in body:
        assert all(set(row) == set(specs) for row in body["instances"])
        columns = {key: [row[key] for row in body["instances"]] for key in specs}
    else:
        columns = body["inputs"]
    assert set(columns) == set(specs)
    kinds = {tf.int32: [int], tf.float32: [int, float], tf.string: [str], tf.bool: [bool]}
    for key, spec in specs.items():
        values = np.array(columns[key], object)  # an array only if all rows have one shape
        assert {type(value) for value in values.ravel()} <= set(kinds[spec.dtype]), key
        assert spec.shape.is_compatible_with(values.shape), key
    assert len({len(column) for column in columns.values()}) == 1
    return name, columns


@tensorflow_only
def test_the_requests_of_the_readme_fit_the_signatures_and_are_answered(of_readme):
    readme = (ROOT / "docs" / "guides" / "serving.md").read_text()
    bodies = re.findall(rf"`{re.escape(URL)}`[^`]*```json\n(.*?)```", readme, re.DOTALL)
    signatures = tf.saved_model.load(of_readme).signatures
    asked = []
    for body in map(json.loads, bodies):
        name, columns = columns_of(body, signatures)
        asked.append(name)
        answer = asker(signatures)(name, **columns)
        rows = len(next(iter(columns.values())))
        for value in answer.values():  # so that a row of the request has a row of the answer
            assert value.shape[0] == rows
            json.dumps(np.char.decode(value.astype(bytes)).tolist() if value.dtype == object
                       else value.tolist(), allow_nan=False)  # fmt: skip
    assert asked == ["score", "step", "score_text", "generate_text"]
    assert readme.count(URL) == 4


@tensorflow_only
def test_the_table_of_the_readme_names_all_inputs_and_outputs(of_readme):
    lines = (ROOT / "docs" / "guides" / "serving.md").read_text().splitlines()
    signatures = tf.saved_model.load(of_readme).signatures
    for endpoint in ("score", "step", "score_text", "generate_text"):
        (line,) = (line for line in lines if line.startswith(f"| `{endpoint}` |"))
        _, _, inputs, outputs, _ = line.split("|")
        signature = signatures[endpoint]
        specs = signature.structured_input_signature[1], signature.structured_outputs
        for cell, names in zip((inputs, outputs), specs):
            named = set(re.findall("`([a-z_]+[0-9]?)`", cell))
            assert named - {"state_n"} == {name for name in names if name != "state_2"}


# --- one step


@pytest.fixture(scope="module")
def steps():
    """A model; tokens `(steps, batch, 1)` at two batch sizes; what the Keras model answers."""
    model = a_model()
    random = np.random.default_rng(0)
    runs = []
    for batch in (1, 3):
        ids = random.integers(len(WORDS), size=(4, batch, 1)).astype("int32")
        start = [random.normal(size=(batch, n)).astype("float32") for n in model.state_size]
        logits, state = model.advance(ids[:, :, 0].T, start)
        state = [ops.convert_to_numpy(one) for one in state]
        runs.append((ids, start, ops.convert_to_numpy(logits), state))
    return model, runs


def check_steps(answer, runs):
    """`answer(ids, states)` gives `(logits, states)`; with carried state those of one pass."""
    for ids, states, logits, last in runs:
        for t, token in enumerate(ids):
            found, states = answer(token, states)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, logits[:, t : t + 1], rtol=1e-5, atol=1e-5)
        for one, other in zip(states, last, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@tensorflow_only
def test_the_onnx_file_answers_as_the_model_without_a_loop(steps, tmp_path):
    reason = 'this test needs the ONNX packages: pip install "dualnet[onnx]"'
    onnx = pytest.importorskip("onnx", reason=reason)
    pytest.importorskip("tf2onnx", reason=reason)
    onnxruntime = pytest.importorskip("onnxruntime", reason=reason)
    model, runs = steps
    found = dualnet.export(model, tmp_path / "new" / "model.onnx", format="onnx")
    assert [path.name for path in found.parent.iterdir()] == ["model.onnx"]
    proto = onnx.load(found)
    onnx.checker.check_model(proto, full_check=True)
    operators = {node.op_type for node in proto.graph.node}
    assert not operators & {"Loop", "Scan", "If"}
    session = onnxruntime.InferenceSession(found, providers=["CPUExecutionProvider"])
    names = [f"state_{i}" for i in range(1, len(model.state_size) + 1)]
    types = {"ids": "tensor(int32)", **dict.fromkeys(names, "tensor(float)")}
    assert {one.name: one.type for one in session.get_inputs()} == types
    assert [one.name for one in session.get_outputs()] == ["logits", *(f"new_{n}" for n in names)]

    def answer(ids, states):
        logits, *new = session.run(None, {"ids": ids, **dict(zip(names, states))})
        return logits, new

    check_steps(answer, runs)


@tensorflow_only
def test_the_litert_file_answers_as_the_model_without_a_loop(steps, tmp_path):
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter",
        reason='this test needs the LiteRT interpreter: pip install "dualnet[litert]"',
    )
    model, runs = steps
    found = dualnet.export(model, tmp_path / "model.tflite", format="litert")
    interpreter = litert.Interpreter(model_path=str(found))
    operators = {one["op_name"] for one in interpreter._get_ops_details()}
    assert "FULLY_CONNECTED" in operators and not operators & {"WHILE", "IF"}
    assert not any(name.startswith("Flex") for name in operators)  # the plain runtime has it all
    names = [f"state_{i}" for i in range(1, len(model.state_size) + 1)]
    (signature,) = interpreter.get_signature_list().items()
    assert signature[0] == "step"
    assert sorted(signature[1]["inputs"]) == ["ids", *names]
    assert sorted(signature[1]["outputs"]) == ["logits", *names]

    def answer(ids, states):
        found = interpreter.get_signature_runner("step")(ids=ids, **dict(zip(names, states)))
        return found["logits"], [found[name] for name in names]

    check_steps(answer, runs)


def of_outputs(kind):
    """Return a model without vocabulary, whose output is not a plain softmax."""
    keras.utils.set_random_seed(4)
    models = [language_model(9, units=4, experts=[1, 2]), language_model(9, units=5, experts=2)]
    for model in models:
        for weight in model.weights:
            weight.assign(weight * 2)
    if kind == "doc":
        return models[0]
    if kind == "cache":
        return dualnet.with_cache(models[0], 3, weight=0.4)
    both = dualnet.ensemble(models)
    return both if kind == "ensemble" else dualnet.with_gate(both, units=3)


@tensorflow_only
@pytest.mark.parametrize("kind", ["doc", "gated ensemble", "cache"])
def test_a_saved_model_has_experts_gates_ensembles_and_a_cache(kind, tmp_path):
    model = of_outputs(kind)
    found = tf.saved_model.load(dualnet.export(model, tmp_path / "model")).signatures
    assert {*found} - {"serving_default"} == {"score", "step"}
    ids = np.random.default_rng(1).integers(9, size=(2, 9)).astype("int32")
    scores = asker(found)("score", ids=ids, lengths=[9, 5])["log_probabilities"]
    log_p = log_softmax(ops.convert_to_numpy(model(ids[:, :-1])))
    expected = np.take_along_axis(log_p, ids[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(scores[0, 1:], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores[1, 1:5], expected[1, :4], rtol=1e-4, atol=1e-5)
    assert not scores[:, 0].any() and not scores[1, 5:].any()
    check_the_step_endpoint(found, model, ids)


def check_the_step_endpoint(signatures, model, ids):
    """Compare `step`, twice with carried state, with the model."""
    names = [f"state_{i}" for i in range(1, len(model.state_size) + 1)]
    states = dict(zip(names, map(ops.convert_to_numpy, model.initial_state(len(ids)))))
    at = 0
    for length in (2, ids.shape[1] - 2):
        states = asker(signatures)("step", ids=ids[:, at : at + length], **states)
        logits = states.pop("logits")
        expected = ops.convert_to_numpy(model(ids))[:, at : at + length]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        at += length


@tensorflow_only
@pytest.mark.parametrize("format", ["onnx", "litert"])
@pytest.mark.parametrize("kind", ["doc", "ensemble"])
def test_a_file_of_one_step_has_experts_and_ensembles(kind, format, tmp_path):
    model = of_outputs(kind)
    names = [f"state_{i}" for i in range(1, len(model.state_size) + 1)]
    path = tmp_path / ("model.onnx" if format == "onnx" else "model.tflite")
    if format == "onnx":
        pytest.importorskip("tf2onnx")
        onnxruntime = pytest.importorskip("onnxruntime")
        dualnet.export(model, path, format=format)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

        def answer(ids, states):
            logits, *new = session.run(None, {"ids": ids, **dict(zip(names, states))})
            return logits, new
    else:
        litert = pytest.importorskip("ai_edge_litert.interpreter")
        dualnet.export(model, path, format=format)
        interpreter = litert.Interpreter(model_path=str(path))

        def answer(ids, states):
            found = interpreter.get_signature_runner("step")(ids=ids, **dict(zip(names, states)))
            return found["logits"], [found[name] for name in names]

    runs = []
    for batch in (1, 3):
        random = np.random.default_rng(batch)
        ids = random.integers(9, size=(3, batch, 1)).astype("int32")
        start = [random.normal(size=(batch, n)).astype("float32") for n in model.state_size]
        logits, state = model.advance(ids[:, :, 0].T, start)
        runs.append((ids, start, ops.convert_to_numpy(logits), state))
    check_steps(answer, runs)


@tensorflow_only
@pytest.mark.parametrize(("format", "suffix"), [("onnx", "onnx"), ("litert", "tflite")])
def test_a_file_of_one_step_has_no_cache(format, suffix, tmp_path):
    with pytest.raises(ValueError, match="`format` must be 'saved_model' for a model with a cache"):
        dualnet.export(of_outputs("cache"), tmp_path / f"model.{suffix}", format=format)
    assert not list(tmp_path.iterdir())


@tensorflow_only
def test_a_model_of_mixed_precision_is_exported_too(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = a_model()
        exported = dualnet.export(mixed, tmp_path / "model")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        litert = pytest.importorskip(
            "ai_edge_litert.interpreter",
            reason='this test needs the LiteRT interpreter: pip install "dualnet[litert]"',
        )
        one_step = dualnet.export(mixed, tmp_path / "model.tflite", format="litert")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")
    ids, vocabulary = [EOS_ID, 0, 1, 3], mixed.vocabulary
    expected = log_p(mixed, ids)[np.arange(3), ids[1:]]
    ask = asker(tf.saved_model.load(exported).signatures)
    found = ask("score_text", texts=[vocabulary.decode(ids[1:])])["log_probabilities"][0]
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)

    twin = a_model()  # the same weights in float32
    twin.set_weights(mixed.get_weights())
    states = [np.ones((1, size), "float32") for size in twin.state_size]
    right, _ = twin.advance([[3]], states)
    step = litert.Interpreter(model_path=str(one_step)).get_signature_runner("step")
    names = {f"state_{i}": state for i, state in enumerate(states, start=1)}
    logits = step(ids=np.array([[3]], "int32"), **names)["logits"]
    np.testing.assert_allclose(logits, right, rtol=1e-5, atol=1e-5)


@tensorflow_only
def test_without_the_onnx_packages_it_says_what_to_install(steps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r'pip install "dualnet\[onnx\]"'):
        dualnet.export(steps[0], tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.iterdir())


@tensorflow_only
def test_a_format_has_its_suffix_and_a_known_name(tmp_path):
    for path, kind in [("a.tflite", "onnx"), ("a", "onnx"), ("a.onnx", "litert")]:
        with pytest.raises(ValueError, match="`path` must be a file that ends in"):
            dualnet.export("a model", tmp_path / path, format=kind)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match="`path` must be a file that ends in '.onnx'"):
        dualnet.export("a model", tmp_path / "folder.onnx", format="onnx")
    with pytest.raises(ValueError, match="`format` must be one of .* Did you mean 'onnx'"):
        dualnet.export("a model", tmp_path / "a.onnx", format="onx")
