"""Learning curves of several runs."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dualnet import plots
from dualnet._checks import check_choice

COLUMNS = {"val": "val_perplexity", "train": "perplexity"}  # of metrics.csv


def learning_curves(runs: Mapping[str, str | Path], *, split: str = "val") -> dict[str, np.ndarray]:
    """Return the perplexity per epoch of several RUN folders, read from their metrics.csv.

    Args:
        runs: dict of a name to a RUN folder.
        split: "val", the validation text, or "train", the training text as seen during the
            epoch (with dropout).

    Returns:
        dict of each name to a float64 array `(epochs,)`.

    Raises:
        FileNotFoundError: if a folder holds no metrics.csv.
        ValueError: if `split` is unknown.

    Example:
        >>> import pathlib, tempfile
        >>> from dualnet import analysis
        >>> with tempfile.TemporaryDirectory() as run:
        ...     table = "epoch,perplexity,val_perplexity\\n1,90.5,80.5\\n2,70.5,75.5\\n"
        ...     _ = pathlib.Path(run, "metrics.csv").write_text(table)
        ...     analysis.learning_curves({"lstm": run})
        {'lstm': array([80.5, 75.5])}
    """
    column = COLUMNS[check_choice("split", split, COLUMNS)]
    return {name: _read_column(Path(run) / "metrics.csv", column) for name, run in runs.items()}


def plot_learning_curves(
    runs: Mapping[str, str | Path], path: str | Path, *, split: str = "val"
) -> None:
    """Draw the perplexity per epoch of several RUN folders as a PNG.

    The scale is logarithmic. It ends above the first epochs, whose perplexities are far above
    the lowest, and the axis label says where.

    Args:
        runs: dict of a name to a RUN folder.
        path: file to write.
        split: "val", "train" or "both"; curves in training are dashed.

    Example:
        >>> import pathlib, tempfile
        >>> from dualnet import analysis
        >>> with tempfile.TemporaryDirectory() as run:
        ...     table = "epoch,perplexity,val_perplexity\\n1,90.5,80.5\\n2,70.5,75.5\\n"
        ...     _ = pathlib.Path(run, "metrics.csv").write_text(table)
        ...     analysis.plot_learning_curves({"lstm": run}, f"{run}/curves.png", split="both")

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, Figure 2.
    """
    check_choice("split", split, [*COLUMNS, "both"])
    splits = list(COLUMNS) if split == "both" else [split]
    curves = {
        f"{name} {split.replace('val', 'valid')}": values.tolist()
        for name, run in runs.items()
        for split in splits
        for values in learning_curves({name: run}, split=split).values()
    }
    plots.plot_curves(curves, path, cut=True)


def _read_column(file: Path, column: str) -> np.ndarray:
    if not file.is_file():
        required = f"A RUN folder must hold {file.name}, which training writes after each epoch."
        raise FileNotFoundError(f"{required} Received: {str(file.parent)!r}, without it.")
    with file.open(newline="", encoding="utf-8") as text:
        return np.array([row[column] for row in csv.DictReader(text)], np.float64)
