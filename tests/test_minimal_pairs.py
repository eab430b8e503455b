"""Minimal pairs, in Python and on the command line."""

import json
import math

import keras
import numpy as np
import pytest

import dualnet
from dualnet.evaluation import Accuracy
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import once, small

SENTENCES = ["the cats sleep .", "the cat sleeps .", "the dog barks .", "the dogs bark ."]
WORDS = Vocabulary((*dict.fromkeys(" ".join(SENTENCES).split()), "<unk>", "<eos>"))
TOKENIZERS = {
    "words": WORDS,
    "bytes": ByteTokenizer(),
    "bpe": train_tokenizer(SENTENCES, "bpe", size=262),
}
PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": uid, "field": field, "pairID": "7"}
    for good, bad, uid, field in [
        ("the cats sleep .", "the cat sleep .", "number", "syntax"),
        ("the dog barks .", "the dogs barks .", "number", "syntax"),
        ("the dogs bark .", "the dogs bark bark .", "repeated", "syntax"),
        ("the cat sleeps .", "sleeps the cat .", "order", "style"),
        ("the dogs sleep .", "sleep the dogs bark .", "order", "style"),
    ]
]

pytestmark = [once, pytest.mark.usefixtures("without_tracing")]


def model_with(tokenizer, **overrides):
    keras.utils.set_random_seed(1)
    return small(tokenizer, units=8, **overrides)


@pytest.fixture(scope="module")
def words():
    return model_with(WORDS)


@pytest.fixture(scope="module")
def saved(words, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "words.keras"
    words.save(path)
    return path


def written(path, pairs):
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_likelier_sentence_is_the_one_with_the_larger_sum_of_scores(kind):
    model = model_with(TOKENIZERS[kind])
    result = dualnet.minimal_pairs(model, PAIRS)
    sentences = [pair[key] for pair in PAIRS for key in ("sentence_good", "sentence_bad")]
    scores = dualnet.score(model, sentences)
    sums = np.array([score.log_probabilities.astype("float64").sum() for score in scores])
    sums = sums.reshape(-1, 2)
    np.testing.assert_allclose(result.log_probabilities, sums, rtol=1e-5)
    right = sums[:, 0] > sums[:, 1]
    assert (result.overall.correct, result.overall.pairs) == (right.sum(), 5)
    assert list(result.by_uid) == ["number", "repeated", "order"]
    assert {name: each.correct for name, each in result.by_field.items()} == {
        "syntax": right[:3].sum(),
        "style": right[3:].sum(),
    }
    means = [right[:2].mean(), right[2], right[3:].mean()]
    assert result.mean_accuracy == pytest.approx(np.mean(means))


def test_sentences_that_the_model_reads_alike_are_a_tie_and_wrong(words):
    ties = [("the cat", "the cat"), ("the zebra", "the yak"), ("the  cat", "the cat")]
    pairs = [{"sentence_good": good, "sentence_bad": bad} for good, bad in ties]
    result = dualnet.minimal_pairs(words, pairs + PAIRS)
    assert result.by_uid["pairs"] == Accuracy(pairs=3, correct=0, ties=3)
    assert result.overall.ties == 3 and result.unknown == 2 / (12 + 42)


def test_rounding_does_not_decide_a_tie():
    model = model_with(WORDS, output_bias=True)
    random = np.random.default_rng(0)
    # With this bias alone, the order of the words cannot matter.
    model.set_weights([np.zeros(weight.shape) for weight in model.weights])
    bias = next(weight for weight in model.weights if weight.shape == (len(WORDS),))
    bias.assign(random.normal(size=len(WORDS)))
    pairs = []
    for _ in range(50):
        order = random.permutation(len(WORDS))
        sentence = [WORDS.words[i] for i in order if WORDS.words[i] != "<eos>"]
        pairs.append(
            {"sentence_good": " ".join(sentence), "sentence_bad": " ".join(sentence[::-1])}
        )
    assert dualnet.minimal_pairs(model, pairs).overall.ties == 50


@pytest.mark.parametrize(("correct", "pairs"), [(0, 10), (700, 1000)])
def test_the_interval_is_that_of_wilson(correct, pairs):
    result = Accuracy(pairs=pairs, correct=correct, ties=0)
    low, high = result.interval
    assert 0 <= low <= result.accuracy <= high <= 1
    for bound in {low, high} - {0.0, 1.0}:  # 1.96 deviations of that share away from it
        deviation = math.sqrt(bound * (1 - bound) / pairs)
        assert abs(result.accuracy - bound) / deviation == pytest.approx(1.959964, rel=1e-6)


def test_files_give_their_name_to_pairs_without_one(words, tmp_path):
    bare = [{key: pair[key] for key in ("sentence_good", "sentence_bad")} for pair in PAIRS]
    first = written(tmp_path / "one.jsonl", bare[:2])
    second = written(tmp_path / "two.jsonl", [*bare[2:], {**bare[0], "field": "syntax"}])
    second.write_text("\ufeff" + second.read_text("utf-8") + "\n  \n", encoding="utf-8")
    result = dualnet.minimal_pairs(words, [first, str(second)])
    assert {name: each.pairs for name, each in result.by_uid.items()} == {"one": 2, "two": 4}
    assert {name: each.pairs for name, each in result.by_field.items()} == {
        "one": 2,
        "two": 3,
        "syntax": 1,
    }
    assert dualnet.minimal_pairs(words, first).overall == result.by_uid["one"]


GOOD = b'{"sentence_good": "a", "sentence_bad": "b"}\n'
DAMAGED = {
    "missing key": (GOOD + b'{"sentence_good": "a"}', "text as 'sentence_bad'.*line 2"),
    "empty sentence": (b'{"sentence_good": " ", "sentence_bad": "b"}', "'sentence_good'.*line 1"),
    "not JSON": (GOOD + b"\n{sentence_good", "must be a JSON object.*line 3"),
    "not UTF-8": (GOOD + b"\xff", "must be UTF-8.*0xff at offset 44"),
    "empty": (b"", "must hold text.*bad.jsonl"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_with_its_line(words, tmp_path, case):
    data, match = DAMAGED[case]
    (tmp_path / "bad.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=match):
        dualnet.minimal_pairs(words, [written(tmp_path / "good.jsonl", PAIRS),
                                      tmp_path / "bad.jsonl"])  # fmt: skip


def test_the_command_prints_accuracies(words, saved, tmp_path, cli):
    command = f"minimal-pairs {saved} {written(tmp_path / 'pairs.jsonl', PAIRS)}"
    result = dualnet.minimal_pairs(words, PAIRS)
    printed = cli.json(command)
    assert printed["accuracy"] == result.overall.accuracy
    assert printed["interval"] == list(result.overall.interval)
    assert printed["UID"]["order"]["correct"] == result.by_uid["order"].correct
    assert printed["field"]["style"]["pairs"] == 2 and printed["ties"] == 0
    lines = cli(command).splitlines()
    assert lines[0].split() == ["accuracy", "95%", "interval", "pairs", "ties"]
    assert lines[-1].startswith(f"accuracy {result.overall.accuracy:.1%} on 5 pairs")
    head, *rows = cli(f"{command} --format pairs").splitlines()
    assert head.split("\t") == [*result.rows()[0]] and len(rows) == 5
    assert rows[2].split("\t")[1] == "repeated"
    printed = cli.json(f"{command} --format pairs")
    assert all(row["correct"] == (row["difference"] > 0) for row in printed)
    assert printed[0]["log_probability_good"] == result.log_probabilities[0, 0]
