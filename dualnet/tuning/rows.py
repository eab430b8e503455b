"""The trials of a search, as far as they have come: read from the files that they leave."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job


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
    return in_order(rows)


def _so_far(folder: Path) -> dict[str, Any]:
    history = history_of(folder)
    if not history:
        return {}
    best = min(history, key=lambda epoch: epoch["val_perplexity"])
    return {
        "val_perplexity": best["val_perplexity"],
        "best_epoch": int(best["epoch"]),
        "epochs": len(history),
        "seconds": sum(epoch["seconds"] for epoch in history),
    }


def history_of(folder: Path) -> list[dict[str, float]]:
    """Return the numbers of `metrics.csv` of a trial's RUN folder, none before its first epoch."""
    file = folder / "run" / "metrics.csv"
    if not file.is_file():
        return []
    wanted = ("epoch", "val_perplexity", "seconds")
    with file.open(encoding="utf-8", newline="") as opened:
        return [{key: float(epoch[key]) for key in wanted} for epoch in csv.DictReader(opened)]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by the numbers of their trials."""

    def number(row: Row) -> tuple[bool, int, str]:
        is_number = row.trial.isdecimal()
        return not is_number, int(row.trial) if is_number else 0, row.trial

    return sorted(rows, key=number)


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the completed trial of the least perplexity, the first of equals; None without one."""
    return min(completed_rows(rows), key=lambda row: row.val_perplexity or 0.0, default=None)


def completed_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the trials that are completed with a perplexity that is a number."""
    return [
        row
        for row in in_order(rows)
        if row.status == "completed"
        and row.val_perplexity is not None
        and math.isfinite(row.val_perplexity)
    ]


def text_of(value: Any) -> str:
    """Return a value as it stands in tables: a text as it is, others in JSON."""
    return value if isinstance(value, str) else json.dumps(value)
