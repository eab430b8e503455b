"""Tokenisers: words, characters, bytes, and those of the library."""

import io
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dualnet import corpora
from dualnet.text import (
    ByteTokenizer,
    LibraryTokenizer,
    Tokenizer,
    Vocabulary,
    files,
    from_config,
    load_tokenizer,
    plain_text,
    train_tokenizer,
)
from tests.checks import once, write_splits

pytestmark = once

TEXT = "The cat, the dog and the bird.\n\nDie Katze läuft.\n猫は歩く。\n" * 3
unicode = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def learnt(kind, **settings):
    size = {"bpe": 300, "unigram": 60, "word-piece": 80, "characters": None}[kind]
    return train_tokenizer([TEXT], kind, size=size, **settings)


BPE = learnt("bpe")
TOKENIZERS = {
    "words": Vocabulary((*dict.fromkeys(TEXT.split()), "<unk>", "<eos>")),
    "bytes": ByteTokenizer(),
    "bpe": BPE,
    "characters": learnt("characters"),
    "unigram": learnt("unigram"),
    "word-piece": learnt("word-piece"),
}
every = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
spelling = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])


# --- laws ------------------------------------------------------------------------------


@spelling
@given(unicode)
def test_units_of_one_character_are_one_and_the_texts_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    texts, starts = tokenizer.whole_units(ids)
    shown = "".join("\n" if unit == "<eos>" else unit for unit in texts)
    assert shown == tokenizer.decode(ids) and all(texts)
    for first, last in zip(starts, [*starts[1:], len(ids)]):
        part = tokenizer.decode(ids[first:last])
        assert part in texts or part == "\n"


@spelling
@given(unicode)
def test_decoding_gives_back_every_text_unchanged(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text


@spelling
@given(unicode)
def test_offsets_cover_the_text_in_order(tokenizer, text):
    ids, offsets = tokenizer.encode_with_offsets(text)
    np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert {i for start, end in offsets.tolist() for i in range(start, end)} == {*range(len(text))}
    assert (np.diff(offsets[:, 0]) >= 0).all()


@every
@given(st.text("the cat\n.猫 äÄ", max_size=30))
def test_offsets_belong_to_the_ids_of_the_text(tokenizer, text):
    ids, offsets = tokenizer.encode_with_offsets(text)
    np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert offsets.shape == (len(ids), 2)
    for i, (start, end) in zip(ids, offsets.tolist()):
        if i == tokenizer.eos_id:
            assert text[start:end] == "\n"


@spelling
@given(unicode)
def test_the_spelling_of_the_ids_is_the_text_in_utf8(tokenizer, text):
    assert b"".join(tokenizer.spelling[i] for i in tokenizer.encode(text)) == text.encode()
    assert tokenizer.loses == ""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    ByteTokenizer().save(path)
    return LibraryTokenizer(path.read_text())


@given(unicode)
def test_the_library_reads_bytes_as_we_do(library, text):
    np.testing.assert_array_equal(library.encode(text), ByteTokenizer().encode(text))


# --- documents -------------------------------------------------------------------------

STORY = "one two\nthree\n\n \nfour\n\nfive\n"


@pytest.mark.parametrize(
    ("documents", "decoded", "count"),
    [("line", STORY, 7), ("blank-line", "one two\nthree\n\nfour\n\nfive\n", 2), ("file", STORY, 0)],
)
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_eos_stands_where_a_document_ends(kind, documents, decoded, count):
    config = TOKENIZERS[kind].get_config()
    tokenizer = from_config({**config, "documents": documents})
    ids = tokenizer.encode(STORY)
    assert (ids == tokenizer.eos_id).sum() == count
    assert tokenizer.decode(ids) == decoded
    assert tokenizer != TOKENIZERS[kind] or documents == "line"


PARTS = ["the", " cat", ",", ".", "\n", "\n\n", " ", "\t", "\r\n", "\v", "é", "猫", "'s", "\xa0"]
LEARNT_TEXT = "the cat, sat. on\nthe mat\n\n  a dog's tail\n \n\nÄé 猫 12 x"


@pytest.fixture(scope="module", params=["bytes", "bpe", "unigram", "word-piece", "characters"])
def reader(request):
    """A tokeniser that has learnt newlines."""
    if request.param == "bytes":
        return ByteTokenizer("file")
    size = {"bpe": 290, "unigram": 45, "word-piece": 60}.get(request.param)
    return train_tokenizer([LEARNT_TEXT] * 3, request.param, size=size, documents="file")


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=40).map("".join),
    st.sampled_from(plain_text.DOCUMENTS),
)
@settings(max_examples=60, deadline=None)
def test_blocks_of_any_size_give_what_one_block_gives(reader, text, documents):
    def read(size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "BLOCK_BYTES", size)
            patch.setattr(files, "DOCUMENT_BYTES", size)
            file = io.BytesIO(text.encode()).read
            return list(files.decoded(file, "a", documents=documents))

    if not text.strip(" \t\r\n\f\v"):
        return
    one = "".join(read(1 << 20))
    if documents == "line":
        ended = text.replace("\r\n", "\n")
        assert one == plain_text.marked(ended + "\n" * (ended[-1] != "\n"))
    else:
        assert one.endswith(plain_text.END) and plain_text.END * 2 not in one
        assert not one[:-1].endswith((" ", "\t", "\n", "\v"))
    ids = reader.encode_marked(one).tolist()
    for size in (1, 2, 3, 5, 8, 13, 100):
        blocks = read(size)
        assert "".join(blocks) == one
        assert [i for block in blocks for i in reader.encode_marked(block).tolist()] == ids
        words = [word for block in blocks for word in plain_text.words_of(block)]
        assert words == plain_text.words_of(one)


@given(st.text("ab é\n猫", min_size=40, max_size=200), st.integers(9, 30))
def test_a_long_document_is_cut_at_the_end_of_a_word_and_loses_nothing(text, size):
    def blocks():
        read = io.BytesIO(text.encode()).read
        return list(files.decoded(read, "a.txt", documents="file"))

    if not text.strip():
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BLOCK_BYTES", "DOCUMENT_BYTES", "WORD_BYTES"):
            patch.setattr(files, name, size)
        parts = blocks()
    assert "".join(parts) == "".join(blocks())
    for part in parts:  # but for a run of white space, which is never cut
        assert len(part.lstrip().encode(errors="surrogatepass")) <= 2 * size + 3


# --- files and configurations ------------------------------------------------------------


@every
def test_a_tokenizer_is_saved_and_loaded_whole(tokenizer, tmp_path):
    path = tmp_path / tokenizer.file_name
    tokenizer.save(path)
    for again in (
        load_tokenizer(path),
        from_config(json.loads(json.dumps(tokenizer.get_config()))),
    ):
        assert again == tokenizer and type(again) is type(tokenizer)
        assert again.sha256 == tokenizer.sha256 and again.words == tokenizer.words
        np.testing.assert_array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


@every
def test_every_tokenizer_says_what_it_is(tokenizer):
    kind = next(name for name, value in TOKENIZERS.items() if value is tokenizer)
    assert isinstance(tokenizer, Tokenizer) and tokenizer.kind == kind
    assert len(tokenizer) == len(tokenizer.words) == len([*tokenizer])
    assert tokenizer.words[tokenizer.eos_id] == tokenizer.word(tokenizer.eos_id) == "<eos>"
    assert bool(tokenizer.loses) == (kind in ("words", "unigram", "word-piece"))
    if tokenizer.loses:
        with pytest.raises(ValueError, match="must spell its text"):
            tokenizer.spelling  # noqa: B018


def test_special_strings_are_one_unit_each():
    tokenizer = train_tokenizer(["the <unk> cat"], "bpe", size=262, special=["<unk>"])
    assert len(tokenizer) <= 262 and tokenizer.words[tokenizer.unk_id] == "<unk>"
    assert [tokenizer.words[i] for i in tokenizer.encode("<unk>\n")] == ["<unk>", "<eos>"]
    assert tokenizer.decode(tokenizer.encode("the <unk>\n")) == "the <unk>\n"


def test_lower_case_is_applied_before_and_named_as_a_loss():
    tokenizer = learnt("bpe", lowercase=True)
    assert tokenizer.decode(tokenizer.encode("THE Cat")) == "the cat"
    assert tokenizer.loses == "the text is lower-cased"
    _, offsets = tokenizer.encode_with_offsets("İa")  # becomes three characters
    assert offsets.max() == 2 and offsets.min() == 0


@pytest.mark.parametrize("kind", ["bpe", "characters"])
@pytest.mark.parametrize("documents", ["blank-line", "file"])
def test_a_newline_within_a_document_is_learnt(kind, documents):
    tokenizer = learnt(kind, documents=documents)
    text = "The cat\nDie Katze\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unk_id is None or tokenizer.unk_id not in tokenizer.encode(text)


def test_bytes_that_spell_no_character_are_escaped():
    texts, starts = ByteTokenizer().whole_units([97, 0xE2, 0x80, 256, 98])
    assert texts == ["a", r"\xe2\x80<eos>", "b"] and starts.tolist() == [0, 1, 4]
    assert ByteTokenizer().whole_units([])[0] == []


def test_a_file_without_an_end_gets_eos(tmp_path):
    data = json.loads(BPE.json)
    data["added_tokens"] = []
    del data["model"]["vocab"]["<eos>"]
    data["model"]["vocab"] = {unit: i for i, unit in enumerate(data["model"]["vocab"])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.eos_id == len(tokenizer) - 1 and tokenizer.words[-1] == "<eos>"
    tokenizer.save(tmp_path / "again.json")
    assert load_tokenizer(tmp_path / "again.json") == tokenizer


# --- corpora ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    write_splits(tmp_path, TEXT)
    return tmp_path


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe:300", "unigram:60", "word-piece:80"])
def test_a_corpus_is_read_with_any_tokenizer(folder, name):
    corpus = corpora.load(folder, tokenizer=name)
    assert corpus.tokenizer == name and corpus.vocabulary.kind == name.split(":")[0]
    for split in corpora.SPLITS:
        np.testing.assert_array_equal(corpus.split(split), corpus.vocabulary.encode(TEXT))
    again = corpora.load(folder, vocabulary=corpus.vocabulary)
    assert again.sha256 == corpus.sha256
    np.testing.assert_array_equal(again.train, corpus.train)


def test_a_tokenizer_file_reads_a_corpus(folder, tmp_path):
    BPE.save(tmp_path / "tokenizer.json")
    corpus = corpora.load(folder, tokenizer=tmp_path / "tokenizer.json", documents="blank-line")
    assert corpus.vocabulary.sha256 == BPE.sha256
    assert corpus.vocabulary.documents == "blank-line"
    assert (corpus.train == BPE.eos_id).sum() == 4  # three between, one at the end


def test_a_split_may_be_a_folder_of_files(tmp_path):
    for split in corpora.SPLITS:
        (tmp_path / split).mkdir()
        for name in ("b", "a"):
            (tmp_path / split / f"{name}.txt").write_text(f"{name}\n\n{name}\n")
    corpus = corpora.load(tmp_path, tokenizer="bytes", documents="file")
    assert corpus.train.tolist() == [*b"a\n\na", 256, *b"b\n\nb", 256]


# --- bad input -------------------------------------------------------------------------


@every
def test_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(ValueError, match="UTF-8 can hold.*character 1"):
        tokenizer.encode("a\ud800")


@every
def test_an_id_beyond_the_units_is_refused(tokenizer):
    with pytest.raises(ValueError, match=f"must be from 0 to {len(tokenizer) - 1}"):
        tokenizer.decode([0, len(tokenizer)])


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"must be the file tokenizer\.json"):
        load_tokenizer(path)
    with pytest.raises(ValueError, match="must be a file that can be read"):
        load_tokenizer(tmp_path / "nothing.json")


def test_what_the_library_cannot_do_is_told_in_one_sentence():
    with pytest.raises(ValueError, match="The text and the size must fit. Received: The vocab"):
        train_tokenizer(["abcdefghij"], "unigram", size=5)


def edited(tokenizer, edit):
    """Return `tokenizer` after a change of its file."""
    data = json.loads(tokenizer.json)
    edit(data)
    return LibraryTokenizer(json.dumps(data))


def adding(content, **settings):
    """Return a change of a file that adds a unit."""
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)

    def edit(data):
        vocabulary = data["model"]["vocab"]
        number = vocabulary.get(content, len(vocabulary))
        data["added_tokens"].append({"id": number, "content": content, **flags, **settings})

    return edit


def test_a_special_string_that_stands_for_a_byte_is_refused():
    with pytest.raises(ValueError, match="`special` tokens must not be spelt as a byte"):
        train_tokenizer([TEXT], "bpe", size=300, special=["<sep>", "§"])


def not_special(data):
    for token in data["added_tokens"]:
        token["special"] &= token["content"] != "<eos>"


@pytest.mark.parametrize("kind", ["bpe", "characters"])
@pytest.mark.parametrize(
    ("edit", "loses"),
    [
        (adding("<sep>"), False),
        (adding("<sep>", rstrip=True), True),
        (adding("<sep>", lstrip=True, special=True), False),  # such a text is read as text
        (not_special, True),  # "<eos>" in a text would end a document
        (lambda data: data["pre_tokenizer"].update(behavior="Removed"), "characters"),
        (lambda data: data["pre_tokenizer"].update(add_prefix_space=True), "bpe"),
        (lambda data: data.update(normalizer={"type": "Lowercase"}), True),
        (lambda data: data["model"].update(end_of_word_suffix="</w>"), "bpe"),
        (lambda data: data["model"]["vocab"].update({"日本": len(data["model"]["vocab"])}), False),
    ],
)
def test_a_file_loses_nothing_if_it_is_of_a_kind_that_spells_every_text(kind, edit, loses):
    tokenizer = edited(TOKENIZERS[kind], edit)
    assert bool(tokenizer.loses) == (loses if isinstance(loses, bool) else loses == kind)
    texts = ["the cat", "  <sep>  the  <eos> ", "e\u0301 Katze"]
    if not tokenizer.loses:
        for text in texts:
            ids = tokenizer.encode(text)
            assert tokenizer.unk_id in ids or tokenizer.decode(ids) == text


def test_truncation_and_padding_are_not_in_use_and_not_saved(tmp_path):
    def cut(data):
        data["truncation"] = {
            "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
        data["padding"] = {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<eos>",
        }  # fmt: skip

    tokenizer = edited(BPE, cut)
    assert tokenizer == BPE
    tokenizer.save(tmp_path / "tokenizer.json")
    client = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    client.encode_special_tokens = True
    for text in ("the", "the cat, the dog and the bird", "a <eos> b"):
        ids = client.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode(text).tolist() == BPE.encode(text).tolist()


def test_word_piece_reads_words_of_any_length_and_knows_the_commonest_characters():
    text = "".join(chr(0x4E00 + i * 7 % 3000) for i in range(6000))
    assert len(train_tokenizer([text] * 2, "word-piece", size=300)) == 300
    common = train_tokenizer([text, "的" * 50], "word-piece", size=300)
    assert len(common) == 300
    known = common.encode("的罕的") != common.unk_id  # the second one is too rare
    assert known.tolist() == [True, False, True]


def test_a_text_is_not_taken_for_a_list_of_texts():
    with pytest.raises(ValueError, match="`texts` must be a sequence"):
        train_tokenizer("a string", "bpe", size=300)


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    (tmp_path / "windows.txt").write_text("\ufeffthe\ncat\n", "utf-8")
    assert Vocabulary.load(tmp_path / "windows.txt").words == ("the", "cat")


def test_the_end_of_a_document_is_no_special_string():
    with pytest.raises(ValueError, match="`special` must not hold <eos>"):
        train_tokenizer(["abc"], "bpe", size=300, special=["<sep>", "<eos>"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tokenizer": "bpe"}, "bpe:8000, .*with any number"),
        ({"tokenizer": "bpe:10"}, "`size` must be an integer of at least 257"),
        ({"tokenizer": "bytes", "vocabulary_size": 9}, "`vocabulary_size` is for words"),
        ({"tokenizer": "bytes", "vocabulary": BPE}, "`tokenizer` must be None with"),
        ({"vocabulary": BPE, "documents": "file"}, "`documents` must be 'line'"),
        ({"fractions": (1, 1, 1)}, "`fractions` divide a single file"),
    ],
)
def test_settings_that_do_not_fit_a_corpus_are_refused(folder, settings, match):
    with pytest.raises(ValueError, match=match):
        corpora.load(folder, **settings)


def test_a_split_of_blank_lines_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(["a"] * 8 + ["", "b"]))
    message = "which leave none in valid, of the 10 lines of .* a larger share for valid"
    with pytest.raises(ValueError, match=message):
        corpora.load(tmp_path / "a.txt", fractions=(40, 5, 5))
    with pytest.raises(ValueError, match="more or shorter documents, with a blank line"):
        corpora.load(tmp_path / "a.txt", fractions=(90, 5, 5), documents="blank-line")


def test_bad_fractions_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\n" * 9)
    with pytest.raises(ValueError, match="`fractions` must leave text in each split"):
        corpora.load(tmp_path / "a.txt", fractions=(1000, 1, 1))
