"""The command line with tokenisers: one RUN of each kind, from the text to the answers."""

import json
import shutil

import numpy as np
import pytest

import dualnet
from dualnet import runs
from tests.searches import EAGERLY
from tests.test_cli import QUICK, call, called

pytestmark = EAGERLY
TEXT = "".join(
    f"{who} {does} the {what}.\n{'' if i % 3 else chr(10)}"
    for i, (who, does, what) in enumerate(
        (who, does, what)
        for who in ("The cat", "A dog", "Käthe")
        for does in ("sees", "likes", "isn't")
        for what in ("bird", "猫", "big house")
    )
)
READ_AS = {
    "bytes": ["--tokenizer", "bytes", "--documents", "blank-line"],
    "bpe": ["--tokenizer", "bpe:300", "--fractions", "80", "10", "10"],
    "characters": ["--tokenizer", "characters"],
}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=READ_AS)
def trained(request, story, tmp_path_factory):
    """The kind of a tokeniser, and a RUN that reads with it."""
    output = tmp_path_factory.mktemp("cli") / "RUN"
    command = ["train", "lstm", "--corpus", story, *READ_AS[request.param], "--output", output]
    assert dualnet.cli.main([str(part) for part in [*command, "--epochs", 1, *QUICK]]) == 0
    return request.param, output


def test_a_run_reads_text_with_the_tokenizer_that_it_was_trained_with(trained, capsys, tmp_path):
    kind, run = trained
    card, model = runs.read_card(run), dualnet.load(run)
    assert model.vocabulary.kind == kind and (run / "tokenizer.json").is_file()
    assert card.trained_on["tokenizer"] == READ_AS[kind][1]
    corpus = runs.corpus_of_run(run)
    assert corpus.vocabulary == model.vocabulary
    assert corpus.sha256 == card.trained_on["sha256"]
    evaluated = json.loads(called(capsys, "evaluate", run, "--json"))
    assert evaluated["perplexity"] == pytest.approx(dualnet.perplexity(model, corpus.test))
    prompt = ["generate", run, "--prompt", "The cat", "--max-tokens", 3, "--seed", 1]
    assert called(capsys, *prompt).startswith("The cat")
    scored = json.loads(called(capsys, "score", run, "--text", "The dog", "--json"))
    assert scored["tokens"] == len(model.vocabulary.encode("The dog"))
    gated = ["gate", run, "--output", tmp_path / "gated", "--epochs", 1, "--quiet", "--set",
             "gate_units=2", "batch_size=4", "sequence_length=9"]  # fmt: skip
    called(capsys, *gated)
    assert dualnet.load(tmp_path / "gated").vocabulary == model.vocabulary


def test_a_run_is_resumed_as_it_was_read(trained, story, capsys):
    kind, run = trained
    again = ["train", "lstm", "--corpus", story, "--output", run, "--resume", "--quiet"]
    for option, value in (("--tokenizer", "bpe:301"), ("--documents", "file")):
        code, _, err = call(capsys, *again, option, value)
        assert code == 2 and f"`{option[2:]}` must stay" in err
    epochs = len(json.loads((run / "results.json").read_text())["phases"]) + 1
    called(capsys, *again, *READ_AS[kind], "--epochs", epochs)
    assert dualnet.load(run).vocabulary.kind == kind


def test_a_run_whose_tokenizer_was_replaced_is_refused(trained, capsys, tmp_path):
    _, run = trained
    copy = shutil.copytree(run, tmp_path / "RUN")
    other = dualnet.text.train_tokenizer(["other text"], "bpe", size=262)
    other.save(copy / "tokenizer.json")
    for pattern in ("tokenizer.json of a RUN folder must be unchanged", "must have as many words"):
        code, _, err = call(capsys, "score", copy, "--text", "a")
        assert code == 2 and pattern in err and len(err.splitlines()) == 1
        (copy / "sums.json").unlink(missing_ok=True)


def test_the_vocabulary_of_a_run_cannot_be_exchanged_by_weights(trained, story, capsys, tmp_path):
    _, run = trained
    command = ["train", "lstm", "--corpus", story, "--weights", run, "--tokenizer", "words"]
    code, _, err = call(capsys, *command, "--output", tmp_path / "new", *QUICK)
    assert code == 2 and "`tokenizer` must be left out" in err


def test_a_tokenizer_is_trained_shown_and_used(story, capsys, tmp_path):
    file = tmp_path / "tokenizer.json"
    command = ["tokenizer", "train", story, "--size", 300, "--output", file, "--special", "Käthe"]
    described = json.loads(called(capsys, *command, "--json"))
    assert described["path"] == str(file) and described["kind"] == "bpe"
    shown = json.loads(
        called(capsys, "tokenizer", "show", file, "--text", "Käthe is 猫\n", "--json")
    )
    assert shown["units"][0] == "Käthe" and shown["units"][-1] == "<eos>"
    assert shown["offsets"][0] == [0, 5] and len(shown["ids"]) == len(shown["units"])
    assert "Käthe" in called(capsys, "tokenizer", "show", file, "--text", "Käthe")
    data = json.loads(called(capsys, "data", story, "--tokenizer", file, "--json"))
    assert data["vocabulary_sha256"] == described["sha256"]
    assert 0 < data["tokens_per_byte"] < 1
    out = called(capsys, "data", story, "--tokenizer", "bytes")
    assert "257 of the tokeniser bytes" in out and "1.000 tokens per byte" in out
    assert "No tokens per byte" in called(capsys, "data", story, "--tokenizer", "unigram:60")


def test_a_search_reads_its_corpus_once_and_goes_on_with_it(story, capsys, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        'model = "lstm"\ntuner = "random"\nmax_trials = 1\nearly_stopping = "none"\n[fixed]\n'
        "units = 4\nbatch_size = 4\nsequence_length = 9\nepochs = 1\n"
        "[space]\noutput_dropout = { min_value = 0.0, max_value = 0.3 }\n"
    )
    search = ["tune", job, "--corpus", story, "--output", tmp_path / "search", "--quiet"]
    called(capsys, *search, "--tokenizer", "bpe:300")
    again = [*search, "--resume", "--max-trials", 2]
    code, _, err = call(capsys, *again, "--tokenizer", "bytes")
    assert code == 2 and "--tokenizer` must stay 'bpe:300'" in err
    called(capsys, *again, "--tokenizer", "bpe:300")
    ids = np.load(tmp_path / "search" / "corpus" / "train.npy")
    np.testing.assert_array_equal(ids, dualnet.corpora.load(story, tokenizer="bpe:300").train)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "lstm", "--tokenizer", "byte"], "Did you mean 'bytes'"),
        (["train", "lstm", "--tokenizer", "no.json"], "must be a file that can be read"),
        (["train", "lstm", "--documents", "page"], "`documents` must be one of"),
        (["train", "lstm", "--fractions", "1", "0", "1"], "must be three numbers above 0"),
        (["train", "lstm", "--fractions", "1000", "1", "1"], "must have enough lines"),
        (["tokenizer", "train", "--size", "12"], "`size` must be an integer of at least 257"),
        (["tokenizer", "train", "--kind", "bp"], "Did you mean 'bpe'"),
        (["tokenizer", "train", "--size", "300", "--fractions", "1", "1", "x"], "invalid float"),
    ],
)
def test_a_mistake_about_text_is_told_before_anything_is_written(
    story, capsys, tmp_path, arguments, message
):
    output = tmp_path / ("new.json" if arguments[0] == "tokenizer" else "new")
    corpus = [story] if arguments[0] == "tokenizer" else ["--corpus", story]
    try:
        code, _, err = call(capsys, *arguments[:2], *corpus, *arguments[2:], "--output", output)
    except SystemExit as stopped:
        code, err = stopped.code, capsys.readouterr().err
    assert code == 2 and message in err and not output.exists()


def test_an_existing_file_is_not_overwritten_by_a_tokenizer(story, capsys, tmp_path):
    (tmp_path / "a.json").write_text("mine")
    for name, message in (("a.json", "must be a new file"), ("a.txt", "ends in .json")):
        command = ["tokenizer", "train", story, "--size", 300, "--output", tmp_path / name]
        code, _, err = call(capsys, *command)
        assert code == 2 and message in err
    assert (tmp_path / "a.json").read_text() == "mine"
