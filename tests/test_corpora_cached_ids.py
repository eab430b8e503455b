import errno
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet import _files, corpora
from dualnet.corpora import Vocabulary, cached_ids, encoding, sentence_batches, token_batches
from dualnet.corpora.corpus import load_whole
from dualnet.corpora.token_batches import TokenBatches
from dualnet.text import files, plain_text
from tests import test_corpora
from tests.checks import once

pytestmark = once

TEXTS = {**test_corpora.TEXTS, "train": "the cat sat\nThe dog sat\n\nthe end\n"}
SPLITS = tuple(TEXTS)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """The folder of the ids; every text is large, and is read in many pieces."""
    monkeypatch.delenv("DUALNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cached_ids, "LARGE_BYTES", 0)
    monkeypatch.setattr(sentence_batches, "CHUNK_TOKENS", 3)
    monkeypatch.setattr(files, "BLOCK_BYTES", 7)
    return tmp_path / "cache" / "dualnet" / "ids"


def write(folder, texts=TEXTS):
    return test_corpora.write(folder, texts)


def load(folder, **settings):
    """Load a corpus of all words, unless `settings` say otherwise."""
    return corpora.load(folder, **({} if "vocabulary" in settings else {"min_count": 1}) | settings)


def words_of(text):
    return text.replace("\n", " <eos> ").split()


def is_mapped(tokens):
    while isinstance(tokens, np.ndarray):
        if isinstance(tokens, np.memmap):
            return True
        tokens = tokens.base
    return False


@pytest.mark.parametrize("text", ["the cat sat\nThe dog sat\n\nthe end\n", "the cat"])
@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_a_whole_file_needs_no_line_or_document_to_divide_it(text, documents, tmp_path, cache):
    (tmp_path / "text.txt").write_text(text)
    vocabulary = Vocabulary(("<eos>", "<unk>", "the", "cat"), documents=documents)
    for _ in range(2):  # written, and read again
        corpus = load_whole(tmp_path / "text.txt", vocabulary)
        expected = vocabulary.encode(text)
        if not text.endswith("\n") or documents == "blank-line":
            expected = np.append(expected, 0)
        np.testing.assert_array_equal(corpus.test, expected)
        assert (len(corpus.train), len(corpus.valid), corpus.name) == (0, 0, "text")
        assert is_mapped(corpus.test) and len([*cache.iterdir()]) == 1


def check(corpus, texts=TEXTS, mapped=True):
    """Compare a corpus with what its text and vocabulary say."""
    digest = hashlib.sha256()
    for split in SPLITS:
        words = words_of(texts[split] + "\n" * (not texts[split].endswith("\n")))
        digest.update("".join(word + " " for word in words).encode() + b"\n")
        tokens = corpus.split(split)
        assert (tokens.dtype, tokens.shape) == (np.int32, (len(words),))
        assert tokens.tolist() == [corpus.vocabulary.id(word) for word in words]
        assert is_mapped(tokens) == mapped
    assert corpus.sha256 == digest.hexdigest()


def refuse_to_tokenise(monkeypatch):
    def fail(text):
        raise AssertionError("the text was tokenised")

    monkeypatch.setattr(encoding, "words_of", fail)


texts = st.fixed_dictionaries(
    {split: st.text("aAbΣé \n\t\u2028", min_size=1, max_size=40) for split in SPLITS}
)
options = st.one_of(
    st.fixed_dictionaries(
        {
            "lowercase": st.booleans(),
            "vocabulary_size": st.none() | st.integers(2, 6),
            "min_count": st.integers(1, 3),
        }
    ),
    st.just({"vocabulary": Vocabulary(("a", "<unk>", "<eos>", "aΣ"))}),
)


@pytest.mark.filterwarnings("ignore:Each word of train")
@given(texts, options)
@settings(max_examples=60)
def test_memory_mapped_ids_equal_those_in_memory(tmp_path_factory, texts, options):
    folder = write(tmp_path_factory.mktemp("text"), texts)
    first, again = (load(folder, **options) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_ids, "LARGE_BYTES", 1 << 20)
        patch.setattr(files, "BLOCK_BYTES", 1 << 20)
        expected = load(folder, **options)
    for mapped in (first, again):
        for split in SPLITS:
            np.testing.assert_array_equal(mapped.split(split), expected.split(split))
            assert is_mapped(mapped.split(split)) and not is_mapped(expected.split(split))
        for name in ("name", "source", "vocabulary", "sha256"):
            assert getattr(mapped, name) == getattr(expected, name)
        if "vocabulary" in options:
            assert mapped.vocabulary is options["vocabulary"]
    if not options.get("lowercase"):
        check(first, texts)


def test_a_second_load_reads_no_word(tmp_path, monkeypatch):
    load(write(tmp_path / "text"))
    with monkeypatch.context() as patch:
        refuse_to_tokenise(patch)
        check(load(tmp_path / "text"))
        check(load(write(tmp_path / "the same text")))
        for other in ({"lowercase": True}, {"min_count": 2}, {"vocabulary_size": 5}):
            with pytest.raises(AssertionError, match="tokenised"):
                load(tmp_path / "text", **other)


def test_small_and_embedded_texts_stay_in_memory(tmp_path, monkeypatch, cache):
    assert not is_mapped(corpora.load("python-reference").train)
    monkeypatch.setattr(cached_ids, "LARGE_BYTES", sum(map(len, TEXTS.values())))
    check(load(write(tmp_path / "text")), mapped=False)
    assert not cache.exists()


# --- damage --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["train.npy", "valid.npy", "test.npy", "vocabulary.txt", "ids.json"]
)
def test_damage_is_noticed_and_made_good(tmp_path, monkeypatch, cache, name):
    load(write(tmp_path / "text"))
    (path,) = cache.glob(f"*/{name}")
    whole = path.read_bytes()
    flipped = range(0, len(whole), 1 + len(whole) // 20)
    damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in flipped]
    for data in [*damaged, whole[: len(whole) // 2], whole[:-1], whole + b"\0", b"", b"{}", None]:
        path.write_bytes(data or b"")
        if data is None:
            path.unlink()
        check(load(tmp_path / "text"))
        with monkeypatch.context() as patch:  # it was written anew
            refuse_to_tokenise(patch)
            check(load(tmp_path / "text"))
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("split", SPLITS)
def test_another_text_has_other_ids(tmp_path, split):
    load(write(tmp_path / "text"))
    times = os.stat(tmp_path / "text" / f"{split}.txt")
    for text in (TEXTS[split].replace("a", "e", 1), TEXTS[split][:-1] + "s", TEXTS[split][:-2]):
        write(tmp_path / "text", {split: text})
        os.utime(tmp_path / "text" / f"{split}.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
        check(load(tmp_path / "text"), {**TEXTS, split: text})


class MakesFolder:
    """Makes a folder where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_opened_even_if_its_checksum_is_right(tmp_path, cache):
    load(write(tmp_path / "text"))
    (folder,) = cache.iterdir()
    data = pickle.dumps(MakesFolder(tmp_path / "unpickled"))
    (folder / "test.npy").write_bytes(data)
    description = json.loads((folder / "ids.json").read_text())
    del description["sha256"]
    description["files"]["test.npy"] = hashlib.sha256(data).hexdigest()
    description["sha256"] = _files.sha256_of_data(description)
    (folder / "ids.json").write_text(json.dumps(description))
    check(load(tmp_path / "text"))
    assert not (tmp_path / "unpickled").exists()


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, cache):
    folder = write(tmp_path / "text")

    def disturb(text):
        with open(folder / "train.txt", "a") as file:
            file.write("more ")
        monkeypatch.setattr(encoding, "words_of", plain_text.words_of)
        return plain_text.words_of(text)

    monkeypatch.setattr(encoding, "words_of", disturb)
    with pytest.raises(ValueError, match=r"must not change while.*/text.*again"):
        load(folder)
    assert list(cache.iterdir()) == []
    check(load(folder), {**TEXTS, "train": TEXTS["train"] + "more "})


# --- builds that do not come to their end --------------------------------------------


def test_an_interrupted_build_leaves_nothing_behind(tmp_path, monkeypatch, cache):
    write_file = encoding._file

    def stop(ids, path):
        if path.name == "test.npy":
            raise KeyboardInterrupt
        return write_file(ids, path)

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "_file", stop)
        with pytest.raises(KeyboardInterrupt):
            load(write(tmp_path / "text"))
    assert list(cache.iterdir()) == []
    (tmp_path / "text" / "test.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(ValueError, match=r"UTF-8.*test\.txt.*0xff at offset 5"):
        load(tmp_path / "text")
    assert list(cache.iterdir()) == []
    check(load(write(tmp_path / "text")))


def test_a_killed_build_is_never_used_and_removed_by_the_next(tmp_path, cache):
    code = (
        "import os, sys; from dualnet import corpora; from dualnet.corpora import cached_ids;"
        "cached_ids.LARGE_BYTES = 0; os.replace = lambda *names: os._exit(9);"
        "corpora.load(sys.argv[1], min_count=1)"
    )
    folder = str(write(tmp_path / "text"))
    assert subprocess.run([sys.executable, "-c", code, folder]).returncode == 9
    (leftover,) = cache.iterdir()
    assert leftover.name.startswith(".")
    check(load(folder))
    assert not leftover.exists()
    assert len(list(cache.iterdir())) == 1


def test_without_a_cache_folder_or_on_a_full_disk_the_ids_are_in_memory(
    tmp_path, monkeypatch, cache
):
    folder = write(tmp_path / "text")
    cache.parent.parent.write_text("a file, no folder")
    check(load(folder), mapped=False)
    cache.parent.parent.unlink()

    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encoding, "_file", fail)
    check(load(folder), mapped=False)
    assert list(cache.iterdir()) == []


def test_many_may_build_at_once(tmp_path, cache):
    folder = write(tmp_path / "text")
    barrier = threading.Barrier(4)

    def wait_and_load(_):
        barrier.wait()
        return load(folder)

    with ThreadPoolExecutor(4) as pool:
        for corpus in pool.map(wait_and_load, range(4)):
            check(corpus)
    assert len(list(cache.iterdir())) == 1


# --- use -----------------------------------------------------------------------------


def test_a_corpus_on_disk_is_like_any_other(tmp_path):
    corpus = load(write(tmp_path / "text"))
    assert repr(corpus) == "Corpus('text', train=12, valid=3, test=4, vocabulary=8)"
    check(pickle.loads(pickle.dumps(corpus)), mapped=False)
    batches = corpus.batches("train", batch_size=2, sequence_length=3)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(batches))[1], batches[1])
    with pytest.raises(ValueError, match="read-only"):
        corpus.train[0] = 1


def resident_bytes(path):
    """Return how much of a mapped file counts as memory of this process."""
    sizes = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    return sum(int(rest.split("Rss:")[1].split()[0]) * 1024 for rest in sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("stride", [1, 61])  # in reading order, and to and fro
def test_what_was_read_of_a_memory_map_is_let_go(tmp_path, monkeypatch, stride):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange((1 << 22) + 1, dtype="int32"))  # 16 MiB
    tokens = encoding.mapped(path)
    greatest = []
    for release in (cached_ids.release_pages, lambda tokens: None):
        monkeypatch.setattr(token_batches, "release_pages", release)
        batches = TokenBatches(tokens, batch_size=1, sequence_length=1 << 14)
        seen = []
        for k in range(len(batches)):
            batches[k * stride % len(batches)]
            if k % 85 == 0:  # looking is slow; 256 batches
                seen.append(resident_bytes(path))
        greatest.append(max(seen))
    # What lies around an address comes with it: up to 2 MiB, twice where two meet.
    assert greatest[0] <= 6 << 20
    assert greatest[1] >= 15 << 20


# --- errors --------------------------------------------------------------------------


@pytest.mark.parametrize("large", [True, False])
def test_a_word_that_a_closed_vocabulary_lacks_is_named(tmp_path, monkeypatch, cache, large):
    monkeypatch.setattr(cached_ids, "LARGE_BYTES", 0 if large else 1 << 20)
    folder = write(tmp_path / "text")
    with pytest.raises(ValueError, match=f"word='a'. It is in 'test' of '{folder}'"):
        load(
            folder,
            vocabulary=Vocabulary(tuple(["the", "cat", "sat", "<eos>", "The", "dog", "end"])),
        )
    assert not cache.exists() or list(cache.iterdir()) == []


@given(
    st.text("ab é\n", min_size=1, max_size=30),
    st.sampled_from(plain_text.DOCUMENTS),
    st.integers(1, 9),
)
def test_line_ends_of_windows_are_newlines_wherever_a_block_ends(text, documents, size):
    def read(text):
        data = io.BytesIO(text.encode()).read
        return "".join(files.decoded(data, "a.txt", documents=documents))

    text += "a"  # that is not blank
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BLOCK_BYTES", "DOCUMENT_BYTES"):
            patch.setattr(files, name, size)
        assert read(text.replace("\n", "\r\n")) == read(text)


@given(st.binary(max_size=30), st.integers(1, 9))
def test_the_first_byte_that_is_no_utf8_is_named(data, size):
    data = data + b"\xff"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        first = error.start
    expected = rf"UTF-8. Received: 'a\.txt' with byte 0x{data[first]:02x} at offset {first}[.,] "
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match=expected):
        patch.setattr(files, "BLOCK_BYTES", size)
        list(files.decoded(io.BytesIO(data).read, "a.txt"))
