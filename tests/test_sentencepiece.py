"""SentencePiece files, read as the library itself reads them."""

import io
import os
import pickle
import subprocess
import sys
from pydoc_data import topics

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualnet
from dualnet import corpora, serving, zoo
from dualnet.text import EOS, UNK, SentencePieceTokenizer, from_config, load_tokenizer
from tests.checks import once, write_splits

pytestmark = once

sentencepiece = pytest.importorskip(
    "sentencepiece", reason='this test needs pip install "dualnet[sentencepiece]"'
)

LINES = [line for line in topics.topics["assert"].split("\n") if line.strip()]
LINES += ["the cat sat on the mat", "Die Katze läuft. 猫は歩く。", "<foo> é ﬁ ①"] * 3
ends = {"eos_id": 5, "bos_id": -1, "pad_id": 0, "unk_id": 3}
KINDS = {
    "unigram": {"vocab_size": 120},
    "bpe": {"model_type": "bpe", "vocab_size": 120},
    "unigram with bytes": {"byte_fallback": True, "vocab_size": 380},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 380},
    "unigram with symbols": {"user_defined_symbols": ["<foo>", "ca", "é"], **ends},
    "bpe with symbols": {"model_type": "bpe", "user_defined_symbols": ["<foo>", "th"], **ends},
    "bpe without an end": {"model_type": "bpe", "eos_id": -1, "bos_id": -1},
    "unigram with a control piece": {"control_symbols": ["<|endoftext|>"], "eos_id": -1},
    "bpe as it stands": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "unigram with spaces behind": {"treat_whitespace_as_suffix": True, "vocab_size": 130},
}
# The cases where other programs segment otherwise: ties, and marks that combine.
CHARACTERS = "=aaeht c\n\t\u3000\u2581\u0301\u00e9\ufb01\u2460\uac01\u1100<foo>猫\U0001f469\u200d\0"


def trained(**settings):
    """Return the bytes of a model that the library trains on `LINES`."""
    file = io.BytesIO()
    settings = {"vocab_size": 125, "hard_vocab_limit": False, "minloglevel": 2, **settings}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=file, num_threads=1, **settings
    )
    return file.getvalue()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The files of all `KINDS`."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    for name, settings_ in KINDS.items():
        (folder / f"{name}.model").write_bytes(trained(**settings_))
    return folder


@pytest.fixture(scope="module", params=KINDS)
def both(request, models):
    """A tokeniser of ours, and the library's."""
    path = models / f"{request.param}.model"
    return load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.fixture
def file(models):
    return models / "unigram with bytes.model"


# --- laws ------------------------------------------------------------------------------


texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(CHARACTERS, max_size=30),
    st.lists(st.sampled_from(LINES), max_size=3).map("\n".join),
)


@settings(max_examples=60)
@given(texts)
@example("=" * 25)
@example("e\u0301 \u1100 x \n\n </s> <s> <pad> <unk> <eos>\n")
def test_the_ids_of_every_text_are_those_of_the_library(both, text):
    tokenizer, library = both
    expected = []
    for i, line in enumerate(text.split("\n")):
        expected += [tokenizer.eos_id] * bool(i) + library.encode(line)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.tolist() == expected
    lines = [library.decode(library.encode(line)) for line in text.split("\n")]
    assert tokenizer.decode(ids) == "\n".join(lines)
    assert len(tokenizer) == max(library.get_piece_size(), tokenizer.eos_id + 1)
    assert not any(library.is_control(i) for i in {*ids.tolist()} - {tokenizer.eos_id})
    ids_too, offsets = tokenizer.encode_with_offsets(text)
    assert ids_too.tolist() == expected and offsets.shape == (len(ids), 2)
    for i, (start, end) in zip(expected, offsets.tolist()):
        assert 0 <= start <= end <= len(text)
        assert i != tokenizer.eos_id or text[start:end] == "\n"


@given(st.lists(st.integers(0, 119), max_size=20))
def test_any_ids_are_decoded_as_the_library_does(both, ids):
    tokenizer, library = both
    if tokenizer.eos_id not in ids:
        assert tokenizer.decode(ids) == library.decode(ids)
    units, starts = tokenizer.whole_units(ids)
    assert len(units) == len(starts) <= len(ids) or not ids


def test_the_end_and_the_unknown_piece_are_those_of_the_file(models):
    def special(name):
        tokenizer = load_tokenizer(models / f"{name}.model")
        assert tokenizer.words[tokenizer.eos_id] == EOS and tokenizer.words[tokenizer.unk_id] == UNK
        return tokenizer.eos_id, tokenizer.unk_id, len(tokenizer)

    assert special("bpe") == (2, 0, 120)
    assert special("bpe with symbols")[:2] == (5, 3)
    end, _, size = special("bpe without an end")
    assert end == size - 1  # it is added
    path = models / "unigram with a control piece.model"
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert special(path.stem)[0] == library.piece_to_id("<|endoftext|>")


def test_lower_case_and_documents_are_ours(file):
    tokenizer = load_tokenizer(file, lowercase=True, documents="blank-line")
    text = "The İCat\nsat.\n\nThe mat"
    plain = load_tokenizer(file)
    first, second = (plain.encode(part.lower().replace("\n", " ")).tolist()
                     for part in text.split("\n\n"))  # fmt: skip
    assert tokenizer.encode(text).tolist() == [*first, tokenizer.eos_id, *second]
    _, offsets = tokenizer.encode_with_offsets(text)
    assert offsets.max() == len(text)
    for copy in (from_config(tokenizer.get_config()), pickle.loads(pickle.dumps(tokenizer))):
        assert copy == tokenizer and copy.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert tokenizer != plain and tokenizer.sha256 == plain.sha256


# --- wherever a tokenizer.json goes ----------------------------------------------------


@pytest.mark.slow
def test_every_command_takes_a_file_and_its_run(cli, file, folder, tmp_path):
    run = tmp_path / "run"
    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    line = "the cat sat on the mat"
    shown = cli.json(f"tokenizer show '{file}' --text '{line}'")
    assert [token["id"] for token in shown["texts"][0]["tokens"]] == library.encode(line)
    assert "sentencepiece" in cli(f"data {folder} --tokenizer '{file}'")
    cli(
        f"train dual_lstm --corpus {folder} --tokenizer '{file}' --output {run} --epochs 1"
        " --set units=4 batch_size=4 sequence_length=9"
    )
    assert (run / "tokenizer.model").read_bytes() == file.read_bytes()
    assert cli.json(f"evaluate {run}")["perplexity"] > 1
    assert cli.json(f"score {run} --text '{line}'")["tokens"] == len(library.encode(line))
    model = dualnet.load(run)
    with pytest.MonkeyPatch.context() as context:
        context.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(ImportError, match=r"need the package .*\[sentencepiece\]"):
            dualnet.load(run)
    model.save(tmp_path / "model.keras")
    assert dualnet.load(tmp_path / "model.keras").vocabulary == model.vocabulary
    cli(f"train dual_lstm --output {run} --resume --epochs 2 --corpus {folder}")
    (run / "tokenizer.model").write_bytes(b"")
    assert "must be unchanged" in cli.refused(f"score {run} --text a")


@pytest.mark.slow
def test_a_model_is_exported_with_the_file(cli, file, tmp_path):
    model = zoo.build("lstm", vocabulary_size=len(load_tokenizer(file)), units=4)
    model.vocabulary = load_tokenizer(file)
    dualnet.export(model, tmp_path / "saved")
    assert (tmp_path / "saved/assets.extra/tokenizer.model").read_bytes() == file.read_bytes()
    reason = serving.why_no_text(model)
    assert "`sentencepiece`" in reason and "assets.extra/tokenizer.model" in reason
    dualnet.export(model, tmp_path / "model.tflite")
    assert (tmp_path / "model.tflite.tokenizer.model").read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_transformers_reads_the_file_as_we_do(models, tmp_path):
    pytest.importorskip("transformers")
    texts = ["The cat sat\nDie Katze", "the", "e\u0301 猫 ====", " a \n\n b"]
    folders = {}
    for name in ("unigram with bytes", "bpe without an end"):
        file = models / f"{name}.model"
        model = zoo.build("lstm", vocabulary_size=len(load_tokenizer(file)), units=4)
        model.vocabulary = load_tokenizer(file, lowercase=True)
        folder = dualnet.export(model, tmp_path / name, format="transformers")
        folders[str(file)] = str(folder)
    settings = {"check": True, "env": {**os.environ, "KERAS_BACKEND": "torch"}}
    subprocess.run([sys.executable, "-c", IN_TRANSFORMERS, repr((folders, texts))], **settings)


# In a process of its own, whose backend is PyTorch.
IN_TRANSFORMERS = """
import ast, sys, dualnet.transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from dualnet.text import load_tokenizer

folders, texts = ast.literal_eval(sys.argv[1])
for file, folder in folders.items():
    own = load_tokenizer(file, lowercase=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder + "-2")
    again = AutoTokenizer.from_pretrained(folder + "-2", add_bos_token=True)
    for text in texts:
        ids = own.encode(text).tolist()
        assert tokenizer(text).input_ids == ids, text
        assert again(text).input_ids == [own.eos_id, *ids], text
        assert tokenizer.decode(ids).replace("<eos>", chr(10)) == own.decode(ids), text
    assert tokenizer("<eos>the").input_ids[0] == own.eos_id == tokenizer.bos_token_id
    assert tokenizer.pad_token_id == len(own) == len(tokenizer) - 1
    assert tokenizer.unk_token_id == own.unk_id
    model = AutoModelForCausalLM.from_pretrained(folder)
    batch = tokenizer(texts[:2], return_tensors="pt", padding=True)
    assert model(**batch).logits.shape[-1] == len(own) + 1
"""


def test_the_tokens_of_a_recogniser_with_the_same_file_are_the_units(file, tmp_path):
    tokenizer = load_tokenizer(file)
    library = sentencepiece.SentencePieceProcessor(model_file=str(file))
    pieces = [library.id_to_piece(i) for i in range(library.get_piece_size())]
    rows = ["<blk> 0", *(f"{piece} {i}" for i, piece in enumerate(pieces[3:], 1))]
    (tmp_path / "tokens.txt").write_text("\n".join(rows), "utf-8")
    tokens = serving.token_map(tmp_path / "tokens.txt", tokenizer)
    assert tokens.read[1:-1].tolist() == [*range(3, len(pieces))] and not tokens.unknown


def test_a_large_text_is_cached_under_the_file(file, tmp_path, monkeypatch):
    from dualnet.corpora import cached_ids
    from dualnet.tuning import search_folder

    monkeypatch.setattr(cached_ids, "LARGE_BYTES", 0)
    write_splits(tmp_path, "\n".join(LINES) + "\n", valid="the cat\n")
    for _ in range(2):
        corpus = corpora.load(tmp_path, tokenizer=file)
        assert corpus.vocabulary == load_tokenizer(file)
        assert corpus.valid.tolist() == corpus.vocabulary.encode("the cat\n").tolist()
    search_folder.write_corpus(tmp_path / "search", corpus)  # where trials read it
    assert search_folder.read_corpus(tmp_path / "search").vocabulary == corpus.vocabulary


# --- what is refused -------------------------------------------------------------------


def test_a_file_that_is_none_is_refused(tmp_path):
    for content in (b"", b"none"):
        (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(ValueError, match=r"must be the file tokenizer.model of SentencePiece"):
            load_tokenizer(tmp_path / "a.model")
    with pytest.raises(ValueError, match="must be a file that can be read"):
        load_tokenizer(tmp_path / "none.model")
    with pytest.raises(ValueError, match="must spell its text"):
        _ = SentencePieceTokenizer.spelling.func(SentencePieceTokenizer)
