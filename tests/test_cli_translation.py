"""The commands for models that translate: what they print, and bad input in one sentence."""

import dataclasses
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import dualnet
from dualnet import corpora, runs, zoo
from dualnet.evaluation import rouge, translation_metrics
from dualnet.evaluation.pair_perplexity import evaluate_pairs
from dualnet.generation import alignments, translations
from dualnet.rescoring import read_nbest
from dualnet.runs.loading import write_run
from dualnet.text import Vocabulary
from tests.test_cli import call, called

IDS = np.arange(12)
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
        assert row[1] == each.text and re.fullmatch(r"dualnet= -?\d+\.\d{6}", row[2])
        assert float(row[2].split()[1]) == pytest.approx(each.score, rel=1e-6, abs=1e-6)
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
    if protocol == "multi30k":
        code, _, err = call(capsys, *command)
        assert code == 2 and "`language` must be one that sacremoses knows" in err
        assert "Received: 'words'" in err and "--source en --target de" in err
        return
    result = json.loads(called(capsys, *command, "--json"))
    lines = dualnet.translate(model, pairs.source_lines, beam=2)
    if protocol == "rouge":
        expected = rouge(lines, pairs.target_lines)
    else:
        expected = translation_metrics(lines, pairs.target_lines, protocol=protocol)
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
    lines = [
        (pairs_folder / f"train.{side}").read_text().splitlines() for side in ("digits", "words")
    ]
    long = sum(len(digits) > 5 or len(words.split()) > 5 for digits, words in zip(*lines))
    fewer = called(capsys, "data", *pairs, "--max-tokens", 5)
    assert 0 < long < 24 and f"train         {24 - long:>2} pairs" in fewer
    assert f" {long} of more than 5 tokens\n" in fewer
    train = ["train", "attention_gru", *pairs, "--output", tmp_path / "RUN", "--quiet"]
    called(capsys, *train, "--epochs", 1, "--set", "units=4", "depth=1", "batch_size=24")
    card = runs.read_card(tmp_path / "RUN")
    assert card.trained_on["tokenizer"] == ["characters", "words"]
    out = called(capsys, "evaluate", tmp_path / "RUN", "--protocol", "rouge", "--beam", 1)
    assert "article to headline" in out and "ROUGE-L" in out
    resume = [*train[:4], *pairs[2:13], "--output", tmp_path / "RUN", "--quiet"]
    called(capsys, *resume, "--resume", "--epochs", 2)  # the tokenisers are those of the RUN


def test_a_run_goes_on_without_naming_its_pairs(capsys, translator_run, pairs_folder, tmp_path):
    run = tmp_path / "RUN"
    pairs = corpora.load_pairs(
        pairs_folder, source="digits", target="words", tokenizer="words", max_tokens=5
    )
    sides = ["--pairs", pairs_folder, "--source", "digits", "--target", "words"]
    train = ["train", "attention_gru", "--output", run, "--quiet", "--json"]
    small = ["--set", "units=4", "depth=1", "batch_size=24", "--tokenizer", "words"]
    called(capsys, *train, *sides, "--max-tokens", 5, "--lowercase", "--epochs", 1, *small)
    assert runs.read_card(run).lowercase and dualnet.load(run).source_vocabulary.lowercase
    train += ["--resume"]
    for epochs, named in ((2, []), (3, sides)):
        result = json.loads(called(capsys, *train, "--epochs", epochs, *named))
        assert result["epochs"] == epochs
        assert result["corpus"]["pairs"]["train"] == len(pairs.train) < 24
    code, _, err = call(capsys, *train, *sides, "--max-tokens", 6, "--epochs", 4)
    assert code == 2 and "must leave out the same pairs" in err


def test_a_run_is_the_start_of_another_on_other_pairs(capsys, translator_run, tmp_path):
    for split in corpora.SPLITS:
        (tmp_path / f"{split}.digits").write_text("1 2\n3 4\n" * 12)
        (tmp_path / f"{split}.words").write_text("twelve\nthirty four\n" * 12)
    train = ["train", "attention_gru", "--pairs", tmp_path, "--source", "digits"]
    train += ["--target", "words", "--weights", translator_run, "--output", tmp_path / "RUN"]
    train += ["--epochs", 1, "--quiet", "--set", "units=8", "depth=1", "batch_size=24"]
    called(capsys, *train, "--card-for", "multi30k")
    recipe = zoo.card("attention_gru", "multi30k").recipe
    assert runs.read_card(tmp_path / "RUN").recipe["learning_rate"] == recipe["learning_rate"]
    assert recipe["learning_rate"] != zoo.card("attention_gru").recipe["learning_rate"]
    one, other = map(dualnet.load, (translator_run, tmp_path / "RUN"))
    assert other.vocabulary == one.vocabulary
    assert other.source_vocabulary == one.source_vocabulary


def test_pairs_that_a_card_is_for_have_its_tokeniser_and_a_difference_is_said(capsys, tmp_path):
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for split in corpora.SPLITS:
        (folder / f"{split}.de").write_text("ein Hund\nzwei Katzen\n" * 12)
        (folder / f"{split}.en").write_text("a dog\ntwo cats\n" * 12)
    train = ["train", "attention_gru", "--pairs", folder, "--source", "de", "--target", "en"]
    train += ["--epochs", 1, "--quiet", "--set", "units=4", "depth=1", "batch_size=24"]
    with pytest.warns(UserWarning, match="for 'multi30k' has 4000 units.* of these pairs 2"):
        called(capsys, *train, "--output", tmp_path / "RUN")
    assert runs.read_card(tmp_path / "RUN").trained_on["tokenizer"] == "bpe:4000"
    other = folder.rename(tmp_path / "own")
    train[3] = other
    called(capsys, *train, "--output", tmp_path / "OTHER", "--card-for", "btec")
    assert runs.read_card(tmp_path / "OTHER").trained_on["tokenizer"] == "bpe:10000"


def test_files_name_their_sides_source_and_target(pairs_folder):
    files = {split: (f"{split}.digits", f"{split}.words") for split in corpora.SPLITS}
    pairs = corpora.load_pairs(pairs_folder, files=files, tokenizer="words")
    assert (pairs.source, pairs.target) == ("source", "target")


def test_bars_in_a_translation_do_not_end_a_field_of_moses(
    capsys, translator_run, lines, tmp_path, monkeypatch
):
    decode = Vocabulary.decode
    monkeypatch.setattr(Vocabulary, "decode", lambda self, ids: f"a ||| {decode(self, ids)}")
    command = ["translate", translator_run, lines, "--beam", 1, "--format", "moses"]
    nbest = tmp_path / "lines.nbest"
    nbest.write_text(called(capsys, *command))
    texts = [each.hypotheses[0].text for each in read_nbest(nbest)]
    assert [text.startswith("a &#124;&#124;&#124;") for text in texts] == [True, False, True]


def test_a_file_without_lines_has_no_translations(capsys, translator_run, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert called(capsys, "translate", translator_run, tmp_path / "empty.txt") == ""


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


@pytest.fixture(scope="module")
def others(tmp_path_factory, pairs_folder):
    """A folder with a language model, a translator of other words, and damaged pairs."""
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
    shutil.copytree(pairs_folder, folder / "short")
    (folder / "short" / "valid.words").write_text("one\n")
    (folder / "sentences.jsonl").write_text('{"sentence_good": "one", "sentence_bad": "two"}\n')
    return folder


def bad(run="", others=pathlib.Path(), pairs=""):
    """Return bad commands and a part of what each says."""
    translate, text = ["translate", run], ["--text", "1 2"]
    model = others / "lstm.keras"
    train = ["train", "attention_gru", "--output", others / "new", "--pairs"]
    sides = ["--source", "digits", "--target", "words"]
    evaluate, must = ["evaluate", run], "must be of a language model. Received"
    return {
        "a language model to translate": (["translate", others / "LM", *text], "of a language mod"),
        "a file of one to translate": (["translate", model, *text], "must be a model that transla"),
        "a translator to generate": (["generate", run, "--prompt", "1"], must),
        "a translator to score": (["score", run, *text], must),
        "a translator to be surprised": (["score", run, *text, "--format", "surprisal"], must),
        "a translator to look at": (["look", run, *text, "--output", others / "page.html"], must),
        "a translator for pairs": (["minimal-pairs", run, others / "sentences.jsonl"], must),
        "a translator under a gate": (["gate", run, "--output", others / "new"], must),
        "translators in one": (["ensemble", run, run, "--output", others / "new"], "--ensemble`."),
        "gates of a translator": (["analyse", "gates", run, "--words", "one"], must),
        "experts of no mixture": (["analyse", "experts", run], "must have a mixture as output"),
        "experts that read a text": (
            ["analyse", "experts", run, "--corpus", others / "sentences.jsonl"],
            "`--corpus` is for language models",
        ),
        "the rank of a translator": (["analyse", "rank", run], must),
        "a translator to tune": (
            ["tune", "iog_gate_units", "--run", run, "--output", others / "new"], must,
        ),
        "a translator to adapt": ([*evaluate, "--dynamic"], "`--dynamic` is for language models."),
        "a translator with a cache": ([*evaluate, "--cache"], "`--cache` is for language models."),
        "a text for a translator": ([*evaluate, "--corpus", pairs], "`--corpus` is for language"),
        "pairs for a language model": (
            ["evaluate", others / "LM", "--pairs", pairs], "`--pairs` is for models that translate",
        ),
        "a file without pairs": (["evaluate", others / "attention_gru.keras"], "`--pairs` must be"),
        "an unknown protocol": ([*evaluate, "--protocol", "blue"], "`protocol` must be one of"),
        "a source without pairs": ([*evaluate, "--source", "en"], "`--source` needs --pairs"),
        "a wide beam": ([*translate, *text, "--beam", 99], "`beam` must be at most the number of"),
        "a wide beam to evaluate": ([*evaluate, "--beam", 99], "`beam` must be at most the number"),
        "more than the beam": ([*translate, *text, "--nbest", 6], "`n_best` must be at most beam"),
        "an unknown format": ([*translate, *text, "--format", "mosis"], "Did you mean 'moses'"),
        "an ensemble of other words": (
            [*translate, *text, "--ensemble", others / "attention_gru.keras"],
            "target vocabulary. Received: model 2 of 2 has another than model 1.",
        ),
        "an ensemble with a language model": (
            [*translate, *text, "--ensemble", others / "LM"], "must be of a model that translates",
        ),
        "a picture of several": (
            [*translate, *text, *text, "--plot", "x.png"], "`--plot` must be a new folder for 2",
        ),
        "a picture nowhere": (
            [*translate, *text, "--plot", others / "no" / "x.png"], "whose folder does not exist",
        ),
        "a full folder of pictures": (
            [*translate, *text, "--plot", others], "or a new or empty folder. Received",
        ),
        "a picture of an ensemble": (
            [*translate, *text, "--plot", "x.png", "--ensemble", run], "cannot be combined with",
        ),
        "files of different length": (
            [*train, others / "short", *sides], "must have the same number of lines. Received",
        ),
        "a missing language": ([*train, pairs, "--source", "en"], "`source` must be a language of"),
        "a missing file": ([*train, pairs, "--files", *"abcdef"], "`files` must name existing fi"),
        "a tokeniser for the source alone": (
            [*train, pairs, *sides, "--source-tokenizer", "words"], "needs --tokenizer",
        ),
        "no tokens": ([*train, pairs, "--max-tokens", 0], "`max_tokens` must be an integer of at"),
        "a limit without pairs": (["data", "ptb", "--max-tokens", 9], "`--max-tokens` needs --pa"),
        "lower case without pairs": (
            ["train", "lstm", "--output", others / "new", "--corpus", "ptb", "--lowercase"],
            "`--lowercase` needs --pairs",
        ),
        "a corpus that the card lacks": (
            [*train, pairs, "--card-for", "ptb"], "`--card-for` must be one of btec, multi30k, wh",
        ),
        "a picture of nothing": (
            [*translate, "--text", "", "--plot", "x.png"], "needs a text that is not empty",
        ),
        "pairs and a corpus": ([*train, pairs, "--corpus", "ptb"], "`--corpus` cannot be combined"),
        "a corpus and pairs to show": (["data", "ptb", "--pairs", pairs], "`CORPUS` cannot be com"),
        "nothing to show": (["data"], "`CORPUS` must be given, or --pairs FOLDER"),
        "files without pairs": (["data", "ptb", "--files", *"abcdef"], "`--files` needs --pairs"),
        "pairs for a model of texts": (
            ["train", "lstm", *train[2:], pairs, *sides], "must be a text, not pairs",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", bad())
def test_bad_input_is_refused_in_one_sentence(capsys, translator_run, others, pairs_folder, case):
    arguments, message = bad(str(translator_run), others, str(pairs_folder))[case]
    code, out, err = call(capsys, *arguments)
    assert code == 2 and message in err, err
    assert out == "" and err.count("\n") == 1 and not (others / "new").exists()


def test_a_translator_is_refused_at_once_where_a_language_model_is_needed(translator_run):
    code = (
        "import sys; from dualnet.cli import main\n"
        f"assert main(['generate', {str(translator_run)!r}, '--prompt', 'one']) == 2\n"
        "assert not {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0 and "Use `dualnet translate`" in process.stderr, process.stderr


def test_bleu_cannot_be_watched_without_the_extra(capsys, pairs_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    command = ["train", "attention_gru", "--pairs", pairs_folder, "--source", "digits", "--target"]
    command += ["words", "--output", tmp_path / "RUN", "--set", "watch=bleu"]
    code, _, err = call(capsys, *command)
    assert code == 2 and 'pip install "dualnet[translate]"' in err and err.count("\n") == 1
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize(
    "function",
    [
        lambda model: dualnet.generate(model, "one"),
        lambda model: dualnet.score(model, "one"),
        lambda model: dualnet.surprisal(model, "one"),
        lambda model: dualnet.minimal_pairs(model, [{"sentence_good": "a", "sentence_bad": "b"}]),
        lambda model: dualnet.evaluate(model, IDS),
        lambda model: dualnet.evaluate(model, IDS, mc_dropout_samples=2),
        lambda model: dualnet.evaluate(model, IDS, by_sentence=True),
        lambda model: dualnet.best_temperature(model, IDS),
        lambda model: dualnet.dynamic_evaluation(model, IDS),
        lambda model: dualnet.gradient_statistics(model, IDS, batch_size=1),
        lambda model: dualnet.analysis.favoured_words(model, ["one"]),
        lambda model: dualnet.analysis.rank(model, IDS),
        dualnet.with_gate,
        dualnet.with_cache,
        lambda model: dualnet.ensemble([model, model]),
    ],
)
def test_functions_of_language_models_refuse_a_translator(model, function):
    with pytest.raises(ValueError, match="must be a language model. Received: .* translates"):
        function(model)
