"""The commands for models that translate: what they print, and bad input in one sentence."""

import dataclasses
import io
import re
import shutil
import sys

import numpy as np
import pytest

import dualnet
from dualnet import corpora, runs, zoo
from dualnet.cli import using
from dualnet.evaluation import rouge, translation_metrics
from dualnet.evaluation.pair_perplexity import evaluate_pairs
from dualnet.generation import alignments, translations
from dualnet.rescoring import read_nbest
from dualnet.runs.writing import write_run
from dualnet.text import Vocabulary
from tests import commands
from tests.checks import UNTRACED, once

pytestmark = [*UNTRACED, once, pytest.mark.slow]


TEXTS = ["1 2 3", "", "9 0"]


@pytest.fixture(scope="module")
def model(translator_run):
    return dualnet.load(translator_run)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def test_lines_are_translated_one_for_each(cli, translator_run, model, lines, monkeypatch):
    expected = "".join(f"{line}\n" for line in dualnet.translate(model, TEXTS, beam=3))
    command = f"translate {translator_run} --beam 3"
    assert cli(f"{command} {lines}") == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    assert cli(f"{command} --ensemble {translator_run}") == expected  # of a model and itself
    result = cli.json(f"{command} {lines}")
    assert [row["text"] for row in result["texts"]] == TEXTS and result["beam"] == 3
    for row, [best] in zip(result["texts"], translations(model, TEXTS, beam=3)):
        [found] = row["translations"]
        assert found["text"] == best.text and found["score"] == pytest.approx(best.score)
        assert found.keys() == {"text", "score", "normalized_score"}


def test_the_best_of_a_beam_are_printed_as_moses_reads_them(
    cli, translator_run, model, lines, monkeypatch
):
    monkeypatch.setattr(using, "LINES", 1)
    out = cli(f"translate {translator_run} {lines} --beam 4 --nbest 2 --format moses")
    rows = [line.split(" ||| ") for line in out.splitlines()]
    found = translations(model, TEXTS, beam=4, n_best=2)
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    for row, each in zip(rows, [each for several in found for each in several], strict=True):
        assert row[1] == each.text and re.fullmatch(r"dualnet= -?\d+\.\d{6}", row[2])
        assert float(row[2].split()[1]) == pytest.approx(each.score, rel=1e-6, abs=1e-6)
        assert float(row[3]) == pytest.approx(each.normalized_score, abs=1e-6)


def test_the_attention_of_a_text_is_drawn(cli, translator_run, model, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("dualnet.plots.plot_attention", lambda *values: drawn.append(values))
    cli(f"translate {translator_run} --beam 2 --plot {tmp_path}/one.png --text '4 2'")
    [expected] = alignments(model, "4 2", beam=2)
    [(source, target, weights, path)] = drawn
    assert (source, target, path) == (expected.source, expected.target, f"{tmp_path}/one.png")
    assert weights == pytest.approx(expected.weights, abs=1e-5)


# --- evaluation


@pytest.mark.parametrize("protocol", ["sacrebleu", "rouge"])
def test_a_run_is_evaluated_in_every_protocol(cli, translator_run, model, protocol):
    pairs = runs.corpus_of_run(translator_run).valid
    command = f"evaluate {translator_run} --split valid --beam 2 --protocol {protocol}"
    result = cli.json(command)
    lines = dualnet.translate(model, pairs.source_lines, beam=2)
    if protocol == "rouge":
        expected = rouge(lines, pairs.target_lines)
    else:
        expected = translation_metrics(lines, pairs.target_lines, protocol=protocol)
    assert {key: result[key] for key in expected} == expected
    assert (result["beam"], result["pairs"], result["split"]) == (2, 24, "valid")


def test_a_run_is_evaluated_on_other_pairs_with_its_own_tokenisers(
    cli, translator_run, model, pairs_folder, tmp_path
):
    names = {"digits": "articles.txt", "words": "headlines.txt"}
    files = [f"{split}-{name}" for split in corpora.SPLITS for name in names.values()]
    for split in corpora.SPLITS:
        for side, name in names.items():
            text = (pairs_folder / f"{split}.{side}").read_text().splitlines(keepends=True)
            (tmp_path / f"{split}-{name}").write_text("".join(text[:5]) + "zebra\n")
    command = f"evaluate {translator_run} --pairs {tmp_path} --files {' '.join(files)} --beam 1"
    result = cli.json(f"{command} --protocol rouge")
    own = {"tokenizer": (model.source_vocabulary, model.vocabulary)}
    chosen = {split: tuple(files[2 * i : 2 * i + 2]) for i, split in enumerate(corpora.SPLITS)}
    pairs = corpora.load_pairs(tmp_path, source="digits", target="words", files=chosen, **own)
    expected = evaluate_pairs(model, pairs, "test").perplexity
    assert result["perplexity"] == pytest.approx(expected, rel=1e-6)
    assert (result["pairs"], result["source"], result["target"]) == (6, "digits", "words")


def test_headlines_are_trained_on_with_a_tokeniser_for_each_side(cli, pairs_folder, tmp_path):
    sides = ("digits", "words")
    files = [f"{pairs_folder}/{split}.{side}" for split in corpora.SPLITS for side in sides]
    named = f"--source article --target headline --files {' '.join(files)}"
    pairs = f"--pairs {pairs_folder} {named} --source-tokenizer characters --tokenizer words"
    result = cli.json(f"data {pairs}")
    assert result["splits"]["train"]["pairs"] == 24 and not result["joint"]
    assert result["units"]["article"]["size"] == 13 and result["tokenizer"][0] == "characters"
    out = cli(f"data {pairs}")
    assert "article to headline\ntrain         24 pairs   article " in out
    assert "left out of train: 0 pairs with an empty side, 0 of more than 250 tokens\n" in out
    assert "13 units of characters for article, including <eos>" in out
    train = f"train attention_gru --output {tmp_path}/RUN --quiet --pairs {pairs_folder}"
    small = "--epochs 1 --set units=4 depth=1 batch_size=24"
    cli(f"{train} {named} --source-tokenizer characters --tokenizer words {small}")
    card = runs.read_card(tmp_path / "RUN")
    assert card.trained_on["tokenizer"] == ["characters", "words"]
    out = cli(f"evaluate {tmp_path}/RUN --protocol rouge --beam 1")
    assert "article to headline" in out and "ROUGE-L" in out


SIDES = "--source digits --target words"


def test_a_table_that_is_not_the_runs_own_is_evaluated_whole(cli, translator_run, tmp_path):
    path, only = tmp_path / "mine.tsv", tmp_path / "only"
    path.write_text("1 2\ttwelve\n3 4\tthirty four\n" * 10)
    whole = cli.json(f"evaluate {translator_run} --pairs {path} --beam 1")
    assert (whole["pairs"], whole["split"], whole["corpus"]) == (20, "whole", "mine")
    part = cli.json(f"evaluate {translator_run} --pairs {path} --beam 1 --split test")
    assert (part["pairs"], part["split"]) == (1, "test")
    only.mkdir()
    (only / "test.digits").write_text("1 2\n3 4\n" * 10)
    (only / "test.words").write_text("twelve\nthirty four\n" * 10)
    alone = cli.json(f"evaluate {translator_run} --pairs {only} --beam 1")
    assert alone["perplexity"] == pytest.approx(whole["perplexity"]) and alone["split"] == "test"


def test_a_translator_is_built_from_its_run_with_both_tokenisers(translator_run, model):
    built = zoo.build(str(translator_run), output_dropout=0.1)
    assert built.source_vocabulary == model.source_vocabulary
    assert dualnet.translate(built, "1 2") == dualnet.translate(model, "1 2")


def test_a_line_end_of_a_text_in_python_is_no_part_of_it(model):
    for text, expected in zip(["1 2 3\n", "1 2 3\r\n", "\n"], ["1 2 3", "1 2 3", ""]):
        assert dualnet.translate(model, text, beam=2) == dualnet.translate(model, expected, beam=2)
    score = dualnet.score(model, "one two\n", source="1 2\n")
    assert score == dualnet.score(model, "one two", source="1 2")
    with pytest.raises(ValueError, match="`texts` must be one line .*Give its lines one by one"):
        dualnet.translate(model, "1 2\n3 4")


def test_a_run_goes_on_without_naming_its_pairs(cli, translator_run, pairs_folder, tmp_path):
    run = tmp_path / "RUN"
    pairs = corpora.load_pairs(
        pairs_folder, source="digits", target="words", tokenizer="words", max_tokens=5
    )
    sides = f"--pairs {pairs_folder} {SIDES}"
    train = f"train attention_gru --output {run} --quiet"
    small = "--lowercase --epochs 1 --tokenizer words --set units=4 depth=1 batch_size=24"
    cli(f"{train} {sides} --max-tokens 5 {small}")
    assert runs.read_card(run).lowercase and dualnet.load(run).source_vocabulary.lowercase
    result = cli.json(f"{train} --resume --epochs 2")
    assert result["epochs"] == 2
    assert result["corpus"]["pairs"]["train"] == len(pairs.train) < 24
    said = cli.refused(f"{train} --resume {sides} --max-tokens 6 --epochs 3")
    assert "must leave out the same pairs" in said
    moved = shutil.copytree(pairs_folder, tmp_path / "moved")
    cli(f"{train} --resume --pairs {moved} {SIDES} --max-tokens 5 --epochs 3")
    assert runs.corpus_of_run(run).folder == str(moved)


def test_a_run_is_the_start_of_another_on_other_pairs(cli, translator_run, tmp_path):
    for split in corpora.SPLITS:
        (tmp_path / f"{split}.digits").write_text("1 2\n3 4\n" * 12)
        (tmp_path / f"{split}.words").write_text("twelve\nthirty four\n" * 12)
    cli(
        f"train attention_gru --pairs {tmp_path} {SIDES} --weights {translator_run} "
        f"--output {tmp_path}/RUN --epochs 1 --quiet --card-for multi30k "
        "--set units=8 depth=1 batch_size=24"
    )
    recipe = zoo.card("attention_gru", "multi30k").recipe
    assert runs.read_card(tmp_path / "RUN").recipe["learning_rate"] == recipe["learning_rate"]
    assert recipe["learning_rate"] != zoo.card("attention_gru").recipe["learning_rate"]
    one, other = map(dualnet.load, (translator_run, tmp_path / "RUN"))
    assert other.vocabulary == one.vocabulary
    assert other.source_vocabulary == one.source_vocabulary


def test_pairs_get_the_tokeniser_and_recipe_of_the_card_that_is_for_them(
    cli, pairs_folder, tmp_path
):
    settings = "--epochs 1 --set units=4 depth=1 batch_size=12 learning_rate=30 label_smoothing=0"
    train = f"train attention_gru {settings} --output {tmp_path}"
    folder = shutil.copytree(pairs_folder, tmp_path / "multi30k")
    _, _, err = cli.call(f"{train}/RUN --pairs {folder} {SIDES}")
    assert runs.read_card(tmp_path / "RUN").trained_on["tokenizer"] == "bpe:4000"
    assert "sizes and recipe" not in err
    assert "Validation is worse than the uniform distribution over" in err
    _, _, err = cli.call(f"{train}/OWN --pairs {pairs_folder} {SIDES}")
    assert f"does not list '{pairs_folder.name}': sizes and recipe are those for multi30k" in err
    small = zoo.card("attention_gru", "multi30k").recipe
    assert runs.read_card(tmp_path / "OWN").recipe["optimizer"] == small["optimizer"] == "adam"


@pytest.mark.slow
def test_a_seed_that_is_added_reads_the_pairs_as_the_others_do(cli, pairs_folder, tmp_path):
    folder = shutil.copytree(pairs_folder, tmp_path / "multi30k")  # whose card has a tokeniser
    train = f"train attention_gru --pairs {folder} {SIDES} --output {tmp_path}/RUNS"
    small = "--epochs 1 --quiet --set units=4 depth=1 batch_size=12"
    cli(f"{train} --tokenizer words --seeds 1 2 {small}")
    cli(f"{train} --tokenizer words --seeds 3 1 2 --resume")
    for seed in (1, 2, 3):
        assert runs.read_card(tmp_path / f"RUNS/seed-{seed}").trained_on["tokenizer"] == "words"


def test_translations_are_written_to_a_file_whole_or_not_at_all(cli, translator_run, tmp_path):
    command = f"translate {translator_run} --beam 2 --text 1"
    shown = cli(command)
    assert cli(f"{command} --output {tmp_path}/out.txt") == ""
    assert (tmp_path / "out.txt").read_text("utf-8") == shown
    assert "--output" in cli.refused(f"{command} --output {tmp_path}")
    cli(f"{command} --output {tmp_path}/out.json --json")
    assert "translations" in (tmp_path / "out.json").read_text("utf-8")


def test_bars_in_a_translation_do_not_end_a_field_of_moses(
    cli, translator_run, lines, tmp_path, monkeypatch
):
    decode = Vocabulary.decode
    monkeypatch.setattr(Vocabulary, "decode", lambda self, ids: f"a ||| {decode(self, ids)}")
    nbest = tmp_path / "lines.nbest"
    nbest.write_text(cli(f"translate {translator_run} {lines} --beam 1 --format moses"))
    texts = [each.hypotheses[0].text for each in read_nbest(nbest)]
    assert [text.startswith("a &#124;&#124;&#124;") for text in texts] == [True, False, True]


# --- lines and bad input

ODD = ["1\r", "2\u20283", "4\t5", "6\x0c7", "8\x009", "never seen", " ", "\x85", "\ufeff1"]


def test_odd_lines_are_translated_to_one_line_each(cli, translator_run, tmp_path):
    path = tmp_path / "odd.txt"
    path.write_bytes("\n".join(ODD).encode())
    out = cli(f"translate {translator_run} {path} --beam 1 --max-tokens 3")
    assert len(out.split("\n")) == len(ODD) + 1 and out.splitlines()[6] == ""
    crlf = tmp_path / "crlf.txt"
    crlf.write_bytes(b"1 2\r\n\r\n3\r\n")
    rows = cli.json(f"translate {translator_run} {crlf} --beam 1")
    assert [row["text"] for row in rows["texts"]] == ["1 2", "", "3"]
    crlf.write_bytes(b"1 2\n\n3 \xff\n")
    said = cli.refused(f"translate {translator_run} {crlf}")
    assert f"{str(crlf)!r} with byte 0xff at offset 7, in line 3" in said


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A folder with a language model and a translator of other words."""
    folder = tmp_path_factory.mktemp("others")
    words = Vocabulary(("<eos>", "<unk>", "one"))
    language_model = zoo.build("lstm", vocabulary_size=3, units=4)
    translator = zoo.build("attention_gru", vocabulary_size=3, units=4, depth=1)
    for model in (language_model, translator):
        model.vocabulary = words
        model.save(folder / f"{model.name}.keras")
    translator.source_vocabulary = words
    translator.save(folder / "attention_gru.keras")
    card = dataclasses.replace(
        zoo.card("lstm"), config={"vocabulary_size": 3, "units": 4}, corpus="animals", seed=0,
        trained_on={"name": "animals", "source": "animals", "lowercase": False, "sha256": "0"},
    )  # fmt: skip
    write_run(folder / "LM", language_model, card)
    (folder / "sentences.jsonl").write_text('{"sentence_good": "one", "sentence_bad": "two"}\n')
    return folder


BAD = commands.REFUSED["translation"]


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_refused_in_one_sentence(cli, translator_run, others, pairs_folder, command):
    places = {
        "run": translator_run, "pairs": pairs_folder, "folder": others, "lm": others / "LM",
        "other": others / "attention_gru.keras", "file": others / "lstm.keras",
        "new": others / "new", "sides": SIDES, "translate": f"translate {translator_run} --text 1",
        "train": f"train attention_gru --output {others}/new --pairs",
    }  # fmt: skip
    assert BAD[command] in cli.refused(command.format(**places))
    assert not (others / "new").exists()


@pytest.mark.parametrize(
    "function",
    [
        lambda model: dualnet.generate(model, "one"),
        lambda model: dualnet.surprisal(model, "one"),
        lambda model: dualnet.evaluate(model, np.arange(12)),
        dualnet.with_gate,
        lambda model: dualnet.ensemble([model, model]),
    ],
)
def test_functions_of_language_models_refuse_a_translator(model, function):
    with pytest.raises(ValueError, match="must be a language model. Received: .* translates"):
        function(model)
