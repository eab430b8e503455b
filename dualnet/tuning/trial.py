"""A trial: its task, the files in its folder, and the rule that prunes it.

A trial's folder holds `task.json`, what to do; `run/`, the RUN folder of a training; and, once
it has ended, `outcome.json`. `trial_process` does the work.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet._files import write_whole

TRIALS = "trials"  # the folder of all trials within the folder of the search
TASK, OUTCOME, RUN = "task.json", "outcome.json", "run"
STOPPED = 3  # exit code of a process that was told to stop
# A trial may be pruned once this many others have come as far, after a fifth of its epochs.
PEERS, GRACE = 3, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a trial does; stored in `task.json`.

    Attributes:
        kind: Kind of the job: "training", "gate" or "evaluation".
        model: Name or path of the card, for the kind "training"; else "".
        run: RUN folder of a gate or an evaluation, else "".
        corpus: Argument of `corpora.load`, or a folder of `write_corpus`; "" for the corpus
            that the RUN was trained on.
        corpus_sha256: Hash of the corpus when the search began.
        settings: Arguments of the builder and of `Recipe`, or of the evaluation.
        parameters, solve_for: Budget of weights, and the size that is solved for it.
        epochs: Epochs of the training; None for those of the recipe.
        seed: Seed of weights and masks.
        early_stopping: "median" or "none".
        max_seconds: Time limit of the training; None for no limit.
        checkpoint_steps: Steps between two checkpoints.
        keep_checkpoints: Whether another trial may continue this one.
        split: Split of an evaluation.
    """

    kind: str
    model: str = ""
    run: str = ""
    corpus: str = ""
    corpus_sha256: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    solve_for: str = "units"
    epochs: int | None = None
    seed: int = 0
    early_stopping: str = "none"
    max_seconds: float | None = None
    checkpoint_steps: int = 500
    keep_checkpoints: bool = False
    split: str = "valid"


def write_task(folder: Path, task: Task) -> None:
    """Write `task.json` into the folder of a trial."""
    write_whole(folder / TASK, json.dumps(dataclasses.asdict(task), indent=2) + "\n")


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return the outcome of the trial in `folder`, None if it has not ended."""
    try:
        return json.loads((folder / OUTCOME).read_text("utf-8"))
    except FileNotFoundError:
        return None


def read_epochs(folder: Path) -> list[dict[str, float]]:
    """Return number, validation perplexity and seconds of each epoch of the trial in `folder`."""
    keys = ("epoch", "val_perplexity", "seconds")
    try:
        with (folder / RUN / "metrics.csv").open(encoding="utf-8", newline="") as file:
            return [{key: float(row[key]) for key in keys} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def read_perplexities(folder: Path) -> list[float]:
    """Return the validation perplexity of each epoch so far of the trial in `folder`."""
    return [epoch["val_perplexity"] for epoch in read_epochs(folder)]


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the best perplexity so far and its epoch, and number and seconds of the epochs.

    Without an epoch there is nothing to return: {}.
    """
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


def should_prune(
    perplexities: Sequence[float], peers: Sequence[Sequence[float]], epochs: int
) -> bool:
    """Return whether a trial is behind the median of the others at the same epoch.

    The median stopping rule of Golovin et al., 2017 (Google Vizier), on the best perplexity
    so far. No trial is pruned in the first fifth of its epochs, or while fewer than three
    others have come as far.

    Args:
        perplexities: validation perplexity of each epoch of the trial.
        peers: the same of each other trial, ended or not.
        epochs: int. Epochs of a whole trial.
    """
    epoch = len(perplexities)
    if epoch <= math.ceil(epochs / GRACE):
        return False
    best = [min(peer[:epoch]) for peer in peers if len(peer) >= epoch]
    return len(best) >= PEERS and min(perplexities) > statistics.median(best)
