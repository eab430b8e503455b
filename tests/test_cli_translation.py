"""The commands for models that translate: what they print, and bad input in one sentence."""

import io
import json
import sys

import pytest

import dualnet
from dualnet.generation import alignments, translations
from tests.test_cli import called

pytestmark = pytest.mark.usefixtures("without_tracing")
TEXTS = ["1 2 3", "", "9 0"]


@pytest.fixture(scope="module")
def model(translator_run):
    return dualnet.load(translator_run)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def test_lines_are_translated_one_for_each(capsys, translator_run, model, lines, monkeypatch):
    expected = "".join(f"{line}\n" for line in dualnet.translate(model, TEXTS, beam=3))
    command = ["translate", translator_run, "--beam", 3]
    assert called(capsys, *command, lines) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    assert called(capsys, *command) == expected
    result = json.loads(called(capsys, *command, lines, "--json"))
    assert [row["text"] for row in result["texts"]] == TEXTS and result["beam"] == 3
    for row, [best] in zip(result["texts"], translations(model, TEXTS, beam=3)):
        [found] = row["translations"]
        assert found["text"] == best.text and found["score"] == pytest.approx(best.score)
        assert found.keys() == {"text", "score", "normalized_score"}


def test_the_best_of_a_beam_are_printed_as_moses_reads_them(capsys, translator_run, model, lines):
    command = ["translate", translator_run, lines, "--beam", 4, "--nbest", 2, "--format", "moses"]
    rows = [line.split(" ||| ") for line in called(capsys, *command).splitlines()]
    found = translations(model, TEXTS, beam=4, n_best=2)
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    for row, each in zip(rows, [each for several in found for each in several], strict=True):
        assert row[1] == each.text and row[2] == f"dualnet= {each.score:.6f}"
        assert float(row[3]) == pytest.approx(each.normalized_score, abs=1e-6)


def test_an_ensemble_translates_by_the_mean_of_its_probabilities(capsys, translator_run, lines):
    command = ["translate", translator_run, lines, "--beam", 2, "--max-tokens", 6]
    together = called(capsys, *command, "--ensemble", translator_run)
    assert together == called(capsys, *command)  # of a model and itself


def test_the_attention_is_drawn_into_a_file_or_a_folder(
    capsys, translator_run, model, lines, tmp_path, monkeypatch
):
    drawn = {}

    def draw(*values):
        drawn[values[3]] = values

    monkeypatch.setattr("dualnet.plots.plot_attention", draw)
    command = ["translate", translator_run, "--beam", 2, "--plot"]
    called(capsys, *command, tmp_path / "one.png", "--text", "4 2")
    called(capsys, *command, tmp_path / "several", lines)
    first, *rest = (path.relative_to(tmp_path) for path in drawn)
    assert list(map(str, [first, *rest])) == ["one.png", "several/1.png", "several/3.png"]
    [expected] = alignments(model, "4 2", beam=2)
    source, target, weights, _ = drawn[tmp_path / "one.png"]
    assert (source, target) == (expected.source, expected.target)
    assert weights == pytest.approx(expected.weights, abs=1e-5)
