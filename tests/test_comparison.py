"""Figures per byte, character and word; top-k accuracy."""

import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualnet
from dualnet import training, zoo
from dualnet.builders import questions
from dualnet.cli import training as cli_training
from dualnet.evaluation import Evaluation, comparable, comparison
from dualnet.layers import _fused_cross_entropy as fused
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import once, small, strong

pytestmark = once

BYTES = ByteTokenizer()
SAMPLE = "Die Katze läuft.\n猫は歩く 🐈\u200d⬛  ja\u00a0da.\n"
BPE = train_tokenizer([SAMPLE], "bpe", size=262)
CHARACTERS = train_tokenizer([SAMPLE], "characters")
WORDS = Vocabulary(("die", "Katze", "<unk>", "<eos>"))


def counts(found):
    """The numbers of bytes, characters and words that a loss of 1 nat is shared out among."""
    bits = 1 / math.log(2)
    return (
        round(bits / found.bits_per_byte),
        round(bits / found.bits_per_character),
        round(1 / math.log(found.perplexity_per_word)) if found.perplexity_per_word else 0,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("猫は歩く", (12, 4, 1)),
        ("ein 🐈\u200d⬛ da", (17, 10, 3)),
        ("  two   spaces\t\n\n x ", (20, 20, 3)),
        ("a\u00a0b", (4, 3, 2)),  # white space, too
        (" \n", (2, 2, 0)),
    ],
)
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_the_loss_is_shared_out_among_bytes_characters_and_words(tokenizer, text, expected):
    found = comparable(tokenizer, tokenizer.encode(text), 1.0)
    assert counts(found) == expected and found.not_comparable == ""
    data = text.encode()
    assert expected == (len(data), len(text), len(text.split()))  # the hand agrees with Python


@given(st.text("ab ä猫🐈\n\u2003", min_size=1, max_size=30), st.integers(1, 5))
def test_chunks_change_no_count(text, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "CHUNK", chunk)
        found = comparable(BPE, BPE.encode(text), 1.0)
    assert counts(found) == (len(text.encode()), len(text), len(text.split()))


def test_words_end_where_a_text_does():
    parts = [BYTES.encode(text) for text in ("the cat", "sees", "")]
    assert counts(comparable(BYTES, parts, 1.0)) == (11, 11, 3)
    assert counts(comparable(BYTES, np.concatenate(parts), 1.0)) == (11, 11, 2)
    assert counts(comparable(BYTES, [97, 32, 98], 1.0)) == (3, 3, 2)


def test_a_text_that_begins_within_a_character_counts_the_characters_that_begin_in_it():
    assert counts(comparable(BYTES, BYTES.encode("ä b")[1:], 1.0)) == (3, 2, 2)
    found = comparable(BYTES, BYTES.encode("ä")[1:], 1.0)
    assert found.bits_per_character is None and found.bits_per_byte == 1 / math.log(2)


@pytest.mark.parametrize(
    ("tokenizer", "text", "reason"),
    [
        (WORDS, "die Katze", "the white space between words is lost"),
        (CHARACTERS, "Katze!", "<unk>"),
        (CHARACTERS, "Katze", ""),
        (train_tokenizer(["ab"], "bpe", size=257, lowercase=True), "ab", "lower-cased"),
        (train_tokenizer([SAMPLE], "unigram", size=40), "die", "need not spell the text"),
        (BYTES, "", "the text is empty"),
    ],
)
def test_a_text_that_the_ids_do_not_tell_has_no_figures_and_the_reason(tokenizer, text, reason):
    found = comparable(tokenizer, tokenizer.encode(text), 1.0)
    assert reason in found.not_comparable and bool(reason) == bool(found.not_comparable)
    figures = found.figures()
    assert list(figures) == [
        "bits_per_byte", "bits_per_character", "perplexity_per_word", "not_comparable",
    ]  # fmt: skip
    assert [value is None for value in figures.values()] == [bool(reason)] * 3 + [not reason]


# --- where perplexities are


@pytest.fixture(scope="module")
def uniform():
    """A model of bytes that finds every byte equally likely."""
    return strong(small(BYTES), scale=0.0)


TEXT = "für die Katze\nja "  # 18 bytes, 17 characters, 4 words
EACH = math.log2(257)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_bytes", "num_characters"),
    [
        ({}, 17, 16),
        ({"batch_size": 3}, 17, 16),
        ({"by_sentence": True}, 18, 17),
        ("dynamic", 17, 16),
        ("score", 18, 17),
    ],
)
def test_a_uniform_model_of_bytes_has_log2_of_257_bits_per_byte(
    uniform, settings, num_bytes, num_characters
):
    ids = BYTES.encode(TEXT)
    if settings == "dynamic":
        found = dualnet.dynamic_evaluation(uniform, ids, rule="sgd", learning_rate=1e-9)
    elif settings == "score":
        found = dualnet.score(uniform, TEXT)
    else:
        found = dualnet.evaluate(uniform, ids, **settings)
    assert found.tokens == num_bytes
    assert found.bits_per_byte == pytest.approx(EACH, rel=1e-6)
    assert found.bits_per_character == pytest.approx(EACH * num_bytes / num_characters, rel=1e-6)
    assert found.perplexity_per_word == pytest.approx(257 ** (num_bytes / 4), rel=1e-4)
    assert found.not_comparable == ""


def test_without_a_vocabulary_there_are_no_figures():
    model = zoo.build("lstm", vocabulary_size=5, units=4)
    found = dualnet.evaluate(model, np.arange(5))
    assert found.bits_per_byte is None and found.not_comparable == "the model has no vocabulary"
    found = Evaluation(5.0, 4, 1, None, 1.0, np.zeros(4))
    assert found.bits_per_byte is None and found.top_k_accuracy == {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A RUN of a small model of characters, whose test text has an unknown one."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "text").mkdir()
    splits = {"train": "für die Katze\n" * 6, "valid": "die\n", "test": "der\n!\n"}
    for split, text in splits.items():
        (folder / "text" / f"{split}.txt").write_text(text, "utf-8")
    settings = {"units": 4, "batch_size": 2, "sequence_length": 9, "epochs": 1, "progress": False}
    corpus, output = str(folder / "text"), folder / "RUN"
    return training.train("lstm", corpus, tokenizer="characters", output=output, **settings)


UNKNOWN = "the model reads <unk> for text that its tokeniser does not know"


@pytest.mark.slow
@once
def test_figures_stand_beside_perplexities_on_the_command_line(run, cli, monkeypatch):
    results = json.loads((run.folder / "results.json").read_text())
    out = str(cli_training._result(run))  # which `train` prints
    line = f"validation: {results['valid_bits_per_byte']:.3f} bits per byte, "
    assert (
        f"\n{line}" in out and f"\ntest: no figures per byte, character or word: {UNKNOWN}\n" in out
    )
    assert results["test_bits_per_byte"] is None and results["test_not_comparable"] == UNKNOWN
    bits = math.log2(results["valid_perplexity"])
    assert results["valid_bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert results["valid_not_comparable"] is None
    found = cli.json(f"evaluate {run.folder} --split valid")
    assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
    assert found["not_comparable"] is None
    score = f"score {run.folder} --text die --text Katze"
    found = cli.json(score)
    total = -sum(sum(text["log_probabilities"]) for text in found["texts"])
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / 8)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(total / 2))


# --- top-k accuracy

KINDS = {
    "tied": ("lstm", {}),
    "untied": ("lstm", {"tied": False}),
    "mixture": ("lstm", {"experts": 3, "recurrent_layers": 1}),
    "doc": ("lstm", {"experts": [1, 2], "recurrent_layers": 1}),
    "cache": ("lstm", {"cache_size": 6}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_top_k_accuracy_is_that_of_the_ranks_among_all_logits(kind, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK_BYTES", 12 * 4 * 5)  # 5 tokens at once
    name, arguments = KINDS[kind]
    words = Vocabulary((*"abcdefghij", "<unk>", "<eos>"))
    model = strong(zoo.build(name, vocabulary_size=12, units=6, **arguments), words)
    ids = np.random.default_rng(4).integers(12, size=41).astype("int32")
    found = dualnet.evaluate(model, ids, top_k=(1, 3, 12), temperature=1.7)
    plain = dualnet.evaluate(model, ids, temperature=1.7)
    np.testing.assert_allclose(found.token_losses, plain.token_losses, rtol=1e-4, atol=1e-5)
    assert plain.top_k_accuracy == {}
    logits = keras.ops.convert_to_numpy(model(ids[None, :-1]))[0]
    ranks = (logits > logits[np.arange(40), ids[1:]][:, None]).sum(-1)
    assert found.top_k_accuracy == {k: pytest.approx(np.mean(ranks < k)) for k in (1, 3, 12)}
    assert found.top_k_accuracy[12] == 1 > found.top_k_accuracy[1]


def test_a_tie_counts_against_the_model(uniform):
    found = dualnet.evaluate(uniform, BYTES.encode(TEXT), top_k=[1, 256, 257])
    assert found.top_k_accuracy == {1: 0.0, 256: 0.0, 257: 1.0}


def test_ranks_need_the_logits_of_few_tokens_at_a_time(monkeypatch):
    shapes = set()
    ranks = questions.ranks_of

    def recorded(logits, targets):
        shapes.add(tuple(logits.shape))
        return ranks(logits, targets)

    monkeypatch.setattr(questions, "ranks_of", recorded)
    monkeypatch.setattr(fused, "CHUNK_BYTES", 12 * 4 * 5)
    model = zoo.build("lstm", vocabulary_size=12, units=6)
    dualnet.evaluate(model, np.arange(41) % 12, top_k=[1])
    assert shapes == {(5, 12)}


@pytest.mark.slow
@once
def test_top_k_accuracy_on_the_command_line(run, cli):
    evaluate = f"evaluate {run.folder} --top-k 1 3"
    found = cli.json(evaluate)["top_k_accuracy"]
    assert list(found) == ["1", "3"] and 0 <= found["1"] <= found["3"] <= 1
    shown = f"top-1 accuracy {found['1']:.2%}\ntop-3 accuracy {found['3']:.2%}\n"
    assert shown in cli(evaluate)
    said = cli.refused(f"{evaluate} --dynamic")
    assert "`--top-k` cannot be combined with --dynamic" in said
