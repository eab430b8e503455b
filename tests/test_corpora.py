import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
import urllib.response
import zipfile
from email.message import Message

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet import corpora
from dualnet.corpora import Vocabulary, python_reference, sources

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
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", refuse)
    return folder


def write(folder, texts=TEXTS, name="{split}.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / name.format(split=split)).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("name", ["{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens"])
def test_a_folder_is_read_line_by_line_with_eos(tmp_path, name):
    corpus = corpora.load(write(tmp_path / "mine", name=name))
    assert corpus.name == "mine"
    assert corpus.source == str(tmp_path / "mine")
    assert corpus.lowercase is False
    # By count, then first appearance; <unk> for the "a" of test, seen nowhere.
    expected = ("<eos>", "the", "sat", "cat", "dog", "end", "<unk>")
    assert corpus.vocabulary.words == expected
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert corpus.vocabulary.decode(corpus.test) == "<unk> dog sat\n"


def test_only_a_newline_ends_a_line(tmp_path):
    text = "a\x0bb c\u2028d\x85e\x1cf\r\ng\n"
    corpus = corpora.load(write(tmp_path, dict.fromkeys(TEXTS, text)))
    assert corpus.vocabulary.decode(corpus.train) == "a b c d e f\ng\n"


def test_vocabulary_size_counts_eos_and_unk(tmp_path):
    corpus = corpora.load(write(tmp_path), vocabulary_size=4)
    # cat, dog and end are cut: <unk> comes as often as "the".
    assert corpus.vocabulary.words == ("<eos>", "the", "<unk>", "sat")
    assert corpus.vocabulary.decode(corpus.train) == "the <unk> sat\nthe <unk> sat\n\nthe <unk>\n"
    assert len(corpora.load(tmp_path, vocabulary_size=7).vocabulary) == 7
    assert len(corpora.load(tmp_path, vocabulary_size=100).vocabulary) == 7


def test_min_count_cuts_rare_words_but_never_eos(tmp_path):
    corpus = corpora.load(write(tmp_path), min_count=3)
    assert set(corpus.vocabulary.words) == {"<eos>", "the", "<unk>"}
    same = write(tmp_path / "b", dict.fromkeys(TEXTS, "a a\n"))  # nothing needs <unk>
    assert corpora.load(same, min_count=2).vocabulary.words == ("a", "<eos>")


def test_lowercase_merges_words_in_the_text_and_in_what_is_read_later(tmp_path):
    folder = write(tmp_path, dict.fromkeys(TEXTS, "The the THE\n"))
    plain, lower = corpora.load(folder), corpora.load(folder, lowercase=True)
    assert len(plain.vocabulary) == 4 and lower.vocabulary.words == ("the", "<eos>")
    assert plain.sha256 != lower.sha256
    words = lower.vocabulary
    np.testing.assert_array_equal(words.encode("The\n"), words.encode("the\n"))
    assert Vocabulary(words.words) != words
    words.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt", lowercase=True) == words


# --- errors --------------------------------------------------------------------------


def test_a_folder_must_exist(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"must exist.*nowhere"):
        corpora.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"must exist.*nowhere"):
        corpora.load("ptb", path=tmp_path / "nowhere")
    monkeypatch.setenv("DUALNET_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="DUALNET_DATA must name an existing folder"):
        corpora.load("ptb")


def test_a_missing_or_empty_split_is_named_with_its_file(tmp_path):
    with pytest.raises(ValueError, match=r"not be empty.*valid\.txt"):
        corpora.load(write(tmp_path, {**TEXTS, "valid": ""}))
    (tmp_path / "valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"'valid'.*{tmp_path}.*ptb\.valid\.txt"):
        corpora.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary_size", 1), ("vocabulary_size", 9.0), ("min_count", 0), ("min_count", True)],
)
def test_bad_sizes_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be an integer.*{name}={value}"):
        corpora.load(write(tmp_path), **{name: value})
    with pytest.raises(ValueError, match="`vocabulary` fixes the words"):
        corpora.load(tmp_path, vocabulary=Vocabulary(("a",)), **{name: value})


def test_path_goes_with_a_name_only_and_an_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'wikitext-2'"):
        corpora.load("wikitext2")
    for name in ("python-reference", str(write(tmp_path))):
        with pytest.raises(ValueError, match="`path` requires one of"):
            corpora.load(name, path=tmp_path)


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
        ("ptb", True, "no network in tests"),
        ("ptb", False, "may not be downloaded"),
        ("wikitext-103", True, "has no download"),
    ],
)
def test_without_text_and_network_the_error_names_the_way_out(name, download, reason):
    with pytest.raises(FileNotFoundError, match=rf"{reason}.*`path`.*DUALNET_DATA.*{name}/"):
        corpora.load(name, download=download)


def fake_web(monkeypatch, pages, mirrors):
    """Serve `pages`, bytes or a redirect, for corpus "ptb"; return the list of requests made."""
    requests = []

    def answer(handler, request):  # all of urllib but the connection is at work
        requests.append(request)
        page, headers, code = pages.get(request.full_url, b"<h1>Oh no</h1>"), Message(), 200
        if isinstance(page, str):
            headers["Location"], page, code = page, b"", 302
        elif request.full_url not in pages:
            code = 404
        response = urllib.response.addinfourl(io.BytesIO(page), headers, request.full_url, code)
        response.msg = http.client.responses[code]
        return response

    hashes = {split: hashlib.sha256(text.encode()).hexdigest() for split, text in TEXTS.items()}
    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", answer)
    monkeypatch.setitem(sources.DOWNLOADS, "ptb", sources.Download(hashes, mirrors))
    return requests


def pages_of(address, texts=TEXTS):
    return {address.format(split=split): text.encode() for split, text in texts.items()}


def test_a_download_is_kept_in_the_cache(monkeypatch, cache):
    moved = {"https://a/valid": "https://b/valid"}  # a redirect over https is followed
    pages = {**pages_of("https://b/{split}"), **pages_of("https://a/{split}"), **moved}
    requests = fake_web(monkeypatch, pages, ("https://a/{split}",))
    corpus = corpora.load("ptb")
    assert corpus.source == str(cache / "dualnet" / "ptb")
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert [request.get_header("User-agent") for request in requests] == ["dualnet"] * 4
    corpora.load("ptb")
    assert len(requests) == 4
    assert files_below(cache / "dualnet" / "ptb") == ["test.txt", "train.txt", "valid.txt"]


def test_a_wrong_checksum_is_refused_and_the_next_mirror_tried(monkeypatch):
    wrong = pages_of("https://a/{split}", {**TEXTS, "train": "another text\n"})
    pages = {**wrong, **pages_of("https://b/{split}")}
    requests = fake_web(monkeypatch, pages, ("https://a/{split}", "https://b/{split}"))
    corpus = corpora.load("ptb")
    assert corpus.vocabulary.decode(corpus.train) == TEXTS["train"]
    assert [request.full_url for request in requests][:2] == ["https://a/train", "https://b/train"]


MEMBER = "https://a/all.zip#inside/{split}.tokens"


def zipped(texts, compression=zipfile.ZIP_DEFLATED):
    """Return the archive that MEMBER asks for."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as file:
        for split, text in texts.items():
            file.writestr(f"inside/{split}.tokens", text)
    return archive.getvalue()


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_archive_is_fetched_once(monkeypatch):
    pages = {"https://a/broken.zip": b"no archive", "https://a/all.zip": zipped(TEXTS)}
    mirrors = (MEMBER.replace("all", "broken"), MEMBER)
    requests = fake_web(monkeypatch, pages, mirrors)
    corpus = corpora.load("ptb")
    assert corpus.vocabulary.decode(corpus.valid) == TEXTS["valid"]
    assert len(requests) == 2


def test_an_archive_never_writes_outside_the_cache(tmp_path, monkeypatch):
    cache = tmp_path / "deep" / "in" / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    archive = io.BytesIO(zipped(TEXTS))
    with zipfile.ZipFile(archive, "a") as file:
        for name in ("../../evil", "../ptb/train.txt", str(tmp_path / "evil"), "ptb/valid.txt"):
            file.writestr(name, "evil")
    fake_web(monkeypatch, {"https://a/all.zip": archive.getvalue()}, (MEMBER,))
    assert corpora.load("ptb").source == str(cache / "dualnet" / "ptb")
    assert files_below(tmp_path) == [
        f"deep/in/cache/dualnet/ptb/{split}.txt" for split in ("test", "train", "valid")
    ]


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_zip_bomb_is_refused_and_an_endless_page_read_no_further(monkeypatch, cache, compression):
    fetch = sources._fetch
    bomb = zipped({**TEXTS, "train": "a" * 100_001}, compression)
    fake_web(monkeypatch, {"https://a/all.zip": bomb}, (MEMBER,))
    monkeypatch.setattr(sources, "MAX_DOWNLOAD_BYTES", 100_000)
    monkeypatch.setattr(sources, "_fetch", lambda address: bomb)  # however large it is itself
    with pytest.raises(
        FileNotFoundError, match=r"train\.tokens has more than 100000 bytes.*DUALNET"
    ):
        corpora.load("ptb")
    monkeypatch.setattr(sources, "_fetch", fetch)
    fake_web(monkeypatch, {"https://a/train": b"a" * 100_001}, ("https://a/{split}",))
    with pytest.raises(FileNotFoundError, match="more than 100000 bytes"):
        corpora.load("ptb")
    assert files_below(cache) == []


def test_any_damaged_archive_ends_in_one_kind_of_error():
    text = "the cat sat\n" * 9
    archive = zipped({"train": text})
    for i in range(len(archive)):
        for bits in (1, 0xFF):
            damaged = archive[:i] + bytes([archive[i] ^ bits]) + archive[i + 1 :]
            try:
                data = sources._member(damaged, "inside/train.tokens")
            except OSError:
                continue
            assert data == text.encode()  # a date, say, was damaged
    far = io.BytesIO()
    with zipfile.ZipFile(far, "w") as file:
        file.writestr("inside/train.tokens", text)
        file.infolist()[0].header_offset = 2**63  # no file is so long
    with pytest.raises(OSError, match="not the expected archive"):
        sources._member(far.getvalue(), "inside/train.tokens")
    with pytest.raises(OSError, match="not the expected archive.*no item named 'other'"):
        sources._member(archive, "other")


def lying_archive():
    """Return an archive that claims to be smaller than it is."""
    size, claimed = (100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    archive = zipped({"train": "a" * 100_000})
    assert archive.count(size) == 2  # in the header of the member, and in the list of members
    return archive.replace(size, claimed)


@pytest.mark.parametrize(
    ("address", "page", "reason"),
    [
        ("https://a/{split}", b"another text\n", "train file has another sha256"),
        ("https://a/{split}", b"", "train file has another sha256"),
        (MEMBER, b"PK\x03\x04 and no more", "not the expected archive"),
        ("https://a/{split}", "file:///etc/hostname", "not allowed"),
        ("https://a/{split}", "ftp://a/train", "ftp://a/train is not an https address"),
        ("https://a/{split}", "http://a/train", "http://a/train is not an https address"),
        ("https://a/{split}", "https://[", "Invalid IPv6 URL"),
        ("https://a/{split}", "https://a/nowhere", "HTTP Error 404"),
        ("http://a/{split}", b"", "http://a/train is not an https address"),
        ("file:///{split}.txt", b"", "file:///train.txt is not an https address"),
        (MEMBER, lying_archive(), "not the expected archive.*CRC"),
        (MEMBER, zipped(TEXTS, zipfile.ZIP_BZIP2), "compressed by method 12"),
        (MEMBER, zipped(TEXTS, zipfile.ZIP_LZMA), "compressed by method 14"),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing_behind(
    monkeypatch, cache, address, page, reason
):
    pages = {"https://a/train": page, "https://a/all.zip": page}
    requests = fake_web(monkeypatch, pages, (address,))
    with pytest.raises(FileNotFoundError, match=rf"could not be downloaded.*{reason}.*DUALNET"):
        corpora.load("ptb")
    assert all(request.full_url.startswith("https://a/") for request in requests)
    assert files_below(cache) == []


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        Vocabulary(("a",)).save(tmp_path / "words.txt")
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("It doesn't count the list's 3 items.", ["it does n't count the list 's N items ."]),
        ('The "len()" of x. It is 2.', ['the " len ( ) " of x .', "it is N ."]),
        ("Right-hand a.b names, e.g. sys.path", ["right-hand a.b names , e.g . sys.path"]),
    ],
)
def test_a_paragraph_becomes_sentences_in_penn_treebank_words(paragraph, expected):
    assert list(python_reference._sentences(paragraph)) == expected


def test_rules_of_grammar_and_ruled_lines_are_no_text():
    text = "A title\n*******\n\n   rule ::= a\n\n1. This *is* text\n   in two rows."
    assert list(python_reference._paragraphs(text)) == ["A title", "This is text in two rows."]


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
    assert vocabulary.id("the") == 0 and vocabulary.id("cat") == 2
    assert vocabulary.word(0) == "the"
    assert vocabulary.encode("the cat\n\nthe").tolist() == [0, 2, 1, 1, 0]
    assert vocabulary.decode(np.array([0, 2, 1, 1, 0])) == "the <unk>\n\nthe"
    assert vocabulary != Vocabulary(("the", "<unk>", "<eos>"))
    with pytest.raises(AttributeError):
        vocabulary.words = ("b",)


def test_words_and_ids_that_a_vocabulary_does_not_know_are_named():
    vocabulary = Vocabulary(("the", "<eos>"))
    for look_up in (vocabulary.id, vocabulary.encode):
        with pytest.raises(ValueError, match="no <unk>.*'cat'"):
            look_up("cat")
    for id in (-1, 2):
        with pytest.raises(ValueError, match=f"from 0 to 1. Received: id={id}"):
            vocabulary.decode([0, id])


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "at least one"), (("a", "b", "a"), "'a' at 0 and at 2"), (("a b",), "white space")],
)
def test_bad_word_lists_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words)
