"""The shipped models: every one of them, and one that is made here in the same way."""

import itertools
import json

import numpy as np
import pytest
from keras import ops

import dualnet
from benchmarks import ship
from dualnet import builders, corpora, runs, zoo
from dualnet.runs import shipped
from dualnet.runs.model_cards import model_card
from dualnet.text import LibraryTokenizer, train_tokenizer
from tests.checks import assert_close, once, write_splits

pytestmark = [once, pytest.mark.slow]

SHIPPED = shipped.list_shipped()
NAME = "dual_lstm.tiny"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder like `zoo/pretrained`, with one model, and the RUN it was made from."""
    folder = tmp_path_factory.mktemp("tiny")
    text = "The cat, a <unk> one, sat on the mat.\nIts <unk> dog sat, too.\n"
    tokenizer = train_tokenizer([text * 40], "bpe", size=290, special=["<unk>"])
    write_splits(folder, text * 6, train=text * 40)
    corpus = corpora.load(str(folder), vocabulary=tokenizer)
    settings = {"units": 6, "batch_size": 4, "sequence_length": 9, "epochs": 1, "evaluate": False}
    run = dualnet.train("dual_lstm", corpus, output=folder / "run", progress=False, **settings)
    rule = {"rule": "sgd", "learning_rate": 0.3, "sequence_length": 5}
    ship.ship(run.folder, folder / "pretrained" / NAME, corpus, **rule)
    return folder


@pytest.fixture
def tiny_shipped(tiny, monkeypatch):
    monkeypatch.setattr(shipped, "folder_of_shipped", lambda: tiny / "pretrained")
    return tiny


@pytest.fixture(params=[NAME, *SHIPPED])
def folder(request, tiny):
    if request.param == NAME:
        return tiny / "pretrained" / NAME
    return shipped.folder_of_shipped() / request.param


def test_every_folder_is_whole_and_names_its_licence(folder):
    files = {path.name for path in folder.iterdir()}
    names = {"card.toml", "tokenizer.json", "model.weights.h5", "results.json", "sums.json"}
    licence = (folder / "LICENSES_SOURCES").read_text("utf-8")
    names |= {"words.txt"} if "words.txt" in licence else set()
    assert files == {*names, "LICENSES_SOURCES", "README.md"}
    assert "CC BY-SA 3.0" in licence
    card = runs.read_card(folder)
    assert card.trained_on["source"] == card.corpus and not card.weights
    assert "/" not in (folder / "card.toml").read_text("utf-8").partition("[corpus]")[2]  # no path
    assert sum(path.stat().st_size for path in folder.iterdir()) < 17_000_000


def test_the_model_card_of_every_folder_is_that_of_its_figures_and_licence(folder):
    model, card = dualnet.load(folder), (folder / "README.md").read_text("utf-8")
    assert card == model_card(model, runs.Run.open(folder), name=folder.name)
    assert f'dualnet.load("{folder.name}")' in card and "CC BY-SA 3.0" in card
    figures = json.loads((folder / "results.json").read_text("utf-8"))["dynamic"]["test"]
    assert f"| test, learning while reading | {figures['perplexity']:.2f} |" in card


def test_every_folder_scores_its_stored_text_as_its_results_say(folder):
    model = dualnet.load(folder)
    results = json.loads((folder / "results.json").read_text("utf-8"))
    ids = model.vocabulary.encode(results["sample"])
    assert model.count_params() == results["parameters"]
    static = ship.figures(model, ids, dualnet.evaluate(model, ids).token_losses)
    assert static == pytest.approx(results["static"]["sample"], abs=1e-3)
    score = dualnet.score(model, results["sample"])
    stored = results["static"]["sample"]
    assert score.tokens == stored["tokens"] + 1  # which scores the first token, too
    rule, settings = results["dynamic"]["rule"], results["dynamic"]["settings"]
    result = dualnet.dynamic_evaluation(model, ids, rule=rule, **settings)
    adapted = ship.figures(model, ids, result.token_losses)
    assert adapted == pytest.approx(results["dynamic"]["sample"], rel=1e-3)


def test_a_shipped_model_is_loaded_by_its_name(tiny_shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert zoo.list_models(pretrained=True) == [NAME] and NAME not in zoo.list_models()
    assert zoo.list_models("lstm*", pretrained=True) == []
    model = dualnet.load(NAME)
    assert model.name == runs.read_card(NAME).name == "dual_lstm"
    (tmp_path / NAME).mkdir()  # a folder of that name wins
    with pytest.raises(FileNotFoundError, match="must hold card.toml"):
        dualnet.load(NAME)
    with pytest.raises(FileNotFoundError, match=f"Shipped models: {NAME}"):
        dualnet.load("dual_lstm.absent")


def test_build_takes_shipped_weights_and_refuses_other_sizes(tiny_shipped):
    shipped_model = dualnet.load(NAME)
    model = zoo.build("dual_lstm", weights="tiny", output_dropout=0.25)
    assert model.arguments["output_dropout"] == 0.25
    assert model.vocabulary == shipped_model.vocabulary
    for found in (model, zoo.build("dual_lstm", weights="tiny")):
        for one, other in zip(shipped_model.weights, found.weights):
            if "seed" not in one.path:
                np.testing.assert_array_equal(*map(ops.convert_to_numpy, (one, other)))
    with pytest.raises(ValueError, match="`weights` must fit the model"):
        zoo.build("dual_lstm", weights="tiny", units=7)
    with pytest.raises(ValueError, match=f"Shipped models: {NAME}"):
        zoo.build("lstm", weights="tiny")
    with pytest.raises(ValueError, match="cannot be combined with trained weights"):
        zoo.build(NAME, corpus="ptb")
    for same in (zoo.build(NAME), zoo.build("dual_lstm", weights=NAME)):
        assert same.vocabulary == shipped_model.vocabulary
        assert same.arguments == shipped_model.arguments


def test_a_shipped_model_is_trained_further_by_its_name(tiny_shipped, tmp_path, cli):
    card = zoo.card(NAME)
    assert (card.name, card.config["units"]) == ("dual_lstm", 6)
    assert cli(f"card {NAME}").startswith(f"{NAME}, a trained model that is shipped")
    output = tmp_path / "further"
    train = f"train {NAME} --corpus {tiny_shipped} --output {output} --quiet"
    cli(f"{train} --epochs 1 --set learning_rate=1e-9")
    further, start = dualnet.load(output), dualnet.load(NAME)
    assert further.vocabulary == start.vocabulary
    assert_close(start.trainable_variables, further.trainable_variables, atol=1e-4)
    assert runs.read_card(output).weights == NAME
    cli(f"{train} --epochs 2 --resume")


def test_what_is_made_from_a_shipped_model_has_its_licence(tiny_shipped, tmp_path, cli):
    kept, both = tmp_path / "kept", tmp_path / "both"
    cli(f"evaluate {NAME} --corpus {tiny_shipped} --dynamic --keep {kept}")
    cli(f"ensemble {kept} {NAME} --output {both}")
    licences = (shipped.find_run(NAME) / "LICENSES_SOURCES").read_text("utf-8")
    for run in (kept, both):
        assert (run / "LICENSES_SOURCES").read_text("utf-8") == licences
    assert runs.read_card(kept).weights == NAME
    assert f"Adapted on test of {tiny_shipped}" in runs.read_card(kept).note
    assert "a shipped model or made of one" in cli.refused(f"evaluate {kept}")


def test_the_commands_take_the_name(tiny_shipped, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    text, corpus = "--text 'The cat sat, too.'", f"--corpus {tiny_shipped}"
    cli(f"score {NAME} {text}")
    cli(f"generate {NAME} --prompt 'The cat' --max-tokens 3")
    cli(f"evaluate {NAME} {corpus}")
    cli(f"tokenizer show {NAME}")
    assert NAME in cli("list --pretrained")
    assert "`dualnet list --pretrained`" in cli("list '*.tiny'")
    never_written_to = "a shipped model, which is never written to"
    for command, message in {
        f"evaluate {NAME}": "comes without its text",
        f"evaluate {NAME} {corpus} --dynamic --rule rms": "needs the text that the model was",
        f"train lstm {corpus} --output {NAME}": never_written_to,
        f"score dual_lstm.tny {text}": "Did you mean 'dual_lstm.tiny'?",
        f"score dual_lstm {text}": "is a model of the zoo: build it",
        f"score lstm.absent {text}": f"Shipped models: {NAME}.",
    }.items():
        assert message in cli.refused(command)
    assert not any(tmp_path.iterdir())


def test_a_shipped_model_learns_by_the_rule_of_its_own_figures(tiny_shipped, tmp_path, cli):
    evaluate = f"evaluate {NAME} --corpus {tiny_shipped} --dynamic"
    found = cli.json(evaluate)
    assert [found[key] for key in ("rule", "learning_rate", "sequence_length")] == ["sgd", 0.3, 5]
    stored = json.loads((shipped.find_run(NAME) / "results.json").read_text("utf-8"))["dynamic"]
    assert found["perplexity"] == pytest.approx(stored["test"]["perplexity"], rel=1e-4)
    found = cli.json(f"{evaluate} --set learning_rate=0.2 sequence_length=9")
    assert [found[key] for key in ("rule", "learning_rate", "sequence_length")] == ["sgd", 0.2, 9]
    found = cli.json(f"{evaluate} --rule nadam")
    assert (found["rule"], found["sequence_length"]) == ("nadam", 50)

    text = "The cat sat, too. The dog sat, too.\n"
    page = dualnet.look(NAME, text, adapt=True)
    explicit = dualnet.look(
        NAME, text, adapt=True, rule="sgd", learning_rate=0.3, sequence_length=5
    )
    assert page.segment == 5 and page.perplexities == explicit.perplexities
    look = f"look {NAME} --text '{text}' --adapt --output {tmp_path}/page.html"
    assert cli.json(look)["models"] == page.perplexities


@pytest.mark.parametrize(("unit", "told"), [("<unk>", "<unk>"), (" ", "  ")])
def test_units_that_only_unknown_words_take_are_never_generated(tiny, unit, told):
    model = dualnet.load(tiny / "run")
    tokenizer = model.vocabulary
    assert isinstance(tokenizer, LibraryTokenizer)
    ids = tokenizer.encode("a <unk> one\n")
    assert tokenizer.decode(ids) == "a <unk> one\n" and (ids == tokenizer.unk_id).sum() == 1
    assert [tokenizer.word(i) for i in tokenizer.unknown_ids] == ["<unk>", " "]
    embeddings = builders.weight_names(model)["embedding/embeddings"]
    values = ops.convert_to_numpy(embeddings).copy()
    likely = [*tokenizer].index(unit)
    values[likely] = 50 * np.abs(values).max()  # tied: its logit is far from all others
    draws = {"seed": 1, "max_tokens": 12, "stop_at_eos": False}
    settings = [{**draws, "temperature": 0.0}, draws, {"beam": 3, "max_tokens": 12}]
    texts = {False: "", True: ""}
    for sign, allowed, setting in itertools.product((1, -1), texts, settings):
        embeddings.assign(np.where(np.arange(len(values))[:, None] == likely, sign, 1) * values)
        texts[allowed] += dualnet.generate(model, "The cat", allow_unknown=allowed, **setting)
    assert told not in texts[False]
    assert told in texts[True]  # the model would take it


def test_the_shipped_models_read_a_text_where_no_run_is_named(tmp_path, cli):
    file, page = tmp_path / "text.txt", tmp_path / "page.html"
    file.write_text("The ship sank.\n")
    names = ["lstm.english", "dual_lstm.english"]  # the best; the plain one first
    found = dualnet.look(text="The ship sank.\n").perplexities
    assert [row["name"] for row in found] == names
    for words in (f"{file} --output {page}", f"--output {page} --json {file}",
                  f"--text 'The ship sank.\n' --output {page}"):  # fmt: skip
        assert cli.json(f"look {words}")["models"] == found
        page.unlink()
