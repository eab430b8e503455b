"""A trial: its task, the files in its folder, and the rule that prunes it.

A trial's folder holds `task.json`, what to do; `run/`, the RUN folder of a training; and, once
it has ended, `outcome.json`. `trial_process` does the work.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dualnet._files import read_json, write_json

TRIALS = "trials"  # the folder of all trials within the folder of the search
TASK, OUTCOME, RUN = "task.json", "outcome.json", "run"
STOPPED = 3  # exit code of a process that was told to stop
DISK_FULL = 4  # exit code of a process that could not write
# A trial may be pruned once this many others have come as far, after a fifth of its epochs.
PEERS, GRACE = 3, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What one trial does within its search; stored in `task.json`."""

    settings: Mapping[str, object]
    epochs: int | None = None  # None for those of the recipe
    max_seconds: float | None = None  # time limit of the training

    def write(self, folder: Path) -> None:
        """Write `task.json` into the folder of a trial."""
        write_json(folder / TASK, vars(self))

    @classmethod
    def read(cls, folder: Path) -> Task:
        """Return the task of the trial in `folder`."""
        table = read_json(folder / TASK)  # 0.2.0 wrote more
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: table[name] for name in names if name in table})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a trial, or what it has reached so far; stored in `outcome.json`."""

    status: str  # "completed", "failed", "running" or "unfinished"
    val_perplexity: float | None = None  # the lowest so far; None before the first epoch
    val_bits_per_byte: float | None = None  # the figures of `Comparable`, of a completed trial
    val_bits_per_character: float | None = None
    val_perplexity_per_word: float | None = None
    val_not_comparable: str | None = None  # why there are none
    best_epoch: int | None = None  # with that perplexity, from 1; None for an evaluation
    epochs: int | None = None  # number so far; None for an evaluation
    parameters: int | None = None  # number of weights of the model
    seconds: float | None = None  # of a trial that has not ended, of its epochs only
    ended: str = ""  # of a completed trial: "all epochs", "hopeless" (pruned) or "time"
    message: str = ""  # why a failed trial failed

    def write(self, folder: Path) -> None:
        """Write `outcome.json` into the folder of a trial."""
        write_json(folder / OUTCOME, vars(self))


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of the trial in `folder`, None if it has not ended."""
    path = folder / OUTCOME
    if not path.is_file():
        return None
    return Outcome(**{key: value for key, value in read_json(path).items() if value is not None})


class Epoch(NamedTuple):
    """A row of `metrics.csv`."""

    number: int
    val_perplexity: float
    seconds: float


def read_epochs(folder: Path) -> list[Epoch]:
    """Return the epochs so far of the trial in `folder`."""
    path = folder / RUN / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Epoch(int(row["epoch"]), float(row["val_perplexity"]), float(row["seconds"]))
            for row in csv.DictReader(file)
        ]


def read_progress(folder: Path, status: str) -> Outcome:
    """Return the progress of the training in `folder`."""
    epochs = read_epochs(folder)
    if not epochs:
        return Outcome(status=status)
    best = min(epochs, key=lambda epoch: epoch.val_perplexity)
    return Outcome(
        status=status,
        val_perplexity=best.val_perplexity,
        best_epoch=best.number,
        epochs=len(epochs),
        seconds=sum(epoch.seconds for epoch in epochs),
    )


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
