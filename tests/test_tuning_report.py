"""What a search reports, on made-up trials and on small ones that were trained."""

import json
import math
import shlex
import tomllib

import pytest

import dualnet
from dualnet import training, zoo
from dualnet.adaptation import dynamic_evaluation
from dualnet.builders import with_cache
from dualnet.cli import main
from dualnet.evaluation import evaluate
from dualnet.tuning import report
from dualnet.tuning.job import Job, Parameter
from dualnet.tuning.report import Row, best_row
from dualnet.tuning.trial import read_epochs
from tests.checks import UNTRACED, once
from tests.searches import draws
from tests.searches import rows as read_csv

pytestmark = [*UNTRACED, once, pytest.mark.slow]

SMALL = {"units": 6, "batch_size": 20, "sequence_length": 9, "learning_rate": 0.01}


def job_of(*space, **fields):
    return Job(**{"name": "a_job", "model": "lstm", "space": space, **fields})


RATE = Parameter(name="learning_rate", min_value=1e-6, max_value=1e-2, sampling="log")
ROUNDS = Parameter(name="rounds", min_value=0, max_value=6)
RANK = Parameter(name="rank", values=(0, 50, 100), when={"rounds": (2, 3, 4, 5, 6)})
EXPERTS = Parameter(name="experts", values=([0, 15], [5, 15]))
CONNECTION = Parameter(name="connection", values=("plain", "dual"))
LOCKED = Parameter(name="locked", values=(True, False))
JOB = job_of(RATE, ROUNDS, RANK, EXPERTS, CONNECTION, LOCKED)


def draw(job, number):
    """Return `number` completed trials whose perplexity depends on the learning rate alone."""
    rows = []
    for trial, values in enumerate(draws(job, number)):
        perplexity = 60 + 10 * abs(math.log10(values["learning_rate"]) + 3)
        rows.append(completed(f"{trial:02}", perplexity, job.drawn(values)))
    return rows


def completed(trial, val_perplexity, drawn=None, **known):
    known = {"best_epoch": 2, "epochs": 3, "ended": "all epochs", **known}
    return Row(
        trial=trial, status="completed", drawn=drawn or {}, val_perplexity=val_perplexity, **known
    )


def failed(trial, message="no memory", drawn=None):
    return Row(trial=trial, status="failed", drawn=drawn or {}, message=message)


def read_perplexities(folder):
    return [epoch.val_perplexity for epoch in read_epochs(folder)]


def write_task(folder, trial="00", corpus="", run="", settings=None):
    (folder / "trials" / trial).mkdir(parents=True, exist_ok=True)
    task = {"settings": settings or {}}
    (folder / "trials" / trial / "task.json").write_text(json.dumps(task))
    (folder / "search.json").write_text(json.dumps({"corpus": str(corpus), "run": str(run)}))


# --- tables


def test_the_table_tells_equal_names_apart(tmp_path):
    job = job_of(Parameter(name="epochs", values=(3, 5)), LOCKED)
    rows = [  # none is the best
        completed("1", math.nan, {"epochs": 3, "locked": False}),
        failed("9", '\n "bad", \N{SNOWMAN}\nTraceback', {"epochs": 3}),
        completed("10", math.inf, {"epochs": 5, "locked": True}, epochs=4),
    ]
    report.write_report(tmp_path, job, rows)
    table = read_csv(tmp_path / "trials.csv")
    assert list(table[0]) == [*report.COLUMNS, "space.epochs", "locked", "message"]
    assert (table[2]["epochs"], table[2]["space.epochs"]) == ("4", "5")
    assert [row["locked"] for row in table] == ["false", "", "true"]
    assert table[1]["message"] == '"bad", \N{SNOWMAN}'


def test_the_best_trial_is_completed_and_finite(tmp_path):
    running = Row(trial="4", status="running", drawn={}, val_perplexity=1.0)
    nothing = [failed("0"), completed("1", math.nan), completed("2", math.inf), running]
    assert best_row(nothing) is None
    report.write_report(tmp_path, JOB, nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["trials.csv"]
    rows = [*nothing, completed("5", 70.0), completed("9", 50.0), completed("10", 50.0)]
    assert best_row(rows).trial == "9"


@pytest.fixture(scope="module")
def searched(folder, tmp_path_factory):
    """The folder of a search with one trial of three epochs, and its history."""
    search = tmp_path_factory.mktemp("search")
    output = search / "trials" / "00" / "run"
    write_task(search, corpus=folder)
    run = training.train("lstm", str(folder), output=output, epochs=3, progress=False, **SMALL)
    return search, run.history


def test_the_best_card_trains_to_the_perplexity_that_was_reported(searched, tmp_path):
    search, history = searched
    best = min(history[:2], key=lambda epoch: epoch["val_perplexity"])
    row = completed(
        "00", best["val_perplexity"], best_epoch=int(best["epoch"]), epochs=2, ended="hopeless"
    )
    report.write_best(search, job_of(), row, 12)
    card = zoo.card(search / "best.toml")
    assert card.recipe["epochs"] == 2 and card.name == "lstm"
    assert card.note.startswith("Best of 12 trials of job a_job: validation perplexity ")
    assert card.note.endswith(f"{row.val_perplexity:.2f} after epoch {row.best_epoch}.")
    assert main([*_command(search, RUN=tmp_path / "run")[1:], "--quiet"]) == 0
    again = read_perplexities(tmp_path)
    assert len(again) == 2 and min(again) == row.val_perplexity


def test_the_best_card_of_a_gate_says_which_model_is_below(searched, folder, tmp_path):
    search, _ = searched
    below = search / "trials" / "00" / "run"
    output = tmp_path / "trials" / "00" / "run"
    write_task(tmp_path, run=below)
    run = training.train_gate(
        below, str(folder), output=output, epochs=1, gate_units=4, batch_size=20, progress=False
    )
    perplexity = run.history[0]["val_perplexity"]
    row = completed("00", perplexity, best_epoch=1, epochs=1)
    report.write_best(tmp_path, job_of(kind="gate"), row, 1)
    assert "`--weights RUN`" in zoo.card(tmp_path / "best.toml").note
    assert main([*_command(tmp_path, CORPUS=folder, RUN=tmp_path / "run")[1:], "--quiet"]) == 0
    assert read_perplexities(tmp_path) == [perplexity]


def _command(search, **words):
    """Return the last command in the comments of `best.toml`, with words put in."""
    words["best.toml"] = search / "best.toml"
    lines = (search / "best.toml").read_text("utf-8").splitlines()
    command = [line.removeprefix("#   ") for line in lines if line.startswith("#   dualnet")][-1]
    return [str(words.get(word, word)) for word in shlex.split(command)]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.234567890123456, "batch_size": 2, "cache_size": 20, "cache_weight": 0.25},
        {"evaluation": "dynamic", "learning_rate": 1e-05, "beta_1": 0.9, "clipnorm": 0.0,
         "cache_size": 0},
    ],
)  # fmt: skip
def test_the_command_of_the_best_evaluation_gives_its_perplexity(
    searched, corpus, folder, tmp_path, cli, settings
):
    run = searched[0] / "trials" / "00" / "run"
    write_task(tmp_path, run=run, settings=settings, corpus=folder)
    job = job_of(kind="evaluation", paper="A paper")
    row = completed("00", 12.346, best_epoch=None, epochs=None)
    report.write_best(tmp_path, job, row, 3)
    text = (tmp_path / "best.toml").read_text("utf-8")
    table = tomllib.loads(text)
    assert table["run"] == str(run) and table["paper"] == "A paper"
    assert table["evaluation"] == settings
    assert table["note"] == "Best of 3 trials of job a_job: validation perplexity 12.35."
    command = _command(tmp_path)
    assert command[-2:] == ["--split", "test"] and str(folder) in command
    perplexity = cli.json(shlex.join([*command[1:-1], "valid"]))["perplexity"]
    model = dualnet.load(run)
    given = {key: value for key, value in settings.items() if value != 0.0}
    if cache := {key[6:]: given.pop(key) for key in settings if key in given and "cache_" in key}:
        model = with_cache(model, **cache)
    if given.pop("evaluation", "static") == "dynamic":
        assert perplexity == dynamic_evaluation(model, corpus.valid, **given).perplexity
    else:
        assert perplexity == evaluate(model, corpus.valid, **given).perplexity


# --- the plot


def test_a_panel_for_each_parameter_shows_the_perplexity_of_the_trials(tmp_path, pictures):
    rows = [*draw(JOB, 10), failed("12", drawn={"rounds": 1}), completed("13", 1e9, {"rounds": 1})]
    report.write_plot(tmp_path, JOB, rows)
    assert (tmp_path / "search.png").read_bytes()[:4] == b"\x89PNG"
    panels = {axes.get_xlabel(): axes for axes in pictures[0].axes}
    assert {*panels} == {parameter.name for parameter in JOB.space}
    best = best_row(rows)
    for name, axes in panels.items():
        points, orange = (collection.get_offsets() for collection in axes.collections)
        shown = [row for row in rows if row.status == "completed" and name in row.drawn]
        assert sum(math.isfinite(x) for x, _ in points.filled(math.nan)) == len(shown)
        if name in best.drawn:
            assert orange[0][1] == pytest.approx(best.val_perplexity)
    assert panels["learning_rate"].get_xscale() == "log"
    low, high = panels["rounds"].get_ylim()
    assert best.val_perplexity / 2 < low and high < 1000, "one that diverged takes no room"
