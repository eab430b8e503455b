"""Exported translators answer as the Keras model does, for every client."""

import contextlib
import io
import pathlib
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import dualnet
from dualnet import generation, serving, zoo
from dualnet.builders import encoder_decoder
from dualnet.cli import main
from dualnet.generation.beam import Search
from dualnet.serving import saved_model, translator_endpoints
from dualnet.serving.served_reader import ServedReader
from dualnet.text import Vocabulary, load_tokenizer, train_tokenizer
from tests.checks import array, dtype_policy, once
from tests.serving_clients import (
    check_table,
    client_of,
    close,
    graph_client,
    remote_process,
    warm_up_requests,
)

pytestmark = [once, pytest.mark.slow]

SERVING_PAGE = pathlib.Path(dualnet.__file__).parents[1] / "docs" / "guides" / "serving.md"
ENDPOINTS = ["encode", "step", "translate"]
BOUND, WORDS = 60, 260
DEFAULTS = {"beam": 1, "n_best": 1, "max_tokens": 0, "length_normalization": 1.0}
TEXTS = ["a b c d", "", "d", "b b a c a d d a"]


def a_model(**arguments):
    """Return a translator whose weights are large enough for words to differ in likelihood."""
    keras.utils.set_random_seed(3)
    tokenizer = train_tokenizer(["a b c d"] * 9, "bpe", size=WORDS)
    sizes = {"vocabulary_size": len(tokenizer), "units": 4, "recurrent_layers": 1}
    model = encoder_decoder(**{**sizes, **arguments})
    model.vocabulary = model.source_vocabulary = tokenizer
    for weight in model.trainable_weights:
        weight.assign(weight * 3)
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, the folder that the command line exported it to, and what was printed."""
    folder, model, shown = tmp_path_factory.mktemp("served"), a_model(), io.StringIO()
    model.save(folder / "model.keras")
    with contextlib.redirect_stdout(shown):
        arguments = [str(folder / "model.keras"), str(folder / "model")]
        assert main(["export", *arguments, "--max-tokens", str(BOUND)]) == 0
    path = folder / "model"
    return SimpleNamespace(model=model, path=path, ask=client_of(path), shown=shown.getvalue())


def test_the_server_warms_up_with_a_request_of_each_endpoint(served):
    requests = warm_up_requests(served.path)
    assert [name for name, _ in requests] == ENDPOINTS
    for name, inputs in requests:
        served.ask(name, **inputs)


def columns(model, texts, *, width=None, padding=0, **settings):
    """Return the inputs of `translate`; a setting is one value for all rows, or a list."""
    rows = [model.source_vocabulary.encode(text) for text in texts]
    ids = np.full((len(texts), width or max(map(len, rows))), padding)
    for row, row_ids in zip(ids, rows):
        row[: len(row_ids)] = row_ids
    settings = {
        name: value if isinstance(value, list) else [value] * len(texts)
        for name, value in {**DEFAULTS, **settings}.items()
    }
    return {"ids": ids, "lengths": [len(row) for row in rows], **settings}


def encoded(answer):
    """Return what `encode` answered, in the order of `model.encode`."""
    states = sum(name.startswith("state_") for name in answer)
    names = ["memory", "keys", "mask", *(f"state_{i}" for i in range(1, states + 1))]
    return [answer[name] for name in names]


def check_equal(answer, expected, tokenizer):
    """Check that `translate` answered what `dualnet.generation.translations` found."""
    assert answer["counts"].tolist() == [len(several) for several in expected]
    for row, several in enumerate(expected):
        for place, one in enumerate(several):
            length = answer["lengths"][row, place]
            assert tokenizer.decode(answer["ids"][row, place, :length]) == one.text
            close(answer["scores"][row, place], one.score, rtol=1e-5)
            close(answer["normalized_scores"][row, place], one.normalized_score, rtol=1e-5)
            assert (answer["ids"][row, place, length:] == tokenizer.eos_id).all()
        for name in ("lengths", "scores", "normalized_scores"):
            assert not answer[name][row, len(several) :].any()


# --- the numbers


def test_a_process_without_dualnet_and_keras_translates_as_the_model_does(served):
    model, inputs = served.model, columns(served.model, TEXTS, beam=3, n_best=2)
    source = {name: inputs[name] for name in ("ids", "lengths")}
    sources = np.where(
        np.arange(inputs["ids"].shape[1]) < np.c_[inputs["lengths"]], inputs["ids"], -1
    )
    with remote_process() as ask:
        found = ask(served.path, "encode", **source)
        del found["peak"]
        state = model.encode(sources)
        for part, expected in zip(encoded(found), state, strict=True):
            close(part, expected, rtol=1e-5)
        targets = np.random.default_rng(0).integers(model.vocabulary_size, size=(2, 4, 3))
        for ids in targets:  # the second goes on from the first
            answer = ask(served.path, "step", ids=ids, **found)
            logits, state = model.advance(ids, state)
            close(answer["logits"], logits, rtol=1e-5)
            found |= {name: answer[name] for name in answer if name.startswith("state_")}
        for part, expected in zip(encoded(found), state, strict=True):
            close(part, expected, rtol=1e-5)
        answer = ask(served.path, "translate", **inputs)
    answer = {name: np.array(values) for name, values in answer.items()}
    check_equal(answer, generation.translations(model, TEXTS, beam=3, n_best=2), model.vocabulary)


@pytest.mark.parametrize(
    "settings",
    [{}, {"beam": 4, "n_best": 4, "length_normalization": 0.5}, {"beam": 2, "max_tokens": 3}],
)
def test_translations_are_those_of_a_beam_search_in_python(served, settings):
    model, limit = served.model, settings.get("max_tokens")
    expected = generation.translations(
        model, TEXTS, **{**DEFAULTS, **settings, "max_tokens": limit}
    )
    answer = served.ask("translate", **columns(model, TEXTS, **settings))
    check_equal(answer, expected, model.vocabulary)


def test_the_search_in_the_graph_is_the_search_in_python_in_every_tie():
    words, kinds, sentences, eos_id, unk_id = 5, 3, 6, 1, 3
    rng = np.random.default_rng(0)
    # Few distinct values, exact in float32: ties are common. Some words are impossible.
    tables = -rng.integers(1, 4, (kinds, words, words)) / 4
    tables[rng.random(tables.shape) < 0.1] = -np.inf
    tables = tables.astype("float32")

    def after(states, tokens):  # what follows depends on all words before
        return [(2 * states[0] + tokens + 1) % kinds]

    def in_python(tokens, states):
        tokens = tokens[:, 0]
        return tables[states[0], tokens], after(states, tokens)

    def in_graph(tokens, states):
        tokens = tokens[:, 0]
        log_p = tf.gather_nd(tables, tf.stack([states[0], tokens], axis=1))
        log_p = ops.where(tf.range(words) == unk_id, -np.inf, tf.cast(log_p, tf.float64))
        return *tf.math.top_k(log_p, words), after(states, tokens)

    declared = translator_endpoints.settings_of(words, BOUND)
    specs = [tf.TensorSpec((None,), setting.dtype) for setting in declared.values()]

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32), *specs], autograph=False)
    def search(states, *settings):
        settings = dict(zip(declared, settings))
        settings["length_normalization"] = tf.cast(settings["length_normalization"], tf.float64)
        search = Search(eos_id=eos_id, **settings)
        found, _ = search.run(in_graph, [states], tf.fill(tf.shape(states), eos_id))
        return found._asdict()

    ended = 0
    for _ in range(20):
        beam = rng.integers(1, 7, sentences)
        settings = {
            "beam": beam,
            "n_best": rng.integers(1, beam + 1),
            "max_tokens": rng.integers(1, 7, sentences),
            "length_normalization": rng.choice([0, 0.5, 1], sentences),
        }
        states = rng.integers(kinds, size=sentences)
        inputs = [tf.constant(settings[name], of.dtype) for name, of in declared.items()]
        found = search(tf.constant(states, tf.int32), *inputs)
        for row in range(sentences):
            own = {name: values[row].item() for name, values in settings.items()}
            [expected] = generation.beam_search(
                in_python, [states[row : row + 1]], first_ids=[eos_id], eos_id=eos_id,
                excluded_ids=[unk_id], **own,
            )  # fmt: skip
            scores = found["normalized_scores"][row, : own["n_best"]].numpy()
            assert np.isfinite(scores).sum() == len(expected)
            for place, hypothesis in enumerate(expected):
                length = found["lengths"][row, place]
                ids = tuple(found["ids"][row, place, :length].numpy())
                assert (ids, found["scores"][row, place].numpy()) == (
                    hypothesis.ids,
                    hypothesis.score,
                )
                assert scores[place] == pytest.approx(hypothesis.normalized_score, rel=1e-12)
                ended += hypothesis.ended
    assert ended > 100


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_an_attention_before_the_recurrence_and_mixed_precision_are_served_too(policy):
    with dtype_policy(policy):
        model = a_model(
            attention="additive", alignment_units=3, encoder="embeddings", first_state="learned",
            tied=False,
        )  # fmt: skip
    reader = ServedReader(model)
    encode = translator_endpoints.endpoints(model, reader, BOUND)["encode"]
    ask = graph_client({"encode": encode, "step": saved_model._step(reader)})
    source, target = [[5, 9, 7]], [[model.vocabulary.eos_id, 8]]
    found = ask("encode", ids=source, lengths=[3])
    logits, state = model.advance(target, model.encode(source))
    answer = ask("step", ids=target, **found)
    close(answer["logits"], array(logits), rtol=1e-5)
    count = model.graph.constants
    for name, expected in zip([f"state_{i}" for i in (1, 2)], state[count:]):
        assert answer[name].dtype == found["memory"].dtype == np.float32
        close(answer[name], array(expected), rtol=1e-5)


@pytest.mark.parametrize(
    ("endpoint", "changed", "message"),
    [
        ("translate", {"beam": [1, 261]}, "`beam` must be from 1 to 260, the number of target wor"),
        ("translate", {"max_tokens": [0, 61]}, f"at most {BOUND}, the bound of this export. Rec"),
        ("encode", {"ids": [[-1, 4], [3, 4]]}, "`ids` must be ids of the vocabulary, 0 to 259."),
        ("step", {"memory": np.zeros((3, 2, 4))}, "`memory` must have one row for each row of `i"),
        (
            "step",
            {"mask": np.ones((2, 1), bool)},
            "`keys` and `mask` must have equally many",
        ),
    ],
)
def test_a_bad_request_is_refused_and_says_which_input(served, endpoint, changed, message):
    inputs = {"ids": [[3, 4], [3, 4]], "lengths": [2, 2]}
    if endpoint == "translate":
        inputs |= {name: [value] * 2 for name, value in DEFAULTS.items()}
    elif endpoint == "step":
        inputs = {"ids": [[1], [2]], **served.ask("encode", **inputs)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        served.ask(endpoint, **{**inputs, **changed})


# --- the folder


def test_the_command_says_what_it_wrote(served):
    line, *others = served.shown.splitlines()
    assert line == f"SavedModel with the endpoints encode, step, translate in {served.path}"
    assert others == [f"No text endpoints: {serving.why_no_text(served.model)}"]
    assert {*served.ask.signatures} - {"serving_default"} == {*ENDPOINTS}


def test_the_tokenisers_of_both_sides_are_exported(served):
    [joint] = (served.path / "assets.extra").glob("*.json")
    assert load_tokenizer(joint) == served.model.vocabulary
    sides = {
        "source_vocabulary": Vocabulary(("<eos>", "1")),
        "vocabulary": train_tokenizer(["one"], "characters"),
    }
    assert saved_model.vocabularies_of(SimpleNamespace(**sides)) == {
        "source-vocabulary.txt": sides["source_vocabulary"],
        "tokenizer.json": sides["vocabulary"],
    }


def test_without_eos_there_is_no_search():
    model = zoo.build("encdec", vocabulary_size=3, units=4)
    assert serving.endpoints(model) == ENDPOINTS[:2]
    assert "`translate` needs a tokeniser with <eos>" in serving.why_no_text(model)
    model.vocabulary = Vocabulary(("a", "b", "c"))
    assert serving.endpoints(model) == ENDPOINTS[:2]


# --- the documentation


def test_the_documented_client_translates_as_dualnet_does(served):
    section = SERVING_PAGE.read_text().partition("\n## Translators\n")[2].partition("\n## ")[0]
    check_table(section, ENDPOINTS, served.ask.signatures)
    _, client = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(client.replace("models/numbers/1", str(served.path)), names)
    assert names["translate"](TEXTS) == dualnet.translate(served.model, TEXTS)
