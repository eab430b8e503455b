"""Pairs into a RUN, and translations out of it: training, resuming, beam search, bad input."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualnet
from dualnet import corpora, runs, training, zoo
from dualnet.builders.bucketing import bucket_length
from dualnet.corpora import PairSplit
from dualnet.evaluation.pair_perplexity import evaluate_pairs
from dualnet.generation import beam, translations
from dualnet.text import Vocabulary
from tests.checks import UNTRACED, array, once
from tests.reference import log_softmax

pytestmark = [*UNTRACED, once, pytest.mark.slow]

QUICK = {
    "units": 8, "recurrent_layers": 1, "batch_size": 16, "epochs": 2, "optimizer": "adam",
    "learning_rate": 0.01, "global_clipnorm": 1.0, "loss_reduction": "mean", "hold_epochs": 0,
    "decay": 1.0, "progress": False,
}  # fmt: skip


def first(pairs, count):
    """Return the first pairs of a split."""
    return PairSplit(
        pairs.source_lines[:count],
        pairs.target_lines[:count],
        pairs.source_ids[: pairs.source_offsets[count]],
        pairs.target_ids[: pairs.target_offsets[count]],
        pairs.source_offsets[: count + 1],
        pairs.target_offsets[: count + 1],
    )


@pytest.fixture(scope="module")
def numbers():
    corpus = corpora.load_pairs("numbers")
    splits = {split: first(corpus.split(split), 40) for split in corpora.SPLITS}
    return dataclasses.replace(corpus, **splits)


@pytest.fixture(scope="module")
def run(numbers, tmp_path_factory):
    return dualnet.train("encdec", numbers, output=tmp_path_factory.mktemp("runs") / "RUN", **QUICK)


@pytest.fixture(scope="module")
def model(run):
    return run.model


# --- scores


def test_a_translation_is_scored_given_its_source(model):
    sources = ["4 0 2", "1", ""]
    found = [best for best, *_ in translations(model, sources, beam=2, max_tokens=6)]
    found = [(source, each) for source, each in zip(sources, found) if each.ended and source]
    texts, of_texts = [each.text for _, each in found] + ["one"], [s for s, _ in found] + ["4 0 2"]
    scores = dualnet.score(model, texts, source=of_texts)
    for (_, each), score in zip(found, scores):
        assert float(score.log_probabilities.sum()) == pytest.approx(each.score, rel=1e-4)
    assert scores[-1].words == scores[-1].whole_words == ("one", "<eos>")
    words = model.vocabulary
    state = model.encode(words.encode("4 0 2")[None])
    logits, _ = model.advance([[words.eos_id, words.id("one")]], state)
    expected = log_softmax(array(logits))[0][[0, 1], [words.id("one"), words.eos_id]]
    np.testing.assert_allclose(scores[-1].log_probabilities, expected, rtol=1e-4, atol=1e-5)
    table = {"en": texts, "de": of_texts}
    assert dualnet.score(model, table, column="en", source="de") == scores


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("one", {}, "`source` must be what `text` translates, .* Received: model='encdec'"),
        ("one", {"source": ["1", "2"]}, "`source` must be one for each text. Received: 2 for 1"),
    ],
)
def test_a_translation_without_its_source_is_refused(model, text, settings, message):
    with pytest.raises(ValueError, match=message):
        dualnet.score(model, text, **settings)


# --- training


def test_a_run_holds_a_translator_with_its_vocabularies_and_results(run, numbers):
    again = dualnet.load(run.folder)
    assert again.source_vocabulary is again.vocabulary
    expected = evaluate_pairs(run.model, numbers, "test").perplexity
    assert evaluate_pairs(again, numbers, "test").perplexity == pytest.approx(expected, rel=1e-6)
    assert run.results["test_perplexity"] == pytest.approx(expected, rel=1e-6)
    assert run.results["corpus"]["pairs"] == {"train": 40, "valid": 40, "test": 40}
    assert runs.read_card(run.folder).trained_on["pairs"]["target"] == "words"


def test_a_run_that_stopped_goes_on_as_if_it_had_not(run, numbers, tmp_path):
    settings = {**QUICK, "output": tmp_path / "RUN"}
    training.train("encdec", numbers, **settings, stop=lambda history: True, evaluate=False)
    resumed = training.train(
        "encdec", numbers, output=tmp_path / "RUN", progress=False, resume=True
    )
    assert [row["val_perplexity"] for row in resumed.history] == [
        row["val_perplexity"] for row in run.history
    ]


def test_a_run_goes_on_with_its_pairs_and_its_tokenisers_alone(numbers, run, tmp_path):
    words = numbers.vocabulary.words
    other = Vocabulary((*words[1:], words[0]))
    for changed, message in (
        ({"max_tokens": 2}, "must leave out the same pairs as when the run started"),
        ({"source_vocabulary": other}, r"or pairs with tokenizer=\(model.source_vocabulary"),
    ):
        corpus = dataclasses.replace(numbers, **changed)
        with pytest.raises(ValueError, match=message):
            training.train("encdec", corpus, output=run.folder, resume=True, epochs=9)
    settings = {**QUICK, "epochs": 1}
    with pytest.raises(ValueError, match="must have the vocabulary of the model to start from"):
        dualnet.train(run.folder, corpus, output=tmp_path / "RUN", **settings)
    with pytest.raises(ValueError, match="`share_embeddings` needs one tokeniser for both sides"):
        dualnet.train(
            "encdec", corpus, output=tmp_path / "RUN", share_embeddings=True, **settings
        )  # fmt: skip
    assert not (tmp_path / "RUN").exists()


# --- translating


def losses_of(model, source, target):
    """Return -log p of each target word and of `<eos>` in nats, from one call of the model."""
    source = model.source_vocabulary.encode(source)[None]
    targets = np.append(model.vocabulary.encode(target), model.vocabulary.eos_id)
    inputs = np.insert(targets[:-1], 0, model.vocabulary.eos_id)[None]
    log_p = log_softmax(array(model({"source": source, "target": inputs}))[0])
    return -log_p[np.arange(len(targets)), targets]


def greedy(model, source, limit):
    """Return the likeliest word at each step, one call of `advance` for each."""
    state = model.encode(model.source_vocabulary.encode(source)[None])
    words, word = [], model.vocabulary.eos_id
    for _ in range(limit):
        logits, state = model.advance([[word]], state)
        scores = array(logits)[0, -1].copy()
        scores[model.vocabulary.unk_id] = -np.inf
        word = int(scores.argmax())
        if word == model.vocabulary.eos_id:
            break
        words.append(word)
    return model.vocabulary.decode(words)


def test_a_beam_of_one_is_greedy(model):
    texts = ["1 2 3", "7", "9 0 4 1"]
    expected = [greedy(model, text, 12) for text in texts]
    assert dualnet.translate(model, texts, beam=1, max_tokens=12) == expected


def test_the_score_of_a_translation_is_the_models_own(model):
    texts = ["1 2 3", "5"]
    found = translations(model, texts, beam=4, n_best=3, max_tokens=40)
    for text, several in zip(texts, found):
        assert len(several) == 3
        ranks = [each.normalized_score for each in several]
        assert ranks == sorted(ranks, reverse=True)
        for each in several:
            losses = losses_of(model, text, each.text)[:40]  # the limit cuts off `<eos>`
            assert each.score == pytest.approx(-losses.sum(), rel=1e-5)


def test_the_other_texts_change_nothing_and_an_empty_one_stays_empty(model):
    texts = ["1 2 3", "", "7", "9 0 4 1", "   "]
    together = translations(model, texts, beam=3)
    alone = [translations(model, [text], beam=3)[0] for text in texts]
    assert [one.text for [one] in together] == [one.text for [one] in alone]
    np.testing.assert_allclose(
        [one.score for [one] in together], [one.score for [one] in alone], atol=1e-4
    )
    assert (together[1][0].text, together[4][0].text) == ("", "")


@given(st.lists(st.integers(0, 400), min_size=1), st.integers(1, 70), st.integers(0, 5))
def test_long_sentences_are_translated_in_smaller_batches(lengths, rows, copies):
    order = sorted((i for i in range(len(lengths)) if lengths[i]), key=lambda i: lengths[i])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "POSITIONS", 1000)
        batches = [*beam.batches_by_length(lengths, rows=rows, copies=copies)]
    assert [i for batch in batches for i in batch] == order
    for batch in batches:
        positions = len(batch) * copies * bucket_length(max(lengths[i] for i in batch))
        assert len(batch) <= rows and (len(batch) == 1 or positions <= 1000)


def test_a_long_text_among_short_ones_changes_nothing(model):
    texts = ["1 2", "3 4 5", " ".join("6" * 90), "7"]
    settings = {"beam": 2, "max_tokens": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "POSITIONS", 100)
        several = dualnet.translate(model, texts, **settings)
    assert several == [dualnet.translate(model, text, **settings) for text in texts]
    lists = dualnet.translate(model, {"en": texts}, column="en", n_best=2, **settings)
    assert [of_text[0] for of_text in lists] == several and len(lists[0]) == 2


def test_each_translation_is_told_as_soon_as_it_is_found(model):
    texts, told = ["1 2 3", "", "7"], []

    def tell(text, *position):
        told.append((text, *position))
        if len(told) == 4:
            raise InterruptedError

    found = dualnet.translate(model, texts, on_text=tell)
    assert {i: text for text, i in told} == dict(enumerate(found)) and len(told) == 3
    with pytest.raises(InterruptedError):
        dualnet.translate(model, "9", on_text=tell)
    assert told[3] == (dualnet.translate(model, "9"),)


def test_a_model_beside_itself_translates_as_it_does_alone(model):
    texts = ["1 2 3", "7"]
    alone, twice = translations(model, texts), translations([model, model], texts)
    assert [one.text for [one] in alone] == [one.text for [one] in twice]
    np.testing.assert_allclose(
        [one.score for [one] in alone], [one.score for [one] in twice], atol=1e-4
    )


def test_the_perplexity_of_pairs_is_that_of_their_losses(model, numbers):
    found = evaluate_pairs(model, numbers, "valid")
    pairs = numbers.valid
    lines = zip(pairs.source_lines, pairs.target_lines)
    losses = [losses_of(model, source, target).sum() for source, target in lines]
    np.testing.assert_allclose(found.pair_losses, losses, rtol=1e-4)
    assert found.perplexity == pytest.approx(np.exp(sum(losses) / found.tokens), rel=1e-5)


# --- bad input


def test_models_of_the_wrong_kind_are_refused(numbers):
    with pytest.raises(ValueError, match="`model` must be a model that translates"):
        dualnet.translate(zoo.build("lstm", vocabulary_size=9, units=4), "a")
    with pytest.raises(ValueError, match="`corpus` must be a text for the model"):
        dualnet.train("lstm", numbers, output="RUN")
