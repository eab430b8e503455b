"""The tables of a search: `trials.csv`, and `best.toml`, the card or settings of the best trial."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet._files import write_whole
from dualnet.tuning.report.rows import Row, best_row, in_order, text_of
from dualnet.tuning.trial import RUN, TASK, TRIALS

if TYPE_CHECKING:
    from dualnet.tuning.job import Job

RESULTS = "results.json"
COLUMNS = (
    "trial", "status", "ended", "val_perplexity", "best_epoch", "epochs", "parameters", "seconds",
)  # fmt: skip


def write_tables(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Write `trials.csv` and, once a trial is completed, `best.toml`; fast."""
    write_trials(folder, job, rows)
    best = best_row(rows)
    if best is not None:
        write_best(folder, job, best, len(rows))


def write_trials(folder: str | os.PathLike[str], job: Job, rows: Iterable[Row]) -> None:
    """Write `trials.csv`, one line per trial, in UTF-8.

    After `COLUMNS` come the parameters of the space, empty where inactive, lists and booleans
    in JSON; a parameter with the name of another column is called `space.NAME`. The last
    column is the first line of the error message.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    names = [parameter.name for parameter in job.space]
    taken = (*COLUMNS, "message")
    columns = [f"space.{name}" if name in taken else name for name in names]
    writer.writerow([*COLUMNS, *columns, "message"])
    for row in in_order(rows):
        fields = [getattr(row, column) for column in COLUMNS]
        drawn = [text_of(row.drawn[name]) if name in row.drawn else "" for name in names]
        message = next(iter(row.message.strip().splitlines()), "").strip()
        # A path in a message may not be valid UTF-8.
        writer.writerow([*fields, *drawn, message.encode("utf-8", "replace").decode()])
    write_whole(Path(folder) / "trials.csv", text.getvalue())


def write_best(folder: str | os.PathLike[str], job: Job, row: Row, number: int) -> None:
    """Write `best.toml`, which reproduces the perplexity of trial `row`, with the command to use.

    For a training or a gate it is a card for `dualnet train best.toml`: the trial's card, with
    as many epochs as the trial had. For an evaluation it holds the RUN and the settings.

    Args:
        folder: of the search.
        job: `Job`.
        row: a completed trial, as `best_row` returns it.
        number: int. Number of trials that it is the best of.

    Raises:
        FileNotFoundError: if the trial has no `task.json`, or its RUN folder no card.
        ValueError: if one of them is damaged.
    """
    import tomli_w

    epoch = "" if row.best_epoch is None else f" after epoch {row.best_epoch}"
    note = (
        f"Best of {number} trials of job {job.name}: validation perplexity "
        f"{row.val_perplexity:.2f}{epoch}."
    )
    trial_folder = Path(folder) / TRIALS / row.trial
    task = json.loads((trial_folder / TASK).read_text("utf-8"))
    corpus = task["corpus"]
    if corpus and (Path(corpus) / "corpus.json").is_file():  # one that has no name or path
        corpus = "CORPUS"
    if job.kind == "evaluation":
        table: dict[str, Any] = {"note": note, "run": task["run"]}
        if job.paper:
            table["paper"] = job.paper
        table["evaluation"] = task["settings"]
        command = _evaluate_command(task["run"], corpus, task["settings"])
        comment = f"To reproduce it:\n  {command} --split valid\nOn the test split:\n  {command}"
    else:
        from dualnet.runs.folder import card_table, read_card

        used = card_table(read_card(trial_folder / RUN))
        weights = ""
        if job.kind == "gate":
            note += " It is trained with `--weights RUN`, the RUN of the model below the gate."
            weights = " --weights " + shlex.quote(used["weights"])
        used["recipe"] = _recipe_as_trained(used["recipe"], row)
        keys = [key for key in ("name", "builder", "paper") if key in used]
        table = {**{key: used.pop(key) for key in keys}, "note": note, **used}
        corpus = shlex.quote(corpus or "CORPUS")
        comment = (
            f"To reproduce it:\n  dualnet train best.toml --corpus {corpus}{weights} --output RUN"
        )
    lines = [f"# {line}\n" for line in [note, *comment.splitlines()]]
    write_whole(Path(folder) / "best.toml", "".join(lines) + "\n" + tomli_w.dumps(table))


def _recipe_as_trained(recipe: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return `recipe` with the epochs that the trial had, which may have ended early."""
    if row.epochs is None or (row.ended == "all epochs" and row.epochs >= recipe["epochs"]):
        return dict(recipe)
    if row.epochs <= recipe["epochs"]:  # it ended before its fine-tuning
        return {**recipe, "epochs": row.epochs, "finetune": "none"}
    if recipe["finetune"] == "once":
        return {**recipe, "finetune_epochs": row.epochs - recipe["epochs"]}
    # A recipe cannot end within a later round; it reaches the perplexity before.
    return dict(recipe)


def _evaluate_command(run: str, corpus: str, settings: Mapping[str, Any]) -> str:
    """Return the command that evaluates `run` on the test split with `settings`."""
    from dualnet.builders.stations import WRAPPERS

    words = ["dualnet", "evaluate", run, *(["--corpus", corpus] if corpus else [])]
    left = dict(settings)
    cache = {name: left.pop(name, WRAPPERS[name]) for name in WRAPPERS if name.startswith("cache_")}
    if left.pop("evaluation", "static") == "dynamic":
        words += ["--dynamic", "--rule", left.pop("rule", "nadam")]
        if not left.get("clipnorm"):
            left.pop("clipnorm", None)  # 0 means none
    for name in ("temperature", "sequence_length", "batch_size"):
        if name in left:
            words += [f"--{name.replace('_', '-')}", text_of(left.pop(name))]
    if left:
        words += ["--set", *(f"{name}={text_of(value)}" for name, value in left.items())]
    if cache["cache_size"]:
        words.append("--cache")  # with all values: the default of the others is the published one
        words += [f"{name.removeprefix('cache_')}={text_of(cache[name])}" for name in cache]
    return shlex.join(words)
