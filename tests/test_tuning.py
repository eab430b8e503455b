"""Searches of tiny models: what they find, keep, refuse and go on with."""

import json
import re
import shutil
import tomllib

import filelock
import keras
import keras_tuner
import pytest

import dualnet
from dualnet import corpora, tuning
from dualnet.tuning import load_job
from tests.checks import UNTRACED, once, sentences, write_splits
from tests.searches import SPACE, in_this_process, rows, write_job

pytestmark = [*UNTRACED, once]


@pytest.fixture(scope="module")
def searched(corpus, tmp_path_factory):
    """A search of which some trials fail, with batches beyond the text: its folder and tuner."""
    folder = tmp_path_factory.mktemp("search")
    space = {"learning_rate": SPACE["learning_rate"], "batch_size": [20, 5000]}
    job = write_job(folder, max_trials=4, space=space)
    with in_this_process():
        tuner = tuning.search(job, corpus, output=folder / "DIR", progress=False)
    return folder / "DIR", tuner


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The RUN folder of a tiny model, of a text long enough for statistics of the gradients."""
    folder = tmp_path_factory.mktemp("below")
    for seed, split in enumerate(("train", "valid", "test")):
        (folder / f"{split}.txt").write_text(sentences(4 if seed else 100, seed))
    output = folder / "RUN"
    dualnet.train(
        "lstm", str(folder), min_count=1, output=output, units=6, epochs=1, batch_size=20,
        sequence_length=9, learning_rate=0.01, progress=False,
    )  # fmt: skip
    return output


# --- what a search finds


@pytest.mark.slow
def test_the_best_are_completed_trials_only(searched):
    folder, tuner = searched
    table = rows(folder / "trials.csv")
    completed = [row for row in table if row["status"] == "completed"]
    failed = [row for row in table if row["status"] == "failed"]
    assert len(table) == 4 and completed and failed
    assert all("5000" in row["batch_size"] and row["message"] for row in failed)
    expected = sorted(float(row["val_perplexity"]) for row in completed)
    assert [trial.score for trial in tuner.oracle.get_best_trials(9)] == expected
    best = tuner.get_best_hyperparameters(9)
    assert len(best) == len(completed) and {hp.values["batch_size"] for hp in best} == {20}
    results = json.loads((folder / "results.json").read_text())
    assert results["best"]["val_perplexity"] == expected[0] and results["seed"] == 3
    assert results["trials"] == {"completed": len(completed), "failed": len(failed)}
    assert results["best"]["val_not_comparable"] == "the white space between words is lost"
    assert "val_bits_per_byte" not in table[0]
    for name in ("job.toml", "search.png"):
        assert (folder / name).stat().st_size > 0
    assert tomllib.loads((folder / "best.toml").read_text())["seed"] == 3
    assert not list(folder.glob("trials/*/run/checkpoints")), "they are of no use any more"


@pytest.mark.slow
def test_the_best_model_is_what_was_found_and_has_its_perplexity(searched, corpus):
    folder, tuner = searched
    (best,), (hp,) = tuner.get_best_models(), tuner.get_best_hyperparameters()
    built = tuner.hypermodel.build(hp)
    assert [w.shape for w in built.weights] == [w.shape for w in best.weights]
    assert float(built.optimizer.learning_rate) == pytest.approx(hp.values["learning_rate"])
    least = json.loads((folder / "results.json").read_text())["best"]["val_perplexity"]
    batches = corpus.batches("valid", batch_size=20, sequence_length=9)
    best.compile()
    measured = best.evaluate(batches, return_dict=True, verbose=0)
    assert measured["perplexity"] == pytest.approx(least, rel=1e-5)


@pytest.mark.slow
def test_a_search_goes_on_with_more_trials(searched, corpus, tmp_path):
    folder, _ = searched  # at which other tests look: this one goes on with a copy
    shutil.copytree(folder, tmp_path / "DIR")
    before = rows(tmp_path / "DIR" / "trials.csv")
    job = load_job(folder / "job.toml")
    with in_this_process() as begun:
        tuning.search(
            job, corpus, output=tmp_path / "DIR", resume=True, max_trials=5, progress=False
        )
    assert len(begun) == 1
    after = rows(tmp_path / "DIR" / "trials.csv")
    assert after[:4] == before and len(after) == 5


# --- jobs over a RUN


@pytest.mark.slow
def test_an_evaluation_is_searched_over_a_run(run, tmp_path, cli):
    tune = f"tune krause_dynamic --output {tmp_path}/DIR --max-trials 2 --tuner random --quiet"
    with in_this_process() as begun:
        results = cli.json(f"{tune} --run {run}")
    assert len(begun) == 2 and results["trials"] == {"completed": 2}
    assert results["best"]["val_bits_per_byte"] is None and results["best"]["val_not_comparable"]
    assert [path.name for path in (tmp_path / "DIR" / "statistics").iterdir()] == ["5.npz"]
    assert "dualnet evaluate" in (tmp_path / "DIR" / "best.toml").read_text()
    shutil.copytree(run, tmp_path / "RUN")
    said = cli.refused(f"{tune} --run {tmp_path}/RUN --resume")
    assert "`run` must not change when a search is resumed" in said


def test_a_shipped_model_is_searched_with_the_rule_of_the_job(tmp_path, cli):
    (tmp_path / "text.txt").write_text("It was late.\nThe cat slept.\n" * 9)
    tune = f"tune dual_evaluation --run lstm.wikitext-2 --corpus {tmp_path}/text.txt --max-trials 1"
    with in_this_process():
        results = cli.json(f"{tune} --output {tmp_path}/DIR --set evaluation=dynamic beta_1=0.0")
    best = (tmp_path / "DIR" / "best.toml").read_text()
    [command] = re.findall("dualnet (evaluate .* --rule nadam .* --split valid)", best)
    evaluated = cli.json(command)["perplexity"]
    assert evaluated == pytest.approx(results["best"]["val_perplexity"])


@pytest.mark.slow
def test_a_gate_is_searched_over_a_run(run, tmp_path):
    with in_this_process():
        tuner = tuning.search(
            "iog_gate_units", run=run, output=tmp_path / "DIR", progress=False, max_trials=1,
            epochs=1, batch_size=20, sequence_length=9,
        )  # fmt: skip
    (row,) = rows(tmp_path / "DIR" / "trials.csv")
    assert row["gate_units"] == "100" and row["epochs"] == "1" and row["ended"] == "all epochs"
    (model,) = tuner.get_best_models()
    assert model.count_params() == int(row["parameters"])


# --- KerasTuner's own tuners


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(keras_tuner.RandomSearch, {"max_trials": 1}), (keras_tuner.Hyperband, {"max_epochs": 1})],
)
def test_a_tuner_of_keras_tuner_searches_the_models_of_a_job(corpus, tmp_path, kind, settings):
    job = load_job(write_job(tmp_path, epochs=1))
    model = tuning.HyperModel(job, corpus)
    tuner = kind(
        model,
        objective=keras_tuner.Objective("val_perplexity", direction="min"),
        directory=str(tmp_path),
        **settings,
    )
    assert {p.name for p in tuner.oracle.get_space().space} == {
        "learning_rate", "output_dropout",
    }  # fmt: skip
    assert tuner.oracle.trials == {}
    tuner.search(verbose=0)
    scores = [trial.score for trial in tuner.oracle.trials.values()]
    assert scores and all(1 < score < len(corpus.vocabulary) * 2 for score in scores)
    (best,) = tuner.get_best_hyperparameters()
    assert min(scores) == tuner.oracle.get_best_trials()[0].score
    assert model.build(best).count_params() > 0


@pytest.mark.slow
def test_a_plain_fit_follows_the_learning_rates_of_the_recipe(corpus, tmp_path):
    rate = 1e-30  # changes no weight, so that no epoch but the first improves
    job = load_job(write_job(tmp_path, epochs=5))
    model = tuning.HyperModel(
        job.with_settings({"learning_rate": rate, "plateau_decay": 0.5}), corpus
    )
    hp = keras_tuner.HyperParameters()
    built, rates = model.build(hp), []

    def record(epoch, logs):
        rates.append(float(built.optimizer.learning_rate))

    recorder = keras.callbacks.LambdaCallback(on_epoch_end=record)
    history = model.fit(hp, built, callbacks=[recorder], initial_epoch=1, verbose=0)
    assert rates == pytest.approx([rate, rate, rate / 2, rate / 4], rel=1e-6, abs=0.0)
    assert len(history.history["val_perplexity"]) == 4


# --- what it refuses


REFUSED = {
    "grid with resume": ({"tuner": "grid", "resume": True}, ValueError, "`resume` must be False"),
    "nothing to resume": ({"resume": True}, FileNotFoundError, "search.json"),
    "no corpus": ({"corpus": None}, ValueError, "`corpus` must be given"),
    "a RUN for a training": ({"run": "RUN"}, ValueError, "`run` must be left out"),
    "an evaluation without a RUN": ({"job": "krause_dynamic"}, ValueError, "`run` must be given"),
    "no such job": ({"job": "dual_tabel1"}, ValueError, "dual_table1"),
    "unknown setting": ({"unit": 3}, ValueError, "units"),
    "all fixed": (
        {"learning_rate": 0.1, "output_dropout": 0.0}, ValueError, "`space` must leave",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_search_leaves_nothing(corpus, tmp_path, why):
    given, error, text = REFUSED[why]
    output = tmp_path / "DIR"
    settings = {"job": write_job(tmp_path), "corpus": corpus, "output": output, **given}
    with in_this_process() as begun, pytest.raises(error, match=text):
        tuning.search(**settings, progress=False)
    assert begun == [] and not output.exists()


CHIEF = {
    "KERASTUNER_TUNER_ID": "chief",
    "KERASTUNER_ORACLE_IP": "127.0.0.1",
    "KERASTUNER_ORACLE_PORT": "1",
}


@pytest.mark.parametrize("missing", ["KERASTUNER_ORACLE_IP", None])
def test_a_chief_has_all_variables_and_no_workers_of_its_own(
    corpus, tmp_path, monkeypatch, missing
):
    for name in CHIEF.keys() - {missing}:
        monkeypatch.setenv(name, CHIEF[name])
    message = f"must be set together. Received: an environment without {missing}."
    with pytest.raises(ValueError, match=message if missing else "`workers` must be left out"):
        tuning.search(write_job(tmp_path), corpus, output=tmp_path / "DIR", workers=2)
    assert not (tmp_path / "DIR").exists()


def test_a_folder_with_files_or_in_use_is_left_alone(searched, corpus):
    folder, _ = searched

    def changes():
        paths = [path for path in folder.iterdir() if path.name != ".lock"]
        return {path: path.stat().st_mtime_ns for path in paths}

    before = changes()
    arguments = {"job": load_job(folder / "job.toml"), "corpus": corpus, "output": folder}
    with pytest.raises(FileExistsError, match="`output` must be a new or empty folder"):
        tuning.search(**arguments)
    with filelock.FileLock(folder / ".lock"), pytest.raises(ValueError, match="no other process"):
        tuning.search(**arguments, resume=True)
    assert changes() == before


def test_a_search_goes_on_only_as_it_began(searched, corpus, tmp_path):
    folder, _ = searched
    write_splits(tmp_path, "the cat sees the dog\n" * 12)
    others = {
        "seed": {"seed": 4},
        "fixed": {"units": 7},
        "corpus_sha256": {"corpus": corpora.load(tmp_path)},
    }
    files = [folder / "job.toml", folder / "search.json"]
    before = [file.read_text() for file in files]
    for key, other in others.items():
        arguments = {"job": load_job(files[0]), "corpus": corpus, "output": folder, **other}
        with in_this_process() as begun, pytest.raises(ValueError, match=f"`{key}` must not cha"):
            tuning.search(**arguments, resume=True, progress=False)
        assert begun == [] and [file.read_text() for file in files] == before
