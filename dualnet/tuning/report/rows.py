"""The trials of a search so far, read from the files in their folders."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet.tuning.trial import TRIALS, read_epochs, read_outcome

if TYPE_CHECKING:
    from dualnet.tuning.job import Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a search.

    Attributes:
        trial: Its number as KerasTuner writes it, e.g. "07".
        status: "completed", "failed", "running" or "unfinished".
        drawn: Values of the searched parameters that are active.
        val_perplexity: The lowest so far; None before the first epoch.
        best_epoch: The epoch, from 1, with that perplexity; None for an evaluation.
        epochs: Number of epochs so far; None for an evaluation.
        parameters: Number of weights of the model.
        seconds: Duration; of a trial that has not ended, of its epochs only.
        ended: How a completed trial ended: "all epochs", "hopeless" (pruned) or "time".
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

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed")


def read_rows(
    folder: str | os.PathLike[str], job: Job, trials: Iterable[Any], running: Collection[str]
) -> list[Row]:
    """Return the rows of `trials`, by number.

    Args:
        folder: of the search.
        job: `Job`.
        trials: KerasTuner's: `trial_id`, `status`, `hyperparameters.values`, `score`.
        running: ids of the trials that a process is working on. Any other trial without an
            outcome is unfinished.
    """
    names = {field.name for field in dataclasses.fields(Row)}
    rows = []
    for trial in trials:
        trial_folder = Path(folder) / TRIALS / trial.trial_id
        outcome = None if trial.trial_id in running else read_outcome(trial_folder)
        if outcome is not None:
            fields = outcome
        elif trial.trial_id not in running and trial.status == "COMPLETED":
            fields = {"status": "completed", "val_perplexity": trial.score}
        elif trial.trial_id not in running and trial.status in ("FAILED", "INVALID"):
            fields = {"status": "failed", "message": getattr(trial, "message", None)}
        else:
            fields = _progress(trial_folder)
            fields["status"] = "running" if trial.trial_id in running else "unfinished"
        fields = {key: fields[key] for key in names & fields.keys() if fields[key] is not None}
        fields |= {"trial": trial.trial_id, "drawn": job.drawn(trial.hyperparameters.values)}
        rows.append(Row(**fields))
    return in_order(rows)


def _progress(folder: Path) -> dict[str, Any]:
    epochs = read_epochs(folder)
    if not epochs:
        return {}
    best = min(epochs, key=lambda epoch: epoch["val_perplexity"])
    return {
        "val_perplexity": best["val_perplexity"],
        "best_epoch": int(best["epoch"]),
        "epochs": len(epochs),
        "seconds": sum(epoch["seconds"] for epoch in epochs),
    }


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by number of trial."""
    return sorted(rows, key=lambda row: int(row.trial))


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the completed trial with the lowest perplexity, the first of equals, or None."""
    return min(completed_rows(rows), key=lambda row: row.val_perplexity or 0.0, default=None)


def completed_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the completed trials with a finite perplexity."""
    return [
        row
        for row in in_order(rows)
        if row.status == "completed" and math.isfinite(row.val_perplexity or math.nan)
    ]


def text_of(value: Any) -> str:
    """Return a value as in tables: strings as they are, other types in JSON."""
    return value if isinstance(value, str) else json.dumps(value)
