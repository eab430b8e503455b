"""What a search has found, on disk: tables, the best card, and all that is drawn of it."""

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
from dualnet.tuning.figures import write_plots
from dualnet.tuning.hparams import write_hparams
from dualnet.tuning.rows import Row, best_row, in_order, text_of

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job

RESULTS = "results.json"
COLUMNS = (
    "trial", "status", "ended", "val_perplexity", "best_epoch", "epochs", "parameters", "seconds",
)  # fmt: skip


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
    for row in in_order(rows):
        drawn = [text_of(row.drawn[name]) if name in row.drawn else "" for name in names]
        known = [getattr(row, column) for column in COLUMNS]
        writer.writerow([*known, *drawn, _first_line(row.message)])
    write_whole(Path(folder) / "trials.csv", text.getvalue())


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
        from dualnet.runs.folder import card_table, read_card

        used = card_table(read_card(Path(folder) / "trials" / row.trial / "run"))
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
            words += [f"--{name.replace('_', '-')}", text_of(left.pop(name))]
    if left:
        words += ["--set", *(f"{name}={text_of(value)}" for name, value in left.items())]
    if cache["cache_size"]:
        words.append("--cache")  # all of it: what is not given would be as published
        words += [f"{name.removeprefix('cache_')}={text_of(cache[name])}" for name in cache]
    return shlex.join(words)
