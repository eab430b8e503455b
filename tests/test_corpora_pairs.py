"""Corpora of pairs, and their batches."""

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet import corpora
from dualnet.corpora import PairSplit
from dualnet.corpora.number_words import number_words
from dualnet.corpora.pair_batches import PairBatches
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import once

pytestmark = once

EN = {"train": "a dog\n\nthe cat sat\na cat", "valid": "a dog\n", "test": "\nthe bird\n"}
DE = {
    "train": "ein Hund\nnichts\ndie Katze saß\neine Katze\n",
    "valid": "\n",
    "test": "leer\nder Vogel\n",
}


@pytest.fixture(scope="module")
def numbers():
    return corpora.load_pairs("numbers")


def write(folder, stems=("train", "val", "test_2016"), names=("en", "de"), texts=(EN, DE)):
    folder.mkdir(exist_ok=True)
    for name, sides in zip(names, texts):
        for stem, text in zip(stems, sides.values()):
            (folder / f"{stem}.{name}").write_text(text, "utf-8")
    return folder


def load(folder, **settings):
    return corpora.load_pairs(folder, **{"tokenizer": "words", **settings})


# --- reading


def test_a_folder_is_read_and_train_alone_loses_pairs(tmp_path):
    corpus = load(write(tmp_path), max_tokens=2)
    assert [len(corpus.split(split)) for split in corpora.SPLITS] == [2, 1, 2]
    assert (corpus.train.empty, corpus.train.too_long) == (1, 1)
    assert corpus.train.source_lines == ("a dog", "a cat")
    assert corpus.train.target_lines == ("ein Hund", "eine Katze")
    assert corpus.valid.target_lines == ("",) and not len(corpus.valid.target(0))
    assert corpus.test.source_lines == ("", "the bird") and corpus.test.empty == 0
    assert corpus.joint and "sat" in corpus.source_vocabulary  # learnt before pairs are dropped
    assert "bird" not in corpus.source_vocabulary and "nichts" in corpus.source_vocabulary
    assert corpus.test.source(1).tolist() == corpus.source_vocabulary.encode("the bird").tolist()
    assert repr(corpus) == (
        f"PairCorpus({tmp_path.name!r}, en-de, train=2, valid=1, test=2, vocabulary=14)"
    )


@pytest.mark.parametrize("tokenizer", ["bpe:300", "words", "characters", "bytes", "unigram:40"])
@pytest.mark.parametrize("joint", [True, False])
def test_ids_of_every_tokeniser_decode_to_the_lines(tmp_path, tokenizer, joint):
    corpus = load(write(tmp_path), tokenizer=tokenizer, joint=joint)
    assert corpus.joint == (joint or tokenizer == "bytes")  # which are the same for any text
    for k, (source, target) in enumerate(zip(corpus.train.source_lines, corpus.train.target_lines)):
        assert corpus.source_vocabulary.decode(corpus.train.source(k)) == source
        assert corpus.target_vocabulary.decode(corpus.train.target(k)) == target
    if not corpus.joint and tokenizer != "bpe:300":
        assert "Hund" not in "".join(corpus.source_vocabulary)
    assert corpus.source_vocabulary.unk_id is not None or tokenizer in ("bpe:300", "bytes")


def test_each_side_may_have_its_own_tokeniser(tmp_path):
    path = tmp_path / "tokenizer.JSON"
    train_tokenizer(["der Hund"], "characters").save(path)
    corpus = load(write(tmp_path), tokenizer=(ByteTokenizer(), path))
    assert corpus.tokenizer == ("bytes", str(path))
    assert len(corpus.source_vocabulary) == 257 and corpus.target_vocabulary.kind == "characters"
    again = load(tmp_path, tokenizer=(corpus.source_vocabulary, corpus.target_vocabulary))
    assert (again.train.target_ids == corpus.train.target_ids).all()
    assert load(tmp_path, tokenizer=[ByteTokenizer(), ByteTokenizer()]).joint


def test_lowercase_is_for_the_ids_alone(tmp_path):
    corpus = load(write(tmp_path), lowercase=True)
    assert "hund" in corpus.target_vocabulary and "Hund" not in corpus.target_vocabulary
    assert corpus.train.target_lines[0] == "ein Hund" and corpus.lowercase
    again = load(tmp_path, tokenizer=(corpus.source_vocabulary, corpus.target_vocabulary))
    assert again.lowercase and np.array_equal(again.test.target_ids, corpus.test.target_ids)
    cased = load(tmp_path).vocabulary
    with pytest.raises(ValueError, match="`tokenizer` must lower-case both sides"):
        load(tmp_path, tokenizer=(corpus.source_vocabulary, cased))


@pytest.mark.parametrize(
    ("stems", "names"),
    [
        (("train", "val", "test_2016_flickr"), ("lc.norm.tok.en", "lc.norm.tok.de")),
        (("train", "valid", "test"), ("en.GZ", "DE")),
        (("train", "val", "test_2016_flickr"), ("lc.norm.tok.en.gz", "de")),
    ],
)
def test_pairs_are_found_under_the_names_that_they_are_distributed_with(tmp_path, stems, names):
    write(tmp_path / "plain")
    expected = load(tmp_path / "plain")
    write(tmp_path / "own", stems, names)
    for path in (tmp_path / "own").glob("*.[gG][zZ]"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    corpus = load(tmp_path / "own")
    assert (corpus.sha256, corpus.source, corpus.target) == (expected.sha256, "en", "de")


@pytest.mark.parametrize(
    ("header", "compressed"), [(None, False), ("en\tde", True), ("de\tid\ten", False)]
)
def test_pairs_may_be_tables(tmp_path, header, compressed):
    expected = load(write(tmp_path / "plain"))
    (tmp_path / "own").mkdir()
    for stem, source, target in zip(("train", "val", "test"), EN.values(), DE.values()):
        rows = zip(source.rstrip("\n").split("\n"), target.rstrip("\n").split("\n"))
        rows = [[de, "7", en] if header and "id" in header else [en, de] for en, de in rows]
        table = [header.split("\t"), *rows] if header else rows
        text = "".join("\t".join(row) + "\n" for row in table)
        data, end = (gzip.compress(text.encode()), ".gz") if compressed else (text.encode(), "")
        (tmp_path / "own" / f"{stem}.tsv{end}").write_bytes(data)
    assert load(tmp_path / "own").sha256 == expected.sha256


def test_a_single_table_is_divided(tmp_path):
    path = tmp_path / "mine.TSV"
    path.write_text("en\tde\n" + "".join(f"dog {i}\tHund {i}\n" for i in range(40)))
    corpus = load(path)
    assert corpus.name == "mine" and corpus.folder == str(path.resolve())
    assert [len(split) for split in (corpus.train, corpus.valid, corpus.test)] == [36, 2, 2]
    assert corpus.test.target_lines == ("Hund 38", "Hund 39")
    path.write_text("dog\tHund\n" * 5)
    with pytest.raises(ValueError, match=r"at least 20 lines .* with 5\. Give a folder"):
        load(path)


def test_one_split_can_be_read_alone_and_is_all_of_a_table(tmp_path):
    expected = load(write(tmp_path / "all")).test
    with pytest.raises(ValueError, match="`tokenizer` must be one that exists, where the split"):
        load(tmp_path / "all", splits=["test"])
    write(tmp_path / "one", ("test",), texts=({"test": EN["test"]}, {"test": DE["test"]}))
    (tmp_path / "table.tsv").write_text("\tleer\nthe bird\tder Vogel\n")
    for name in ("one", "table.tsv"):
        corpus = load(tmp_path / name, splits=["test"], tokenizer=ByteTokenizer())
        assert corpus.test.source_lines == expected.source_lines
        assert corpus.test.target_lines == expected.target_lines
        assert len(corpus.train) == len(corpus.valid) == 0
    with pytest.raises(ValueError, match="`split` must be one that holds pairs.*'train'"):
        corpus.batches("train")
    with pytest.raises(FileNotFoundError, match="must have the split 'valid', which is valid.en"):
        load(tmp_path / "one", splits=["valid"], tokenizer=ByteTokenizer())
    files = {"test": ("one/test.en", "one/test.de")}
    corpus = load(tmp_path, splits=["test"], files=files, tokenizer=ByteTokenizer())
    assert corpus.test.source_lines == expected.source_lines and [*corpus.files] == ["test"]


def test_tables_archives_and_names_that_cannot_be_read_are_named(tmp_path):
    for stem in ("train", "valid", "test"):
        (tmp_path / f"{stem}.tsv").write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match=r"separated by a tab\. Received: .*train\.tsv', line 2"):
        load(tmp_path)
    write(tmp_path, names=("lc.en", "de"))
    write(tmp_path, names=("tok.en", "de"))
    with pytest.raises(ValueError, match=r"`source` must name one file.*train\.lc\.en, train\.tok"):
        load(tmp_path)
    assert load(tmp_path, source="lc.en").train.source_lines[0] == "a dog"
    (tmp_path / "train.fr.gz").write_bytes(gzip.compress(b"une souris")[:-3])
    (tmp_path / "train.it.gz").write_bytes(gzip.compress(b"un cane\rniente\r"))
    for target, message in (
        ("fr", r"compressed by gzip must be intact.*train\.fr\.gz"),
        ("it", r"train\.it\.gz', whose lines end in CR alone"),
    ):
        settings = {"splits": ["train"], "source": "lc.en", "target": target}
        with pytest.raises(ValueError, match=message):
            load(tmp_path, **settings)


def test_headlines_are_found_by_their_names_or_given_as_files(tmp_path):
    names = ("article.txt", "title.txt")
    write(tmp_path, stems=("train", "valid", "test"), names=names)
    (tmp_path / "test.article.txt").rename(tmp_path / "input.txt")
    settings = {"source": "article.txt", "target": "title.txt"}
    with pytest.raises(FileNotFoundError, match="'test', which is test.article.txt and test.title"):
        load(tmp_path, **settings)
    files = {split: tuple(f"{split}.{name}" for name in names) for split in corpora.SPLITS}
    files["test"] = (tmp_path / "input.txt", "test.title.txt")
    corpus = load(tmp_path, source="article", target="title", files=files)
    assert corpus.test.source_lines == ("", "the bird") and corpus.source == "article"
    assert corpus.files["valid"] == ("valid.article.txt", "valid.title.txt")
    (tmp_path / "input.txt").rename(tmp_path / "test.article.txt")
    assert load(tmp_path, **settings).sha256 == corpus.sha256


def test_the_hash_is_that_of_the_lines(tmp_path):
    corpus = load(write(tmp_path))
    assert load(tmp_path, tokenizer="bytes", max_tokens=1000).sha256 == corpus.sha256
    (tmp_path / "train.de").write_bytes(DE["train"].replace("\n", "\r\n").encode("utf-8-sig"))
    assert load(tmp_path).sha256 == corpus.sha256  # the same lines
    (tmp_path / "test_2016.en").write_text("the bird\n\n")
    assert load(tmp_path).sha256 != corpus.sha256


@pytest.mark.parametrize(
    ("name", "data", "settings", "message"),
    [
        ("val.de", b"a\nb\n", {}, r"same number of lines.*1 of .*val.en' and 2 of .*val.de'\.$"),
        ("val.de", b"ab <eos>\n", {}, "must not contain <eos>.*'ab <eos>'"),
        ("val.de", None, {}, "the split 'valid', which is valid.en and valid.de, or val.en and"),
        ("", b"", {"target": "fr"}, "`source` and `target` name the sides.*train.de, train.en"),
        ("", b"", {"tokenizer": Vocabulary(("a", "<unk>"))}, "must contain <eos>"),
        ("train.de", b"\n\n\n\n", {}, "Train must have a pair.*4 with an empty side, 0 of"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(tmp_path, name, data, settings, message):
    write(tmp_path)
    if data is None:
        (tmp_path / name).unlink()
    elif name:
        (tmp_path / name).write_bytes(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(tmp_path, **settings)


def test_an_unknown_folder_is_told_of_numbers():
    with pytest.raises(FileNotFoundError, match=r"'number'\. Did you mean 'numbers'"):
        corpora.load_pairs("number")


# --- numbers


def test_numbers_are_disjoint_and_their_words_right(numbers):
    values = {
        split: [int(line.replace(" ", "")) for line in numbers.split(split).source_lines]
        for split in corpora.SPLITS
    }
    everything = list(itertools.chain(*values.values()))
    assert len({*everything}) == len(everything) == 5000
    for split, chosen in values.items():
        assert numbers.split(split).target_lines == tuple(map(number_words, chosen))
    assert len({number_words(n) for n in range(10_000)}) == 10_000
    assert {n: number_words(n) for n in (0, 13, 20, 85, 100, 2019, 9342)} == {
        0: "zero", 13: "thirteen", 20: "twenty", 85: "eighty five", 100: "one hundred",
        2019: "two thousand nineteen", 9342: "nine thousand three hundred forty two",
    }  # fmt: skip
    assert numbers.source_vocabulary.unk_id not in numbers.test.target_ids


# --- batches


def split_of(lengths):
    """Return pairs of the given lengths, whose ids are all different."""
    offsets = [np.cumsum([0, *side]) for side in zip(*lengths)]
    ids = [np.arange(1, ends[-1] + 1, dtype="int32") for ends in offsets]
    return PairSplit(("",) * len(lengths), ("",) * len(lengths), *ids, *offsets)


def rows_of(batch):
    """Return source and target of each row; inputs and padding must be right for them."""
    inputs, targets, weights = batch
    source, target = inputs["source"], inputs["target"]
    assert source.dtype == target.dtype == targets.dtype == np.int32
    assert target.shape == targets.shape == weights.shape and weights.dtype == np.float32
    rows = []
    for k in range(len(source)):
        words = source[k][source[k] != -1]
        assert (source[k, : len(words)] == words).all()
        length = int(weights[k].sum())
        assert (weights[k, :length] == 1).all() and targets[k, length - 1] == 0  # <eos>
        assert (targets[k, length:] == 0).all() and (target[k, length:] == -1).all()
        assert target[k, :length].tolist() == [0, *targets[k, : length - 1]]
        rows.append((tuple(words.tolist()), tuple(targets[k, : length - 1].tolist())))
    return rows


EOS = Vocabulary(("<eos>", "a"))
lengths = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)


@given(
    lengths,
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(1, 5)),
    st.sampled_from([1, 4]),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_pair_comes_once_within_the_bounds(
    lengths, tokens_per_batch, batch_size, multiple, shuffle, epoch
):
    pairs = split_of(lengths)
    settings = {
        "vocabulary": EOS,
        "tokens_per_batch": tokens_per_batch,
        "batch_size": batch_size,
        "pad_to_multiple_of": multiple,
        "shuffle": shuffle,
        "seed": 3,
    }
    batches = PairBatches(pairs, **settings)
    num_batches, batches.epoch = len(batches), epoch
    read = list(batches)
    again = PairBatches(pairs, **settings)
    again.epoch = epoch
    assert len(read) == num_batches == len(again)
    chosen = [k for i in range(len(batches)) for k in again.pairs_of(i)]
    assert sorted(chosen) == list(range(len(pairs)))
    expected = [(tuple(pairs.source(k)), tuple(pairs.target(k))) for k in chosen]
    assert list(itertools.chain(*map(rows_of, read))) == expected
    assert batches.num_tokens == sum(weights.sum() for _, _, weights in read)
    shapes = []
    for inputs, targets, _ in read:
        (rows, width), time = inputs["source"].shape, targets.shape[1]
        assert rows == 1 or rows * (width + time) <= tokens_per_batch
        assert rows <= (batch_size or rows) and width % multiple == time % multiple == 0
        shapes.append((width, time))
    for widths in zip(*shapes):  # Keras looks at the first two
        assert len({*widths}) == 1 or widths[0] != widths[1]


def test_epochs_differ_and_an_epoch_can_be_repeated(numbers):
    batches = numbers.batches("valid", tokens_per_batch=300, seed=1)
    first = [batches.pairs_of(i).tolist() for i in range(len(batches))]
    list(batches)
    batches.on_epoch_end()
    assert batches.epoch == 1
    second = [batches.pairs_of(i).tolist() for i in range(len(batches))]
    assert {*map(frozenset, first)} != {*map(frozenset, second)}  # not only their order
    batches.epoch = 0
    assert [batches.pairs_of(i).tolist() for i in range(len(batches))] == first
