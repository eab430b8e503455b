"""What a search reports, on made-up trials and on small ones that were trained."""

import dataclasses
import json
import math
import shlex
import tomllib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from matplotlib.image import imread
from tensorboard.backend.event_processing import data_provider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

import dualnet
from dualnet import training, zoo
from dualnet.adaptation import dynamic_evaluation
from dualnet.builders import language_model, with_cache
from dualnet.cli import main
from dualnet.evaluation import evaluate
from dualnet.plots.scales import limit_of
from dualnet.tuning.job import Job, Parameter
from dualnet.tuning.report import effects, figures, hparams, tables
from dualnet.tuning.report.tables import Row, best_row, completed_rows, read_rows
from dualnet.tuning.trial import read_epochs
from tests.checks import UNTRACED
from tests.searches import draws
from tests.searches import rows as read_csv

pytestmark = [*UNTRACED, pytest.mark.slow]

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
    return [epoch["val_perplexity"] for epoch in read_epochs(folder)]


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
        failed("9", '\n "bad", \N{SNOWMAN}; a\udcff path\nTraceback', {"epochs": 3}),
        completed("10", math.inf, {"epochs": 5, "locked": True}, epochs=4),
    ]
    tables.write_tables(tmp_path, job, rows)
    table = read_csv(tmp_path / "trials.csv")
    assert list(table[0]) == [*tables.COLUMNS, "space.epochs", "locked", "message"]
    assert (table[2]["epochs"], table[2]["space.epochs"]) == ("4", "5")
    assert [row["locked"] for row in table] == ["false", "", "true"]
    assert table[1]["message"] == '"bad", \N{SNOWMAN}; a? path'


def test_the_best_trial_is_completed_and_finite(tmp_path):
    running = Row(trial="4", status="running", drawn={}, val_perplexity=1.0)
    nothing = [failed("0"), completed("1", math.nan), completed("2", math.inf), running]
    assert best_row(nothing) is None
    tables.write_tables(tmp_path, JOB, nothing)
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
    tables.write_best(search, job_of(), row, 12)
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
    tables.write_best(tmp_path, job_of(kind="gate"), row, 1)
    assert "`--weights RUN`" in zoo.card(tmp_path / "best.toml").note
    assert main([*_command(tmp_path, CORPUS=folder, RUN=tmp_path / "run")[1:], "--quiet"]) == 0
    assert read_perplexities(tmp_path) == [perplexity]


def test_the_epochs_of_the_best_card_are_those_of_the_trial():
    recipe = {"epochs": 10, "finetune": "once", "finetune_epochs": 0}
    whole, early = completed("0", 60.0, epochs=14), completed("0", 60.0, epochs=4, ended="time")
    assert tables._recipe_as_trained(recipe, whole) == recipe
    assert tables._recipe_as_trained(recipe, early) == {**recipe, "epochs": 4, "finetune": "none"}
    stopped = dataclasses.replace(whole, ended="hopeless")
    assert tables._recipe_as_trained(recipe, stopped) == {**recipe, "finetune_epochs": 4}
    patient = {**recipe, "patience": 1}  # such a training ends in the same epoch again
    out_of_patience = completed("0", 60.0, epochs=4)
    assert tables._recipe_as_trained(patient, out_of_patience) == patient
    linear = {**recipe, "linear_decay": True}  # another rate in each epoch, if there are fewer
    assert tables._recipe_as_trained(linear, early) == linear


def test_the_command_divides_the_text_at_the_same_line(tmp_path):
    lines = [12345651, 1000000, 1000000]
    table = {"name": "mine", "source": "/mine.txt", "fractions": lines}
    assert tables._corpus_options(tmp_path, table)[-3:] == [str(count) for count in lines]


OFF = {
    "units": 6, "rounds": 0, "rank": 3, "mogrifier_dropout": 0.1, "mogrifier_l2": 0.1,
    "internal_dropout": 0.3, "skip_connections": True, "connection": "plain", "dual_l2": 0.1,
    "dual_input_dropout": 0.2, "cache_size": 0, "cache_weight": 0.2, "gate_units": 7,
    "cell": "mogrifier_lstm", "balance_form": "paper", "weight_l2": 0.0, "recurrent_units": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, {"units", "cell", "rounds"}),
        ({"rounds": 2}, {"units", "cell", "rounds", "rank", "mogrifier_dropout", "mogrifier_l2"}),
        ({"recurrent_layers": 2, "recurrent_units": 6},
         {"units", "cell", "rounds", "recurrent_units", "recurrent_layers", "internal_dropout",
          "skip_connections"}),
        ({"connection": "dual"},
         {"units", "cell", "rounds", "recurrent_units", "connection", "dual_l2",
          "dual_input_dropout"}),
        ({"experts": 2, "connection": "plain"},
         {"units", "cell", "rounds", "recurrent_units", "experts", "balance_form"}),
        ({"cell": "depth_gated_lstm", "depth": 2},
         {"units", "cell", "rounds", "internal_dropout", "depth"}),
    ],
)  # fmt: skip
def test_the_best_card_leaves_out_what_has_no_effect(changes, kept):
    config = OFF | changes
    if config["cell"] != "mogrifier_lstm":
        config |= {"rounds": 0, "rank": 0, "mogrifier_dropout": 0.0, "mogrifier_l2": 0.0}
    used = effects.config_with_effect("language_model", config, searched={"rounds"})
    assert set(used) == kept
    results = []
    for arguments in (config, used):
        keras.utils.set_random_seed(1)
        model = language_model(11, **arguments)
        logits = model(np.array([[1, 2, 3]]), training=True)
        results.append([np.asarray(x).tolist() for x in (logits, *model.losses, *model.weights)])
    assert results[0] == results[1], "what was left out had an effect"


def test_the_recipe_of_the_best_card_leaves_out_what_is_off():
    recipe = training.Recipe(optimizer="sgd", epochs=3, hold_epochs=2, average_interval=7)
    used = effects.recipe_with_effect(dataclasses.asdict(recipe), searched={"weight_decay"})
    assert training.Recipe(**used).epochs == 3
    assert set(used) == {
        "optimizer", "learning_rate", "weight_decay", "loss_reduction", "batching", "batch_size",
        "sequence_length", "epochs", "dtype_policy", "watch",
    }  # fmt: skip


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
        {"window": 6},
        {"evaluation": "dynamic", "learning_rate": 1e-05, "beta_1": 0.9, "clipnorm": 0.0,
         "cache_size": 0},
        {"evaluation": "dynamic", "rule": "sgd", "learning_rate": 0.05, "clipnorm": 0.25,
         "sequence_length": 7},
    ],
)  # fmt: skip
def test_the_command_of_the_best_evaluation_gives_its_perplexity(
    searched, corpus, folder, tmp_path, cli, settings
):
    run = searched[0] / "trials" / "00" / "run"
    write_task(tmp_path, run=run, settings=settings, corpus=folder)
    job = job_of(kind="evaluation", paper="A paper")
    row = completed("00", 12.346, best_epoch=None, epochs=None)
    tables.write_best(tmp_path, job, row, 3)
    text = (tmp_path / "best.toml").read_text("utf-8")
    table = tomllib.loads(text)
    assert table["run"] == str(run) and table["paper"] == "A paper"
    assert table["evaluation"] == settings
    assert table["note"] == "Best of 3 trials of job a_job: validation perplexity 12.35."
    command = _command(tmp_path)
    assert f"{shlex.join(command)} --split valid\n" in text and str(folder) in command
    perplexity = cli.json(f"{shlex.join(command[1:])} --split valid")["perplexity"]
    model = dualnet.load(run)
    given = {key: value for key, value in settings.items() if value != 0.0}
    if cache := {key[6:]: given.pop(key) for key in settings if key in given and "cache_" in key}:
        model = with_cache(model, **cache)
    if given.pop("evaluation", "static") == "dynamic":
        assert perplexity == dynamic_evaluation(model, corpus.valid, **given).perplexity
    else:
        assert perplexity == evaluate(model, corpus.valid, **given).perplexity


def test_a_corpus_without_a_path_is_asked_for(searched, tmp_path):
    write_task(tmp_path, run="a RUN", corpus="corpus")
    tables.write_best(tmp_path, job_of(kind="evaluation"), completed("00", 1.0), 1)
    assert _command(tmp_path) == ["dualnet", "evaluate", "a RUN", "--corpus", "CORPUS"]
    write_task(tmp_path, run="a RUN")
    tables.write_best(tmp_path, job_of(kind="evaluation"), completed("00", 1.0), 1)
    assert _command(tmp_path) == ["dualnet", "evaluate", "a RUN"]


# --- rows


def test_rows_come_from_outcomes_and_from_the_epochs_of_what_is_not_over(searched, tmp_path):
    search, history = searched

    def trial(name, status, score=None, outcome=None):
        if outcome is not None:
            (tmp_path / "trials" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "trials" / name / "outcome.json").write_text(json.dumps(outcome))
        values = {"rounds": int(name), "tuner/epochs": 3}
        drawn = SimpleNamespace(values=values)
        return SimpleNamespace(
            trial_id=name, status=status, score=score, hyperparameters=drawn, message=None
        )

    done = {
        "status": "completed", "val_perplexity": 61.5, "best_epoch": 2, "epochs": 3,
        "parameters": 99, "seconds": 7.5, "ended": "time", "message": None,
    }  # fmt: skip
    trials = [
        trial("01", "COMPLETED", 61.5, done),
        trial("02", "FAILED", None, {"status": "failed", "message": "why"}),
        trial("03", "RUNNING", outcome={"status": "failed", "message": "before"}),
        trial("04", "COMPLETED", 70.0),
        trial("05", "INVALID"),
        trial("10", "RUNNING"),
    ]
    for name in ("03", "10"):
        (tmp_path / "trials" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "trials" / name / "run").symlink_to(search / "trials" / "00" / "run")
    rows = read_rows(tmp_path, job_of(ROUNDS), trials, {"03"})
    assert [row.trial for row in rows] == ["01", "02", "03", "04", "05", "10"]
    assert [row.drawn for row in rows] == [{"rounds": int(row.trial)} for row in rows]
    statuses = ["completed", "failed", "running", "completed", "failed", "unfinished"]
    assert [row.status for row in rows] == statuses
    known = {key: value for key, value in done.items() if value is not None}
    assert rows[0] == Row(trial="01", drawn={"rounds": 1}, **known)
    assert rows[1].message == "why" and rows[3].val_perplexity == 70.0
    for row in (rows[2], rows[5]):
        assert row.epochs == 3 and row.message == ""
        assert row.val_perplexity == min(epoch["val_perplexity"] for epoch in history)
        assert row.seconds == pytest.approx(sum(epoch["seconds"] for epoch in history))


# --- plots


PLOTS = ("parallel_coordinates.png", "importance.png")


def plots(folder, job, rows):
    left_out = figures.write_plots(folder, job, rows)
    assert not [name for name in left_out if (folder / name).exists()]
    return [imread(folder / name) for name in PLOTS if name not in left_out]


def test_plots_are_pictures_that_grow_with_the_parameters(tmp_path):
    rows = [*draw(JOB, 10), failed("12", drawn={"rounds": 1})]
    parallel, importance = plots(tmp_path, JOB, rows)
    assert parallel.shape[0] >= 500 and parallel.shape[1] >= 800
    assert importance.shape[0] >= 300 and importance.shape[1] >= 800
    more = tuple(Parameter(name=f"p{i}", values=tuple(range(12))) for i in range(3))
    job = job_of(*JOB.space, *more)
    wide, tall = plots(tmp_path, job, draw(job, 10))
    assert wide.shape[1] >= parallel.shape[1] + 3 * 100
    assert tall.shape[0] >= importance.shape[0] + 3 * 20
    for picture in (parallel, importance):
        assert 0.01 < np.mean(picture[..., :3] < 0.9) < 0.9  # neither empty nor full


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "there are 0"),
        ([failed("0", drawn={"rounds": 2}), failed("1")], "there are 0"),
        ([Row(trial="0", status="running", drawn={}, val_perplexity=60.0)], "there are 0"),
        ([completed("0", math.nan, {"rounds": 2})], "there are 0"),
        ([completed("0", 60.0, {"rounds": 1, "rank": 77})], "there are 1"),  # an edited job
        (draw(JOB, 9), "it needs 10 completed trials, and there are 9"),
        ([completed(str(i), 60.0, {"rounds": 2}) for i in range(10)], "do not differ"),
        ([completed(str(i), 60.0 + i) for i in range(10)], "do not differ in their settings"),
    ],
)
def test_importances_are_drawn_of_ten_trials_that_differ(tmp_path, rows, reason):
    (picture,) = plots(tmp_path, JOB, rows)
    assert picture.shape[0] >= 300 and np.mean(picture[..., :3] < 0.5) > 0.001
    assert reason in figures.write_plots(tmp_path, JOB, rows)["importance.png"]


def test_the_colours_of_trials_have_a_bar_and_what_does_not_apply_has_a_mark(tmp_path, pictures):
    rows = [*draw(JOB, 9), failed("12", drawn={"rounds": 1}), completed("13", 1e9, {"rounds": 1})]
    plots(tmp_path, JOB, rows)
    axes, bar = pictures[0].axes
    assert bar.get_ylabel() == "validation perplexity (log scale)"
    best = min(row.val_perplexity for row in completed_rows(rows))
    shown = [label.get_text() for label in bar.get_yticklabels()]
    assert shown[0] == f"{best:.2f}" and "above" not in shown[-1]
    names = [label.get_text() for label in axes.get_xticklabels()]
    crosses = {names[int(line.get_xdata()[0])] for line in axes.lines if line.get_marker() == "x"}
    assert crosses == {*names} - {"rounds"}
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("does not apply") == len(crosses) - 1 and texts.count("failed") == 1


def test_a_few_diverged_trials_do_not_take_the_scale():
    better = [60.0, 62.0, 64.0, 70.0, 75.0, 80.0]
    assert 80 < limit_of([*better, 1e6, 1e9]) < 200
    assert limit_of([60.0, 60.0]) == 120.0


def test_what_matters_is_more_important_than_what_does_not():
    rows = draw(JOB, 60)
    places = {p.name: figures._axis(p, rows)[0] for p in JOB.space}
    values = np.log([row.val_perplexity for row in rows])
    importance, r2 = figures.importances(places, values)
    (mean, spread), rest = importance.pop("learning_rate"), importance.values()
    assert mean > 0.5 and mean - spread > 10 * max(abs(other) for other, _ in rest)
    assert 0.8 < r2 <= 1


def test_a_condition_that_does_not_hold_is_a_level_of_its_own():
    rows = draw(JOB, 60)
    places = {p.name: figures._axis(p, rows)[0] for p in (RANK, LOCKED)}
    values = np.log([60.0 + 20 * ("rank" in row.drawn) for row in rows])
    importance, r2 = figures.importances(places, values)
    assert importance["rank"][0] > 1 and abs(importance["locked"][0]) < 0.05 and r2 > 0.95
    assert figures.importances(places, values) == (importance, r2)  # a fixed seed
    noise = np.random.default_rng(0).normal(size=60)
    assert figures.importances(places, noise)[1] < 0.3


def test_places_are_on_the_scale_that_is_drawn_from():
    rows = [
        completed("0", 60.0, {"learning_rate": 1e-4, "rounds": 3, "experts": [5, 15]}),
        completed("1", 60.0, {"learning_rate": 1e-2, "rounds": 0, "experts": [0, 15]}),
    ]
    places, ticks = figures._axis(RATE, rows)
    assert places == pytest.approx([0.5, 1.0])
    labels = ["1e-06", "1e-05", "0.0001", "0.001", "0.01"]
    assert [label for _, label in ticks] == labels
    assert [place for place, _ in ticks] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert figures._axis(ROUNDS, rows)[0] == [0.5, 0.0]
    assert figures._axis(EXPERTS, rows) == ([1.0, 0.0], [(0, "[0, 15]"), (1, "[5, 15]")])
    mixed = Parameter(name="x", values=(True, 1, "1"))
    places = figures._axis(mixed, [completed("0", 1.0, {"x": x}) for x in mixed.values])[0]
    assert places == [0, 0.5, 1]
    reverse = Parameter(name="x", min_value=0.9, max_value=0.999, sampling="reverse_log")
    places, _ = figures._axis(reverse, [completed("0", 1.0, {"x": x}) for x in (0.9, 0.99, 0.999)])
    assert places[0] == 0 and places[2] == 1 and 0 < places[1] < 0.99


# --- TensorBoard


def sessions(folder):
    """Return TensorBoard's own view: the experiment, and the session of each trial."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder / "tensorboard"))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    asked, name = RequestContext(), ""
    experiment = context.experiment_from_metadata(
        asked, name, True, context.hparams_metadata(asked, name), []
    )
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=api_pb2.Status.values(),
        col_params=[api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos],
        include_metrics=True,
    )
    response = list_session_groups.Handler(asked, context, name, request).run()
    return experiment, {group.name: group for group in response.session_groups}, multiplexer


def test_tensorboard_reads_the_experiment_and_its_sessions(searched, tmp_path):
    search, history = searched
    (tmp_path / "trials" / "00").mkdir(parents=True)
    (tmp_path / "trials" / "00" / "run").symlink_to(search / "trials" / "00" / "run")
    drawn = {
        "learning_rate": 1e-3, "rounds": 2, "rank": 50, "experts": [0, 15], "connection": "dual",
        "locked": True,
    }  # fmt: skip
    rows = [
        completed("00", 61.5, drawn, seconds=20.0),
        failed("01", drawn={**drawn, "rounds": 1}),
        Row(trial="02", status="running", drawn={"rounds": 3}),
        Row(trial="03", status="unfinished", drawn={}, val_perplexity=70.0),
        completed("04", math.inf, {"locked": False}),
    ]
    hparams.write_hparams(tmp_path, JOB, [*rows, failed("05")])
    hparams.write_hparams(tmp_path, JOB, rows)  # anew
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tensorboard", "trials"]
    experiment, groups, multiplexer = sessions(tmp_path)
    types = {info.name: info.type for info in experiment.hparam_infos}
    number, text = api_pb2.DATA_TYPE_FLOAT64, api_pb2.DATA_TYPE_STRING
    assert types == {
        "learning_rate": number, "rounds": number, "rank": number, "experts": text,
        "connection": text, "locked": api_pb2.DATA_TYPE_BOOL,
    }  # fmt: skip
    assert [info.name.tag for info in experiment.metric_infos] == ["val_perplexity"]
    assert list(groups) == ["00", "01", "02", "03", "04"]
    statuses = ["SUCCESS", "FAILURE", "RUNNING", "UNKNOWN", "SUCCESS"]
    assert [groups[name].sessions[0].status for name in groups] == [
        getattr(api_pb2, f"STATUS_{status}") for status in statuses
    ]
    values = groups["00"].hparams
    assert values["learning_rate"].number_value == 1e-3 and values["rank"].number_value == 50
    assert values["experts"].string_value == "[0, 15]" and values["locked"].bool_value is True
    assert values["connection"].string_value == "dual"
    session = groups["00"].sessions[0]
    assert session.end_time_secs - session.start_time_secs == pytest.approx(20.0)
    values = {
        name: [metric.value for metric in group.metric_values] for name, group in groups.items()
    }
    assert values["00"] == [61.5] and values["03"] == [70.0]
    assert values["01"] == values["02"] == values["04"] == []
    curve = multiplexer.Tensors("00", "epoch_val_perplexity")
    assert [event.step for event in curve] == [1, 2, 3]
    expected = [np.float32(epoch["val_perplexity"]) for epoch in history]
    assert [event.tensor_proto.float_val[0] for event in curve] == expected
