"""Texts in lists, columns and tables, and long tables of results."""

import numpy as np
import pytest

import dualnet
from dualnet.corpora.sentence_pairs import read_pairs
from dualnet.evaluation.words import words_of
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import needed, once, small

pytestmark = [once, pytest.mark.usefixtures("without_tracing")]

TEXTS = ["the cat", "the dog sleeps", ""]
WORDS = Vocabulary(("the", "cat", "dog", "sleeps", "<unk>", "<eos>"))


class Frame:
    """What a DataFrame has that tells it from a dict: `columns`, and an index."""

    def __init__(self, columns):
        self.columns, self._columns, self.index = [*columns], columns, [7, 8, 9]

    def __iter__(self):
        return iter(self.columns)

    def __getitem__(self, name):
        return self._columns[name]


@pytest.fixture(scope="module")
def model():
    return small(WORDS)


ASK = {
    "text": lambda *texts, **column: dualnet.score(*texts, **column),
    "texts": lambda *texts, **column: dualnet.surprisal(*texts, **column),
    "prompt": lambda *texts, **column: dualnet.generate(*texts, seed=1, max_tokens=2, **column),
}


@pytest.mark.parametrize("name", ASK)
@pytest.mark.parametrize("kind", [np.array, lambda texts: np.array(texts, object), tuple, iter])
def test_columns_of_texts_are_read_as_lists_are(model, name, kind):
    assert ASK[name](model, kind(TEXTS)) == ASK[name](model, TEXTS)


@pytest.mark.parametrize("name", ASK)
@pytest.mark.parametrize("table", [dict, Frame])
def test_of_a_table_the_named_column_is_read_and_none_is_guessed(model, name, table):
    columns = table({"item": [1, 2, 3], "sentence": TEXTS})
    assert ASK[name](model, columns, column="sentence") == ASK[name](model, TEXTS)
    message = rf"`{name}` must be texts, or a table with `column`.*\['item', 'sentence'\]"
    with pytest.raises(dualnet.ArgumentError, match=message):
        ASK[name](model, columns)
    with pytest.raises(dualnet.ArgumentError, match="`column` must be one of.*Did you mean 'sent"):
        ASK[name](model, columns, column="sentences")
    with pytest.raises(dualnet.ArgumentError, match="as text 1"):
        ASK[name](model, columns, column="item")
    with pytest.raises(dualnet.ArgumentError, match="`column` is for a table"):
        ASK[name](model, TEXTS, column="sentence")


def test_a_text_that_is_missing_is_told_by_its_place(model):
    with pytest.raises(dualnet.ArgumentError, match="Received: nan of type float as text 2"):
        dualnet.score(model, ["the cat", float("nan")])


@pytest.mark.slow  # `make test` does not install pandas
def test_long_tables_keep_the_labels_of_pandas(model):
    [pandas] = needed("pandas", "pandas")
    frame = pandas.DataFrame(
        {"item": [3, 4], "sentence": TEXTS[:2]}, index=pandas.Index(["a", "b"], name="trial")
    )
    table = dualnet.score(model, frame, column="sentence").to_frame()
    assert [*table.index] == [*"aabbb"] and table.index.name == "trial"
    [first, _] = dualnet.score(model, TEXTS[:2])
    np.testing.assert_allclose(table.log_probability[:2], first.log_probabilities)
    joined = frame.join(dualnet.surprisal(model, frame["sentence"]).to_frame())
    assert [*joined["item"]] == [3, 3, 4, 4, 4] and joined["surprisal"].min() > 0
    drawn = dualnet.generate(model, frame["sentence"], beam=2, n_best=2, max_tokens=1).to_frame()
    assert [*drawn.index] == [*"aabb"] and [*drawn["rank"]] == [1, 2, 1, 2]
    frame = pandas.DataFrame({"good": TEXTS[:2], "bad": ["cat the", "dog"]}, index=["x", "y"])
    pairs = dualnet.minimal_pairs(model, frame, column=("good", "bad")).to_frame()
    assert [*pairs.index] == ["x", "y"] and [*pairs["sentence_good"]] == TEXTS[:2]


@pytest.mark.slow  # `make test` does not install pandas
@pytest.mark.parametrize("settings", [{}, {"by_sentence": True}, {"batch_size": 2}])
def test_the_table_of_an_evaluation_has_the_loss_of_each_token_and_where_it_stands(model, settings):
    needed("pandas", "pandas")
    ids = np.array([0, 1, 5, 2, 3, 5])
    found = dualnet.evaluate(model, ids, **settings)
    table = found.to_frame()
    assert [*table.position] == [*range(len(ids) - found.tokens, len(ids))]
    assert np.exp(table.loss.mean()) == pytest.approx(found.perplexity, rel=1e-5)


@pytest.mark.slow  # `make test` does not install pyarrow
def test_arrays_and_tables_of_arrow_are_read_as_lists_are(model):
    [pa] = needed("parquet", "pyarrow")
    texts, pair = pa.array(TEXTS), [("the cat", "cat the")]
    for kind in (texts, texts.dictionary_encode(), pa.chunked_array([TEXTS[:2], TEXTS[2:]])):
        for table in (pa.table({"a": kind}), pa.record_batch({"a": texts})):
            assert dualnet.score(model, kind) == dualnet.score(model, TEXTS)
            assert dualnet.score(model, table, column="a") == dualnet.score(model, TEXTS)
    assert dualnet.score(model, pa.table({"a": pa.array([], pa.null())}), column="a") == []
    pairs = pa.table({"good": ["the cat"], "bad": ["cat the"]})
    found, expected = read_pairs(pairs, ["good", "bad"]), read_pairs(pair)
    assert [(one.good, one.bad) for one in found] == [(one.good, one.bad) for one in expected]
    with pytest.raises(dualnet.ArgumentError, match=r"of \['a'\].*Did you mean 'a'"):
        dualnet.score(model, table, column="ab")
    with pytest.raises(dualnet.ArgumentError, match="must name one column"):
        dualnet.score(model, pa.table([texts, texts], names=["a", "a"]), column="a")


def test_without_pandas_a_table_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r"dualnet\[pandas\]"):
        dualnet.score(model, TEXTS).to_frame()
    with pytest.raises(ImportError, match=r"dualnet\[pandas\]"):
        dualnet.evaluate(model, np.arange(4)).to_frame()


# --- minimal pairs


def test_pairs_may_be_tuples_objects_or_tables():
    good, bad = ["the cat", "the dog"], ["cat the", "dog the"]
    objects = [dict(sentence_good=one, sentence_bad=two) for one, two in zip(good, bad)]
    expected = read_pairs(objects)
    assert read_pairs([*zip(good, bad)]) == read_pairs(np.array([good, bad]).T) == expected
    assert read_pairs(Frame({"sentence_good": good, "sentence_bad": bad})) == expected
    table = {"UID": ["a", "b"], "ok": good, "no": bad}
    assert [pair.uid for pair in read_pairs(table, ("ok", "no"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("pairs", "column", "message"),
    [
        ({"good": ["a"], "bad": ["b"]}, None, "`column` must be one of .*'good', 'bad'"),
        ([("a", "b", "c")], None, "Each pair must be a JSON object or a tuple of two"),
    ],
)
def test_pairs_that_cannot_be_told_apart_are_refused(pairs, column, message):
    with pytest.raises(ValueError, match=message):
        read_pairs(pairs, column)


# --- punctuation


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Well," (I) don\'t know.\n', ['"', "Well", ',"', "(", "I", ")", "don't", "know", ".",
                                       "<eos>"]),
        ("... -- 3.5 $5", ["...", "--", "3.5", "$5"]),
        ("a.\n\nb", ["a", ".", "<eos>", "<eos>", "b"]),
    ],
)  # fmt: skip
def test_punctuation_is_split_off_on_request(text, words):
    found = words_of(ByteTokenizer(), text, split_punctuation=True)
    assert [*found.words] == words
    whole = words_of(ByteTokenizer(), text)
    totals = [found.sums(np.ones(len(found.ids))).sum(), whole.sums(np.ones(len(whole.ids))).sum()]
    assert totals[0] == totals[1] == len(found.ids)


def test_the_surprisal_of_a_word_and_its_mark_adds_up():
    model = small(train_tokenizer(["the cat. the dog."], "bpe", size=262))
    whole = dualnet.surprisal(model, "the cat.", words=True)
    split = dualnet.surprisal(model, "the cat.", words=True, split_punctuation=True)
    assert [record["token"] for record in split] == ["the", "cat", "."]
    total = split[1]["surprisal"] + split[2]["surprisal"]
    assert total == pytest.approx(whole[1]["surprisal"], rel=1e-4)
    with pytest.raises(dualnet.ArgumentError, match="`split_punctuation` needs words=True"):
        dualnet.surprisal(model, "the cat.", split_punctuation=True)
