"""A byte-level BPE inside a graph gives the ids of the library, for any text."""

import functools
import json
import random
import unicodedata

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

import dualnet
from dualnet import serving, zoo
from dualnet.serving.saved_model import in_graph
from dualnet.text import LibraryTokenizer, train_tokenizer
from dualnet.text.library_tokenizer import alphabet
from tests.checks import once
from tests.serving_clients import close, remote_process

pytestmark = [once, pytest.mark.slow]

SHIPPED = "lstm.wikitext-2"
TEXT = (
    "The cat sees the dog, doesn't it?  They'll say: we've 1,234 cats; I'm sure they're 56.\n"
    "  Die K\u00e4tzchen \u00fcber 3\u00bd \u732b\u3068\u72ac\u3002 \u0391\u03a3 \u0438 \u043c "
    "<unk> <unk> the\tend\n\n'S 'tis  'twas \U0001f469\u200d\U0001f469 \u0e01\u0e34\u0e19 a\u0301\n"
)
NASTY = [*" \n\t\r\x00\x0b\x85\xa0\u1680\u180e\u200b\u2028\u202f\u3000\ufeff\u200d\u0301'\u2019"]
NASTY += [*"sdtmrevlSTaA19.,!<>\u00b2\u00bd\u0663\u0e34\u0130\u03a3\u01c5\u2160\u1c89\ua7cb\ua7da"]
NASTY += ["\U000f0000", "\U000f0003", "\U000f0005\x00", "\U00010d50", "\U0001f469\u200d", "\ufffd"]
NASTY += ["'re", "'ve", "'ll", "'s", " '", "''", "  ", "\r\n", "\n \n", "<unk>", "<eos>", "<UNK>"]
NASTY += ["the", " cat", "sees", "\u732b", "<|endoftext|>", "<mask>", "unk", "\\1", "k>"]


def edited(tokenizer, *, added=(), documents="line", lowercase=False, **parts):
    """Return `tokenizer` with other `parts` of its file, and units added to it."""
    data = json.loads(tokenizer.json)
    for name, value in parts.items():
        data[name] = {**(data[name] or {}), **value} if isinstance(value, dict) else value
    size = len(tokenizer)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for i, token in enumerate(added):
        data["added_tokens"].append({**flags, "id": size + i, **token})
    return LibraryTokenizer(json.dumps(data), documents, lowercase)


@functools.cache
def trained(**settings):
    return train_tokenizer([TEXT * 3], "bpe", size=450, **settings)


def shuffled(tokenizer):
    """Return `tokenizer` with its merges in an order that no training would find."""
    model = json.loads(tokenizer.json)["model"]
    random.Random(0).shuffle(model["merges"])
    return edited(tokenizer, model=model)


def of_two_letters():
    """Return a tokeniser that merges "a" and "b" in many ways and an odd order."""
    rng, units = random.Random(1), ["a", "b"]
    for _ in range(3):
        units += [x + y for x in units for y in "ab" if x + y not in units]
    pairs = [(x, y) for x in units for y in units if x + y in units]
    vocabulary = {unit: i for i, unit in enumerate(dict.fromkeys([*alphabet(), *units]))}
    merges = rng.sample(pairs, len(pairs) - 8)
    return edited(trained(), added_tokens=[], model={"vocab": vocabulary, "merges": merges})


OVERLAPPING = [
    {"content": "<unk>"},
    {"content": "unk"},
    {"content": "  "},
    {"content": "    "},
    {"content": "nk> <", "normalized": True},
    {"content": "The", "normalized": True},
    {"content": "a\u0301.*\\1[", "normalized": True},
    {"content": "<|endoftext|>", "normalized": True, "special": True},
    {"content": "endof"},
    {"content": "<mask>", "lstrip": True, "special": True},
]
READERS = {
    "shipped": lambda: dualnet.load(SHIPPED).vocabulary,
    "trained": trained,
    "of_blocks": lambda: trained(documents="blank-line", special=("<unk>",)),
    "of_files": lambda: trained(documents="file", special=("<unk>", "\u03a3\u03a3")),
    "lowercase": lambda: trained(lowercase=True, special=("<unk>",)),
    "lowercase_of_the_file": lambda: edited(
        trained(), normalizer={"type": "Lowercase"}, added=OVERLAPPING, documents="file"
    ),
    "overlapping_units": lambda: edited(trained(), added=OVERLAPPING),
    "undivided": lambda: edited(
        trained(), pre_tokenizer={"use_regex": False}, model={"continuing_subword_prefix": ""}
    ),
    "shuffled": lambda: shuffled(trained()),
    "two_letters": of_two_letters,
}


@functools.cache
def reader(name):
    """Return a tokeniser, what stands for it in a graph, and `encode` of that as a graph."""
    tokenizer = READERS[name]()
    tokenizer = LibraryTokenizer(tokenizer.json, tokenizer.documents, tokenizer.lowercase)
    graph = in_graph(tokenizer)
    spec = tf.TensorSpec((None,), tf.string)
    encode = tf.function(lambda texts: graph.encode(texts, "texts"), input_signature=[spec])
    return tokenizer, graph, encode


def check(name, texts):
    tokenizer, graph, encode = reader(name)
    ids = encode(tf.constant(texts, tf.string))
    for text, row in zip(texts, ids.to_list(), strict=True):
        assert row == tokenizer.encode(text).tolist(), repr(text)
    decoded = graph.decode(ids).numpy().tolist()
    assert decoded == [tokenizer.decode(row).encode() for row in ids.to_list()]


@pytest.mark.parametrize("name", READERS)
def test_the_graph_reads_and_writes_any_text_as_the_library_does(name):
    anything = st.text(st.characters(exclude_categories=["Cs"]))
    letters = st.text("ab" if name == "two_letters" else "ab \n'", max_size=200)
    nasty = st.lists(st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=["Cs"])))

    @hypothesis.settings(max_examples=60)
    @given(st.lists(st.one_of(anything, letters, nasty.map("".join)), max_size=20))
    @example([])
    @example(["", "\x00", "\U000f0001\x00\x00", TEXT, "a\n\n \n", "\n"])
    @example(["don't'll''s 's'sx \n's \r\n'd  a   \u3000b \t c\t d \n", "<unk> <unk>  <unk>    <"])
    @example(
        ["\u0391\u03a3\u03a3 \u0391\u03a3.'\u03a3\n\u0391\u03a3\u0301\u0130", "<mask>  unk<unk>"]
    )
    def sought(texts):
        check(name, texts)

    sought()


@pytest.mark.parametrize("name", ["shipped", "lowercase", "lowercase_of_the_file"])
def test_characters_of_all_scripts_and_kinds_are_read_as_by_the_library(name):
    kinds = [unicodedata.category(chr(code)) for code in range(0x110000)]
    sample = [
        chr(code)
        for code, kind in enumerate(kinds)
        if kind != "Cs" and (code % 29 == 0 or {kind} != {*kinds[max(0, code - 1) : code + 2]})
    ]
    assert {*kinds} - {*map(unicodedata.category, sample)} == {"Cs"} and len(sample) > 40_000
    texts = [
        "".join(f"A{c}1{c}!{c} {c}  {c}'s{c}" for c in sample[i : i + 500])
        for i in range(0, len(sample), 500)
    ]
    check(name, texts)


@pytest.mark.parametrize("name", ["shipped", "undivided", "shuffled", "two_letters"])
def test_long_words_are_merged_as_by_the_library(name):
    rng = random.Random(0)
    check(name, ["a" * 5001, "=" * 999 + "'" * 77, "ab" * 800 + "b" * 9 + "a" * 12, "\u732b" * 500])
    check(name, ["".join(rng.choices(letters, k=1500)) for letters in ("ACGT", "ab", "etaoin")])


def test_bytes_that_are_not_utf_8_are_read_as_they_are():
    tokenizer, graph, encode = reader("shipped")
    rng = random.Random(0)
    texts = [bytes(rng.choices(range(256), k=40)) for _ in range(500)]
    ids = encode(tf.constant(texts)).to_list()
    assert [b"".join(tokenizer.spelling[i] for i in row) for row in ids] == texts
    decoded = graph.decode(tf.ragged.constant(ids, tf.int32)).numpy().tolist()
    assert [text.decode() for text in decoded] == [tokenizer.decode(row) for row in ids]


def test_an_exported_shipped_model_scores_and_continues_text_without_dualnet(tmp_path):
    model = dualnet.load(SHIPPED)
    assert "score_text" in serving.endpoints(model)
    path = dualnet.export(model, tmp_path / "model", max_tokens=30)
    texts = ["The cat didn't see the <unk> .\n It 's \u732b\u3002", "", "\n", " = Valkyria = \n"]
    settings = {"top_k": 0, "top_p": 1.0, "seed": 0, "stop_at_eos": False}
    columns = {name: [value] * len(texts) for name, value in settings.items()}
    columns |= {"prompts": texts, "max_tokens": [30] * 4, "temperature": [0.0] * 4}
    with remote_process() as ask:
        scored = ask(path, "score_text", texts=texts)
        continued = ask(path, "generate_text", **columns)["texts"]
    for row, score in enumerate(dualnet.score(model, texts)):
        assert scored["lengths"][row] == score.tokens
        assert scored["words"][row][: score.tokens] == list(score.words)
        close(scored["log_probabilities"][row][: score.tokens], score.log_probabilities)
        assert scored["perplexity"][row] == pytest.approx(score.perplexity, rel=1e-4)
    assert continued == dualnet.generate(model, texts, max_tokens=30, temperature=0.0)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (lambda: train_tokenizer([TEXT], "unigram", size=60), "is 'unigram', and not byte-level."),
        (lambda: edited(trained(), model={"ignore_merges": True}), "has 'ignore_merges'."),
        (lambda: edited(trained(), decoder={"type": "Fuse"}), "has a decoder that is not `Byte"),
        (
            lambda: edited(trained(), added=[{"content": "<b>", "lstrip": True}]),
            "has the token '<b>'",
        ),
    ],
)
def test_what_a_graph_cannot_hold_is_said(tokenizer, reason):
    tokenizer = tokenizer()
    model = zoo.build("lstm", vocabulary_size=len(tokenizer), units=2)
    model.vocabulary = tokenizer
    assert serving.endpoints(model) == ["score", "step", "predict_next"]
    said = serving.why_no_text(model)
    assert f"and the model's {reason}" in said and "assets.extra/tokenizer.json" in said
