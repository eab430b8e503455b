"""The command line with tokenisers: every command reads and writes text of any kind."""

import json
import re
import shutil
from unittest import mock

import pytest

import dualnet
from dualnet import corpora
from dualnet.runs import read_card
from dualnet.text import train_tokenizer
from tests import commands
from tests.checks import UNTRACED, once
from tests.searches import in_this_process, rows, write_job

pytestmark = [*UNTRACED, once, pytest.mark.slow]
QUICK = "--quiet --set units=4 batch_size=2 sequence_length=50"
LINES = "The cat sees the dog.\n\nDer Hund läuft, die Katze nicht!\nA bird.\n\n"
READING = "--tokenizer bpe:270 --documents blank-line --fractions 2 1 1"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A single file of text, with the name of a corpus that it is not."""
    path = tmp_path_factory.mktemp("story") / "ptb.txt"
    path.write_text(LINES * 24, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(story):
    return corpora.load(story, tokenizer="bpe:270", documents="blank-line", fractions=(2, 1, 1))


@pytest.fixture(scope="module")
def run(story, tmp_path_factory):
    """A RUN folder of a model of BPE, of a file with its own fractions and documents."""
    output = tmp_path_factory.mktemp("bpe") / "RUN"
    train = f"train lstm --corpus {story} {READING} --epochs 1 --output {output} {QUICK}"
    assert commands.run(train) == 0
    return output


# --- tokenizer -------------------------------------------------------------------------


def test_a_tokenizer_is_learnt_from_train_alone(cli, story, tmp_path):
    train = f"tokenizer train {story} --size 270 --special '<unk>' dog --fractions 2 1 1"
    result = cli.json(f"{train} --output {tmp_path}/a.json")
    text = LINES * 4
    expected = train_tokenizer([text], "bpe", size=270, special=["<unk>", "dog"])
    assert (result["kind"], result["size"]) == ("bpe", len(expected))
    assert result["sha256"] == expected.sha256 and result["loses"] == ""
    assert "".join(result["example"]["units"]) == result["example"]["text"] == LINES.split("\n")[0]
    out = cli(f"{train} --output {tmp_path}/b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text() == expected.json
    assert out.startswith(f"{len(expected)} units of bpe, learnt from train of ptb: ")
    assert "'The' ' ' 'cat' ' '" in out


def test_a_tokenizer_says_what_it_loses(cli, story, tmp_path):
    train = f"tokenizer train {story} --kind characters --lowercase --output {tmp_path}/t.json"
    assert "(the text is lower-cased)" in cli(train)
    shown = cli.json(f"tokenizer show {tmp_path}/t.json --text 'A Cat'")
    assert (shown["kind"], shown["loses"]) == ("characters", "the text is lower-cased")
    (text,) = shown["texts"]
    assert "".join(row["unit"] for row in text["tokens"]) == "a cat"


def test_the_tokenizer_of_a_run_is_shown(cli, run):
    out = cli(f"tokenizer show {run} --text 'The bird\n\nä'")
    rows = [line.split(maxsplit=3) for line in out.splitlines()[3:]]
    tokenizer = dualnet.load(run).vocabulary
    assert [int(row[0]) for row in rows] == tokenizer.encode("The bird\n\nä").tolist()
    assert ["8", "10", "'<eos>'"] in [row[1:] for row in rows]


# --- data ------------------------------------------------------------------------------


def test_data_shows_units_documents_and_bytes_per_token(cli, story, corpus):
    summary = cli.json(f"data {story} {READING}")
    assert (summary["tokenizer"], summary["documents"]) == ("bpe:270", "blank-line")
    assert summary["fractions"] == [2, 1, 1]
    for split in corpora.SPLITS:
        ids = corpus.split(split)
        size = sum(len(corpus.vocabulary.spelling[i]) for i in ids)
        assert summary["bytes_per_token"][split] == pytest.approx(size / len(ids))
    out = cli(f"data {story} {READING}")
    assert " 25 documents" in out and "bytes per token" in out and "of bpe:270, inc" in out
    words = cli(f"data {story} --tokenizer words --min-count 1")
    assert "bytes per token" not in words and "in the vocabulary, including <eos>" in words


# --- a RUN of parts of words -------------------------------------------------------------


def test_a_run_records_how_its_text_was_read(run, corpus):
    table = read_card(run).trained_on
    assert (table["tokenizer"], table["documents"]) == ("bpe:270", "blank-line")
    assert table["fractions"] == [2, 1, 1]
    assert (run / "tokenizer.json").is_file() and not (run / "vocabulary.txt").exists()
    again = dualnet.runs.corpus_of_run(run)
    assert again.sha256 == corpus.sha256 and again.test.tolist() == corpus.test.tolist()


def test_every_command_takes_a_run_of_parts_of_words(cli, run, corpus, story, tmp_path):
    both, gated = tmp_path / "both", tmp_path / "gated"
    assert cli.json(f"evaluate {run}")["tokens"] == len(corpus.test) - 1
    tokens = cli.json(f"evaluate {run} --corpus {story}")["tokens"]
    assert tokens == len(corpus.test) - 1  # the RUN's own text is divided as it was for training
    other = tmp_path / "other.txt"
    other.write_text(story.read_text("utf-8"), encoding="utf-8")
    tokens = cli.json(f"evaluate {run} --corpus {other}")["tokens"]
    whole = len(corpus.train) + len(corpus.valid) + len(corpus.test)
    assert tokens == whole - 1  # another text is read whole
    cli(f"ensemble {run} {run} --output {both}")
    cli(f"gate {both} --output {gated} --epochs 1 {QUICK.replace('units', 'gate_units')}")
    for folder in (both, gated):
        model = dualnet.load(folder)
        assert model.vocabulary == corpus.vocabulary
        assert dualnet.runs.corpus_of_run(folder).test.tolist() == corpus.test.tolist()
    ranks = cli.json(f"analyse rank {run} --rows 20")["ranks"]
    assert ranks[str(run)]["shape"] == [20, len(corpus.vocabulary)]
    cli(f"generate {run} --prompt 'The cat' --max-tokens 2 --seed 0")
    tokens = cli.json(f"score {run} --text 'The cat.'")["tokens"]
    assert tokens == len(corpus.vocabulary.encode("The cat."))


def test_a_job_over_a_run_reads_with_its_tokenizer(cli, run, tmp_path):
    tune = f"tune dual_evaluation --run {run} --max-trials 1 --tuner random --quiet"
    tune += " --set sequence_length=50 --output"
    with in_this_process():
        out = cli(f"{tune} {tmp_path}/DIR")
    assert out.count(" bits per byte, ") == 1
    results = json.loads((tmp_path / "DIR" / "results.json").read_text())
    best = results["best"]
    assert 0 < best["val_bits_per_byte"] < 9 and best["val_not_comparable"] is None
    said = cli.refused(f"{tune} {tmp_path}/NEW --tokenizer bytes")
    assert "`--tokenizer` must be left out for a job over a RUN" in said


def test_a_resumed_run_keeps_its_reading(cli, story, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "RUN")
    resume = f"train lstm --corpus {story} --output {copy} --resume --quiet --epochs 2"
    for option, message in {
        "--tokenizer bytes": "`--tokenizer` must stay 'bpe:270'",
        "--documents line": "`--documents` must stay 'blank-line'",
        "--fractions 8 1 1": "`--fractions` must stay [2, 1, 1]",
    }.items():
        assert message in cli.refused(f"{resume} {option}")
    cli(f"{resume} --tokenizer bpe:270")  # the rest is as before


def test_weights_bring_their_own_tokenizer(cli, story, run, tmp_path):
    train = f"train {run} --corpus {story} --epochs 1 --output {tmp_path}/RUN"
    for option, message in {
        "--tokenizer bytes": "`--tokenizer` must be left out: the model to start from reads text",
        "--documents line": "`--documents` must be 'blank-line', as the vocabulary says",
    }.items():
        assert message in cli.refused(f"{train} {option}")
    assert not (tmp_path / "RUN").exists()
    cli(f"{train} --fractions 2 1 1")
    assert dualnet.load(tmp_path / "RUN").vocabulary == dualnet.load(run).vocabulary
    assert f"began from  the weights of {run}" in cli(f"card {tmp_path}/RUN")


def test_a_run_with_another_tokenizer_is_refused(cli, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "RUN")
    train_tokenizer([LINES], "characters").save(copy / "tokenizer.json")
    said = cli.refused(f"evaluate {copy}")
    assert "tokenizer.json of a RUN folder must be unchanged" in said
    (copy / "sums.json").unlink()
    assert "must belong together" in cli.refused(f"score {copy} --text a")


# --- searches ----------------------------------------------------------------------------


def test_a_search_learns_its_tokenizer_once_and_goes_on_with_it(
    cli, corpus, story, tmp_path, monkeypatch
):
    output, load = tmp_path / "DIR", mock.Mock(side_effect=corpora.load)
    job = write_job(tmp_path, max_trials=1, epochs=1, batch_size=2, sequence_length=50)
    tune = f"tune {job} --output {output} --quiet --corpus"
    monkeypatch.setattr("dualnet.training.initial_weights.corpora.load", load)
    with in_this_process() as begun:
        out = cli(f"{tune} {story} {READING}")
        note, _ = (output / "best.toml").read_text().split("\n", 1)
        assert out.count(" bits per byte, ") == note.count(" bits per byte)") == 1
        assert all(0 < float(row["val_bits_per_byte"]) < 9 for row in rows(output / "trials.csv"))
        assert load.call_count == 1  # and the trial read what it wrote
        cli(f"{tune} {story} --resume --max-trials 2")
    card = read_card(begun[1] / "run")
    assert (card.trained_on["tokenizer"], card.trained_on["documents"]) == ("bpe:270", "blank-line")
    assert dualnet.load(begun[1] / "run").vocabulary == corpus.vocabulary
    best = (output / "best.toml").read_text().splitlines()
    (command,) = (line for line in best if "dualnet train best.toml" in line)
    tokenizer = rf"{output}/trials/\d/run/tokenizer.json"
    assert re.search(f"--corpus {story} --tokenizer {tokenizer} --documents blank-line", command)
    assert command.endswith("--fractions 2 1 1 --output RUN")
    said = cli.refused(f"{tune} {story} --resume --tokenizer bytes")
    assert "`--tokenizer` must stay 'bpe:270'" in said
