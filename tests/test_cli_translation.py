"""The commands for models that translate: what they print, and bad input in one sentence."""

import io
import json
import sys

import pytest

import dualnet
from dualnet import corpora, runs
from dualnet.evaluation import rouge, translation_metrics
from dualnet.evaluation.pair_perplexity import evaluate_pairs
from dualnet.generation import alignments, translations
from tests.test_cli import call, called

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


# --- evaluation


@pytest.mark.parametrize("protocol", ["sacrebleu", "multi30k", "rouge"])
def test_a_run_is_evaluated_in_every_protocol(capsys, translator_run, model, protocol):
    pairs = runs.corpus_of_run(translator_run).valid
    command = ["evaluate", translator_run, "--split", "valid", "--beam", 2]
    command += ["--protocol", protocol]
    result = json.loads(called(capsys, *command, "--json"))
    lines = dualnet.translate(model, pairs.source_lines, beam=2)
    if protocol == "rouge":
        expected = rouge(lines, pairs.target_lines)
    else:
        settings = {"language": "words"} if protocol == "multi30k" else {}
        expected = translation_metrics(lines, pairs.target_lines, protocol=protocol, **settings)
    assert {key: result[key] for key in expected} == expected
    assert (result["beam"], result["pairs"], result["split"]) == (2, 24, "valid")


def test_a_run_is_evaluated_on_other_pairs_with_its_own_tokenisers(
    capsys, translator_run, model, pairs_folder, tmp_path
):
    names = {"digits": "articles.txt", "words": "headlines.txt"}
    files = [f"{split}-{name}" for split in corpora.SPLITS for name in names.values()]
    for split in corpora.SPLITS:
        for side, name in names.items():
            text = (pairs_folder / f"{split}.{side}").read_text().splitlines(keepends=True)
            (tmp_path / f"{split}-{name}").write_text("".join(text[:5]) + "zebra\n")
    command = ["evaluate", translator_run, "--pairs", tmp_path, "--files", *files, "--beam", 1]
    result = json.loads(called(capsys, *command, "--protocol", "rouge", "--json"))
    own = {"tokenizer": (model.source_vocabulary, model.vocabulary)}
    chosen = {split: tuple(files[2 * i : 2 * i + 2]) for i, split in enumerate(corpora.SPLITS)}
    pairs = corpora.load_pairs(tmp_path, source="digits", target="words", files=chosen, **own)
    assert result["perplexity"] == pytest.approx(
        evaluate_pairs(model, pairs, "test").perplexity, rel=1e-6
    )
    assert (result["pairs"], result["source"], result["target"]) == (6, "digits", "words")
    out = called(capsys, *command, "--protocol", "rouge")
    assert "\nROUGE-1: recall " in out and out.count("\n") == 4


def test_headlines_are_trained_on_with_a_tokeniser_for_each_side(capsys, pairs_folder, tmp_path):
    files = [
        pairs_folder / f"{split}.{side}" for split in corpora.SPLITS for side in ("digits", "words")
    ]
    pairs = ["--pairs", pairs_folder, "--source", "article", "--target", "headline"]
    pairs += ["--files", *files, "--source-tokenizer", "characters", "--tokenizer", "words"]
    result = json.loads(called(capsys, "data", *pairs, "--json"))
    assert result["splits"]["train"]["pairs"] == 24 and not result["joint"]
    assert result["units"]["article"]["size"] == 13 and result["tokenizer"][0] == "characters"
    out = called(capsys, "data", *pairs)
    assert "article to headline\ntrain         24 pairs   article " in out
    assert "left out of train: 0 pairs with an empty side, 0 of more than 250 tokens\n" in out
    assert "13 units of characters for article, including <eos>" in out
    train = ["train", "attention_gru", *pairs, "--output", tmp_path / "RUN", "--quiet"]
    called(capsys, *train, "--epochs", 1, "--set", "units=4", "depth=1", "batch_size=24")
    card = runs.read_card(tmp_path / "RUN")
    assert card.trained_on["tokenizer"] == ["characters", "words"]
    out = called(capsys, "evaluate", tmp_path / "RUN", "--protocol", "rouge", "--beam", 1)
    assert "article to headline" in out and "ROUGE-L" in out
    resume = [*train[:4], *pairs[2:13], "--output", tmp_path / "RUN", "--quiet"]
    called(capsys, *resume, "--resume", "--epochs", 2)  # the tokenisers are those of the RUN


# --- lines and bad input

ODD = ["1\r", "2\u20283", "4\t5", "6\x0c7", "8\x009", "never seen", " ", "\x85", "\ufeff1"]


def test_odd_lines_are_translated_to_one_line_each(capsys, translator_run, tmp_path):
    path = tmp_path / "odd.txt"
    path.write_bytes("\n".join(ODD).encode())
    out = called(capsys, "translate", translator_run, path, "--beam", 1, "--max-tokens", 3)
    assert len(out.split("\n")) == len(ODD) + 1 and out.splitlines()[6] == ""
    crlf = tmp_path / "crlf.txt"
    crlf.write_bytes(b"1 2\r\n\r\n3\r\n")
    rows = json.loads(called(capsys, "translate", translator_run, crlf, "--beam", 1, "--json"))
    assert [row["text"] for row in rows["texts"]] == ["1 2", "", "3"]
    crlf.write_bytes(b"1 2\n\n3 \xff\n")
    code, out, err = call(capsys, "translate", translator_run, crlf)
    assert code == 2 and out == "" and f"{str(crlf)!r} with byte 0xff at offset 7, in line 3" in err
