"""What a search has found: tables, the best card, plots and TensorBoard's HParams."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet._files import write_whole

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job, Parameter

RESULTS = "results.json"
COLUMNS = (
    "trial", "status", "ended", "val_perplexity", "best_epoch", "epochs", "parameters", "seconds",
)  # fmt: skip
LEAST = 8  # completed trials from which on the importance of parameters is estimated
FOLDS = 5  # of the cross-validation behind it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a search, as far as it has come.

    Attributes:
        trial: Its number, as KerasTuner writes it, e.g. "07".
        status: "completed", "failed", "running" or "unfinished".
        drawn: Values of the searched parameters, of those alone that are active.
        val_perplexity: The least so far; None before the first epoch.
        best_epoch: The epoch, from 1, that had it; None for an evaluation.
        epochs: How many there were; None for an evaluation.
        parameters: Weights of the model.
        seconds: Time of the trial; of one that is not over, of its epochs alone.
        ended: How a completed trial ended: "all epochs", "hopeless" or "time".
        message: Why a failed trial failed.
    """

    trial: str
    status: str
    drawn: dict[str, Any]
    val_perplexity: float | None = None
    best_epoch: int | None = None
    epochs: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    ended: str = ""
    message: str = ""


# --- from the files of a search


def read_rows(
    folder: str | os.PathLike[str], job: Job, trials: Iterable[Any], running: Collection[str]
) -> list[Row]:
    """Return the rows of `trials`, by their numbers.

    Args:
        folder: of the search, with what each trial left in `trials/<id>/`.
        job: the `Job`.
        trials: of KerasTuner: `trial_id`, `status`, `hyperparameters.values`, `score`.
        running: ids of the trials that a process works on; another one that has no
            outcome is unfinished.
    """
    rows = []
    for trial in trials:
        of_trial = Path(folder) / "trials" / trial.trial_id
        drawn = job.drawn(trial.hyperparameters.values)
        if trial.trial_id in running:
            found = {"status": "running", **_so_far(of_trial)}
        elif (of_trial / "outcome.json").is_file():
            found = json.loads((of_trial / "outcome.json").read_text("utf-8"))
        elif trial.status == "COMPLETED":
            found = {"status": "completed", "val_perplexity": trial.score}
        elif trial.status in ("FAILED", "INVALID"):
            found = {"status": "failed", "message": getattr(trial, "message", None)}
        else:
            found = {"status": "unfinished", **_so_far(of_trial)}
        known = {field.name for field in dataclasses.fields(Row)} - {"trial", "drawn"}
        given = {key: value for key, value in found.items() if key in known and value is not None}
        rows.append(Row(trial=trial.trial_id, drawn=drawn, **given))
    return _sorted(rows)


def _so_far(folder: Path) -> dict[str, Any]:
    history = _history(folder)
    if not history:
        return {}
    best = min(history, key=lambda epoch: epoch["val_perplexity"])
    return {
        "val_perplexity": best["val_perplexity"],
        "best_epoch": int(best["epoch"]),
        "epochs": len(history),
        "seconds": sum(epoch["seconds"] for epoch in history),
    }


def _history(folder: Path) -> list[dict[str, float]]:
    """Return the numbers of `metrics.csv` of a trial's RUN folder, none before its first epoch."""
    file = folder / "run" / "metrics.csv"
    if not file.is_file():
        return []
    wanted = ("epoch", "val_perplexity", "seconds")
    with file.open(encoding="utf-8", newline="") as opened:
        return [{key: float(epoch[key]) for key in wanted} for epoch in csv.DictReader(opened)]


def _sorted(rows: Iterable[Row]) -> list[Row]:
    def number(row: Row) -> tuple[bool, int, str]:
        is_number = row.trial.isdecimal()
        return not is_number, int(row.trial) if is_number else 0, row.trial

    return sorted(rows, key=number)


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the completed trial of the least perplexity, the first of equals; None without one."""
    return min(_completed(rows), key=lambda row: row.val_perplexity or 0.0, default=None)


def _completed(rows: Iterable[Row]) -> list[Row]:
    """Return the trials that are completed with a perplexity that is a number."""
    return [
        row
        for row in _sorted(rows)
        if row.status == "completed"
        and row.val_perplexity is not None
        and math.isfinite(row.val_perplexity)
    ]


# --- all together


def report(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Write all that a search reports into `folder`, at its end; it takes some seconds.

    That is `write_tables`, `write_plots` and `write_hparams`.
    """
    write_tables(folder, job, rows)
    write_plots(folder, job, rows)
    write_hparams(folder, job, rows)


def write_tables(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Write `trials.csv`, and `best.toml` once a trial is completed: cheap, after each trial."""
    write_trials(folder, job, rows)
    best = best_row(rows)
    if best is not None:
        write_best(folder, job, best, len(rows))


# --- tables


def write_trials(folder: str | os.PathLike[str], job: Job, rows: Iterable[Row]) -> None:
    """Write `trials.csv`: a line for each trial, by its number, in UTF-8.

    After what is known of each trial stands a column for each parameter of the space, empty
    where it is not active, lists and truth values in JSON; one that has the name of another
    column is called `space.NAME`. At the end stands the first line of the message.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    names = [parameter.name for parameter in job.space]
    taken = (*COLUMNS, "message")
    columns = [f"space.{name}" if name in taken else name for name in names]
    writer.writerow([*COLUMNS, *columns, "message"])
    for row in _sorted(rows):
        drawn = [_text(row.drawn[name]) if name in row.drawn else "" for name in names]
        known = [getattr(row, column) for column in COLUMNS]
        writer.writerow([*known, *drawn, _first_line(row.message)])
    write_whole(Path(folder) / "trials.csv", text.getvalue())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_line(message: str) -> str:
    line = next(iter(message.strip().splitlines()), "").strip()
    return line.encode("utf-8", "replace").decode()  # a path may hold what is no UTF-8


def write_best(folder: str | os.PathLike[str], job: Job, row: Row, number: int) -> None:
    """Write `best.toml`: what gives the perplexity of trial `row` once more, and the command.

    For a training or a gate that is a card, `dualnet train best.toml`: the card as used of
    the trial with as many epochs as it had. For an evaluation it is the RUN and the settings.

    Args:
        folder: of the search.
        job: the `Job`.
        row: a completed trial, as `best_row` returns it.
        number: how many trials it is the best of.

    Raises:
        FileNotFoundError: if the trial has no `task.json`, or its RUN folder no card.
        ValueError: if that is damaged.
    """
    import tomli_w

    after = "" if row.best_epoch is None else f" after epoch {row.best_epoch}"
    found = f"validation perplexity {row.val_perplexity:.2f}{after}"
    note = f"Best of {number} trials of job {job.name}: {found}."
    task = json.loads((Path(folder) / "trials" / row.trial / "task.json").read_text("utf-8"))
    corpus = task["corpus"]
    if corpus and (Path(corpus) / "corpus.json").is_file():  # that of a search in a notebook
        corpus = "CORPUS"
    if job.kind == "evaluation":
        table: dict[str, Any] = {"note": note, "run": task["run"]}
        if job.paper:
            table["paper"] = job.paper
        table["evaluation"] = task["settings"]
        command = _evaluate_command(task["run"], corpus, task["settings"])
        comment = f"That perplexity:\n  {command} --split valid\nThe test text:\n  {command}"
    else:
        from dualnet.training.run_folder import read_card

        used = read_card(Path(folder) / "trials" / row.trial / "run")
        weights = ""
        if job.kind == "gate":
            note += " It is trained with `--weights RUN`, the RUN of the model below the gate."
            weights = " --weights " + shlex.quote(used["weights"])
        used["recipe"] = _as_trained(used["recipe"], row)
        first: dict[str, Any] = {
            key: used.pop(key) for key in ("name", "builder", "paper") if key in used
        }
        table = {**first, "note": note, **used}
        text = shlex.quote(corpus or "CORPUS")
        command = f"dualnet train best.toml --corpus {text}{weights} --output RUN"
        comment = f"Trained once more, to that perplexity:\n  {command}"
    lines = [f"# {line}\n" for line in [note, *comment.splitlines()]]
    write_whole(Path(folder) / "best.toml", "".join(lines) + "\n" + tomli_w.dumps(table))


def _as_trained(recipe: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return `recipe` with the epochs that the trial had, which may have ended early."""
    if row.epochs is None or (row.ended == "all epochs" and row.epochs >= recipe["epochs"]):
        return dict(recipe)
    if row.epochs <= recipe["epochs"]:  # before its fine-tuning
        return {**recipe, "epochs": row.epochs, "finetune": "none"}
    if recipe["finetune"] == "once":
        return {**recipe, "finetune_epochs": row.epochs - recipe["epochs"]}
    return dict(recipe)  # no recipe ends within a later round; its perplexity is reached before


def _evaluate_command(run: str, corpus: str, settings: Mapping[str, Any]) -> str:
    """Return the command that evaluates `run` on the test text with `settings`."""
    from dualnet.builders.wrappers import WRAPPERS

    words = ["dualnet", "evaluate", run, *(["--corpus", corpus] if corpus else [])]
    left = dict(settings)
    cache = {name: left.pop(name, WRAPPERS[name]) for name in WRAPPERS if name.startswith("cache_")}
    if left.pop("evaluation", "static") == "dynamic":
        words += ["--dynamic", "--rule", left.pop("rule", "nadam")]
        if not left.get("clipnorm"):
            left.pop("clipnorm", None)  # 0 is none
    for name in ("temperature", "sequence_length", "batch_size"):
        if name in left:
            words += [f"--{name.replace('_', '-')}", _text(left.pop(name))]
    if left:
        words += ["--set", *(f"{name}={_text(value)}" for name, value in left.items())]
    if cache["cache_size"]:
        words.append("--cache")  # all of it: what is not given would be as published
        words += [f"{name.removeprefix('cache_')}={_text(cache[name])}" for name in cache]
    return shlex.join(words)


# --- plots


def write_plots(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Draw `parallel_coordinates.png` and `importance.png`.

    The first shows the completed trials coloured by perplexity, the best in red, and the
    failed ones grey. The second shows the permutation importance of each parameter in a
    random forest, which was fitted to the logarithm of the perplexity of the completed
    trials: how much the squared error rises, in variances, on trials that the forest was
    not fitted to, where the values of one parameter are shuffled. Perplexities that are
    much worse than the better part count as equal: how bad they are is chance.
    """
    from dualnet.plots import limit_of, plot_importance, plot_parallel_coordinates

    completed = _completed(rows)
    failed = [row for row in _sorted(rows) if row.status == "failed"]
    axes = {parameter.name: _axis(parameter, [*completed, *failed]) for parameter in job.space}
    best = best_row(rows)
    title = f"{job.name}: trials completed {len(completed)}, failed {len(failed)} (grey)"
    if best is not None:
        title += f"; the best (red) is {best.trial} with {best.val_perplexity:.2f}"
    plot_parallel_coordinates(
        {name: (axis.places, axis.ticks) for name, axis in axes.items()},
        [row.val_perplexity or math.nan for row in completed] + [math.nan] * len(failed),
        Path(folder) / "parallel_coordinates.png",
        title=title,
        result="validation\nperplexity",
    )
    number = len(completed)
    perplexities = np.array([row.val_perplexity for row in completed], np.float64)
    varied = {
        name: axis.places[:number]
        for name, axis in axes.items()
        if len(set(map(str, axis.places[:number]))) > 1
    }
    path = Path(folder) / "importance.png"
    head = f"{job.name}: what the perplexity of {number} trials depends on"
    if number < LEAST:
        text = f"{number} completed trials are too few\nto say what matters: it takes {LEAST}."
        plot_importance({}, path, title=head, text=text)
    elif not varied or perplexities.min() <= 0 or np.ptp(perplexities) == 0:
        text = "The completed trials do not differ\nin their settings or their perplexity."
        plot_importance({}, path, title=head, text=text)
    else:
        limit = limit_of(perplexities)
        found, explained = importances(varied, np.log(np.minimum(perplexities, limit)))
        cut = f", at most {limit:.0f}" if perplexities.max() > limit else ""
        trust = "" if explained >= 0.3 else ": it predicts little, trust no bar"
        title = (
            f"{head}\npermutation importance of a random forest on log perplexity{cut}\n"
            f"cross-validated R² = {explained:.2f}{trust}"
        )
        plot_importance(found, path, title=title)


def importances(
    places: Mapping[str, Sequence[float]], values: np.ndarray
) -> tuple[dict[str, tuple[float, float]], float]:
    """Return how much a random forest needs each parameter to predict `values`, and its R².

    Args:
        places: name to the places of the trials on its scale, nan where it is not active.
        values: `(trials,)`, not all equal.

    Returns:
        For each name the increase of the squared error when its places are shuffled, as a
        part of the variance of `values`: mean and standard deviation over `FOLDS` folds,
        each predicted by a forest that was fitted to the others; and the R² of all these
        predictions, at most 1, below 0 if the mean would predict better.
    """
    from sklearn.ensemble import RandomForestRegressor  # here, because it takes a second
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    table = np.nan_to_num(np.array(list(places.values())).T, nan=-1.0)  # a level of its own
    increases, squares = [], []
    for fitted, held_out in KFold(FOLDS, shuffle=True, random_state=0).split(table):
        forest = RandomForestRegressor(50, random_state=0).fit(table[fitted], values[fitted])
        found = permutation_importance(
            forest,
            table[held_out],
            values[held_out],
            scoring="neg_mean_squared_error",
            n_repeats=5,
            random_state=0,
        )
        increases.append(found.importances_mean / values.var())
        squares.extend((forest.predict(table[held_out]) - values[held_out]) ** 2)
    means, spreads = np.mean(increases, 0), np.std(increases, 0)
    each = {name: (float(means[i]), float(spreads[i])) for i, name in enumerate(places)}
    return each, 1 - float(np.mean(squares) / values.var())


@dataclasses.dataclass(frozen=True)
class _Axis:
    places: list[float]  # of each trial on its scale, from 0 to 1; nan where it is not active
    ticks: list[tuple[float, str]]


def _axis(parameter: Parameter, rows: Sequence[Row]) -> _Axis:
    drawn = [row.drawn.get(parameter.name) for row in rows]
    if parameter.values:
        # As JSON, in which 1 is not true; with those of a job that was edited since.
        known = [*parameter.values, *(value for value in drawn if value is not None)]
        levels = list(dict.fromkeys(map(json.dumps, known)))
        last = max(len(levels) - 1, 1)
        places = [
            math.nan if value is None else levels.index(json.dumps(value)) / last for value in drawn
        ]
        labels = [_text(json.loads(level)) for level in levels]
        return _Axis(places, [(i / last, label) for i, label in enumerate(labels)])
    low, high = _scaled(parameter, parameter.min_value), _scaled(parameter, parameter.max_value)
    width = high - low or 1.0
    places = [
        math.nan if value is None else (_scaled(parameter, value) - low) / width for value in drawn
    ]
    ticks = [((_scaled(parameter, tick) - low) / width, f"{tick:.6g}")
             for tick in _ticks(parameter)]  # fmt: skip
    return _Axis(places, ticks)


def _scaled(parameter: Parameter, value: Any) -> float:
    value = float(value)
    if parameter.sampling == "log":
        return math.log(value)
    if parameter.sampling == "reverse_log":  # as KerasTuner: the logarithm from the upper end
        low, high = float(parameter.min_value or 0), float(parameter.max_value or 0)
        return -math.log(high + low - value)
    return value


def _ticks(parameter: Parameter) -> list[float]:
    """Return round values on the scale of a range, and its ends."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = float(parameter.min_value or 0), float(parameter.max_value or 0)
    if parameter.sampling == "log" and high >= 30 * low:
        found = LogLocator(numticks=6).tick_values(low, high)
    else:
        integers = all(isinstance(end, int) for end in (parameter.min_value, parameter.max_value))
        found = MaxNLocator(5, integer=integers).tick_values(low, high)
    start, end = _scaled(parameter, low), _scaled(parameter, high)
    apart = 0.07 * (end - start)  # or the labels would touch
    inner = [
        float(tick)
        for tick in found
        if low < tick < high and start + apart < _scaled(parameter, tick) < end - apart
    ]
    return list(dict.fromkeys([low, *inner, high]))


# --- TensorBoard


def write_hparams(folder: str | os.PathLike[str], job: Job, rows: Iterable[Row]) -> None:
    """Write TensorBoard's HParams into `tensorboard/`, anew and whole.

    Each trial is a session with its drawn values, its status, the metric `val_perplexity`,
    which is the least of its epochs, and the curve `epoch_val_perplexity`. Read it with
    `tensorboard --logdir FOLDER/tensorboard`.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

    # `tensorboard.plugins.hparams.summary`, which writes the end of a session, loads TensorFlow.
    statuses = {
        "completed": api_pb2.STATUS_SUCCESS,
        "failed": api_pb2.STATUS_FAILURE,
        "running": api_pb2.STATUS_RUNNING,
    }
    folder = Path(folder)
    names = {parameter.name: _domain(parameter) for parameter in job.space}
    beside = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        beside.chmod(0o755)  # mkdtemp hides it from others
        config = summary_v2.hparams_config_pb(
            hparams=[summary_v2.HParam(name, domain) for name, domain in names.items()],
            metrics=[summary_v2.Metric("val_perplexity", display_name="validation perplexity")],
        )
        _write_events(beside, [(0, config)])
        for row in _sorted(rows):
            end = time.time()
            drawn = {
                name: _of_type(domain.dtype, row.drawn[name])
                for name, domain in names.items()
                if name in row.drawn
            }
            start = summary_v2.hparams_pb(
                drawn, trial_id=row.trial, start_time_secs=end - (row.seconds or 0.0)
            )
            events = [(0, start)]
            for epoch in _history(folder / "trials" / row.trial):
                events.append(
                    (int(epoch["epoch"]), _scalar("epoch_val_perplexity", epoch["val_perplexity"]))
                )
            if row.val_perplexity is not None and math.isfinite(row.val_perplexity):
                events.append((row.best_epoch or 0, _scalar("val_perplexity", row.val_perplexity)))
            status = statuses.get(row.status, api_pb2.STATUS_UNKNOWN)
            info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=end)
            ended = plugin_data_pb2.HParamsPluginData(session_end_info=info)
            value = Summary.Value(
                tag=metadata.SESSION_END_INFO_TAG,
                metadata=metadata.create_summary_metadata(ended),
                tensor=metadata.NULL_TENSOR,
            )
            events.append((0, Summary(value=[value])))
            (beside / row.trial).mkdir()
            _write_events(beside / row.trial, events)
        old = folder / "tensorboard"
        if old.exists():
            shutil.rmtree(old)
        beside.rename(old)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _scalar(tag: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def _write_events(folder: Path, events: Iterable[tuple[int, Any]]) -> None:
    # tensorboard's record writer: its event writer loads TensorFlow.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with (folder / "events.out.tfevents.0.dualnet").open("wb") as file:
        writer = RecordWriter(file)
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        for step, summary in events:
            event = Event(wall_time=time.time(), step=step, summary=summary)
            writer.write(event.SerializeToString())


def _domain(parameter: Parameter) -> Any:
    """Return the domain of a parameter in HParams, which knows numbers, texts and truth values."""
    from tensorboard.plugins.hparams import summary_v2

    if not parameter.values:
        return summary_v2.RealInterval(
            float(parameter.min_value or 0), float(parameter.max_value or 0)
        )
    kinds = {type(value) for value in parameter.values}
    if kinds == {bool}:
        dtype: type = bool
    else:
        dtype = float if kinds <= {int, float} else str
    values = [_of_type(dtype, value) for value in parameter.values]
    return summary_v2.Discrete(values, dtype=dtype)


def _of_type(dtype: type, value: Any) -> Any:
    return _text(value) if dtype is str else dtype(value)
