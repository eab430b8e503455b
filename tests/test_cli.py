"""The commands print what the library returns, and refuse bad input in one sentence."""

import dataclasses
import functools
import io
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import dualnet
from dualnet import runs, serving, zoo
from dualnet.builders import weight_names
from dualnet.cli import main
from dualnet.cli.console import Table, truncate
from dualnet.cli.evaluating import _cache_settings
from dualnet.corpora import encoding
from dualnet.runs import Run
from dualnet.runs import run as opening
from dualnet.text import ByteTokenizer, Vocabulary
from dualnet.training import loop

QUICK = ["--set", "units=8", "batch_size=4", "sequence_length=9", "learning_rate=1",
         "optimizer=sgd", "--quiet"]  # fmt: skip


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def called(capsys, *arguments):
    """Return what a command prints that must succeed."""
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A RUN folder and what the process that trained it printed."""
    output = tmp_path_factory.mktemp("cli") / "RUN"
    arguments = ["train", "lstm", "--corpus", folder, "--output", output, "--epochs", 1]
    process = subprocess.run(
        [sys.executable, "-m", "dualnet", *map(str, arguments), *QUICK[:-1]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return output, process


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def test_a_command_is_silent_about_the_start_of_the_backend(trained):
    _, process = trained
    lines = process.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("epoch 1/1  train perplexity"), process.stderr
    assert len(process.stdout.splitlines()) == 4
    assert "character or word: the white space between words is lost\n" in process.stdout


@pytest.mark.parametrize("arguments", [["list"], ["list", "dual_*", "--json"], ["card", "lstm"]])
def test_listing_and_cards_load_no_keras(arguments):
    code = (
        "import sys; from dualnet.cli import main; import dualnet;"
        f"code = main({arguments!r});"
        "loaded = {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules);"
        "sys.exit(code or (f'loaded {loaded}' if loaded else 0))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_mistakes_that_need_no_model_are_told_before_keras_is_loaded(folder, run, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "short.txt").write_text("a\nb\n")
    train = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "new"]
    tune = ["tune", "dual_table1", "--corpus", folder, "--output", tmp_path / "new"]
    generate = ["generate", run, "--prompt", "the"]
    short = [*train[:3], tmp_path / "short.txt", *train[4:]]
    cases = {
        "no RUN": (["evaluate", tmp_path / "none"], "which does not exist"),
        "no card": (["generate", tmp_path, "--prompt", "the"], "must hold card.toml"),
        "another file": (["score", tmp_path / "file", "--text", "the"], "or a .keras file"),
        "no format": (["export", run, tmp_path / "x", "--format", "onix"], "mean 'onnx'"),
        "no member": (["ensemble", run, tmp_path, "--output", tmp_path / "new"], "card.toml"),
        "no weights": ([*train, "--weights", tmp_path / "none"], "`weights` must be a RUN"),
        "no RUN to tune": ([*tune, "--run", tmp_path / "none"], "`run` must be a RUN folder"),
        "no model": (["train", "lstn", *train[2:]], "Unknown model"),
        "no corpus": ([*train[:3], "ptv", *train[4:]], "Did you mean 'ptb'"),
        "no corpus to evaluate": (["evaluate", run, "--corpus", tmp_path], "must have the split"),
        "no rule": (["evaluate", run, "--dynamic", "--rule", "nadm"], "Did you mean 'nadam'"),
        "no setting": (["evaluate", run, "--set", "windw=3"], "Did you mean 'window'"),
        "no decay": (["evaluate", run, "--dynamic", "--set", "decay=0.1"], "not a setting of the"),
        "too many": ([*generate, "--beam", 2, "--n-best", 3], "`n_best` must be at most beam"),
        "no n-best lists": (["rescore", run, tmp_path / "none"], "There is no file"),
        "no line of Moses": (["rescore", run, tmp_path / "short.txt"], "short.txt, line 1: a line"),
        "no rate to adapt": (
            ["rescore", run, tmp_path / "x", "--adapt", "--set", "learning_rate=0"],
            "`learning_rate` must be above 0",
        ),
        "no rate to score": (
            [
                "score",
                run,
                "--text",
                "the",
                "--format",
                "surprisal",
                "--adapt",
                "--set",
                "learning_rate=0",
            ],
            "`learning_rate` must be above 0",
        ),
        "no folder of one's own": (
            ["evaluate", run, "--dynamic", "--keep", zoo.list_models(pretrained=True)[0]],
            "`keep` must be a folder of your own",
        ),
        "no job": (["tune", "dual_tabel1", *tune[2:]], "Unknown job"),
        "no units": ([*train, "--set", "units=-3"], "`units` must be an integer of at least 1"),
        "no rate": ([*train, "--set", "input_dropout=1.5"], "`input_dropout` must be a number"),
        "no new RUN": ([*train[:-1], run], "`output` must be a new or empty folder"),
        "no folder": ([*train[:-1], tmp_path / "file"], "`output` must be a folder"),
        "no tokeniser": ([*train, "--tokenizer", "byte"], "Did you mean 'bytes'"),
        "no size": ([*train, "--tokenizer", "bpe:20"], "`size` must be an integer of at least 257"),
        "a huge size": ([*tune, "--tokenizer", "bpe:9999999"], "`size` must be at most 1,000,000"),
        "no file of a tokeniser": (
            [*tune, "--tokenizer", tmp_path / "none.json"],
            "must be the file tokenizer.json",
        ),
        "no documents": ([*tune, "--documents", "page"], "`documents` must be one of"),
        "no fractions": ([*short, "--fractions", 1, 0, 1], "must be three numbers above 0"),
        "fractions of a folder": ([*train, "--fractions", 1, 1, 1], "divide a single file"),
        "fractions of a corpus": (
            ["data", "ptb", "--fractions", 1, 1, 1],
            "`fractions` divide a single file",
        ),
        "too few lines": (short, "must have enough lines to be divided"),
        "no corpus to learn from": (
            ["tokenizer", "train", tmp_path, "--size", 300, "--output", tmp_path / "t.json"],
            "must have the split",
        ),
        "no size to learn": (
            ["tokenizer", "train", folder, "--output", tmp_path / "t.json"],
            "`size` must be",
        ),
        "no new tokeniser": (
            ["tokenizer", "train", folder, "--output", tmp_path / "none.json"],
            "a new file",
        ),
        "a tokeniser nowhere": (
            ["tokenizer", "train", folder, "--output", tmp_path / "none" / "t.json"],
            "`--output` must be a file in an existing folder",
        ),
        "no tokeniser to show": (["tokenizer", "show", tmp_path / "x.json"], "that can be read"),
        "no new search": ([*tune[:-1], run], "or resume the search in it with --resume"),
    }
    commands = [[str(word) for word in words] for words, _ in cases.values()]
    code = (
        "import sys; from dualnet.cli import main\n"
        f"for words in {commands!r}:\n"
        "    code = main(words)\n"
        "    loaded = {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules)\n"
        "    assert code == 2 and not loaded, (words, code, loaded)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for line, (name, (_, message)) in zip(process.stderr.splitlines(), cases.items(), strict=True):
        assert message in line, name
    assert not (tmp_path / "new").exists()


def test_the_version_is_that_of_the_package(capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    assert call(capsys, "--version")[:2] == (0, "dualnet 1.2.3 of dualnet\n")


def test_list_shows_the_models_that_match(capsys):
    assert call(capsys, "list", "--json")[1] == json.dumps(zoo.list_models()) + "\n"
    code, out, _ = call(capsys, "list", "dual_m*")
    assert code == 0 and "dual_mdlstm" in out and "22,879,450" in out and "\nlstm" not in out
    assert "No model matches 'x*'" in call(capsys, "list", "x*")[1]


def test_the_documentation_has_the_table_of_all_models_that_list_prints(capsys):
    code, table, _ = call(capsys, "list", "--markdown")
    page = pathlib.Path(dualnet.__file__).parents[1].joinpath("docs/zoo.md").read_text("utf-8")
    shown = page.partition("<!-- models -->\n")[2].partition("<!-- /models -->")[0]
    assert code == 0 and shown == table, "run: make tables"


def test_the_table_has_every_card_with_what_is_published_and_measured(capsys):
    rows = [line.split(" | ") for line in call(capsys, "list", "--markdown")[1].splitlines()]
    assert {len(row) for row in rows} == {9}
    table = {(row[0].strip("| `"), row[1]): row for row in rows[2:]}
    cards = [(name, corpus) for name in zoo.list_models() for corpus in zoo.card(name).corpora]
    assert list(table) == cards
    for (name, corpus), row in table.items():
        assert row[2] == f"{zoo.card(name, corpus).parameters:,}"
    doc, rhn = table["awd_lstm_doc", "ptb"], table["variational_rhn_iog_hidden", "ptb"]
    assert doc[4] == "54.62/52.87; until no gain 54.12/52.38" and rhn[3] == "-/75.6"
    assert table["awd_lstm", "ptb"][4:8] == ["60.0/57.3", "", "53.9/52.8", "51.6/51.1"]
    assert "units=200, 6 epochs" in table["lstm", "ptb"][8]
    assert "static 130.53/123.01, dynamic nadam 128.62/121.45" in table["lstm", "ptb"][8]
    rows = call(capsys, "list", "dual_mdlstm_t*", "--markdown")[1].splitlines()[2:]
    assert len(rows) == 1 and "52.87/51.19" in rows[0]
    code, _, err = call(capsys, "list", "--markdown", "--json")
    assert code == 2 and "`--markdown` cannot be combined with --json" in err


def test_card_says_what_is_published_and_what_is_our_choice(capsys):
    out = called(capsys, "card", "awd_lstm_iog")
    assert "published   cache: perplexity 53.30 validation, 53.00 test" in out
    assert "[evaluation]\ncache_size = 500\n" in out
    assert "cache_scale = 1.0  (our choice; not in the paper)" in out
    assert "[evaluation]" not in called(capsys, "card", "lstm")
    out = called(capsys, "card", "dual_lstm", "--corpus", "wikitext-2")
    assert "20,950,200" in out and "85.88" in out and "lower-cased" in out
    assert "learning_rate = 0.001  (our choice; not in the paper)" in out
    out = called(capsys, "card", "dual_lstm")
    assert "10 epochs: static 92.78/90.17 (benchmarks/published.py --group precision)\n" in out
    out = called(capsys, "card", "attention_lstm", "--corpus", "multi30k")
    assert "4,262,832 parameters: perplexity 10.21/9.83, bleu 22.92/23.1, bleu multi30k 23.2" in out
    card = json.loads(called(capsys, "card", "variational_rhn_iog_hidden", "--json"))
    assert card["published"]["static"] == [None, 75.6]
    out = called(capsys, "card", "variational_lstm_medium")
    assert "static: perplexity 82.80 validation, 79.10 test\nalso        Gal and Ghah" in out
    assert "mask_per_gate = true: static 81.9/79.7, deviation 0.2/0.1\n" in out
    card = json.loads(called(capsys, "card", "variational_rhn", "--json"))
    assert [result["static"] for result in card["also_published"]] == [[71.2, 68.5]]


def test_data_counts_tokens(capsys, folder, corpus):
    summary = json.loads(called(capsys, "data", folder, "--json"))
    assert summary["tokens"]["train"] == len(corpus.train)
    assert summary["vocabulary_size"] == len(corpus.vocabulary)
    assert summary["sentences"] == {"train": 60, "valid": 12, "test": 12}
    out = called(capsys, "data", folder)
    assert f"{len(corpus.train):,} tokens         60 sentences   'the " in out


def test_a_run_is_evaluated_with_json_that_begins_as_documented(capsys, run, corpus):
    results = json.loads((run / "results.json").read_text())
    result = json.loads(called(capsys, "evaluate", run, "--json"))
    assert list(result)[:3] == ["perplexity", "tokens", "batch_size"]
    assert result["perplexity"] == pytest.approx(results["test_perplexity"], rel=1e-6)
    assert (result["tokens"], result["batch_size"]) == (len(corpus.test) - 1, 1)
    out = called(capsys, "evaluate", run, "--split", "valid", "--batch-size", 4)
    assert "read as 4 streams" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "RUN", "--dynamic"],
        ["score", "RUN", "--text", "the cat"],
        ["analyse", "rank", "RUN"],
    ],
)
def test_a_run_is_opened_once(capsys, run, monkeypatch, arguments):
    read = []
    for name in ("read_toml", "sha256_of"):
        function = getattr(opening, name)
        monkeypatch.setattr(
            opening, name, lambda path, function=function: read.append(path.name) or function(path)
        )
    called(capsys, *(run if word == "RUN" else word for word in arguments))
    # The card is parsed, and then compared with its checksum, as every other file is.
    assert sorted(read) == ["card.toml"] * 2 + ["model.weights.h5", "vocabulary.txt"]


def test_a_run_is_evaluated_dynamically(capsys, run, corpus, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("dualnet.plots.plot_positions", lambda curves, path: drawn.update(curves))
    out = called(
        capsys, "evaluate", run, "--dynamic", "--rule", "sgd", "--set", "learning_rate=0.5",
        "decay=0.01", "--sequence-length", 7, "--temperature", 1.1, "--json",
        "--plot", tmp_path / "trace.png",
    )  # fmt: skip
    result = json.loads(out)
    static = dualnet.perplexity(dualnet.load(run), corpus.test, temperature=1.1)
    assert list(drawn) == ["static", "dynamic (sgd)"]
    perplexities = [np.exp(losses.mean()) for losses in drawn.values()]
    np.testing.assert_allclose(perplexities, [static, result["perplexity"]], rtol=1e-6)
    assert result["static_perplexity"] == pytest.approx(static, rel=1e-6)
    assert list(result)[:3] == ["perplexity", "tokens", "batch_size"]
    settings = {"sequence_length": 7, "temperature": 1.1, "decay": 0.01}
    assert {key: result[key] for key in settings} == settings
    settings = ["--set", "sequence_length=3"]
    assert "rule rms" in called(capsys, "evaluate", run, "--dynamic", "--rule", "rms", *settings)


@pytest.fixture
def published(monkeypatch):
    """Give the card `lstm` dynamic-evaluation settings for the small corpus."""
    card = dataclasses.replace(
        zoo.card("lstm"),
        corpora=("animals",),
        evaluation={"rule": "sgd", "learning_rate": 0.5, "decay": 0.01, "sequence_length": 7,
                    "cache_size": 9},
    )  # fmt: skip
    monkeypatch.setattr("dualnet.cli.evaluating.zoo.card", lambda name, corpus=None: card)


def test_a_run_is_evaluated_with_the_published_rule(capsys, run, published):
    evaluate = ["evaluate", run, "--dynamic", "--json", "--rule"]
    result = json.loads(called(capsys, *evaluate, "published", "--set", "decay=0.02"))
    settings = ["learning_rate=0.5", "decay=0.02", "sequence_length=7"]
    assert result == json.loads(called(capsys, *evaluate, "sgd", "--set", *settings))
    assert _cache_settings([], Run(run, {"name": "lstm"}), "animals")["size"] == 9


def test_a_run_adapted_on_one_split_is_kept_and_evaluated_on_another(capsys, run, tmp_path, corpus):
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    settings = ["--dynamic", "--rule", "sgd", "--set", "learning_rate=0.5", "sequence_length=7"]
    kept = tmp_path / "KEPT"
    out = called(capsys, "evaluate", run, "--split", "valid", "--keep", kept, *settings)
    assert f"the adapted model is in {kept}\n" in out
    result = json.loads(called(capsys, "evaluate", kept, *settings, "--json"))
    model = dualnet.load(run)
    arguments = {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 7}
    static = dualnet.perplexity(model, corpus.test)
    dualnet.dynamic_evaluation(model, corpus.valid, keep=True, **arguments)
    assert dualnet.perplexity(dualnet.load(kept), corpus.test) != static
    expected = dualnet.dynamic_evaluation(model, corpus.test, **arguments).perplexity
    assert result["perplexity"] == pytest.approx(expected, rel=1e-6)
    assert before == {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert "Adapted on valid by dynamic evaluation, rule sgd: learning_rate=0.5" in (
        kept / "card.toml"
    ).read_text("utf-8")
    code, _, err = call(capsys, "evaluate", run, "--keep", kept, *settings)
    assert code == 2 and "`keep` must be a new or empty folder" in err


def test_a_run_is_evaluated_by_sentence(capsys, run, folder, corpus):
    result = json.loads(called(capsys, "evaluate", run, "--by-sentence", "--json"))
    assert list(result)[:3] == ["perplexity", "tokens", "batch_size"]
    assert result["by_sentence"] is True and result["tokens"] == len(corpus.test)
    assert result["sequence_length"] is None and result["samples"] == 0
    lines = (folder / "test.txt").read_text().splitlines(keepends=True)
    scores = dualnet.score(dualnet.load(run), lines)
    log_p = np.concatenate([score.log_probabilities for score in scores]).astype("float64")
    assert result["perplexity"] == pytest.approx(np.exp(-log_p.mean()), rel=1e-5)


def test_a_run_is_evaluated_dynamically_by_sentence(capsys, run, corpus, published, tmp_path):
    evaluate = ["evaluate", run, "--dynamic", "--by-sentence"]
    kept = ["--keep", tmp_path / "KEPT", "--plot", tmp_path / "trace.png"]
    out = called(capsys, *evaluate, "--rule", "published", *kept)
    assert "read by sentence, each after <eos> from the zero state\n" in out
    assert "rule sgd: learning_rate=0.5, decay=0.01, temperature=1\n" in out
    assert "evaluation, by sentence, rule sgd: lea" in (tmp_path / "KEPT" / "card.toml").read_text()
    settings = ["--rule", "sgd", "--set", "learning_rate=0.5", "decay=0.01"]
    result = json.loads(called(capsys, *evaluate, *settings, "--json"))
    assert (result["by_sentence"], result["sequence_length"]) == (True, None)
    settings = {"rule": "sgd", "learning_rate": 0.5, "decay": 0.01, "by_sentence": True}
    expected = dualnet.dynamic_evaluation(dualnet.load(run), corpus.test, **settings)
    assert result["perplexity"] == pytest.approx(expected.perplexity, rel=1e-6)
    assert result["tokens"] == expected.tokens == len(corpus.test)


def test_a_run_is_evaluated_in_windows(capsys, run, corpus):
    result = json.loads(called(capsys, "evaluate", run, "--window", 6, "--json"))
    expected = dualnet.perplexity(dualnet.load(run), corpus.test, window=6)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-6)
    assert (result["window"], result["tokens"]) == (6, len(corpus.test) - 1)
    out = called(capsys, "evaluate", run, "--set", "window=6")
    assert "read in windows of 6 tokens, each from the zero state\n" in out


def test_a_run_that_was_trained_by_sentence_is_evaluated_by_sentence(capsys, run, tmp_path, corpus):
    shutil.copytree(run, tmp_path / "RUN")
    card = (tmp_path / "RUN" / "card.toml").read_text()
    assert 'batching = "streams"' in card
    card = card.replace('batching = "streams"', 'batching = "sentences"')
    (tmp_path / "RUN" / "card.toml").write_text(card)
    (tmp_path / "RUN" / "sums.json").unlink()
    evaluate = ["evaluate", tmp_path / "RUN"]
    assert "read by sentence" in called(capsys, *evaluate)
    result = json.loads(called(capsys, *evaluate, "--no-by-sentence", "--json"))
    assert result["by_sentence"] is False and result["tokens"] == len(corpus.test) - 1
    for option in ("--no-by-sentence", "--dynamic"):
        out = called(capsys, *evaluate, option)
        assert "read as one stream, although the model was trained by sentence" in out
    code, _, err = call(capsys, *evaluate, "--batch-size", 4)
    assert code == 2 and "`--batch-size` cannot be combined with --by-sentence" in err


def test_the_passes_of_monte_carlo_dropout_are_averaged(capsys, run, corpus):
    arguments = ["evaluate", run, "--samples", 3, "--dropout-scale", 0.8, "--seed", 5]
    result = json.loads(called(capsys, *arguments, "--sequence-length", 30, "--json"))
    assert (result["samples"], result["dropout_scale"], result["seed"]) == (3, 0.8, 5)
    assert result["tokens"] == len(corpus.test) - 1 and result["sequence_length"] == 30
    settings = {"mc_dropout_samples": 3, "dropout_scale": 0.8, "seed": 5, "sequence_length": 30}
    expected = dualnet.perplexity(dualnet.load(run), corpus.test, **settings)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-6)
    out = called(capsys, *arguments, "--by-sentence")
    assert "averaged over 3 passes with dropout, rates scaled by 0.8, seed 5\n" in out


def test_the_best_temperature_is_found_on_the_validation_split(capsys, run, corpus, monkeypatch):
    monkeypatch.setattr("dualnet.cli.evaluating.TUNING_TOKENS", 60)
    model = dualnet.load(run)
    best = dualnet.best_temperature(model, corpus.valid[:60])
    by_sentence = dualnet.best_temperature(model, corpus.valid[:60], by_sentence=True)
    arguments = ["evaluate", run, "--temperature", "best"]
    result = json.loads(called(capsys, *arguments, "--by-sentence", "--json"))
    assert result["temperature"] == by_sentence and result["tuning_tokens"] == 60
    assert result["split"] == "test" and result["tokens"] == len(corpus.test)
    out = called(capsys, *arguments, "--dynamic", "--sequence-length", 20)
    assert f"temperature {best:.4g}, the best on the first 60 tokens of the validation" in out
    assert f"temperature={best:g}" in out
    with pytest.raises(SystemExit):
        call(capsys, "evaluate", run, "--temperature", "warm")
    assert "must be a number above 0, or best. Received: 'warm'" in capsys.readouterr().err


def test_a_run_starts_from_the_weights_of_another_and_resumes(capsys, folder, run, tmp_path):
    arguments = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "RUN", "--json"]
    settings = ["--set", "units=8", "batch_size=4", "sequence_length=9", "learning_rate=1e-9"]
    code, out, err = call(capsys, *arguments, "--weights", run, "--epochs", 1, *settings)
    assert code == 0 and f"weights in {str(run)!r}. All 4 weights were copied.\n" in err
    expected = json.loads((run / "results.json").read_text())["test_perplexity"]
    assert json.loads(out)["test_perplexity"] == pytest.approx(expected, rel=1e-5)
    out = called(capsys, *arguments, "--resume", "--epochs", 2, "--quiet")
    assert json.loads(out)["epochs"] == 2


def test_a_model_is_trained_with_several_seeds_and_resumed(capsys, folder, tmp_path, monkeypatch):
    train = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "RUNS", "--epochs", 1]
    stopped_at, learnt = [], []

    def learn(*arguments, train_tokenizer=encoding.train_tokenizer, **settings):
        learnt.append(train_tokenizer(*arguments, **settings))
        return learnt[-1]

    def stop(path, data, write=loop.write_whole):
        if "seed-2" in str(path) and not stopped_at:
            stopped_at.append(path)
            raise KeyboardInterrupt("Stopped.")
        write(path, data)

    monkeypatch.setattr(loop, "write_whole", stop)  # at the results of the second run
    monkeypatch.setattr(encoding, "train_tokenizer", learn)
    code, _, err = call(capsys, *train, *QUICK, "--seeds", 1, 2, "--tokenizer", "word-piece:30")
    assert code == 2 and "Stopped." in err
    first = (tmp_path / "RUNS/seed-1/results.json").stat().st_mtime_ns
    arguments = [*train[:-2], "--resume", "--quiet", "--seeds", 1, 2, 3]  # 3: with the settings
    result = json.loads(called(capsys, *arguments, "--json"))
    assert first == (tmp_path / "RUNS/seed-1/results.json").stat().st_mtime_ns
    assert json.loads((tmp_path / "RUNS/seeds.json").read_text()) == result
    for run, seed in zip(result["runs"], (1, 2, 3), strict=True):
        alone = json.loads((tmp_path / f"RUNS/seed-{seed}/results.json").read_text())
        assert run["seed"] == alone["seed"] == seed and alone["epochs"] == 1
        assert run["test_perplexity"] == alone["test_perplexity"]
        read = runs.read_card(run["path"]).trained_on
        assert read == runs.read_card(result["runs"][0]["path"]).trained_on
        assert read["tokenizer"] == "word-piece:30" and len(learnt) == 1
    tests = [run["test_perplexity"] for run in result["runs"]]
    assert len({*tests}) == 3
    assert result["mean"]["test_perplexity"] == pytest.approx(np.mean(tests))
    assert result["deviation"]["test_perplexity"] == pytest.approx(np.std(tests, ddof=1))
    out = called(capsys, *arguments).splitlines()
    assert out[-1].endswith(f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f}")
    assert out[-1].startswith("mean ") and len(out) == 5


# --- gates, ensembles, caches


@pytest.fixture(scope="module")
def together(run, tmp_path_factory):
    """A RUN of an ensemble and one of a gate over it."""
    both, gated = (tmp_path_factory.mktemp("together") / name for name in ("both", "gated"))
    gate = ["gate", both, "--output", gated, "--epochs", 1, "--quiet", "--set", "gate_units=3"]
    gate += ["batch_size=4", "sequence_length=9"]
    for command in (["ensemble", run, run, "--output", both], gate):
        assert main([str(argument) for argument in command]) == 0
    return both, gated


def test_an_ensemble_of_runs_is_evaluated_and_put_under_a_gate(capsys, together, corpus):
    both, gated = together
    base, model = dualnet.load(both), dualnet.load(gated)
    expected = dualnet.perplexity(base, corpus.test)
    found = json.loads(called(capsys, "evaluate", both, "--json"))["perplexity"]
    assert found == pytest.approx(expected, rel=1e-6)
    assert model.gated and model.arguments["gate_units"] == 3
    weights = weight_names(model)
    for name, weight in weight_names(base).items():
        np.testing.assert_array_equal(weight.numpy(), weights[name].numpy())
    results = json.loads((gated / "results.json").read_text())
    assert results["test_perplexity"] != pytest.approx(expected, rel=1e-6)


def test_runs_that_cannot_be_gated_combined_or_trained_are_refused(
    capsys, folder, run, together, tmp_path
):
    both, gated = together
    for arguments, message in [
        (["gate", gated], "`run` must be of a model without a gate"),
        (["train", both / "card.toml", "--corpus", folder], "an ensemble. Train each member"),
        (["train", "awd_lstm_iog", "--corpus", folder], "`weights` must be given: a gate is"),
        (["ensemble", run], "`runs` must be at least two RUN folders"),
    ]:
        code, out, err = call(capsys, *arguments, "--output", tmp_path / "new")
        assert code == 2 and message in err and out == "" and err.count("\n") == 1
    assert not (tmp_path / "new").exists()
    code, _, err = call(capsys, "ensemble", run, run, "--output", both)
    assert code == 2 and "`output` must be a new or empty folder" in err


def test_a_run_is_evaluated_with_a_cache(capsys, run, corpus):
    arguments = ["evaluate", run, "--cache", "size=7", "start=when_full"]
    result = json.loads(called(capsys, *arguments, "--json"))
    cache = {"size": 7, "weight": 0.2, "scale": 0.3, "start": "when_full"}
    assert result["cache"] == cache
    expected = dualnet.perplexity(dualnet.with_cache(dualnet.load(run), **cache), corpus.test)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-5)
    out = called(capsys, *arguments)
    assert "with a neural cache, size=7, weight=0.2, scale=0.3, start=when_full\n" in out
    code, _, err = call(capsys, "evaluate", run, "--cache", "sise=7")
    assert code == 2 and "must be one of size, weight, scale, start. Did you mean 'size'" in err
    result = json.loads(called(capsys, "evaluate", run, "--cache", "--json"))
    assert result["cache"]["size"] == 500 > len(corpus.test)


def test_runs_are_analysed(capsys, run, together, tmp_path, corpus):
    gated = together[1]
    gates = ["analyse", "gates", gated, "--words", "the", "cat", "--count", 2]
    gates += ["--least-occurrences", 1, "--output", tmp_path / "gates.png"]
    result = json.loads(called(capsys, *gates, "--json"))
    expected = dualnet.analysis.favoured_words(
        dualnet.load(gated), ["the", "cat"], count=2, corpus_tokens=corpus.train,
        least_occurrences=1,
    )  # fmt: skip
    assert {key: [tuple(pair) for pair in result["words"][key]] for key in expected} == expected
    assert result["output"] == str(tmp_path / "gates.png")
    word, value = expected["the"][0]
    assert f"the    {word} {value:.3f}, " in called(capsys, *gates)
    rank = ["analyse", "rank", run, gated, "--split", "valid", "--rows", 20]
    result = json.loads(called(capsys, *rank, "--json"))["ranks"]
    found = dualnet.analysis.rank(dualnet.load(run), corpus.valid, rows=20)
    assert result[str(run)]["rank"] == found.rank and len(result) == 2
    np.testing.assert_allclose(result[str(run)]["singular_values"], found.singular_values)
    assert f"  {len(corpus.vocabulary)}  " in called(capsys, *rank, "--output", tmp_path / "r.png")
    curves = ["analyse", "curves", run, "--output", tmp_path / "curves.png"]
    result = json.loads(called(capsys, *curves, "--json"))["curves"][str(run)]
    assert {split: len(values) for split, values in result.items()} == {"train": 1, "valid": 1}
    assert f"1      {result['train'][0]:.2f}" in called(capsys, *curves)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gates.png", "r.png", "curves.png"}


def test_the_experts_of_a_model_are_analysed(capsys, folder, corpus, tmp_path):
    size = len(corpus.vocabulary)
    model = dualnet.builders.language_model(size, units=4, experts=3)
    model.vocabulary = corpus.vocabulary
    model.save(tmp_path / "model.keras")
    arguments = ["analyse", "experts", tmp_path / "model.keras", "--corpus", folder]
    result = json.loads(called(capsys, *arguments, "--json"))
    used = dualnet.analysis.expert_shares(model, corpus.test)
    np.testing.assert_allclose(result["shares"], used.shares, rtol=1e-5)
    assert result["layers"] == ["recurrence_1"] * 3 and result["tokens"] == len(corpus.test)
    out = called(capsys, *arguments, "--output", tmp_path / "shares.png")
    assert "coefficient of variation\n" in out and (tmp_path / "shares.png").exists()


def test_the_cache_has_the_published_settings_of_the_card_and_corpus():
    run, file = Run(pathlib.Path(), {"name": "awd_lstm"}), Run(pathlib.Path(), {})
    defaults = {"size": 500, "weight": 0.2, "scale": 0.3, "start": "at_once"}
    assert _cache_settings([], run, "animals") == defaults
    published = {"size": 500, "weight": 0.1, "scale": 1.0, "start": "when_full"}
    assert _cache_settings([], run, "ptb") == published
    assert _cache_settings(["weight=0.4"], run, "ptb") == {**published, "weight": 0.4}
    assert _cache_settings([], file, "ptb") == defaults


def strictly(text):
    """Parse `text` as JSON, which has neither NaN nor Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def type_in(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_prompts_are_continued(capsys, run):
    settings = ["--max-tokens", 7, "--temperature", 0.9, "--top-k", 5, "--top-p", 0.9, "--seed", 3]
    prompts = ["the cat", "the"]
    arguments = ["generate", run, "--prompt", "the cat", "--prompt", "the", *settings]
    result = strictly(called(capsys, *arguments, "--json"))
    assert list(result) == [
        "texts", "prompts", "max_tokens", "temperature", "top_k", "top_p", "stop_at_eos",
        "allow_unknown", "seed",
    ]  # fmt: skip
    assert result["prompts"] == prompts and result["seed"] == 3
    expected = dualnet.generate(
        dualnet.load(run), prompts, max_tokens=7, temperature=0.9, top_k=5, top_p=0.9, seed=3
    )
    assert result["texts"] == expected
    assert called(capsys, *arguments) == "\n\n".join(expected) + "\n"


def test_the_likeliest_texts_are_printed(capsys, run):
    arguments = ["generate", run, "--prompt", "the cat", "--prompt", "the", "--max-tokens", 4,
                 "--beam", 3, "--length-normalization", 0.5]  # fmt: skip
    result = strictly(called(capsys, *arguments, "--json"))
    assert list(result) == [
        "texts", "prompts", "max_tokens", "allow_unknown", "beam", "n_best", "length_normalization",
    ]  # fmt: skip
    several = dualnet.generate(
        dualnet.load(run), ["the cat", "the"], max_tokens=4, beam=3, n_best=2,
        length_normalization=0.5,
    )  # fmt: skip
    assert result["texts"] == [texts[0] for texts in several]
    shown = "\n\n".join(text for texts in several for text in texts)
    assert called(capsys, *arguments, "--nbest", 2) == f"{shown}\n"


def test_a_random_seed_is_reported(capsys, run):
    arguments = ["generate", run, "--prompt", "the", "--max-tokens", 4, "--json"]
    first = strictly(called(capsys, *arguments))
    assert strictly(called(capsys, *arguments, "--seed", first["seed"])) == first
    assert strictly(called(capsys, *arguments))["seed"] != first["seed"]


def test_prompts_come_from_a_file_or_standard_input(capsys, run, tmp_path, monkeypatch):
    data = b"\xef\xbb\xbfthe cat\nthe dog sees\n\nthe"
    (tmp_path / "prompts.txt").write_bytes(data)
    settings = ["--greedy", "--max-tokens", 4, "--stop-at-eos", "--allow-unknown", "--json"]
    result = strictly(called(capsys, "generate", run, tmp_path / "prompts.txt", *settings))
    assert result["prompts"] == ["the cat", "the dog sees", "", "the"]
    assert result["temperature"] == 0 and result["stop_at_eos"] is True
    assert result["texts"] == dualnet.generate(
        dualnet.load(run), result["prompts"], max_tokens=4, temperature=0, stop_at_eos=True,
        allow_unknown=True,
    )  # fmt: skip
    for before, after in ([], []), (["-"], []), ([], ["-"]):
        type_in(monkeypatch, data)
        out = called(capsys, "generate", run, *before, *settings, *after)
        assert strictly(out)["texts"] == result["texts"]


def test_prompts_do_not_end_in_the_line_ends_of_windows(capsys, run, tmp_path):
    (tmp_path / "prompts.txt").write_bytes(b"the cat\r\nthe\r\n")
    settings = ["--greedy", "--max-tokens", 2, "--json"]
    result = strictly(called(capsys, "generate", run, tmp_path / "prompts.txt", *settings))
    assert result["prompts"] == ["the cat", "the"]


def test_each_line_is_scored_with_its_newline(capsys, run, folder, tmp_path, monkeypatch):
    text = (folder / "test.txt").read_text() + "\nthe cat sees"
    (tmp_path / "lines.txt").write_text(text)
    result = strictly(called(capsys, "score", run, "--json", tmp_path / "lines.txt"))
    assert list(result)[:3] == ["perplexity", "tokens", "texts"]
    scores = dualnet.score(dualnet.load(run), text.splitlines(keepends=True))
    for entry, score in zip(result["texts"], scores, strict=True):
        assert list(entry) == ["perplexity", "tokens", "words", "log_probabilities"]
        assert tuple(entry["words"]) == score.words
        np.testing.assert_allclose(entry["log_probabilities"], score.log_probabilities, rtol=1e-5)
    assert result["texts"][-1]["words"][-1] == "sees" and scores[-2].words == ("<eos>",)
    log_p = np.concatenate([score.log_probabilities for score in scores]).astype("float64")
    assert result["tokens"] == len(log_p)
    assert result["perplexity"] == pytest.approx(np.exp(-log_p.mean()), rel=1e-6)
    type_in(monkeypatch, text.encode())
    assert strictly(called(capsys, "score", run, "--json"))["tokens"] == len(log_p)


def test_the_surprisal_of_each_line_is_printed_as_a_table(
    capsys, run, folder, tmp_path, published, monkeypatch
):
    lines = (folder / "test.txt").read_text().splitlines(keepends=True)
    (tmp_path / "lines.txt").write_text("".join(lines[:5]))
    score = ["score", run, tmp_path / "lines.txt", "--format", "surprisal"]
    model = dualnet.load(run)
    head, *rows = called(capsys, *score, "--entropy").splitlines()
    assert head == "sentence_id\ttoken_id\ttoken\tsurprisal\tentropy"
    records = dualnet.surprisal(model, lines[:5], entropy=True)
    assert len(rows) == len(records) == 6 * 5 and rows[5].split("\t")[2] == "<eos>"
    for row, record in zip(rows, records):
        assert row.split("\t")[:3] == [str(value) for value in record.values()][:3]
        numbers = [record["surprisal"], record["entropy"]]
        np.testing.assert_allclose([*map(float, row.split("\t")[3:])], numbers, rtol=1e-5)
    settings = ["--adapt", "--rule", "sgd", "--set", "learning_rate=0.5", "decay=0.01"]
    adapted = strictly(called(capsys, *score, *settings, "--words", "--json"))
    expected = dualnet.surprisal(
        model, lines[:5], adapt=True, rule="sgd", learning_rate=0.5, decay=0.01, words=True
    )
    assert [list(record.values())[:3] for record in adapted] == [
        list(record.values())[:3] for record in expected
    ]
    bits = [[record["surprisal"] for record in found] for found in (adapted, expected)]
    np.testing.assert_allclose(*bits, rtol=1e-5)
    published = called(capsys, *score, "--adapt", "--rule", "published", "--words", "--json")
    assert strictly(published) == adapted
    small = functools.partial(dualnet.gradient_statistics, batch_size=4)
    monkeypatch.setattr("dualnet.adaptation.dynamic.gradient_statistics", small)
    rms = called(capsys, *score, "--adapt", "--rule", "rms")
    assert rms.splitlines()[1:7] != rms.splitlines()[7:13] and rms.count("\n") == 31


def test_units_of_other_tokenisers_are_shown_in_one_row_each_and_by_word(capsys, tmp_path):
    model = zoo.build("lstm", vocabulary_size=257, units=4)
    model.vocabulary = ByteTokenizer(documents="file")
    model.save(tmp_path / "model.keras")
    score = ["score", tmp_path / "model.keras", "--text", "a\t\u00e9\n\rb"]
    rows = called(capsys, *score, "--format", "surprisal").split("\n")
    tokens = [row.split("\t")[2] for row in rows[:-1]]
    assert tokens == ["token", "a", "\\t", "\\xc3", "\\xa9", "\\n", "\\r", "b"]
    (text,) = strictly(called(capsys, *score, "--json"))["texts"]
    assert text["tokens"] == 7 and text["whole_words"] == ["a", "\u00e9", "b"]
    total = sum(text["log_probabilities"])
    np.testing.assert_allclose(sum(text["whole_word_log_probabilities"]), total, rtol=1e-6)
    assert "  a \u00e9 b\n" in called(capsys, *score)


def test_no_newline_is_added_to_a_text_option(capsys, run):
    texts = ["--text", "the cat", "--text", "the cat\n", "--text", "the cat\nsees"]
    result = strictly(called(capsys, "score", run, *texts, "--json", "--temperature", 2))
    assert [entry["tokens"] for entry in result["texts"]] == [2, 3, 4]
    assert result["temperature"] == 2


def test_an_empty_text_has_perplexity_1_and_infinity_is_null_in_json(capsys, run):
    result = strictly(called(capsys, "score", run, "--text", "", "--json"))
    assert result["perplexity"] == result["texts"][0]["perplexity"] == 1
    out = called(capsys, "score", run, "--text", "")
    assert "perplexity 1.00 on 0 tokens of 1 text\n" in out
    cold = ["--text", "sees cat", "--temperature", 1e-4]
    assert strictly(called(capsys, "score", run, *cold, "--json"))["perplexity"] is None


def test_an_infinite_perplexity_is_null_in_the_json_of_evaluate(capsys, run):
    cold = ["--temperature", 1e-6, "--json"]
    for options in ([], ["--dynamic"]):
        assert strictly(called(capsys, "evaluate", run, *cold, *options))["perplexity"] is None


def test_rows_of_scores_fit_the_terminal(capsys, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    texts = ["--text", "the cat sees the dog", "--text", "the cat sees the dog\n" * 90]
    lines = called(capsys, "score", run, *texts).splitlines()
    assert lines[0].split() == ["perplexity", "tokens", "text"]
    assert lines[1].endswith("  the cat sees the dog") and lines[2].endswith("...")
    assert "the cat sees the dog <eos>" in lines[2] and max(map(len, lines)) <= 50
    assert lines[-3].endswith("on 545 tokens of 2 texts")
    assert lines[-2:] == [
        "no figures per byte, character or word: the white",
        "space between words is lost",
    ]


def test_wide_characters_take_two_columns_of_a_row():
    assert truncate("猫が魚を見る", 12) == "猫が魚を見る"
    assert truncate("猫が魚を見る", 11) == "猫が魚を..."
    assert truncate("a cat", 5) == "a cat" and truncate("a cat sees", 5) == "a..."


@pytest.mark.parametrize("command", ["generate", "score"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"the cat\nthe \xff dog\n", "must be UTF-8. Received: {!r} with byte 0xff at offset 12"),
        (b"", "FILE must hold text. Received: {!r}, which is empty"),
    ],
)
def test_a_file_that_is_not_text_is_refused_in_one_sentence(
    capsys, run, tmp_path, monkeypatch, command, data, message
):
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    type_in(monkeypatch, data)
    for source, arguments in {str(path): [path], "standard input": []}.items():
        code, out, err = call(capsys, command, run, *arguments)
        assert code == 2 and out == "" and err.count("\n") == 1
        assert message.format(source) in err


def test_a_reader_that_closes_standard_output_early_is_no_error():
    command = [sys.executable, "-m", "dualnet", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read().decode()
    assert (process.returncode, error) == (141, "")


def test_closed_standard_streams_are_no_error():
    code = "from dualnet.cli import main, console; import os, sys; code = main(['list'])\n"
    code += "with console.silence(): os.write(1, b'x'); print('x', file=sys.stderr)\n"
    code += "sys.exit(code)"
    closed = f"exec {sys.executable} -c '{code}' <&- >&- 2>&-".replace("['list']", '["list"]')
    closed = closed.replace("b'x'", 'b"x"').replace("print('x'", 'print("x"')
    assert subprocess.run(["sh", "-c", closed]).returncode == 0


def test_control_characters_of_files_are_escaped(capsys, tmp_path):
    card = tmp_path / "my.toml"
    card.write_text('base = "lstm"\nnote = "a\\u001b[31m\\u009b1m\\nred\\tword"\n')
    out = called(capsys, "card", card)
    assert "a\\x1b[31m\\x9b1m\nred\tword" in out and "\x1b" not in out and "\x9b" not in out
    Table(["word"], [["\x1b[2J"]]).print()
    assert capsys.readouterr().out == "word\n\\x1b[2J\n"
    code, _, err = call(capsys, "card", "\x1b[2J")
    assert code == 2 and "\x1b" not in err


def test_a_card_with_an_integer_of_too_many_digits_is_named(capsys, tmp_path):
    card = tmp_path / "my.toml"
    card.write_text(f'base = "lstm"\n[config]\nunits = {"9" * 5000}\n')
    code, _, err = call(capsys, "card", card)
    assert code == 2 and f"A card must be TOML. Received: {str(card)!r}" in err
    code, _, err = call(capsys, "train", "lstm", "--corpus", "ptv", "--output", tmp_path / "x",
                        "--set", f"units={'9' * 5000}")  # fmt: skip
    assert code == 2 and "Unknown corpus" in err  # not told by Python's limit of digits


def test_a_text_without_white_space_between_its_words_is_warned_of(capsys, tmp_path):
    line = "猫は魚を見ていて犬は鳥を見ている"
    model = zoo.build("lstm", vocabulary_size=4, units=4)
    model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    model.save(tmp_path / "model.keras")
    score = ["score", tmp_path / "model.keras", "--text"]
    code, _, err = call(capsys, *score, line)
    assert code == 0 and err.startswith("Warning: in the text, 100% of the words are unknown.")
    assert call(capsys, *score, "the cat the dog")[2] == ""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("".join(f"{line}{i}\n" for i in range(12)))
    loop._warn_of_text(dualnet.corpora.load(tmp_path))
    assert "the words have 17 characters on average. White space" in capsys.readouterr().err
    (tmp_path / "test.txt").write_text("".join(f"{line[:5]}x{i}\n" for i in range(12)))
    (tmp_path / "train.txt").write_text("the cat sees the dog\n")
    (tmp_path / "valid.txt").write_text("the dog\n")
    loop._warn_of_text(dualnet.corpora.load(tmp_path))
    assert f"in 'test' of {str(tmp_path)!r}, 100% of the words" in capsys.readouterr().err


def test_a_run_is_exported(capsys, run, tmp_path, monkeypatch):
    out = called(capsys, "export", run, tmp_path / "saved_model")
    assert "endpoints score, step, score_text, generate_text in" in out
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
    code, _, err = call(capsys, "export", run, tmp_path / "saved_model")
    assert code == 2 and "must be new or empty" in err
    path = tmp_path / "m.tflite"
    code, _, err = call(capsys, "export", run, path, "--format", "onnx")
    assert code == 2 and "`path` must be a file that ends in '.onnx'" in err
    monkeypatch.setattr(serving, "export", lambda model, path, **settings: settings)
    for arguments in [], ["--format", "litert", "--max-tokens", 7]:
        out = json.loads(called(capsys, "export", run, path, *arguments, "--json"))
        assert out["format"] == "litert" and out["endpoints"] == ["step"]
    assert out["path"] == str({"format": "litert", "max_tokens": 7, "tokens": None})


def bad(folder="", run=pathlib.Path(), tmp_path=pathlib.Path()):
    """Return bad commands and a part of what each says."""
    train = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "new"]
    again = [*train[:-1], run]
    evaluate, generate = ["evaluate", run], ["generate", run, "--prompt", "the"]
    dynamic, score = [*evaluate, "--dynamic"], ["score", run, "--text", "the"]
    return {
        "an unknown model": (["card", "dual_ltsm"], "Did you mean one of"),
        "one seed": ([*train, "--seeds", 1], "`seeds` must be at least two integers, all diff"),
        "seeds and a seed": ([*train, "--seeds", 1, 2, "--seed", 3], "combined with --seed"),
        "a setting as an option": ([*train, "--units", 20], "given with --set units=20."),
        "a setting as an option with =": ([*train, "--dual-units=20"], "with --set dual_units=20."),
        "a mistyped option": ([*train, "--epoch_s", 2], "Did you mean '--epochs'?"),
        "an unknown option": (["data", "ptb", "--unitz"], "`dualnet data --help` shows"),
        "a mistyped setting": ([*train, "--set", "unit=20"], "unit=20. Did you mean 'units'?\n"),
        "a set without a value": ([*train, "--set", "units"], "takes KEY=VALUE"),
        "an option as a setting": ([*train, "--set", "seed=3"], "`--set` takes an argument"),
        "an unknown corpus": (["data", "ptv"], "Did you mean 'ptb'"),
        "a missing folder": (["data", tmp_path / "nowhere"], "must exist"),
        "a missing card": (["train", "my.toml", *train[2:]], "There is no file"),
        "nothing to resume": ([*train, "--resume"], "--resume needs a RUN folder"),
        "a finished run": ([*again, "--resume"], "is finished: it has"),
        "a full output folder": (again, "`output` must be a new or empty folder"),
        "a folder that is no run": (["evaluate", tmp_path], "must hold card.toml"),
        "a keras file without corpus": (["evaluate", keras_file(run)], "`--corpus` must be given"),
        "an unknown setting": ([*dynamic, "--set", "learning_rte=1"], "mean 'learning_rate'"),
        "samples of a dynamic evaluation": ([*dynamic, "--set", "samples=2"], "`--samples` cannot"),
        "a rule without dynamic": ([*evaluate, "--rule", "sgd"], "needs --dynamic"),
        "no published rule": ([*dynamic, "--rule", "published"], "whose card names the rule"),
        "keep without dynamic": ([*evaluate, "--keep", tmp_path / "k"], "`--keep` needs --dynamic"),
        "keep with a cache": (
            [*dynamic, "--keep", tmp_path / "k", "--cache"], "cannot be combined with --keep",
        ),
        "keep of a keras file": (
            ["evaluate", keras_file(run), "--dynamic", "--keep", tmp_path / "k"], "needs a RUN fol",
        ),
        "dynamic in windows": ([*dynamic, "--window", 5], "`--window` cannot be combined"),
        "a window by sentence": ([*evaluate, "--window", 5, "--by-sentence"], "--by-sentence"),
        "segments by sentence": (
            [*dynamic, "--by-sentence", "--sequence-length", 9], "with --by-sentence",
        ),
        "a scale without samples": ([*evaluate, "--dropout-scale", 0.5], "-scale` needs --samples"),
        "gates of a RUN without": (
            ["analyse", "gates", run, "--words", "the"], "`model` must have a gate that reads",
        ),
        "experts of a RUN without": (["analyse", "experts", run], "must have a mixture as output"),
        "curves of no RUN": (["analyse", "curves", tmp_path], "must hold card.toml"),
        "a prompt and a file": ([*generate, "f"], "`--prompt` and FILE"),
        "a text and a file": ([*score, "f"], "`--text` and FILE cannot"),
        "an unknown format": ([*score, "--format", "surprise"], "Did you mean 'surprisal'"),
        "words without a format": ([*score, "--words"], "`--words` needs --format surprisal"),
        "a rule without adapting": (
            [*score, "--format", "surprisal", "--rule", "sgd"], "`--rule` needs --adapt",
        ),
        "rms without a corpus": (
            ["score", keras_file(run), *score[2:], "--format", "surprisal", "--adapt", "--rule",
             "rms"], "which only a RUN folder of your own names",
        ),
        "a missing file": (["score", run, tmp_path / "none"], "FILE must be a text file"),
        "a path that is too long": (["evaluate", "a" * 300], "File name too long"),
        "bytes as text": (["score", run, "--text", "the \udcff"], "`--text` must be UTF-8"),
        "greedy with a temperature": ([*generate, "--greedy", "--temperature", 1], "`--greedy` me"),
        "greedy with a beam": ([*generate, "--greedy", "--beam", 2], "--beam 1 is greedy"),
        "a beam that draws": ([*generate, "--beam", 2, "--seed", 1], "which draws nothing"),
        "a huge beam": ([*generate, "--beam", 10**9], "`beam` must be at most the"),
    }  # fmt: skip


def keras_file(run):
    """Return a `.keras` file of the model of `run`."""
    path = run / ".." / "model.keras"
    if run != pathlib.Path() and not path.exists():
        dualnet.load(run).save(path)
    return path


@pytest.mark.parametrize("case", bad())
def test_bad_input_is_refused_in_one_sentence_with_exit_code_2(capsys, folder, run, tmp_path, case):
    arguments, message = bad(folder, run, tmp_path)[case]
    code, out, err = call(capsys, *arguments)
    assert code == 2, case
    assert message in err and "Traceback" not in err
    assert out == "" and err.count("\n") == 1


@pytest.mark.parametrize(
    ("split", "text", "message"),
    [
        ("valid", None, "must have the split 'valid'"),
        ("test", b"", "must not be empty"),
        ("train", b"a \xff b\n", "must be UTF-8"),
        ("valid", b"a b\n", "at least"),
        ("test", b"\n", "The split 'test' must hold at least 2 tokens"),
    ],
)
def test_a_bad_corpus_is_refused_in_one_sentence_with_exit_code_2(
    capsys, folder, tmp_path, split, text, message
):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_bytes((folder / f"{name}.txt").read_bytes())
    if text is None:
        (tmp_path / f"{split}.txt").unlink()
    else:
        (tmp_path / f"{split}.txt").write_bytes(text)
    arguments = ["train", "lstm", "--corpus", tmp_path, "--output", tmp_path / "RUN", *QUICK]
    code, _, err = call(capsys, *arguments)
    assert code == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "RUN").exists()


def test_a_run_whose_text_has_changed_is_refused(capsys, run, folder, tmp_path):
    text = shutil.copytree(folder, tmp_path / "text")
    shutil.copytree(run, tmp_path / "RUN")
    card = (tmp_path / "RUN" / "card.toml").read_text()
    (tmp_path / "RUN" / "card.toml").write_text(card.replace(str(folder), str(text)))
    (tmp_path / "RUN" / "sums.json").unlink()
    (text / "test.txt").write_text("the cat sees the dog\n" * 9)
    code, _, err = call(capsys, "evaluate", tmp_path / "RUN")
    assert code == 2 and "corpus of a RUN must be unchanged" in err
    out = called(capsys, "evaluate", tmp_path / "RUN", "--corpus", text, "--json")
    assert json.loads(out)["tokens"] == 9 * 6 - 1
    (text / "valid.txt").write_text("the cat sees the dog\nthe zebra\n")
    code, _, err = call(capsys, "evaluate", tmp_path / "RUN", "--corpus", text)
    assert code == 2 and "'zebra' in line 2 of" in err and "valid.txt" in err
    out = called(capsys, "evaluate", keras_file(tmp_path / "RUN"), "--corpus", folder)
    assert "perplexity" in out
