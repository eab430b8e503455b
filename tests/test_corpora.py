import hashlib
import io
import tracemalloc
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from dualnet import corpora
from dualnet.corpora import Vocabulary, encoding, python_reference, sources
from dualnet.text import train_tokenizer
from tests.checks import once

pytestmark = once

TEXTS = {
    "train": "the cat sat\nthe dog sat\n\nthe end\n",
    "valid": "the cat\n",
    "test": "a dog sat",
}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """An empty cache; no other corpora of this machine, and no network."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.delenv("DUALNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))

    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no network in tests")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", refuse)
    return folder


def write(folder, texts=TEXTS, name="{split}.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / name.format(split=split)).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("name", ["{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens"])
def test_a_folder_is_read_line_by_line_with_eos(tmp_path, name):
    corpus = corpora.load(write(tmp_path / "mine", name=name), min_count=1)
    assert corpus.name == "mine"
    assert corpus.source == str(tmp_path / "mine")
    assert corpus.lowercase is False
    # By count, then first appearance; <unk> for the "a" of test, seen nowhere.
    expected = ("<eos>", "the", "sat", "cat", "dog", "end", "<unk>")
    assert corpus.vocabulary.words == expected
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert corpus.vocabulary.decode(corpus.test) == "<unk> dog sat\n"


def test_a_vocabulary_that_lower_cases_reads_a_text_in_lower_case(tmp_path):
    folder = write(tmp_path, {split: text.title() for split, text in TEXTS.items()})
    learnt = corpora.load(folder, lowercase=True, tokenizer="words")
    again = corpora.load(folder, vocabulary=learnt.vocabulary)
    assert again.lowercase and again.sha256 == learnt.sha256
    for split in corpora.SPLITS:
        np.testing.assert_array_equal(again.split(split), learnt.split(split))
    bpe = train_tokenizer(["the cat sat"], "bpe", size=265, lowercase=True)
    ids = corpora.load(folder, vocabulary=bpe).train
    np.testing.assert_array_equal(ids, bpe.encode(TEXTS["train"]))


def test_a_split_folder_is_read_without_hidden_files_and_what_is_left_out_is_named(tmp_path):
    for split in corpora.SPLITS:
        write(tmp_path / split, {"b": "cat\n", "A": "the\n"})
        (tmp_path / split / "C.TXT").write_text("sat\n")
        (tmp_path / split / "._b.txt").write_bytes(b"\0\xff")
    corpus = corpora.load(tmp_path)
    assert corpus.vocabulary.decode(corpus.train) == "the\nsat\ncat\n"
    (tmp_path / "valid" / "game.pgn").write_text("e4\n")
    (tmp_path / "valid" / "more").mkdir()
    with pytest.warns(UserWarning, match=r"only \.txt files are read.*game\.pgn, more"):
        corpora.load(tmp_path)


def test_lines_that_end_in_cr_alone_are_named(tmp_path):
    write(tmp_path, {split: text.replace("\n", "\r") for split, text in TEXTS.items()})
    for load in (
        lambda: corpora.load(tmp_path, tokenizer="bytes"),
        lambda: Vocabulary.load(tmp_path / "train.txt"),
    ):
        with pytest.raises(ValueError, match=r"train\.txt', whose lines end in CR alone.*tr "):
            load()


def test_eos_that_the_text_spells_at_line_ends_is_told(tmp_path):
    write(tmp_path, {split: text.replace("\n", " <eos> \n") for split, text in TEXTS.items()})
    with pytest.warns(UserWarning, match="spells <eos> at the end of a line") as caught:
        corpus = corpora.load(tmp_path, min_count=1)
    named = [str(warning.message).split("'")[1] for warning in caught]
    assert named == ["train", "valid"]  # no newline ends the text of test
    assert (corpus.train == corpus.vocabulary.eos_id).sum() == 8


@pytest.mark.parametrize("fractions", [(90, 5, 5), (10, 45, 45)])
@pytest.mark.parametrize("tokenizer", ["words", "bytes"])
def test_a_single_file_is_divided_between_documents(tmp_path, fractions, tokenizer):
    documents = [f"a{i}\nb{i}\n" + f"c{i}\n" * (i % 4) for i in range(60)]
    (tmp_path / "a.txt").write_text("\n \n".join(documents))
    settings = {"documents": "blank-line", "tokenizer": tokenizer, "fractions": fractions}
    corpus = corpora.load(tmp_path / "a.txt", **settings)
    for split in corpora.SPLITS:
        assert corpus.split(split)[-1] == corpus.vocabulary.eos_id
    if tokenizer == "bytes":
        texts = [corpus.vocabulary.decode(corpus.split(split)) for split in corpora.SPLITS]
        assert all(text.startswith("a") for text in texts)  # a document's first line
        assert "".join(texts).split() == "".join(documents).split()
    assert sum((corpus.split(s) == corpus.vocabulary.eos_id).sum() for s in corpora.SPLITS) == 60


@pytest.mark.slow
def test_a_file_of_many_lines_is_divided_in_little_memory(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\n" * 3_000_000)
    tracemalloc.start()
    files = sources.divided(tmp_path / "a.txt", (90, 5, 5))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24e6  # 32 bytes for each line were 96e6
    [valid] = files["valid"]
    assert (valid.start, valid.end) == (5_400_000, 5_700_000)


def test_only_a_newline_ends_a_line(tmp_path):
    text = "a\x0bb c\u2028d\x85e\x1cf\r\ng\n"
    corpus = corpora.load(write(tmp_path, dict.fromkeys(TEXTS, text)), min_count=1)
    assert corpus.vocabulary.decode(corpus.train) == "a b c d e f\ng\n"


def test_vocabulary_size_counts_eos_and_unk(tmp_path):
    corpus = corpora.load(write(tmp_path), vocabulary_size=4)
    # cat, dog and end are cut: <unk> comes as often as "the".
    assert corpus.vocabulary.words == ("<eos>", "the", "<unk>", "sat")
    assert corpus.vocabulary.decode(corpus.train) == "the <unk> sat\nthe <unk> sat\n\nthe <unk>\n"
    assert len(corpora.load(tmp_path, vocabulary_size=100, min_count=1).vocabulary) == 7


def test_words_have_an_unk_that_train_has_unless_all_are_asked_for(tmp_path):
    rare = corpora.load(write(tmp_path / "rare"), tokenizer="words")
    assert rare.vocabulary.words == ("<eos>", "the", "<unk>", "sat")
    assert rare.vocabulary.decode(rare.train) == "the <unk> sat\nthe <unk> sat\n\nthe <unk>\n"
    closed = write(tmp_path / "closed", dict.fromkeys(TEXTS, "a a b\na c c b\n"))
    for settings in ({"tokenizer": "words"}, {"vocabulary_size": 9}, {"min_count": 2}):
        with pytest.warns(UserWarning, match="at least 2 times. The rarest, 'c', is read as <unk>"):
            corpus = corpora.load(closed, **settings)
        assert corpus.vocabulary.decode(corpus.train) == "a a b\na <unk> <unk> b\n"
    whole = corpora.load(closed, min_count=1)
    assert whole.vocabulary.words == ("a", "b", "<eos>", "c", "<unk>")
    assert whole.vocabulary.unk_id not in whole.train
    prepared = {"train": "a b\n" * 200 + "<unk> b once\n", "valid": "a new\n", "test": "a\n"}
    prepared = corpora.load(write(tmp_path / "prepared", prepared))
    assert prepared.vocabulary.words == ("b", "<eos>", "a", "<unk>", "once")


@pytest.mark.parametrize(
    ("count", "units"), [(30, 257), (1500, 4 * 154), (300_000, 4 * 2190), (25_000_000, 32_000)]
)
def test_a_text_of_ones_own_is_read_as_bpe_that_suits_its_size(monkeypatch, tmp_path, count, units):
    text = write(tmp_path, {**TEXTS, "train": "It's 1 cat, not 2.\n" * 3})
    monkeypatch.setattr(encoding.Text, "size", lambda self, split: 16 * count)
    corpus = corpora.load(text)
    assert corpus.tokenizer == f"bpe:{units}" and corpus.vocabulary.loses == ""
    assert corpus.vocabulary.decode(corpus.test) == "a dog sat\n"
    assert "as byte-level BPE, which loses nothing" in corpus.note
    assert "For words: --tokenizer words." in corpus.note
    for settings in ({"tokenizer": "bpe:280"}, {"vocabulary": corpus.vocabulary}):
        assert corpora.load(text, **settings).note == ""


def test_a_text_is_prepared_if_a_word_in_a_thousand_is_unk(tmp_path):
    def kind(train):
        return corpora.load(write(tmp_path, {**TEXTS, "train": train})).vocabulary.kind

    assert kind("a b c d\n" * 199 + "a <unk> b c\n") == "words"
    assert kind("a b c d\n" * 300 + "a <unk> b c\n") == kind("a <unk>, <UNK> b\n") == "bpe"
    corpus = corpora.load(tmp_path, min_count=1)
    assert corpus.vocabulary.kind == "words" and corpus.note == ""


# --- errors --------------------------------------------------------------------------


def test_a_folder_must_exist(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"must exist.*nowhere"):
        corpora.load(tmp_path / "nowhere")
    monkeypatch.setenv("DUALNET_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="DUALNET_DATA must name an existing folder"):
        corpora.load("ptb")


def test_a_missing_or_empty_split_is_named_with_its_file(tmp_path):
    with pytest.raises(ValueError, match=r"not be empty.*valid\.txt"):
        corpora.load(write(tmp_path, {**TEXTS, "valid": ""}))
    (tmp_path / "valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"'valid'.*{tmp_path}.*ptb\.valid\.txt"):
        corpora.load(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("vocabulary_size", 1), ("min_count", 0)])
def test_bad_sizes_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be an integer.*{name}={value}"):
        corpora.load(write(tmp_path), **{name: value})
    with pytest.raises(ValueError, match=f"`{name}` is for words"):
        corpora.load(tmp_path, vocabulary=Vocabulary(("a",)), **{name: value})


# --- where a corpus is found ---------------------------------------------------------


def test_path_comes_before_the_environment_before_the_cache(tmp_path, monkeypatch, cache):
    in_cache = write(cache / "dualnet" / "ptb")
    assert corpora.load("ptb").source == str(in_cache)
    in_data = write(tmp_path / "data" / "ptb")
    monkeypatch.setenv("DUALNET_DATA", str(tmp_path / "data"))
    assert corpora.load("ptb").source == str(in_data)
    folder = write(tmp_path / "folder")
    corpus = corpora.load("ptb", path=folder)
    assert (corpus.name, corpus.source) == ("ptb", str(folder))


@pytest.mark.parametrize(
    ("name", "download", "reason"),
    [
        ("ptb", True, "could not be downloaded"),
        ("ptb", False, "may not be downloaded"),
        ("wikitext-103", True, "has no download"),
    ],
)
def test_without_text_and_network_the_error_names_the_way_out(name, download, reason):
    with pytest.raises(FileNotFoundError, match=rf"{reason}.*`path`.*DUALNET_DATA.*{name}/"):
        corpora.load(name, download=download)


def test_an_error_that_nests_others_is_shortened(monkeypatch):
    nested = requests.ConnectionError(
        "Max retries exceeded: " + "(Caused by NameResolutionError) " * 9
    )
    monkeypatch.setattr(requests, "get", Mock(side_effect=nested))
    with pytest.raises(FileNotFoundError, match=r"DUALNET_DATA.*Max retries exceeded\)\.$"):
        corpora.load("ptb")


def test_what_is_in_the_cache_under_other_names_is_not_fetched_again(cache):
    folder = write(cache / "dualnet" / "ptb", name="ptb.{split}.txt")
    assert corpora.load("ptb").source == str(folder)


def fake_web(monkeypatch, pages, mirrors):
    """Serve `pages`, bytes or a redirect, for corpus "ptb"; return the list of requests made."""
    made = []

    def answer(adapter, request, **settings):  # all of requests but the connection is at work
        made.append(request)
        page = pages.get(request.url)
        response = requests.Response()
        response.request, response.url, response.status_code = request, request.url, 200
        if page is None:
            response.status_code = 404
        elif isinstance(page, str):
            response.headers["Location"], response.status_code = page, 302
        response.raw = io.BytesIO(page if isinstance(page, bytes) else b"")
        return response

    hashes = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in TEXTS.items()}
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", answer)
    monkeypatch.setitem(sources.DOWNLOADS, "ptb", {"sha256": hashes, "mirrors": mirrors})
    return made


def pages_of(address, texts=TEXTS):
    return {address.format(split=split): text.encode() for split, text in texts.items()}


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_download_is_kept_in_the_cache(monkeypatch, cache, capfd):
    pages = {**pages_of("https://a/{split}"), "https://a/valid": "https://b/valid"}
    pages |= pages_of("https://b/{split}")
    made = fake_web(monkeypatch, pages, ("https://a/{split}",))
    corpus = corpora.load("ptb", min_count=1)
    assert corpus.source == str(cache / "dualnet" / "ptb")
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert [request.headers["User-Agent"] for request in made] == ["dualnet"] * 4
    corpora.load("ptb", min_count=1)
    assert len(made) == 4
    assert files_below(cache / "dualnet" / "ptb") == ["test.txt", "train.txt", "valid.txt"]
    assert capfd.readouterr() == ("", "")


def test_a_wrong_checksum_is_refused_and_the_next_mirror_tried(monkeypatch):
    wrong = pages_of("https://a/{split}", {**TEXTS, "train": "another text\n"})
    pages = {**wrong, **pages_of("https://b/{split}")}
    made = fake_web(monkeypatch, pages, ("https://a/{split}", "https://b/{split}"))
    corpus = corpora.load("ptb", min_count=1)
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert [request.url for request in made][:2] == ["https://a/train", "https://b/train"]


MEMBER = "https://a/all.zip#inside/{split}.tokens"


def zipped(texts):
    """Return the archive that MEMBER asks for."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for split, text in texts.items():
            file.writestr(f"inside/{split}.tokens", text)
        file.writestr("../../evil", "evil")
    return archive.getvalue()


def test_an_archive_is_fetched_once_and_nothing_but_the_text_is_kept(monkeypatch, cache):
    pages = {"https://a/broken.zip": b"no archive", "https://a/all.zip": zipped(TEXTS)}
    mirrors = (MEMBER.replace("all", "broken"), MEMBER)
    made = fake_web(monkeypatch, pages, mirrors)
    corpus = corpora.load("ptb", min_count=1)
    assert corpus.vocabulary.decode(corpus.valid) == TEXTS["valid"]
    assert len(made) == 2
    kept = [f"dualnet/ptb/{split}.txt" for split in ("test", "train", "valid")]
    assert files_below(cache) == kept


@pytest.mark.parametrize(
    ("address", "page", "reason"),
    [
        ("https://a/{split}", b"another text\n", "does not match the known hash"),
        (MEMBER, b"PK\x03\x04 and no more", "not a zip file"),
        (MEMBER, zipped({"valid": "the cat\n"}), "no item named 'inside/train.tokens'"),
        ("https://a/{split}", "https://a/nowhere", "404 Client Error"),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing_behind(
    monkeypatch, cache, address, page, reason
):
    pages = {"https://a/train": page, "https://a/all.zip": page}
    made = fake_web(monkeypatch, pages, (address,))
    with pytest.raises(FileNotFoundError, match=rf"Give.*DUALNET_DATA.*{reason}"):
        corpora.load("ptb", min_count=1)
    assert all(request.url.startswith("https://a/") for request in made)
    assert files_below(cache) == []


# --- the embedded corpus -------------------------------------------------------------


def test_the_python_reference_is_a_small_language_modelling_task():
    corpus = corpora.load("python-reference")
    sizes = np.array([len(corpus.train), len(corpus.valid), len(corpus.test)])
    assert corpus.source == "embedded"
    assert 60_000 < sizes.sum() < 100_000
    np.testing.assert_allclose(sizes / sizes.sum(), [0.8, 0.1, 0.1], atol=0.02)
    assert 1_500 < len(corpus.vocabulary) < 3_000
    for tokens in (corpus.train, corpus.valid, corpus.test):
        assert 0.005 < np.mean(tokens == corpus.vocabulary.unk_id) < 0.10
    assert corpora.load("python-reference").sha256 == corpus.sha256


def test_the_splits_of_the_python_reference_share_next_to_no_sentence():
    texts = python_reference.split_texts()
    lines = {split: text.split("\n")[:-1] for split, text in texts.items()}
    for split in ("valid", "test"):
        long = [line for line in lines[split] if len(line.split()) >= 8]
        assert len(set(long) & set(lines["train"])) <= 0.02 * len(long)


# --- vocabulary ----------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=1, max_size=5).filter(
    lambda word: word.split() == [word] and word not in ("<eos>", "<unk>")
)
vocabularies = st.lists(words, unique=True, max_size=8).map(
    lambda drawn: Vocabulary(("<eos>", "<unk>", *drawn))
)


@given(st.data())
def test_decoded_ids_encode_to_themselves(data):
    vocabulary = data.draw(vocabularies)
    ids = data.draw(st.lists(st.integers(0, len(vocabulary) - 1)))
    encoded = vocabulary.encode(vocabulary.decode(ids))
    assert encoded.dtype == np.int32
    assert encoded.tolist() == ids


@given(vocabularies)
def test_a_saved_vocabulary_is_equal_and_hashes_alike(tmp_path_factory, vocabulary):
    path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == vocabulary
    assert hash(loaded) == hash(vocabulary)
    assert loaded.sha256 == vocabulary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_vocabulary_looks_up_both_ways():
    vocabulary = Vocabulary(("the", "<eos>", "<unk>"))
    assert (len(vocabulary), vocabulary.eos_id, vocabulary.unk_id) == (3, 1, 2)
    assert "the" in vocabulary and "cat" not in vocabulary
    assert vocabulary.id("cat") == 2 and vocabulary.word(0) == "the"
    assert vocabulary.encode("the cat\n\nthe").tolist() == [0, 2, 1, 1, 0]
    assert vocabulary.decode(np.array([0, 2, 1, 1, 0])) == "the <unk>\n\nthe"
    assert vocabulary != Vocabulary(("the", "<unk>", "<eos>"))


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "at least one"), (("a", "b", "a"), "different.*'a'"), (("a b",), "space.*'a b'")],
)
def test_bad_word_lists_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words)
