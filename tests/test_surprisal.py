"""Surprisal by token and by word, with fixed and with adapting weights."""

import itertools
import math

import numpy as np
import pytest
import tokenizers
from keras import ops
from tokenizers import models, pre_tokenizers

import dualnet
from dualnet import zoo
from dualnet.adaptation import surprisals
from dualnet.evaluation.words import words_of
from dualnet.text import ByteTokenizer, Vocabulary, load_tokenizer, train_tokenizer
from tests.checks import assert_same, few_elsewhere, nll, once, small, strong, values

pytestmark = [once, pytest.mark.usefixtures("without_tracing")]

TEXT = "The cat, the dog.\nthe  Katze läuft \n"
TOKENIZERS = {
    "words": Vocabulary((*dict.fromkeys(TEXT.split()[:-1]), "<unk>", "<eos>")),
    "bytes": ByteTokenizer(),
    "bpe": train_tokenizer([TEXT], "bpe", size=270),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def model(request):
    """A small model with large weights: each token before changes what comes after."""
    return strong(small(TOKENIZERS[request.param], "dual_lstm"))


def log_p(model, text, temperature=1.0):
    """Return log2 p of a text and the entropies in bits, by one call of the model."""
    ids = np.append(model.vocabulary.eos_id, model.vocabulary.encode(text)).astype("int32")[None]
    logits = ops.convert_to_numpy(model(ids[:, :-1])).astype("float64") / temperature
    losses = nll(logits, ids[:, 1:])
    every = [nll(logits, np.full_like(ids[:, 1:], i)) for i in range(logits.shape[-1])]
    entropies = sum(np.exp(-loss) * loss for loss in every)
    return -losses.sum() / math.log(2), entropies[0] / math.log(2)


def column(records, name):
    return [record[name] for record in records]


@pytest.mark.slow
def test_the_surprisal_of_a_word_is_the_difference_of_two_calls_of_the_model(model):
    prefixes = ["", "The", "The cat,", "The cat, the", "The cat, the dog.", "The cat, the dog.\n"]
    expected = -np.diff([log_p(model, prefix)[0] if prefix else 0.0 for prefix in prefixes])
    records = dualnet.surprisal(model, prefixes[-1], words=True)
    assert column(records, "token") == ["The", "cat,", "the", "dog.", "<eos>"]
    assert column(records, "token_id") == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(column(records, "surprisal"), expected, rtol=1e-4, atol=1e-5)
    score = dualnet.score(model, prefixes[-1])
    assert score.whole_words == ("The", "cat,", "the", "dog.", "<eos>")
    bits = -score.whole_word_log_probabilities / math.log(2)
    np.testing.assert_allclose(bits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_tokens_have_the_surprisal_that_score_gives_and_the_entropy_of_their_distribution(model):
    lines = ["", *TEXT.splitlines(keepends=True), "the zebra"]
    records = dualnet.surprisal(model, lines, entropy=True, temperature=1.3)
    assert list(records[0]) == ["sentence_id", "token_id", "token", "surprisal", "entropy"]
    for sentence_id, line in enumerate(lines, start=1):
        score = dualnet.score(model, line, temperature=1.3)
        rows = [record for record in records if record["sentence_id"] == sentence_id]
        assert tuple(column(rows, "token")) == score.words
        assert column(rows, "token_id") == [*range(1, score.tokens + 1)]
        bits = -score.log_probabilities / math.log(2)
        np.testing.assert_allclose(column(rows, "surprisal"), bits, rtol=1e-4, atol=1e-5)
        if line:
            entropies = log_p(model, line, temperature=1.3)[1]
            np.testing.assert_allclose(column(rows, "entropy"), entropies, rtol=1e-4, atol=1e-4)
    of_words = dualnet.surprisal(model, lines, entropy=True, words=True, temperature=1.3)
    assert len(of_words) == 4 + 3 + 2 + 2 and of_words[-1]["token"] == "zebra"
    total = sum(column(of_words, "surprisal"))
    np.testing.assert_allclose(total, sum(column(records, "surprisal")), rtol=1e-4)


def test_entropies_are_read_in_pieces_of_bounded_size(model, monkeypatch):
    whole = dualnet.surprisal(model, [TEXT, "the"], entropy=True)
    monkeypatch.setattr(surprisals, "LOGITS", 9 * model.vocabulary_size)
    shapes = []
    logits = type(model.graph).logits

    def recorded(self, tokens, *arguments):
        shapes.append(tokens.shape)
        return logits(self, tokens, *arguments)

    monkeypatch.setattr(type(model.graph), "logits", recorded)
    pieces = dualnet.surprisal(model, [TEXT, "the"], entropy=True)
    assert shapes and all(math.prod(shape) <= 8 for shape in shapes)
    for name in ("surprisal", "entropy"):
        np.testing.assert_allclose(column(pieces, name), column(whole, name), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", few_elsewhere([None, "matrix:2", ["recurrent_matrix", "output_bias"]])
)
def test_adapting_has_the_total_of_dynamic_evaluation_by_sentence(model, weights):
    before = values(model)
    lines = TEXT.splitlines(keepends=True) * 2
    settings = {"rule": "sgd", "learning_rate": 0.1, "temperature": 1.2}
    text = model.vocabulary.encode("".join(lines))
    dynamic = dualnet.dynamic_evaluation(model, text, by_sentence=True, adapt=weights, **settings)
    records = dualnet.surprisal(model, [*lines, ""], adapt=True, adapt_weights=weights, **settings)
    assert_same(values(model), before)
    bits = math.log2(dynamic.perplexity) * dynamic.tokens
    np.testing.assert_allclose(sum(column(records, "surprisal")), bits, rtol=1e-5)
    static = dualnet.surprisal(model, lines, temperature=1.2)
    first = [record["surprisal"] for record in records if record["sentence_id"] == 1]
    np.testing.assert_allclose(first, column(static, "surprisal")[: len(first)], rtol=1e-6)
    gain = sum(column(static, "surprisal")) - bits
    assert gain > 0.1 if weights is None else abs(gain) > 0.01  # it has learnt


def test_adapted_weights_are_kept_where_asked_for():
    model = small(ByteTokenizer())
    before = values(model)
    dualnet.surprisal(model, "a b", adapt=True, keep=True)
    assert any((one != two).any() for one, two in zip(before, values(model)))


# --- where words end -----------------------------------------------------------------

TOKENS = [" ", "a", "b", " a", " b", "<eos>"]
BEGINNING = [0, 3, 4, 5]  # the tokens before which a word has ended


@pytest.fixture
def letters(tmp_path):
    """A model of six tokens, of which words of the letters a and b are made."""
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [(" ", "a"), (" ", "b")]))
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(" ?[ab]"), "isolated")
    library.save(str(tmp_path / "tokenizer.json"))
    return strong(small(load_tokenizer(tmp_path / "tokenizer.json"), "dual_lstm"))


def next_token(model, ids):
    """Return p of the tokens after `<eos>` and `ids`."""
    logits = ops.convert_to_numpy(model(np.array([[5, *ids]])))[0, -1].astype("float64")
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def chain(model, context, ids):
    """Return p of `ids` after `context`, one token at a time."""
    return math.prod(next_token(model, [*context, *ids[:k]])[i] for k, i in enumerate(ids))


def test_corrected_probabilities_of_all_words_sum_to_one(letters):
    context = letters.vocabulary.encode("ba a").tolist()
    boundary = next_token(letters, context)[BEGINNING].sum()
    total = 0.0
    for length in (1, 2, 3):
        for word in itertools.product("ab", repeat=length):
            text = "ba a " + "".join(word)
            [*_, last] = dualnet.surprisal(letters, text, words=True, bow_correction=True)
            ids = letters.vocabulary.encode(text).tolist()[len(context) :]
            assert len(ids) == length and last["token"] == text.split()[-1]
            ends = next_token(letters, context + ids)[BEGINNING].sum()
            expected = chain(letters, context, ids) * ends / boundary
            np.testing.assert_allclose(2 ** -last["surprisal"], expected, rtol=1e-4)
            total += expected
            if length == 3:  # and all words that go on
                total += chain(letters, context, ids) * (1 - ends) / boundary
    [*_, end] = dualnet.surprisal(letters, "ba a\n", words=True, bow_correction=True)
    assert end["token"] == "<eos>"
    np.testing.assert_allclose(
        2 ** -end["surprisal"], chain(letters, context, [5]) / boundary, 1e-4
    )
    spaces = next_token(letters, context)[0] / boundary  # a space that is no part of its token
    np.testing.assert_allclose(total + 2 ** -end["surprisal"] + spaces, 1, rtol=1e-4)


@pytest.mark.parametrize("adapt", [False, True])
def test_a_word_must_begin_after_eos_and_the_corrections_of_a_text_cancel(letters, adapt):
    text, settings = "ab b\nba", {"words": True, "adapt": adapt}
    plain = dualnet.surprisal(letters, [text, "a"], entropy=True, **settings)
    corrected = dualnet.surprisal(
        letters, [text, "a"], entropy=True, bow_correction=True, **settings
    )
    assert column(corrected, "entropy") == pytest.approx(column(plain, "entropy"), rel=1e-4)
    assert column(plain, "token") == ["ab", "b", "<eos>", "ba", "a"]
    ids = letters.vocabulary.encode(text).tolist()

    def bits(*place):
        return -math.log2(next_token(letters, ids[slice(*place)])[BEGINNING].sum())

    expected = [bits(2), bits(3) - bits(2), -bits(3), bits(None)]
    found = np.subtract(column(corrected, "surprisal"), column(plain, "surprisal"))
    np.testing.assert_allclose(found[:4], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("from_library", [False, True])
def test_words_that_are_tokens_need_no_correction_and_marks_exclude_it(from_library, tmp_path):
    tokenizer = TOKENIZERS["words"]
    if from_library:
        ids = {word: i for i, word in enumerate(tokenizer.words)}
        library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        library.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    model = strong(small(tokenizer, "dual_lstm"))
    plain, corrected = (
        column(dualnet.surprisal(model, TEXT + "zebra", words=True, bow_correction=b), "surprisal")
        for b in (False, True)
    )
    np.testing.assert_allclose(corrected, plain, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="`bow_correction` needs words=True"):
        dualnet.surprisal(model, TEXT, bow_correction=True)
    with pytest.raises(ValueError, match="cannot be combined with"):
        dualnet.surprisal(model, "a", words=True, split_punctuation=True, bow_correction=True)


# --- one reader for each participant -------------------------------------------------


def test_a_learner_reads_trials_in_their_order_each_from_the_zero_state(model):
    trials = ["the cat,", "the dog.\n", "the cat,"]
    static = dualnet.surprisal(model, trials, words=True)
    settings = {"rule": "sgd", "learning_rate": 1e-12, "cache": 0}
    still = dualnet.Learner(model, "connection", **settings).surprisal(trials, words=True)
    assert [{**row, "surprisal": 0} for row in still] == [{**row, "surprisal": 0} for row in static]
    np.testing.assert_allclose(column(still, "surprisal"), column(static, "surprisal"), rtol=1e-4)
    learner = dualnet.Learner(model, "connection", rule="sgd", learning_rate=0.1, cache=50)
    learnt = column(learner.surprisal(trials, words=True), "surprisal")
    assert sum(learnt[-2:]) < sum(column(static, "surprisal")[-2:])
    assert learner.tokens == sum(len(model.vocabulary.encode(trial)) for trial in trials)
    new_words = set() if model.vocabulary.kind == "words" else {"cat", "dog"}
    assert new_words <= learner.words  # as of `read`


def test_the_words_of_a_participant_keep_the_labels_of_the_trials(model):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": ["p2", "p1", "p2"], "text": ["the cat,", "the", "the"]})
    tables = []
    for _, trials in frame.groupby("who", sort=False):
        words = dualnet.Learner(model, "connection", learning_rate=0.1).surprisal(
            trials, column="text", words=True
        )
        tables.append(trials.join(words.to_frame()))
    table = pandas.concat(tables)
    assert table["who"].tolist() == ["p2", "p2", "p2", "p1"] and table.index.tolist() == [
        0,
        0,
        2,
        1,
    ]
    assert table["token"].tolist() == ["the", "cat,", "the", "the"]


# --- words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "starts"),
    [
        ("", (), []),
        (" \t", (" \t",), [0]),
        ("  a \n\nb  ", ("a", "<eos>", "<eos>", "b"), [0, 3, 5, 6]),
        ("é 猫\n", ("é", "猫", "<eos>"), [0, 2, 6]),
    ],
)
def test_white_space_belongs_to_the_word_after_it_and_at_the_end_to_the_last(text, words, starts):
    found = words_of(ByteTokenizer(), text)
    assert (found.words, found.starts.tolist()) == (words, starts)
    np.testing.assert_array_equal(found.ids, ByteTokenizer().encode(text))
    assert words_of(ByteTokenizer("file"), "one\n\nthree").words == ("one", "three")


def test_words_that_share_a_token_are_one_record(tmp_path):
    import tokenizers
    from tokenizers import models, pre_tokenizers

    units = ["a c", "at", " x", "<eos>"]
    library = tokenizers.Tokenizer(models.WordLevel({unit: i for i, unit in enumerate(units)}))
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("a c|at| x"), "isolated")
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    found = words_of(tokenizer, "a cat x\n")
    assert found.words == ("a", "cat", "x", "<eos>") and found.starts.tolist() == [0, 1, 2, 3]
    found = words_of(tokenizer, "a c x")
    assert found.words == ("a c", "x") and found.sums(np.array([1.0, 2.0])).tolist() == [1, 2]


def test_models_that_cannot_read_or_learn_sentences_are_refused():
    model = zoo.build("lstm", vocabulary_size=257, units=2)
    with pytest.raises(ValueError, match="`model` must be a LanguageModel with a vocabulary"):
        dualnet.surprisal(model, "a")
    model.vocabulary = ByteTokenizer()
    cached = dualnet.with_cache(model)
    with pytest.raises(ValueError, match="must be False for a model with a cache"):
        dualnet.surprisal(cached, "a", adapt=True)
    with pytest.raises(ValueError, match="`adapt_weights` must name weights of this model"):
        dualnet.surprisal(model, "a", adapt=True, adapt_weights="nothing")
    assert len(dualnet.surprisal(cached, "a")) == 1
