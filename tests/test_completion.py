"""Words are completed as all their spellings have it, whatever the tokens are."""

import base64
import dataclasses
import io
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import requests, runs
from dualnet.generation import completion
from dualnet.text import ByteTokenizer, SentencePieceTokenizer, Vocabulary, train_tokenizer
from dualnet.text.pieces import words_in
from tests.checks import few_elsewhere, needed, once, small, strong

TEXT = ["the ship (a shore) sails, the ships\n", "don't share the shop\n"]
WORDS = Vocabulary(("<eos>", "<unk>", "the", "ship", "ships", "shore", "(", ",", "a"))
KINDS = ["bpe", "words", "bytes", "unigram", "word-piece", "characters", "sentencepiece"]
SIZES = {"bpe": 280, "unigram": 24, "word-piece": 36, "characters": None}


def model_of(kind, texts=TEXT, **settings):
    if kind in ("words", "bytes"):
        tokenizer = WORDS if kind == "words" else ByteTokenizer()
    elif kind == "sentencepiece":
        [library], file = needed("sentencepiece", "sentencepiece"), io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 9), model_writer=file, vocab_size=40,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        tokenizer = SentencePieceTokenizer(base64.b64encode(file.getvalue()).decode())
    else:
        tokenizer = train_tokenizer(texts, kind, size=SIZES[kind], **settings)
    return strong(small(tokenizer, "dual_lstm", units=8), scale=1.0)


class Reference:
    """Probabilities of words after a text, summed over all rows of tokens that spell them."""

    def __init__(self, model, before):
        self.model, tokenizer = model, model.vocabulary
        self.stream = [tokenizer.eos_id, *tokenizer.encode(before)]
        first = tokenizer.encode("a ship")[-1]
        begun = len(tokenizer.decode([first]))
        self.spelt = [tokenizer.decode([first, i])[begun:].encode() for i in range(len(tokenizer))]
        if tokenizer.kind in ("bytes", "bpe"):
            self.spelt = [*tokenizer.spelling]
        special = tokenizer.eos_id, tokenizer.unk_id
        self.spelt = [
            b"\n" if i in special or not piece else piece for i, piece in enumerate(self.spelt)
        ]
        letter = r"[^\W_]|['\u2019\ufffd]"
        shown = [piece.decode(errors="replace") for piece in self.spelt]
        self.ends = np.array([not re.match(letter, piece) for piece in shown])

    def next(self, ids):
        logits = ops.convert_to_numpy(self.model(np.array([[*self.stream, *ids]])))[0, -1]
        logits = logits.astype(float)
        return np.exp(logits - np.logaddexp.reduce(logits))

    def of_word(self, spelt, ids=()):
        """Return the probability of `spelt`, and of the end of the word."""
        p = self.next(ids)
        if not spelt:
            return p[self.ends].sum()
        parts = ((i, piece) for i, piece in enumerate(self.spelt) if spelt.startswith(piece))
        return sum(p[i] * self.of_word(spelt[len(piece) :], (*ids, i)) for i, piece in parts)

    def of_beginning(self, spelt, ids=()):
        """Return the probability of tokens that begin with `spelt`."""
        if not spelt:
            return 1.0
        p, total = self.next(ids), 0.0
        for i, piece in enumerate(self.spelt):
            if piece.startswith(spelt):
                total += p[i]
            elif spelt.startswith(piece):
                total += p[i] * self.of_beginning(spelt[len(piece) :], (*ids, i))
        return total


@pytest.mark.parametrize("text", ["a sh", "the ", "a (sh", "ship,", "", "ship\nt"])
@pytest.mark.parametrize("kind", few_elsewhere(KINDS))
def test_a_word_has_the_probability_of_all_its_spellings(kind, text, monkeypatch):
    for module in (requests, completion):
        monkeypatch.setattr(module, "BEAM", 100)
    monkeypatch.setattr(completion, "KEPT", 400)
    model = model_of(kind)
    before, begun, spelt, may_space = model.vocabulary.pieces.typed(text)
    assert text == before + " " * text.startswith(before + " ") + begun
    reference = Reference(model, before)
    mass = reference.of_beginning(spelt)

    def exact(word):
        left = spelt + word.encode()[len(begun) :]
        spaced = reference.of_word(b" " + left) if may_space else 0.0
        return (reference.of_word(left) + spaced) / mass

    found = dualnet.complete(model, text, k=100)
    assert all(word.startswith(begun) for word, _ in found)
    rtol = 1e-4 if kind in ("words", "characters") else 1e-2  # of many spellings, some are left out
    for word, probability in found[:4]:
        np.testing.assert_allclose(probability, exact(word), rtol=rtol)
    others = {*words_in(" ".join(TEXT)), "sh", "t", "s"} - {word for word, _ in found}
    others = {word for word in others if word.startswith(begun)} & {*model.vocabulary.words}
    assert all(exact(word) < found[:4][-1].probability for word in others)


def test_lists_say_which_joins_of_tokens_are_words():
    model = model_of("characters")
    every = [word for word, _ in dualnet.complete(model, "the sh", k=8)]
    assert len(every) == 8
    found = dualnet.complete(model, "the sh", k=8, words=["ship", every[3], every[5]])
    assert {every[3], every[5]} <= {word for word, _ in found} <= {every[3], every[5], "sh", "ship"}
    found = dualnet.complete(model, f"{every[3]} sh", k=8, words="ship", stop_words=["SHIP"])
    assert {word for word, _ in found} <= {every[3], "sh"}  # the text has one of them
    with pytest.raises(ValueError, match="`k` must be at most 8. Received: k=9"):
        dualnet.complete(model, "a", k=9)


def test_letters_that_are_typed_stay_as_they_are_where_text_is_lower_cased():
    model = model_of("bpe", lowercase=True)
    found = dualnet.complete(model, "THE Sh", words=["ship", "share"])
    assert found and {word for word, _ in found} <= {"Ship", "Share", "Shop", "Shore", "Sh"}


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
@pytest.mark.parametrize("text", ["Корабль плыв", "Ἡ ναῦς πλ", "जहाज़ चल", "السفينة تب", "배가 간"])
def test_words_of_other_scripts_begin_with_what_is_typed(kind, text):
    tokenizer = ByteTokenizer() if kind == "bytes" else train_tokenizer([text] * 9, kind, size=300)
    begun = text.split()[-1]
    assert tokenizer.pieces.typed(text).word == begun and words_in(text) == text.split()
    found = dualnet.complete(strong(small(tokenizer)), text, k=8)
    assert all(words_in(word) == [word] and word.startswith(begun) for word, _ in found)


def test_a_word_longer_than_any_is_no_error_whatever_its_letters():
    model = small(ByteTokenizer())
    for word in ("த" * 17, "ы" * 30, "a" * 60):
        assert all(found.startswith(word) for found, _ in dualnet.complete(model, f"the {word}"))


def test_a_completer_reads_a_text_once_and_answers_as_a_call_does():
    model = model_of("bpe")
    complete = dualnet.Completer(model)
    for text in ("the s", "the sh", "the ship sails, t", "the ship sails", "a", ""):
        for found, expected in zip(complete(text), dualnet.complete(model, text), strict=True):
            assert found.word == expected.word
            assert found.probability == pytest.approx(expected.probability, rel=1e-4)


def test_a_learner_completes_with_what_it_has_learnt():
    model = model_of("bpe")
    learner = dualnet.Learner(model, "output_bias", learning_rate=1.0)
    before = dualnet.complete(learner, "the s", k=1)
    assert before == dualnet.complete(model, "the s", k=1)
    for _ in range(60):
        learner.read("the ships\n")
    assert dualnet.complete(learner, "the s", k=1)[0].word == "ships" != before[0].word
    assert dualnet.complete(model, "the s", k=1) == before


@once
def test_training_writes_the_common_words_that_are_no_tokens(tmp_path):
    corpus = dualnet.corpora.load("python-reference", tokenizer="bpe:400")
    corpus = dataclasses.replace(corpus, train=corpus.train[:20_000], valid=corpus.valid[:400])
    settings = {"units": 4, "epochs": 1, "evaluate": False, "progress": False}
    run = dualnet.train("lstm", corpus, output=tmp_path / "run", **settings)
    words = (tmp_path / "run" / "words.txt").read_text("utf-8").split()
    tokens = corpus.vocabulary.pieces.words
    assert len(words) > 100 and words == sorted({*words}) and not tokens & {*words}
    counts = Counter(words_in(corpus.vocabulary.decode(corpus.train)))
    assert all(counts[word] > 1 and word[0].isalpha() for word in words)
    [first, *_] = [word for word in words if word.islower()]
    assert {first, first.capitalize()} <= runs.Run.open(run.folder).words == run.model.run.words


class Offers:
    """Stands in for a completer: offers the words of a table."""

    def __init__(self, table):
        self.table = table

    def __call__(self, text):
        return [completion.Completion(word, 0.1) for word in self.table.get(text, "").split()]


def test_keystrokes_counts_the_keys_of_a_writer_who_takes_a_word_when_it_is_offered(monkeypatch):
    table = {
        "": "a the",  # in the second place: one key instead of four
        "the s": "the ship",
        "the ship, s": "sails",  # no space follows
        "the ship, sails ": "on",  # one key instead of two
    }
    monkeypatch.setattr(completion, "Completer", lambda model, **settings: Offers(table))
    found = dualnet.keystrokes(model_of("words"), "the ship, sails on")
    # "the " 1 for 4, "ship" 2 for 4, ", " 2, "sails " 2 for 6, "on" 1 for 2.
    assert (found.characters, found.keys, found.words) == (18, 1 + 2 + 2 + 2 + 1, 4)
    assert found.saved == pytest.approx(10 / 18)
    assert found.recall == [[0.25, 0.5], [0.25, 0.5], [0, 0]]


def test_a_learner_knows_the_words_that_it_has_read(tmp_path):
    model = model_of("bpe")
    tokens, every = model.vocabulary.pieces.words, dict(dualnet.complete(model, "the sh", k=8))
    [joined, *_] = [word for word in every if word not in tokens]
    learner = dualnet.Learner(model, "output_bias", rule="sgd", learning_rate=0.01)
    model.run = SimpleNamespace(words=frozenset({"listed"}))
    assert joined not in dict(dualnet.complete(learner, "the sh", k=8))
    size = learner.size
    learner.read(f"{joined}, the xö listed\n")
    assert learner.words == {joined, "xö"} and learner.size == size + len(joined) + 3
    learner.save(tmp_path / "a.learner")
    again = dualnet.Learner.load(tmp_path / "a.learner", model)
    assert again.words == learner.words
    found = dualnet.complete(again, "the sh", k=8)
    assert joined in dict(found) and found == dualnet.complete(learner, "the sh", k=8)
    again.reset()
    assert not again.words


def test_a_learner_reads_what_was_typed():
    model = model_of("bpe")
    learner = dualnet.Learner(model, "output_bias", learning_rate=1.0)
    texts = ["the ships"] * 20
    once_typed, found = dualnet.keystrokes(model, texts), dualnet.keystrokes(learner, texts)
    assert found.characters == once_typed.characters == 180 and found.keys < once_typed.keys
    assert learner.tokens == 20 * len(model.vocabulary.encode("the ships\n"))


@once
def test_commands_offer_words_and_measure_keystrokes(cli, tmp_path):
    model = model_of("bpe")
    model.save(tmp_path / "model.keras")
    (tmp_path / "text.txt").write_text("".join(TEXT))
    run = f"{tmp_path}/model.keras"
    found = cli.json(f"complete {run} --text 'the sh' --k 2 --stop-words ship")["texts"][0]
    expected = dualnet.complete(model, "the sh", k=2, stop_words="ship")
    assert found["text"] == "the sh"
    assert [word["word"] for word in found["words"]] == [word for word, _ in expected]
    assert expected[0].word in cli(f"complete {run} --text 'the sh'")
    measured = cli.json(f"evaluate {run} --corpus {tmp_path}/text.txt --keystrokes 7")
    lines = ["the ship (a shore) sails, the ships"]
    assert measured["keys"] == dualnet.keystrokes(model, lines).keys and measured["words"] == 7
    dynamic = cli(f"evaluate {run} --corpus {tmp_path}/text.txt --keystrokes 9 --dynamic")
    assert "keys saved on 9 words of text whole" in dynamic
    assert "cannot be combined" in cli.refused(f"evaluate {run} --keystrokes 9 --top-k 2")
