"""Faults that others reported, or attacks found, each with its right value."""

import dataclasses
import io
import json
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

import dualnet
from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet.layers import EmbeddingDropout, IOGate, MeanOfProbabilities, NeuralCache
from dualnet.text import ByteTokenizer, Vocabulary, load_tokenizer, train_tokenizer
from tests.checks import array, needed, once, small
from tests.commands import run

EXAMPLES = Path(__file__).parents[1] / "examples"

# --- text


@pytest.mark.parametrize("special", [["<unk>", "naïve", "café"], ["naïve"], ["läuft", "<unk>"]])
def test_special_strings_beyond_ascii_are_given_back(special):
    text = "naïve <unk> café läuft\nä"
    tokenizer = train_tokenizer([text] * 3, "bpe", size=300, special=special)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word-piece", "characters"])
def test_a_special_string_with_capitals_is_found_in_lower_cased_text(kind):
    size = {"characters": None, "bpe": 270}.get(kind, 30)
    texts = ["Hello <NAME> hello NAME"] * 5
    tokenizer = train_tokenizer(texts, kind, size=size, lowercase=True, special=["<NAME>"])
    assert tokenizer.encode("Hello <NAME>")[-1] == tokenizer.id("<NAME>")


def test_a_tokeniser_with_dropout_encodes_a_text_in_one_way(tmp_path):
    train_tokenizer(["the cat sat on the mat"] * 5, "bpe", size=290).save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    data["model"]["dropout"] = 0.5
    (tmp_path / "t.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert len({tuple(tokenizer.encode("the cat sat on the mat")) for _ in range(20)}) == 1


@pytest.mark.parametrize("kind", ["bytes", "bpe", "characters"])
def test_blank_lines_beyond_the_first_are_said_to_be_lost_and_are_not_counted(kind):
    size = {"bpe": 260}.get(kind)
    made = ByteTokenizer() if kind == "bytes" else train_tokenizer(["a b"], kind, size=size)
    tokenizer = dataclasses.replace(made, documents="blank-line")
    assert made.loses == "" and tokenizer.loses.startswith("blank lines beyond the first")
    for text in ("a\n\n\nb", "a\n \n\nb", "a\n\nb"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == "a\n\nb"
        assert dualnet.evaluation.comparable(tokenizer, ids, 4 * np.log(2)).bits_per_byte == 1


# --- surprisal


@pytest.mark.slow
def test_the_entropy_at_a_word_does_not_depend_on_the_word():
    model = dualnet.load("dual_lstm.wikitext-2")
    texts = [f"He opened the door with a {word}" for word in ("key", "thermometer", "zxqv")]
    rows = dualnet.surprisal(model, texts, words=True, entropy=True)
    tokens = dualnet.surprisal(model, texts[0], entropy=True)
    entropies = [row["entropy"] for row in rows if row["token_id"] == 7]
    np.testing.assert_allclose(entropies, tokens[-1]["entropy"], rtol=1e-4)


# --- arguments


SAME = {
    "hidden_size": "units", "nhid": "units", "tie_weights": "tied", "mogrifier_rounds": "rounds",
    "embedding_dim": "embedding_units", "dropout": "output_dropout",
}  # fmt: skip


@pytest.mark.parametrize("name", [*SAME, "seed"])
def test_names_of_other_libraries_lead_to_ours_and_unlike_names_to_none(name):
    with pytest.raises(ArgumentError) as error:
        zoo.build("dual_mdlstm", vocabulary_size=9, **{name: 2})
    [*suggested] = re.findall("Did you mean '(.*)'", str(error.value))
    assert suggested == ([SAME[name]] if name in SAME else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"units": "x" * 100_000}, {"x" * 100_000: 1}, {"output_dropout": 10**400},
        {"cell": "x" * 100_000},
    ],
    ids=["value", "name", "large number", "choice"],
)  # fmt: skip
def test_errors_show_the_beginning_of_what_is_long(settings):
    with pytest.raises(ArgumentError) as error:
        zoo.build("lstm", vocabulary_size=9, **settings)
    assert len(str(error.value)) < 1000


@once
def test_a_call_with_another_object_names_the_one_that_works(corpus):
    model = zoo.build("dual_lstm", vocabulary_size=len(corpus.vocabulary), units=4)
    model.vocabulary = corpus.vocabulary
    learner = dualnet.Learner(model)
    for call in (dualnet.surprisal, dualnet.score, dualnet.generate, dualnet.export):
        with pytest.raises(ArgumentError, match="A learner itself has the methods read, score"):
            call(learner, "the")
    with pytest.raises(ArgumentError, match="`model` must be a model.*dualnet.load loads one"):
        dualnet.Learner("dual_lstm.english")
    with pytest.raises(ArgumentError, match="`text` must be one text. Received: 2. Read each"):
        learner.read(["the", "cat"])
    with pytest.raises(ArgumentError, match="`text` must be text"):
        dualnet.look(model, ["the", "cat"])
    with pytest.raises(ArgumentError, match="`name` must be .* A model itself has compile and fit"):
        dualnet.train(model, corpus, output="RUN")
    with pytest.raises(ArgumentError, match="`corpus` must be .* Write texts into a file"):
        dualnet.train("lstm", ["the cat", "the dog"], output="RUN")
    with pytest.raises(ArgumentError, match="Give a split, as corpus.test"):
        dualnet.perplexity(model, corpus)
    assert dualnet.tuning.HyperModel("dual_table1", corpus).job.name == "dual_table1"


@once
@pytest.mark.parametrize("text", [np.array("a"), np.array(3), None, keras.Input((2,))])
def test_what_holds_no_texts_is_refused_by_the_name_of_the_argument(text):
    model = zoo.build("lstm", vocabulary_size=257, units=4)
    model.vocabulary = ByteTokenizer()
    for call in (dualnet.score, dualnet.surprisal, dualnet.generate):
        with pytest.raises(ArgumentError, match="`(text|prompt)s?` must be a string or a seq"):
            call(model, text)
    with pytest.raises(ArgumentError, match="`tokens` must be an integer array"):
        dualnet.perplexity(model, text)


@once
def test_hints_lead_to_pairs_and_formats(cli, tmp_path):
    (tmp_path / "train.en").write_text("a\n")
    (tmp_path / "nbest").write_text("utt-1 the cat\n")
    tune = f"tune dual_table1 --pairs {tmp_path} --output {tmp_path}/out"
    assert "`dualnet train --help`" in cli.refused(tune)
    assert "['corpus', 'pairs']" in cli.refused(f"train encdec --data mt --output {tmp_path}/out")
    train = f"train lstm --corpus {tmp_path} --output {tmp_path}/out"
    assert "--pairs and corpora.load_pairs read pairs" in cli.refused(train)
    nbest = f"rescore dual_lstm.wikitext-2 {tmp_path}/nbest"
    assert "--format kaldi" in cli.refused(nbest)
    assert "which begins with it" in cli.refused(
        f"{nbest} --format kaldi --compare {tmp_path}/train.en"
    )


# --- layers and modules


def test_layers_of_several_inputs_take_a_tuple_and_tokens_as_floats():
    tokens, vectors = np.array([[3.0, 1.0]]), np.ones((1, 2, 4), "float32")
    assert MeanOfProbabilities()((vectors, vectors)).shape == (1, 2, 4)
    assert IOGate(4)((tokens, vectors)).shape == (1, 2, 4)
    assert NeuralCache(4)((tokens, vectors, vectors))[0].shape == (1, 2, 4)


def test_dropout_of_words_reads_float_ids_exactly_in_half_precision():
    ids, vectors = np.arange(300, 340)[None], np.ones((1, 40, 1), "float32")
    layers = [
        EmbeddingDropout(0.5, vocabulary_size=400, seed=1, dtype="mixed_bfloat16") for _ in "ab"
    ]
    of_ints, of_floats = (
        array(layer([tokens, vectors], training=True))
        for layer, tokens in zip(layers, (ids, ids.astype("float32")))
    )
    np.testing.assert_array_equal(of_floats, of_ints)


def test_modules_that_the_pages_name_are_there_after_the_import_alone():
    names = "training.epoch_seconds, dualnet.serving.why_no_text, dualnet.adaptation.RULES"
    subprocess.run([sys.executable, "-c", f"import dualnet; dualnet.{names}"], check=True)


# --- commands


@once
@pytest.mark.parametrize(("encoding", "escaped"), [("ascii", r"caf\xe9"), ("cp1252", "café")])
def test_what_standard_output_cannot_hold_is_escaped(tmp_path, monkeypatch, encoding, escaped):
    small(Vocabulary(("café", "猫", "<eos>")), units=4).save(tmp_path / "a.keras")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.warns(UserWarning, match="PYTHONIOENCODING=utf-8 writes them"):
        assert run(f"score {tmp_path}/a.keras --text 'café 猫'") == 0
    assert rf"{escaped} \u732b" in out.buffer.getvalue().decode(encoding)


# --- pages


@once
@pytest.mark.slow
def test_the_client_of_a_served_model_loses_no_update_in_threads_adds_memories_and_forgets(
    tmp_path,
):
    model = dualnet.load("dual_lstm.wikitext-2")
    path = dualnet.export(model, tmp_path / "model", learn="output_bias", learning_rate=1)
    file, text = tmp_path / "readers.db", "The ship was built in 1904. The ship sank in 1911."
    readers = runpy.run_path(str(EXAMPLES / "learn_served.py"))["Readers"](str(path), file)
    threads = [threading.Thread(target=readers.learn, args=("first", text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_turn = [readers.learn("second", text) for _ in range(9)]
    assert readers.learn("first", text) == pytest.approx(in_turn[-1], rel=1e-4)
    fresh = readers.score(text, {"nobody": 1})
    assert fresh == pytest.approx(dualnet.score(model, text).perplexity, rel=1e-4)
    alone = readers.score(text, {"first": 1})
    assert alone < readers.score(text, {"first": 0.25, "nobody": 1}) < fresh
    assert readers.score(text, {"first": 0.5, "second": 0.5}) == pytest.approx(alone, rel=1e-3)
    trace = readers.memory({"first": 1}).tobytes()[:100]
    assert trace in file.read_bytes()
    readers.forget("first")
    readers.forget("second")
    assert trace not in file.read_bytes()
    readers.learn("third", text)
    readers.forget_idle(1)
    assert readers.score(text, {"third": 1}) < fresh


# --- exports


@once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "licences"),
    [
        ("served", "served/assets.extra/LICENSES_SOURCES"), ("m.onnx", "m.onnx.LICENSES_SOURCES"),
        ("m.tflite", "m.tflite.LICENSES_SOURCES"),
    ],
)  # fmt: skip
def test_an_exported_shipped_model_carries_its_licence(path, licences, cli, tmp_path):
    [onnx] = needed("onnx", "onnx")
    said = cli(f"export lstm.wikitext-2 {tmp_path}/{path}")
    expected = (dualnet.load("lstm.wikitext-2").run.path / "LICENSES_SOURCES").read_text()
    assert (tmp_path / licences).read_text() == expected and "LICENSES_SOURCES" in said
    if path == "m.onnx":
        [stored] = onnx.load(tmp_path / path).metadata_props
        assert stored.value == expected
    if path.startswith("m."):  # of another model, it would be wrong
        dualnet.export(zoo.build("lstm", vocabulary_size=9, units=4), tmp_path / path)
        assert [file.name for file in tmp_path.iterdir()] == [path]
