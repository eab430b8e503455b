"""Learning curves of several runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dualnet import plots
from dualnet._checks import check_choice
from dualnet.analysis.reading import check_some

COLUMNS = {"val": "val_perplexity", "train": "perplexity"}  # of metrics.csv


def learning_curves(runs: Mapping[str, str | Path], *, split: str = "val") -> dict[str, np.ndarray]:
    """Return perplexity by epoch of several RUN folders, from their metrics.csv.

    Args:
        runs: dict of a name to a RUN folder.
        split: "val", the validation text, or "train", the training text as it was
            read in the epoch (with dropout).

    Returns:
        dict of each name to a float64 array `(epochs,)`.

    Raises:
        FileNotFoundError: if a folder holds no metrics.csv.
        ValueError: if a metrics.csv is damaged, or `split` is none of those.
    """
    column = COLUMNS[check_choice("split", split, COLUMNS)]
    return {name: _column(Path(run) / "metrics.csv", column) for name, run in runs.items()}


def plot_learning_curves(
    runs: Mapping[str, str | Path],
    path: str | Path,
    *,
    split: str = "val",
) -> None:
    """Draw perplexity by epoch of several RUN folders as a PNG.

    The scale is logarithmic. Perplexities far above the lowest, those of the first epochs, are
    cut off; the axis says so.

    Args:
        runs: dict of a name to a RUN folder.
        path: file to write.
        split: "val", "train", or "both", where those in training are dashed.

    Raises:
        FileNotFoundError, ValueError: as for `learning_curves`, and if `runs` is empty.
        OSError: if the file cannot be written.

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Figure 2.
    """
    check_some("runs", runs)
    check_choice("split", split, [*COLUMNS, "both"])
    splits = list(COLUMNS) if split == "both" else [split]
    found = {each: learning_curves(runs, split=each) for each in splits}
    curves = {
        f"{name} {'valid' if each == 'val' else each}": found[each][name].tolist()
        for name in runs
        for each in splits
    }
    plots.plot_curves(curves, path, cut=True)


def _column(file: Path, column: str) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {file.name}, which is written after the first epoch. "
            f"Received: {str(file.parent)!r}, without it. Train on with --resume, or anew."
        )
    try:
        with file.open(newline="", encoding="utf-8") as text:
            values = [float(row[column]) for row in csv.DictReader(text)]
        if not values or any(math.isnan(value) for value in values):
            raise ValueError("no numbers")
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ValueError(
            f"{file.name} of a RUN folder must have a number in the column {column} for each "
            f"epoch. Received: {str(file)!r}, damaged or altered. Put it back as it was."
        ) from None
    return np.array(values, np.float64)
