"""The commands print what the library returns, and refuse bad input in one sentence."""

import dataclasses
import io
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import dualnet
from benchmarks.model_table import model_table
from dualnet import runs, serving, zoo
from dualnet.cli.console import Table
from dualnet.cli.evaluating import cache_settings
from dualnet.corpora import encoding
from dualnet.evaluation.comparing import Comparison
from dualnet.runs import Run
from dualnet.text import ByteTokenizer
from dualnet.training import loop
from tests import commands
from tests.checks import edit_card, needed, once, small

pytestmark = once

SMALL = "--set units=8 batch_size=4 sequence_length=9"
QUICK = f"{SMALL} learning_rate=1 optimizer=sgd"


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A RUN folder of a small model."""
    output = tmp_path_factory.mktemp("cli") / "RUN"
    sizes = {"units": 8, "batch_size": 4, "sequence_length": 9, "epochs": 1, "progress": False}
    return dualnet.train(
        "lstm", corpus, output=output, learning_rate=1.0, optimizer="sgd", **sizes
    ).folder


@pytest.mark.slow
def test_a_command_is_silent_about_the_start_of_the_backend(folder, tmp_path):
    line = f"train lstm --corpus {folder} --output {tmp_path}/RUN --epochs 1 {QUICK}"
    command = [sys.executable, "-m", "dualnet", *line.split()]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = process.stderr.splitlines()
    reading, first, last = lines
    assert reading.startswith("Reading '") and " as words, since its rare words" in reading
    assert re.fullmatch(r"epoch 1/1  0 of [\d,]+ tokens, compiling", first), process.stderr
    assert last.startswith("epoch 1/1  train perplexity")
    assert len(process.stdout.splitlines()) == 4
    assert "character or word: the white space between words is lost\n" in process.stdout


def test_the_version_is_that_of_the_package(cli, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    assert cli("--version") == "dualnet 1.2.3 of dualnet\n"


def test_a_warning_is_one_line_without_a_place_in_the_code(cli, monkeypatch):
    before, shown = warnings.formatwarning, []

    def listed(*_, **__):
        shown.append(warnings.formatwarning("'bird'\x1b is rare.", UserWarning, "encoding.py", 197))
        return []

    monkeypatch.setattr(zoo, "list_models", listed)
    cli("list dual_lstm")
    assert shown[0] == "Warning: 'bird'\\x1b is rare.\n"
    assert warnings.formatwarning is before


def test_list_shows_the_models_that_match(cli):
    assert cli("list --json") == json.dumps(zoo.list_models()) + "\n"
    out = cli("list 'dual_m*'")
    assert "dual_mdlstm" in out and "22,879,450" in out and "\nlstm" not in out
    assert "No model matches 'x*'" in cli("list 'x*'")


def test_the_documentation_has_the_table_of_all_models():
    page = pathlib.Path(dualnet.__file__).parents[1].joinpath("docs/zoo.md").read_text("utf-8")
    shown = page.partition("<!-- models -->\n")[2].partition("<!-- /models -->")[0]
    assert shown == f"{model_table(zoo.list_models())}\n", "run: make tables"


def test_the_table_has_every_card_with_what_is_published_and_measured():
    rows = [line.split(" | ") for line in model_table(zoo.list_models()).splitlines()]
    assert {len(row) for row in rows} == {9}
    table = {(row[0].strip("| `"), row[1]): row for row in rows[2:]}
    cards = [(name, corpus) for name in zoo.list_models() for corpus in zoo.card(name).corpora]
    assert list(table) == cards
    for (name, corpus), row in table.items():
        assert row[2] == f"{zoo.card(name, corpus).parameters:,}"
    assert table["variational_rhn_iog_hidden", "ptb"][3] == "-/75.6"
    assert table["awd_lstm", "ptb"][4:8] == ["60.0/57.3", "", "53.9/52.8", "51.6/51.1"]
    assert table["lstm", "ptb"][8] == "77.90/75.38 |"  # of models that have the card's sizes


def test_card_says_what_is_published_and_what_is_our_choice(cli):
    out = cli("card awd_lstm_iog")
    assert "published   cache: perplexity 53.3 validation, 53.0 test" in out
    assert "[evaluation]\ncache_size = 500\n" in out
    assert "cache_scale = 1.0  (our choice; not in the paper)" in out
    assert "[evaluation]" not in cli("card lstm")
    out = cli("card dual_lstm --corpus wikitext-2")
    assert "20,950,200" in out and "85.88" in out and "lower-cased" in out
    out = cli("card dual_dlstm --corpus wikitext-2")  # digits are those of the paper
    assert "dynamic: perplexity 61.10 validation, 57.10 test" in out
    assert "static: perplexity - validation, 96 test" in cli("card dglstm")
    out = cli("card attention_lstm --corpus multi30k")
    assert (
        "4,262,832 parameters: perplexity 10.21/9.83, bleu 22.92/23.10, bleu multi30k 23.2" in out
    )
    assert "units = 200\n" in out and 'cell = "lstm"  (our choice; not in the paper)\n' in out
    out = cli("card variational_lstm_medium")
    assert "mask_per_gate = true: static 81.9/79.7, deviation 0.2/0.1\n" in out
    also = cli.json("card variational_rhn")["also_published"]
    assert [result["static"] for result in also] == [[71.2, 68.5]]


def test_data_counts_tokens(cli, folder, corpus):
    summary = cli.json(f"data {folder}")
    assert summary["tokens"]["train"] == len(corpus.train)
    assert summary["vocabulary_size"] == len(corpus.vocabulary)
    assert summary["sentences"] == {"train": 60, "valid": 12, "test": 12}
    out = cli(f"data {folder}")
    assert f"{len(corpus.train):,} tokens         60 sentences   'the " in out


EVALUATED = {
    "": ({}, "perplexity "),
    "--batch-size 4": ({"batch_size": 4}, "read as 4 streams"),
    "--set window=6": ({"window": 6}, "read in windows of 6 tokens, each from the zero state\n"),
    "--by-sentence": ({"by_sentence": True}, "read by sentence, each after <eos> from the zero"),
    "--samples 3 --dropout-scale 0.8 --seed 5 --sequence-length 30": (
        {"mc_dropout_samples": 3, "dropout_scale": 0.8, "seed": 5, "sequence_length": 30},
        "averaged over 3 passes with dropout, rates scaled by 0.8, seed 5\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", EVALUATED)
def test_a_run_is_evaluated_as_by_the_library(cli, run, corpus, options):
    arguments, said = EVALUATED[options]
    result = cli.json(f"evaluate {run} {options}")
    assert list(result)[:3] == ["perplexity", "tokens", "batch_size"]
    found = dualnet.evaluate(dualnet.load(run), corpus.test, **arguments)
    assert result["perplexity"] == pytest.approx(found.perplexity, rel=1e-6)
    names = {"mc_dropout_samples": "samples"}
    shown = {"by_sentence": False, "tokens": found.tokens} | {
        names.get(key, key): value for key, value in arguments.items()
    }
    assert {key: result[key] for key in shown} == shown
    assert said in cli(f"evaluate {run} {options}")


SGD = "--dynamic --rule sgd --set learning_rate=0.5"


@pytest.mark.slow
def test_a_run_is_evaluated_dynamically(cli, run, corpus, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("dualnet.plots.plot_positions", lambda curves, path: drawn.update(curves))
    result = cli.json(
        f"evaluate {run} {SGD} decay=0.01 --sequence-length 7 --temperature 1.1 "
        f"--plot {tmp_path}/trace.png"
    )
    static = dualnet.perplexity(dualnet.load(run), corpus.test, temperature=1.1)
    assert list(drawn) == ["static", "dynamic (sgd)"]
    perplexities = [np.exp(losses.mean()) for losses in drawn.values()]
    np.testing.assert_allclose(perplexities, [static, result["perplexity"]], rtol=1e-6)
    assert result["static_perplexity"] == pytest.approx(static, rel=1e-6)
    assert list(result)[:3] == ["perplexity", "tokens", "batch_size"]
    settings = {"sequence_length": 7, "temperature": 1.1, "decay": 0.01}
    assert {key: result[key] for key in settings} == settings
    few = cli.json(f"evaluate {run} {SGD} --adapt-weights embedding output_bias")
    assert few["adapt"] == ["embedding", "output_bias"]
    assert "rule rms" in cli(f"evaluate {run} --dynamic --rule rms --set sequence_length=3")


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


@pytest.mark.slow
def test_a_run_is_evaluated_with_the_published_rule(cli, run, published):
    result = cli.json(f"evaluate {run} --dynamic --rule published --set decay=0.02")
    assert result == cli.json(f"evaluate {run} {SGD} decay=0.02 sequence_length=7")
    assert cache_settings([], Run(run, {"name": "lstm"}), "animals")["size"] == 9


@pytest.mark.slow
def test_a_run_adapted_on_one_split_is_kept_and_evaluated_on_another(cli, run, tmp_path, corpus):
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    settings, kept = f"{SGD} sequence_length=7", tmp_path / "KEPT"
    out = cli(f"evaluate {run} --split valid --keep {kept} {settings}")
    assert f"the adapted model is in {kept}\n" in out
    result = cli.json(f"evaluate {kept} {settings}")
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
    said = cli.refused(f"evaluate {run} --keep {kept} {settings}")
    assert "`--keep` must be a new or empty folder" in said


@pytest.mark.slow
def test_a_run_that_was_trained_by_sentence_is_evaluated_by_sentence(cli, run, tmp_path, corpus):
    copy = shutil.copytree(run, tmp_path / "RUN")
    edit_card(copy, 'batching = "streams"', 'batching = "sentences"')
    assert "read by sentence" in cli(f"evaluate {copy}")
    result = cli.json(f"evaluate {copy} --no-by-sentence")
    assert result["by_sentence"] is False and result["tokens"] == len(corpus.test) - 1
    # What streams alone have is never refused for a division that nobody asked for.
    for option in ("--batch-size 4", "--sequence-length 9"):
        assert cli.json(f"evaluate {copy} {option}")["by_sentence"] is False
    out = cli(f"evaluate {copy} --dynamic")
    assert "read as a stream, although the model was trained by sentence" in out


@pytest.mark.slow
def test_the_best_temperature_is_found_on_the_validation_split(cli, run, corpus, monkeypatch):
    monkeypatch.setattr("dualnet.cli.evaluating.TUNING_TOKENS", 60)
    model = dualnet.load(run)
    best = dualnet.best_temperature(model, corpus.valid[:60])
    by_sentence = dualnet.best_temperature(model, corpus.valid[:60], by_sentence=True)
    result = cli.json(f"evaluate {run} --temperature best --by-sentence")
    assert result["temperature"] == by_sentence and result["tuning_tokens"] == 60
    assert result["split"] == "test" and result["tokens"] == len(corpus.test)
    out = cli(f"evaluate {run} --temperature best --dynamic --sequence-length 20")
    assert f"temperature {best:.4g}, the best on the first 60 tokens of the validation" in out


@pytest.mark.slow
def test_a_model_is_trained_with_several_seeds_and_resumed(cli, folder, tmp_path, monkeypatch):
    train = f"train lstm --corpus {folder} --output {tmp_path}/RUNS --quiet --seeds 1 2"
    stopped_at, learnt = [], []

    def learn(*arguments, train_tokenizer=encoding.train_tokenizer, **settings):
        learnt.append(train_tokenizer(*arguments, **settings))
        return learnt[-1]

    def stop(folder, *arguments, write=loop.write_file):
        if folder.name == "seed-2" and not stopped_at:
            stopped_at.append(folder)
            raise KeyboardInterrupt("Stopped.")
        write(folder, *arguments)

    monkeypatch.setattr(loop, "write_file", stop)  # at the results of the second run
    monkeypatch.setattr(encoding, "train_tokenizer", learn)
    code, _, err = cli.call(f"{train} --epochs 1 --tokenizer word-piece:30 {QUICK}")
    assert code == 2 and "Stopped." in err
    first = (tmp_path / "RUNS/seed-1/results.json").stat().st_mtime_ns
    # The third with the settings of the others, and the corpus of the first.
    train = f"train lstm --output {tmp_path}/RUNS --quiet --seeds 1 2 3 --resume"
    result = cli.json(train)
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
    out = cli(train).splitlines()
    assert out[-1].endswith(f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f}")
    assert out[-1].startswith("mean ") and len(out) == 5


# --- gates, ensembles, caches


@pytest.fixture(scope="module")
def together(run, tmp_path_factory):
    """A RUN of an ensemble and one of a gate over it."""
    both, gated = (tmp_path_factory.mktemp("together") / name for name in ("both", "gated"))
    assert commands.run(f"ensemble {run} {run} --output {both}") == 0
    sizes = "gate_units=3 batch_size=4 sequence_length=9"
    gate = f"gate {both} --output {gated} --epochs 1 --quiet --set {sizes}"
    assert commands.run(gate) == 0
    return both, gated


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["units=5", "recurrent_layers=3"])
def test_a_gate_names_the_settings_that_change_the_model_below(cli, run, tmp_path, setting):
    said = cli.refused(f"gate {run} --output {tmp_path / 'gated'} --set {setting}")
    assert "`settings` must leave the model below the gate" in said


@pytest.mark.slow
def test_an_ensemble_of_runs_is_evaluated_and_put_under_a_gate(cli, together, corpus):
    both, gated = together
    base, model = dualnet.load(both), dualnet.load(gated)
    expected = dualnet.perplexity(base, corpus.test)
    assert cli.json(f"evaluate {both}")["perplexity"] == pytest.approx(expected, rel=1e-6)
    assert model.gated and model.arguments["gate_units"] == 3
    results = json.loads((gated / "results.json").read_text())
    assert results["test_perplexity"] != pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_a_run_is_evaluated_with_a_cache(cli, run, corpus):
    command = f"evaluate {run} --cache size=7 start=when_full"
    result = cli.json(command)
    cache = {"size": 7, "weight": 0.2, "scale": 0.3, "start": "when_full"}
    assert result["cache"] == cache
    expected = dualnet.perplexity(dualnet.with_cache(dualnet.load(run), **cache), corpus.test)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert "with a neural cache, size=7, weight=0.2, scale=0.3, start=when_full\n" in cli(command)
    # A cache that remembers more than the text takes no more memory.
    large = cli.json(f"evaluate {run} --cache size=100000000")
    assert large["perplexity"] == cli.json(f"evaluate {run} --cache size=9999")["perplexity"]


def test_a_run_is_evaluated_with_ngrams(cli, run, corpus):
    command = f"evaluate {run} --cache kind=ngram size=50"
    result = cli.json(command)
    assert result["cache"] == {"size": 50, "kind": "ngram"}
    model = dualnet.with_cache(dualnet.load(run), 50, kind="ngram")
    expected = dualnet.perplexity(model, corpus.test)
    assert result["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert "with a cache of n-grams, size=50\n" in cli(command)
    learning = f"evaluate {run} {SGD} --adapt-weights matrix:2 --ngrams 60"
    result = cli.json(learning)
    settings = {"rule": "sgd", "adapt": "matrix:2", "cache": 60}
    settings |= {name: result[name] for name in ("learning_rate", "sequence_length", "decay")}
    found = dualnet.dynamic_evaluation(dualnet.load(run), corpus.test, **settings)
    assert result["perplexity"] == pytest.approx(found.perplexity, rel=1e-5)
    assert result["ngrams"] == 60 and "cache" not in result
    assert "cache=60" in cli(learning)


@pytest.mark.slow
def test_runs_are_analysed(cli, run, together, tmp_path, corpus):
    gated = together[1]
    gates = f"analyse gates {gated} --words the cat --count 2 --least-occurrences 1"
    result = cli.json(f"{gates} --output {tmp_path}/gates.png")
    expected = dualnet.analysis.favoured_words(
        dualnet.load(gated), ["the", "cat"], count=2, corpus_tokens=corpus.train,
        least_occurrences=1,
    )  # fmt: skip
    assert {key: [tuple(pair) for pair in result["words"][key]] for key in expected} == expected
    assert result["output"] == str(tmp_path / "gates.png")
    word, value = expected["the"][0]
    assert f"the    {word} {value:.3f}, " in cli(gates)
    rank = f"analyse rank {run} {gated} --split valid --rows 20"
    result = cli.json(rank)["ranks"]
    found = dualnet.analysis.rank(dualnet.load(run), corpus.valid, rows=20)
    assert result[str(run)]["rank"] == found.rank and len(result) == 2
    np.testing.assert_allclose(result[str(run)]["singular_values"], found.singular_values)
    assert f"  {len(corpus.vocabulary)}  " in cli(f"{rank} --output {tmp_path}/r.png")
    curves = f"analyse curves {run} --output {tmp_path}/curves.png"
    result = cli.json(curves)["curves"][str(run)]
    assert {split: len(values) for split, values in result.items()} == {"train": 1, "valid": 1}
    assert f"1      {result['train'][0]:.2f}" in cli(curves)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gates.png", "r.png", "curves.png"}


def test_the_experts_of_a_model_are_analysed(cli, folder, corpus, tmp_path):
    size = len(corpus.vocabulary)
    model = dualnet.builders.language_model(size, units=4, experts=3)
    model.vocabulary = corpus.vocabulary
    model.save(tmp_path / "model.keras")
    command = f"analyse experts {tmp_path}/model.keras --corpus {folder}"
    result = cli.json(command)
    used = dualnet.analysis.expert_shares(model, corpus.test)
    np.testing.assert_allclose(result["shares"], used.shares, rtol=1e-5)
    assert result["layers"] == ["recurrence_1"] * 3 and result["tokens"] == len(corpus.test)
    out = cli(f"{command} --output {tmp_path}/shares.png")
    assert "coefficient of variation\n" in out and (tmp_path / "shares.png").exists()


def type_in(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_dry_run_leaves_out_half_the_units_where_the_cell_cannot_have_them(
    cli, folder, tmp_path, monkeypatch
):
    def seconds(model, corpus, **settings):
        if settings["units"] < 4:
            raise ValueError("`units` must be a multiple of 4.")
        return 2.0

    monkeypatch.setattr("dualnet.training.epoch_seconds", seconds)
    train = f"train lstm --corpus {folder} --output {tmp_path}/RUN --set units=4"
    assert cli(f"{train} --epochs 1 --dry-run").startswith("An epoch takes about 2.0 s here. Noth")
    assert "seconds_with_half_the_units" not in cli.json(f"{train} --dry-run")


def test_an_error_of_a_card_names_its_key_and_not_an_option(cli, folder, tmp_path):
    (tmp_path / "bad.toml").write_text('base = "lstm"\n[recipe]\nepochs = -1\n')
    train = f"train {tmp_path}/bad.toml --corpus {folder} --output {tmp_path}/RUN"
    assert "bad.toml: `epochs` must be an integer" in cli.refused(train)
    assert "train: `--epochs` must be" in cli.refused(f"{train} --set epochs=0")
    (tmp_path / "bad.toml").write_text('base = "lstm"\n')
    train += " --set units=4 batch_size=1000000"
    assert "train: `tokens` must hold at least" in cli.refused(train)  # not of the card


def test_a_dry_run_tells_the_time_and_writes_nothing(cli, folder, tmp_path):
    train = f"train lstm --corpus {folder} --output {tmp_path}/RUN --set units=4 batch_size=4"
    told = cli(f"{train} --epochs 1800 --dry-run")
    takes = r"An epoch takes about [\d.]+ s here, 1800 epochs about [\d.,]+ (s|min|h)\. Nothing"
    assert re.match(takes, told)
    assert "\nWith --set units=2: An epoch takes about " in told
    of_two = train.replace("units=4", "embedding_units=6 recurrent_units=4")
    assert "\nWith --set units=3: An epoch takes about " in cli(f"{of_two} --dry-run")
    assert cli.json(f"{train} --dry-run")["epochs"] == zoo.card("lstm").recipe["epochs"]
    assert "`--keep-every` must be" in cli.refused(f"{train} --dry-run --keep-every 5..1")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_prompts_are_continued(cli, run, monkeypatch):
    command = f"generate {run} --prompt 'the cat' --prompt the --max-tokens 7"
    command += " --temperature 0.9 --top-k 5 --top-p 0.9 --seed 3"
    result = cli.json(command)
    assert result.keys() == {
        "texts", "prompts", "max_tokens", "temperature", "top_k", "top_p", "min_p",
        "repetition_penalty", "stop_at_eos", "allow_unknown", "seed",
    }  # fmt: skip
    prompts = ["the cat", "the"]
    assert result["prompts"] == prompts and result["seed"] == 3
    expected = dualnet.generate(
        dualnet.load(run), prompts, max_tokens=7, temperature=0.9, top_k=5, top_p=0.9, seed=3
    )
    assert result["texts"] == expected
    assert cli.call(command) == (0, "\n\n".join(expected) + "\n", "")
    first = cli.json(f"generate {run} --prompt the --max-tokens 4")  # with a seed that is reported
    assert cli.json(f"generate {run} --prompt the --max-tokens 4 --seed {first['seed']}") == first


def test_the_likeliest_texts_are_printed(cli, run):
    command = f"generate {run} --prompt 'the cat' --prompt the --max-tokens 4 --beam 3"
    command += " --length-normalization 0.5"
    result = cli.json(command)
    assert list(result) == [
        "texts", "prompts", "max_tokens", "allow_unknown", "beam", "n_best", "length_normalization",
    ]  # fmt: skip
    several = dualnet.generate(
        dualnet.load(run), ["the cat", "the"], max_tokens=4, beam=3, n_best=2,
        length_normalization=0.5,
    )  # fmt: skip
    assert result["texts"] == [texts[0] for texts in several]
    shown = "\n\n".join(text for texts in several for text in texts)
    assert cli(f"{command} --nbest 2") == f"{shown}\n"


def test_the_text_of_one_prompt_is_shown_as_it_is_drawn(cli, run, monkeypatch):
    command = f"generate {run} --prompt 'the cat' --max-tokens 20 --seed 3"
    shown = []
    monkeypatch.setattr("dualnet.cli.using._show", shown.append)
    assert cli(f"{command} --stream") == "\n" and len(shown) == 2
    monkeypatch.undo()
    assert cli(f"{command} --stream") == cli(command) == "".join(shown) + "\n"


def test_prompts_come_from_a_file_or_standard_input(cli, run, tmp_path, monkeypatch):
    data = b"\xef\xbb\xbfthe cat\nthe dog sees\n\nthe"
    (tmp_path / "prompts.txt").write_bytes(data)
    settings = "--greedy --max-tokens 4 --stop-at-eos --allow-unknown"
    result = cli.json(f"generate {run} {tmp_path}/prompts.txt {settings}")
    assert result["prompts"] == ["the cat", "the dog sees", "", "the"]
    assert result["temperature"] == 0 and result["stop_at_eos"] is True
    assert result["texts"] == dualnet.generate(
        dualnet.load(run), result["prompts"], max_tokens=4, temperature=0, stop_at_eos=True,
        allow_unknown=True,
    )  # fmt: skip
    for words in (settings, f"{settings} -"):
        type_in(monkeypatch, data)
        assert cli.json(f"generate {run} {words}")["texts"] == result["texts"]


def test_each_line_is_scored_with_its_newline(cli, run, folder, tmp_path, monkeypatch):
    text = (folder / "test.txt").read_text() + "\nthe cat sees"
    (tmp_path / "lines.txt").write_text(text)
    result = cli.json(f"score {run} {tmp_path}/lines.txt")
    assert list(result)[:3] == ["perplexity", "tokens", "texts"]
    scores = dualnet.score(dualnet.load(run), text.splitlines(keepends=True))
    assert [tuple(entry["words"]) for entry in result["texts"]] == [one.words for one in scores]
    assert result["texts"][-1]["words"][-1] == "sees" and scores[-2].words == ("<eos>",)
    log_p = np.concatenate([score.log_probabilities for score in scores]).astype("float64")
    assert result["tokens"] == len(log_p)
    assert result["perplexity"] == pytest.approx(np.exp(-log_p.mean()), rel=1e-6)
    type_in(monkeypatch, text.encode())
    assert cli.json(f"score {run}")["tokens"] == len(log_p)


@pytest.mark.slow
def test_the_surprisal_of_each_line_is_printed_as_a_table(
    cli, run, folder, tmp_path, published, monkeypatch
):
    lines = (folder / "test.txt").read_text().splitlines(keepends=True)
    (tmp_path / "lines.txt").write_text("".join(lines[:5]))
    score = f"score {run} {tmp_path}/lines.txt --format surprisal"
    model = dualnet.load(run)
    head, *rows = cli(f"{score} --entropy").splitlines()
    assert head == "sentence_id\ttoken_id\ttoken\tsurprisal\tentropy"
    records = dualnet.surprisal(model, lines[:5], entropy=True)
    assert len(rows) == len(records) == 6 * 5 and rows[5].split("\t")[2] == "<eos>"
    for row, record in zip(rows, records):
        assert row.split("\t")[:3] == [str(value) for value in record.values()][:3]
        numbers = [record["surprisal"], record["entropy"]]
        np.testing.assert_allclose([*map(float, row.split("\t")[3:])], numbers, rtol=1e-5)
    adapted = cli.json(f"{score} --words --adapt --rule sgd --set learning_rate=0.5 decay=0.01")
    expected = dualnet.surprisal(
        model, lines[:5], adapt=True, rule="sgd", learning_rate=0.5, decay=0.01, words=True
    )
    first, second = ([list(each.values())[:3] for each in found] for found in (adapted, expected))
    assert first == second
    bits = [[record["surprisal"] for record in found] for found in (adapted, expected)]
    np.testing.assert_allclose(*bits, rtol=1e-5)
    assert cli.json(f"{score} --adapt --rule published --words") == adapted
    assert cli.json(f"{score} --adapt --words --adapt-weights output matrix:2") != adapted


def test_units_of_other_tokenisers_are_shown_in_one_row_each_and_by_word(cli, tmp_path):
    small(ByteTokenizer(documents="file")).save(tmp_path / "model.keras")
    score = f"score {tmp_path}/model.keras --text 'a\t\u00e9\n\rb'"
    rows = cli(f"{score} --format surprisal").split("\n")
    tokens = [row.split("\t")[2] for row in rows[:-1]]
    assert tokens == ["token", "a", "\\t", "\\xc3", "\\xa9", "\\n", "\\r", "b"]
    (text,) = cli.json(score)["texts"]
    assert text["tokens"] == 7 and text["whole_words"] == ["a", "\u00e9", "b"]
    total = sum(text["log_probabilities"])
    np.testing.assert_allclose(sum(text["whole_word_log_probabilities"]), total, rtol=1e-6)
    assert "  a \u00e9 b\n" in cli(score)


@pytest.mark.slow
def test_an_empty_text_has_perplexity_1_and_infinity_is_null_in_json(cli, run):
    result = cli.json(f"score {run} --text ''")
    assert result["perplexity"] == result["texts"][0]["perplexity"] == 1
    assert cli.json(f"evaluate {run} --temperature 1e-6")["perplexity"] is None


def test_rows_of_scores_fit_the_terminal(cli, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    sentence = "the cat sees the dog"
    long = f"{sentence}\n" * 90
    lines = cli(f"score {run} --text '{sentence}' --text '{long}'").splitlines()
    assert lines[0].split() == ["perplexity", "tokens", "text"]
    assert lines[1].endswith(f"  {sentence}") and lines[2].endswith("...")
    assert f"{sentence} <eos>" in lines[2] and max(map(len, lines)) <= 50
    assert lines[-3].endswith("on 545 tokens of 2 texts")
    assert lines[-2:] == [
        "no figures per byte, character or word: the white",
        "space between words is lost",
    ]


def test_a_file_that_is_not_text_is_refused_in_one_sentence(cli, run, tmp_path, monkeypatch):
    path, data = tmp_path / "lines.txt", b"the cat\nthe \xff dog\n"
    path.write_bytes(data)
    type_in(monkeypatch, data)
    message = "must be UTF-8. Received: {!r} with byte 0xff at offset 12"
    assert message.format(str(path)) in cli.refused(f"generate {run} {path}")
    assert message.format("standard input") in cli.refused(f"score {run}")


@pytest.mark.parametrize("command", [["list"], []], ids=["list", "no command"])
def test_a_reader_that_closes_standard_output_early_is_no_error(command):
    command = [sys.executable, "-u", "-m", "dualnet", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read().decode()
    assert (process.returncode, error) == (141, "")


def test_control_characters_of_files_are_escaped(cli, capsys, tmp_path):
    card = tmp_path / "my.toml"
    card.write_text('base = "lstm"\nnote = "a\\u001b[31m\\u009b1m\\nred\\tword"\n')
    out = cli(f"card {card}")
    assert "a\\x1b[31m\\x9b1m\nred\tword" in out and "\x1b" not in out and "\x9b" not in out
    assert str(Table(["word"], [["\x1b[2J"]])) == "word\n\\x1b[2J"
    assert "\x1b" not in cli.refused("card \x1b[2J")


@pytest.mark.slow
def test_own_text_is_read_as_the_options_say_and_resumed_so(cli, tmp_path):
    (tmp_path / "story.txt").write_text("The cat sees a dog. The dog sees a cat!\n" * 40)
    quick = f"--output {tmp_path}/RUN --set units=4 batch_size=2 sequence_length=9"
    train = f"train lstm --corpus {tmp_path}/story.txt {quick}"
    code, _, err = cli.call(f"{train} --epochs 1 --min-count 2 --vocabulary-size 5")
    assert code == 0 and "BPE, which" not in err
    card = (tmp_path / "RUN" / "card.toml").read_text()
    assert "min_count = 2" in card and len(dualnet.load(tmp_path / "RUN").vocabulary) == 5
    assert "must stay 2, as" in cli.refused(f"{train} --resume --epochs 2 --min-count 3")
    assert cli.call(f"{train} --resume --epochs 2 --min-count 2 --vocabulary-size 5")[0] == 0
    data = cli(f"data {tmp_path}/story.txt")
    assert f"Reading '{tmp_path}/story.txt' as byte-level BPE, which loses nothing" in data
    assert " 5 in the vocabulary" in cli(f"data {tmp_path}/story.txt --vocabulary-size 5")


@pytest.mark.slow
def test_the_text_of_a_run_is_divided_as_the_run_did(cli, tmp_path, monkeypatch):
    (tmp_path / "own.txt").write_text("the cat sees a dog\n" * 40)
    monkeypatch.chdir(tmp_path)
    quick = "--epochs 1 --set units=4 batch_size=2 sequence_length=9"
    cli(f"train lstm --corpus own.txt --fractions 50 25 25 --output RUN {quick}")
    own = cli.json("evaluate RUN")
    assert cli.json("evaluate RUN --corpus own.txt") == own and own["split"] == "test"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.json("evaluate RUN --corpus=~/own.txt") == own
    assert cli.json("evaluate RUN --corpus own.txt --fractions 90 5 5")["tokens"] < own["tokens"]
    for start in ("train RUN", "train lstm --weights RUN --set units=4", "gate RUN"):
        cli(f"{start} --corpus own.txt --output next --epochs 1")
        read = runs.read_card(tmp_path / "next").trained_on
        assert read["fractions"] == [50, 25, 25]
        shutil.rmtree("next")
    monkeypatch.chdir(tmp_path / "RUN")
    assert cli("card .").startswith("RUN, a trained model of your own")


def test_a_run_is_exported(cli, run, tmp_path, monkeypatch):
    monkeypatch.setattr(  # which takes seconds, and has tests of its own
        "dualnet.serving.saved_model.write_saved_model",
        lambda model, directory, *_: pathlib.Path(directory, "saved_model.pb").write_text(""),
    )
    out = cli(f"export {run} {tmp_path}/saved_model")
    assert "endpoints score, step, predict_next, score_text, generate_text" in out
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
    assert "must be new or empty" in cli.refused(f"export {run} {tmp_path}/saved_model")
    said = cli.refused(f"export {run} {tmp_path}/x --learn matrix:16 --ngrams 500")
    assert "`--ngrams` must be None for --format='saved_model'" in said
    export = f"export {run} {tmp_path}/m.tflite"
    said = cli.refused(f"{export} --format onnx")
    assert "`PATH` must be a file that ends in '.onnx'" in said
    monkeypatch.setattr(serving, "export", lambda model, path, **settings: path)
    out = cli.json(export)
    assert out["format"] == "litert" and out["endpoints"] == ["step"]


@pytest.mark.slow
def test_a_file_of_bytes_is_measured_on_the_validation_text_of_the_run(
    cli, run, tmp_path, monkeypatch
):
    needed("litert", "ai_edge_litert.interpreter")
    tokens = min(10_000, len(runs.corpus_of_run(run).valid) - 1)
    said = cli(f"export {run} {tmp_path}/m.tflite --quantize int8")
    assert "Perplexity of the file" in said and f"on {tokens:,} tokens" in said
    text = tmp_path / "text.txt"
    text.write_text("a b\n")
    out = cli.json(f"export {run} {tmp_path}/m.tflite --dtype float16 --check {text}")
    assert out["check"]["tokens"] == len(dualnet.load(run).vocabulary.encode("a b\n"))

    def changed(run, **settings):
        raise ValueError("`corpus` must be that of the run")

    monkeypatch.setattr(Run, "corpus", changed)
    assert "Perplexity" not in cli(f"export {run} {tmp_path}/m.tflite --quantize int8")


# --- bad input

EARLY, LATE = commands.REFUSED["early"], commands.REFUSED["late"]
LATE["score {run} --text 'the \udcff'"] = "`--text` must be text that"  # which TOML cannot hold


@pytest.fixture(scope="module")
def places(folder, run, together, tmp_path_factory):
    """What stands for the words in braces of `EARLY` and `LATE`."""
    tmp = tmp_path_factory.mktemp("bad")
    for name, text in {"file": "", "none.json": "{}", "short.txt": "a\nb\n"}.items():
        (tmp / name).write_text(text)
    dualnet.load(run).save(tmp / "model.keras")
    new = tmp / "new"
    return {
        "run": run, "text": folder, "tmp": tmp, "new": new, "model": tmp / "model.keras",
        "train": f"train lstm --corpus {folder} --output {new}",
        "short": f"train lstm --corpus {tmp}/short.txt --output {new}",
        "tune": f"tune dual_table1 --corpus {folder} --output {new}",
        "surprisal": "--text the --format surprisal", "long": "a" * 300, "both": together[0],
        "shipped": zoo.list_models(pretrained=True)[0],
    }  # fmt: skip


def test_bad_input_is_refused_in_one_sentence_with_exit_code_2_before_keras_is_loaded(places):
    words = [shlex.split(command.format(**places)) for command in EARLY]
    code = (
        "import sys; from dualnet.cli import main\n"
        f"for words in {words!r}:\n"
        "    code = main(words)\n"
        "    loaded = {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules)\n"
        "    assert code == 2 and not loaded, (words, code, loaded)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    said = process.stderr.splitlines(keepends=True)
    for line, (command, message) in zip(said, EARLY.items(), strict=True):
        assert message in line, command
    assert process.stdout == "" and not places["new"].exists()


@pytest.mark.parametrize("command", LATE)
def test_bad_input_that_a_model_shows_is_refused_in_one_sentence(cli, places, command):
    assert LATE[command] in cli.refused(command.format(**places))


def test_a_run_whose_text_has_changed_is_refused(cli, run, folder, tmp_path):
    text = shutil.copytree(folder, tmp_path / "text")
    copy = shutil.copytree(run, tmp_path / "RUN")
    edit_card(copy, str(folder), str(text))
    (text / "test.txt").write_text("the cat sees the dog\n" * 9)
    assert "is not that of the run" in cli.refused(f"evaluate {copy}")
    assert cli.json(f"evaluate {copy} --corpus {text}")["tokens"] == 9 * 6 - 1
    dualnet.load(run).save(tmp_path / "model.keras")
    assert "perplexity" in cli(f"evaluate {tmp_path}/model.keras --corpus {folder}")


def test_a_file_of_ones_own_is_read_whole_unless_it_is_divided(cli, run, tmp_path, monkeypatch):
    (tmp_path / "own.txt").write_text("the cat sees the dog\n" * 40)
    evaluate = f"evaluate {run} --corpus {tmp_path}/own.txt"
    whole = cli.json(evaluate)
    assert (whole["split"], whole["tokens"]) == ("whole", 40 * 6 - 1)
    assert cli.json(f"{evaluate} --split test")["tokens"] == 2 * 6 - 1
    assert cli.json(f"{evaluate} --fractions 25 50 25 --split valid")["tokens"] == 20 * 6 - 1
    (tmp_path / "wikitext-103").write_text("the cat sees the dog")
    monkeypatch.chdir(tmp_path)
    assert "not on this machine" in cli.refused(f"evaluate {run} --corpus wikitext-103")


def test_a_short_file_is_analysed_whole(cli, run, tmp_path):
    (tmp_path / "own.txt").write_text("the cat sees the dog\n" * 3)
    rank = f"analyse rank {run} --corpus {tmp_path}/own.txt"
    assert cli.json(rank)["ranks"][str(run)]["shape"][0] == 3 * 6
    assert "must leave text in each split" in cli.refused(f"{rank} --split valid")


def test_two_models_are_read_alike_as_the_result_says(cli, run, folder, tmp_path, monkeypatch):
    read = []

    def compared(first, second, tokens, *, by_sentence):
        read.append(by_sentence)
        return Comparison(0.0, (0.0, 0.0), (9.0, 9.0), len(tokens), 10)

    monkeypatch.setattr("dualnet.evaluation.compare", compared)
    model = small(dualnet.load(run).vocabulary, padded=True)  # as one of sentences
    model.save(tmp_path / "sent.keras")
    pairs = f"{run} {tmp_path}/sent.keras", f"{tmp_path}/sent.keras {run}"
    for pair in pairs:
        said = cli.refused(f"compare {pair} --corpus {folder}")
        assert "`--by-sentence` or --no-by-sentence must be given" in said
        assert f"of which '{tmp_path}/sent.keras' by sentence." in said
    out = cli(f"compare {pairs[0]} --by-sentence")
    assert f"{run} and {tmp_path}/sent.keras on animals test: perplexity 9.00" in out
    assert "\nread by sentence, each after <eos> from the zero state\n" in out
    result = cli.json(f"compare {pairs[1]} --no-by-sentence --corpus {folder} --split valid")
    expected = {"model": "lstm", "other": "lstm", "corpus": "animals", "split": "valid"}
    assert {**result, **expected, "by_sentence": False} == result
    cli(f"compare {tmp_path}/sent.keras {tmp_path}/sent.keras --corpus {folder}")
    assert read == [True, False, True]


@pytest.mark.slow
def test_quiet_hides_what_the_search_for_a_learning_rate_says(cli, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "RUN")
    code, out, err = cli.call(f"evaluate {copy} --dynamic --quiet")
    assert (code, err) == (0, "") and (copy / "learning.json").is_file()
    assert "rule nadam: learning_rate=" in out
