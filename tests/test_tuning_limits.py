"""The limits of searches, the ends that they come to, and what is shown of them."""

import errno
import os
import time
from pathlib import Path
from unittest import mock

import pytest

import dualnet
from dualnet import _files, tuning, zoo
from dualnet._data import folder as data_folder
from dualnet.tuning import load_job, search_run, trial, trial_process
from dualnet.tuning.engine import oracles
from dualnet.tuning.report import Display, Row
from tests.checks import UNTRACED, once
from tests.searches import epochs_of, history_of, in_this_process, rows, write_job

pytestmark = [*UNTRACED, once, pytest.mark.slow]


def statuses(folder):
    return [row["status"] for row in rows(folder / "trials.csv")]


def test_a_search_stops_where_all_fail_and_says_why(tmp_path, cli, monkeypatch, folder):
    monkeypatch.setattr(oracles, "FAILURES", 2)
    tune = f"tune {write_job(tmp_path, max_trials=20)} --corpus {folder} --max-hours 1 --quiet"
    with in_this_process() as begun:
        said = cli.refused(f"{tune} --output {tmp_path}/DIR --set learning_rate=1e30")
    assert said.startswith("dualnet tune: No trial was completed, and 2 failed. Trial 00: ")
    assert "no longer a number, in epoch 1" in said
    assert len(begun) == 2 and statuses(tmp_path / "DIR") == ["failed"] * 2


@pytest.mark.parametrize("name", ["oracle.json", "metrics.csv"])
def test_a_search_ends_where_the_disk_is_full_and_goes_on_with_space(
    tmp_path, cli, monkeypatch, folder, name
):
    flush = _files.flush

    def flush_or_fail(path):
        if Path(path).name.endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(path)

    job = write_job(tmp_path, max_trials=1, epochs=1)
    tune = f"tune {job} --corpus {folder} --output {tmp_path}/DIR --quiet"
    with in_this_process():
        monkeypatch.setattr(_files, "flush", flush_or_fail)
        said = cli.refused(tune)
        assert said.startswith("dualnet tune: ") and "No space left on device" in said
        assert str(tmp_path / "DIR") in said
        assert not list(tmp_path.rglob(f"{_files.UNFINISHED}*"))
        monkeypatch.setattr(_files, "flush", flush)
        monkeypatch.setattr(search_run, "write_plot", lambda *arguments: None)
        cli(f"{tune} --resume")
    assert statuses(tmp_path / "DIR") == ["completed"]


# --- its limits


def test_max_hours_leave_the_rest_for_later(corpus, tmp_path):
    job = write_job(tmp_path, max_trials=2)
    # Trials that fail at once: what is left does not depend on how they end.
    settings = {"output": tmp_path / "DIR", "progress": False, "batch_size": 5000}
    failed = pytest.raises(tuning.SearchError, match="batch_size")
    with in_this_process() as begun, pytest.raises(tuning.SearchError, match="within `max_hours`"):
        tuning.search(job, corpus, max_hours=1e-9, **settings)
    assert begun == []
    now = time.time
    with pytest.MonkeyPatch.context() as patch:

        def hours_pass(folder):
            patch.setattr(time, "time", lambda: now() + 7200)

        with in_this_process(hours_pass) as begun, failed:
            tuning.search(job, corpus, max_hours=1.0, resume=True, **settings)
    assert len(begun) == 1 and statuses(tmp_path / "DIR") == ["failed"]
    with in_this_process() as begun, failed:
        tuning.search(job, corpus, max_hours=1.0, resume=True, **settings)
    assert len(begun) == 1 and statuses(tmp_path / "DIR") == ["failed"] * 2


# The limit may strike while a file is being opened.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_trial_out_of_time_ends_with_what_it_has_or_fails(corpus, tmp_path, monkeypatch):
    timer = mock.Mock()  # goes off when it is told to

    def after_the_first_epoch(perplexities, peers, epochs):
        if len(epochs_of(tmp_path / "DIR" / "trials" / "0")) == 1:
            timer.call_args.args[1]()
        return False

    job = write_job(tmp_path, max_trials=1, epochs=6, early_stopping="median")
    monkeypatch.setattr(trial_process.threading, "Timer", timer)
    monkeypatch.setattr(trial, "should_prune", after_the_first_epoch)
    with in_this_process():
        tuning.search(job, corpus, output=tmp_path / "DIR", max_hours_per_trial=1.0, progress=False)
    (row,) = rows(tmp_path / "DIR" / "trials.csv")
    assert row["status"] == "completed" and row["ended"] == "time"
    assert 1 <= int(row["epochs"]) < 6
    monkeypatch.undo()
    limits = {"max_hours_per_trial": 1e-12, "progress": False}
    with in_this_process(), pytest.raises(tuning.SearchError, match="max_hours_per_trial"):
        tuning.search(job, corpus, output=tmp_path / "none", **limits)


def test_a_trial_without_hope_ends_early(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "PEERS", 1)  # instead of three
    space = {"learning_rate": [0.05, 1e-9]}  # the second learns nothing
    job = write_job(tmp_path, tuner="grid", early_stopping="median", epochs=3, space=space)
    with in_this_process():
        tuning.search(job, corpus, output=tmp_path / "DIR", progress=False)
    good, bad = rows(tmp_path / "DIR" / "trials.csv")
    assert (good["ended"], good["epochs"]) == ("all epochs", "3")
    assert (bad["status"], bad["ended"], bad["epochs"]) == ("completed", "hopeless", "2")


def test_models_of_a_budget_take_it_up(corpus, tmp_path):
    space = {"connection": ["plain", "dual"]}  # of two sizes but for the budget
    job = write_job(tmp_path, model="dual_lstm", tuner="grid", epochs=1, space=space)
    with in_this_process():
        tuner = tuning.search(job, corpus, output=tmp_path / "DIR", progress=False, parameters="4k")
    table = rows(tmp_path / "DIR" / "trials.csv")
    weights = [int(row["parameters"]) for row in table]
    assert all(3200 < count <= 4000 for count in weights) and len(weights) == 2
    assert {row["connection"] for row in table} == {"plain", "dual"}
    (model,) = tuner.get_best_models()
    assert model.count_params() in weights
    (hp,) = tuner.get_best_hyperparameters()
    assert tuner.hypermodel.build(hp).count_params() == model.count_params()


# --- Hyperband


def test_later_rounds_of_hyperband_go_on_from_earlier_ones(corpus, tmp_path):
    """A trial that goes on is one that was trained in one go, bit for bit."""
    options = {"tuner": "hyperband", "tuner_options": {"factor": 2}}
    job = load_job(write_job(tmp_path, **options))
    now = time.time
    with pytest.MonkeyPatch.context() as patch:

        def end_after_a_whole_trial(folder):
            if len(epochs_of(folder)) == 2:
                patch.setattr(time, "time", lambda: now() + 7200)

        with in_this_process(end_after_a_whole_trial) as begun:
            tuner = tuning.search(
                job, corpus, output=tmp_path / "DIR", max_hours=1.0, progress=False
            )
    table = rows(tmp_path / "DIR" / "trials.csv")
    assert len(begun) == 3 and [row["status"] for row in table] == ["completed"] * 3
    assert [row["epochs"] for row in table] == ["1", "1", "2"]
    drawn = {i: t.hyperparameters.values for i, t in tuner.oracle.trials.items()}
    ((last, values),) = [item for item in drawn.items() if item[1].get("tuner/trial_id")]
    first, second = (
        tmp_path / "DIR" / "trials" / name for name in (values["tuner/trial_id"], last)
    )
    assert history_of(second)[:1] == history_of(first) and epochs_of(second) == [1, 2]
    settings = job.settings(values)
    dualnet.train("lstm", corpus, output=tmp_path / "run", progress=False, seed=3, **settings)
    assert history_of(tmp_path) == history_of(second)
    assert not list((tmp_path / "DIR").glob("trials/*/run/checkpoints"))


def test_hyperband_trains_without_what_needs_a_last_epoch(corpus, tmp_path):
    recipe = {"averaging": "asgd", "finetune": "once", "linear_decay": True, "optimizer": "sgd"}
    options = {"tuner": "hyperband", "tuner_options": {"factor": 2}}
    job = write_job(tmp_path, **options)
    with in_this_process():
        tuning.search(job, corpus, output=tmp_path / "DIR", progress=False, **recipe)
    table = rows(tmp_path / "DIR" / "trials.csv")
    assert {row["status"] for row in table} == {"completed"}
    assert [row["epochs"] for row in table[:3]] == ["1", "1", "2"]
    best = zoo.card(tmp_path / "DIR" / "best.toml").recipe
    assert best.get("finetune", "none") == "none" and not best.get("linear_decay")


# --- the commands


def test_jobs_lists_and_shows_the_searches_of_the_papers(cli, tmp_path):
    table, names = cli("jobs").splitlines(), cli.json("jobs")
    assert names == tuning.list_jobs() and [line.split()[0] for line in table[1:]] == names
    for name in names:
        text, table = cli(f"jobs {name}"), cli.json(f"jobs {name}")
        searched = [parameter["name"] for parameter in table["space"]]
        assert searched == [parameter.name for parameter in load_job(name).space]
        assert all(parameter in text for parameter in searched) and table["paper"] in text
        assert text == (data_folder("tuning") / f"{name}.toml").read_text("utf-8")
    assert cli(f"jobs {write_job(tmp_path)}").startswith('model = "lstm"\n')


# --- what it shows


def made_up():
    settings = {"learning_rate": 0.00123456, "experts": [0, 5]}
    return [
        Row(trial="0", status="completed", drawn=settings, val_perplexity=9.5, epochs=3,
            ended="hopeless"),
        Row(trial="1", status="failed", drawn=settings, message="`batch` must fit.\nMore."),
        Row(trial="2", status="running", drawn=settings, val_perplexity=7.0, epochs=1),
        Row(trial="3", status="completed", drawn=settings, val_perplexity=8.25, ended="all epochs",
            val_bits_per_byte=2.1255),
    ]  # fmt: skip


def test_each_trial_that_ends_is_told_once_unless_quiet(capsys):
    trials = made_up()
    later = trials.pop()
    display = Display(trials, show=True)
    display.update(trials)
    assert capsys.readouterr().err == "", "they had ended before"
    trials.append(later)
    display.update(trials)
    display.update(trials)
    (line,) = capsys.readouterr().err.splitlines()
    result = "trial 3 has validation perplexity 8.25 (2.126 bits per byte)."
    assert line.startswith(f"{result}  2 completed, 1 running, 1 failed, best 8.25 (trial 3)")
    display = Display([], show=False)
    display.update(made_up())
    display.say("Here.")
    assert capsys.readouterr() == ("", "")
