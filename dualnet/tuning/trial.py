"""A trial: its task, the files in its folder, and the rule that prunes it.

A trial's folder holds `task.json`, what to do; `run/`, the RUN folder of a training; and, once
it has ended, `outcome.json`. `trial_process` does the work.
"""

import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet._files import read_json, write_whole

TRIALS = "trials"  # the folder of all trials within the folder of the search
TASK, OUTCOME, RUN = "task.json", "outcome.json", "run"
STOPPED = 3  # exit code of a process that was told to stop
DISK_FULL = 4  # exit code of a process that could not write
# A trial may be pruned once this many others have come as far, after a fifth of its epochs.
PEERS, GRACE = 3, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What one trial does within its search; stored in `task.json`."""

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epochs: int | None = None  # None for those of the recipe
    max_seconds: float | None = None  # time limit of the training
    split: str = "valid"  # of an evaluation


def write_task(folder: Path, task: Task) -> None:
    """Write `task.json` into the folder of a trial."""
    write_whole(folder / TASK, json.dumps(dataclasses.asdict(task), indent=2) + "\n")


def read_task(folder: Path) -> Task:
    """Return the task of the trial in `folder`; raise `ValueError` if its file was altered."""
    path = folder / TASK
    try:
        table = read_json(path)  # 0.2.0.dev0 wrote more
        known = {f.name: table[f.name] for f in dataclasses.fields(Task) if f.name in table}
        return Task(**{"settings": table["settings"], **known})
    except (KeyError, TypeError) as error:
        message = f"{TASK} of a trial must not be altered. Received: {str(path)!r}, {error}."
        raise ValueError(f"{message} Start a new search in another folder.") from None


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return the outcome of the trial in `folder`, None if it has not ended."""
    path = folder / OUTCOME
    return read_json(path) if path.is_file() else None


def failed(message: str) -> dict[str, Any]:
    """Return the outcome of a failed trial."""
    return {"status": "failed", "message": message, "val_perplexity": None}


def read_epochs(folder: Path) -> list[dict[str, float]]:
    """Return number, validation perplexity and seconds of each epoch of the trial in `folder`."""
    keys = ("epoch", "val_perplexity", "seconds")
    path = folder / RUN / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: float(row[key]) for key in keys} for row in csv.DictReader(file)]


def read_progress(folder: Path) -> dict[str, Any]:
    """Return best perplexity and epoch so far, number of epochs and seconds; {} without any."""
    if not (epochs := read_epochs(folder)):
        return {}
    best = min(epochs, key=lambda epoch: epoch["val_perplexity"])
    return {
        "val_perplexity": best["val_perplexity"],
        "best_epoch": int(best["epoch"]),
        "epochs": len(epochs),
        "seconds": sum(epoch["seconds"] for epoch in epochs),
    }


def should_prune(
    perplexities: Sequence[float], peers: Sequence[Sequence[float]], epochs: int
) -> bool:
    """Return True for a trial that is behind the median of the others at the same epoch.

    The median stopping rule of Golovin et al., 2017 (Google Vizier), on the best perplexity
    so far. No trial is pruned in the first fifth of its `epochs`, or while fewer than three
    others have come as far. Perplexities are those of each epoch; `peers` may have ended.
    """
    epoch = len(perplexities)
    if epoch <= math.ceil(epochs / GRACE):
        return False
    best = [min(peer[:epoch]) for peer in peers if len(peer) >= epoch]
    return len(best) >= PEERS and min(perplexities) > statistics.median(best)
