"""Draws the PNG files of training and evaluation. Knows of numbers alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._files import write_whole


def plot_curves(
    curves: Mapping[str, Sequence[float]], path: str | Path, *, title: str = "Learning curves"
) -> None:
    """Draw perplexity by epoch, one line for each of `curves`, as a PNG.

    A curve whose name ends in "train" is drawn thin and dashed.
    """
    figure, axes = _figure(title, "epoch", "perplexity (log scale)")
    colours: dict[str, str] = {}
    for name, values in curves.items():
        training = name.endswith("train")
        model = name.rsplit(" ", 1)[0]
        colour = colours.setdefault(model, f"C{len(colours)}")
        style = {"linestyle": "--", "linewidth": 1} if training else {"marker": "o"}
        axes.plot(range(1, len(values) + 1), values, label=name, color=colour, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    _save(figure, path)


def plot_positions(
    curves: Mapping[str, Any], path: str | Path, *, title: str = "Perplexity by position"
) -> None:
    """Draw perplexity against position in the text, as a PNG.

    Args:
        curves: name to the loss of each token in nats, `(tokens,)`. Drawn is the
            perplexity of all tokens up to each position, and lightly that of
            windows of a hundredth of the text.
        path: file to write.
    """
    figure, axes = _figure(title, "position (tokens)", "perplexity")
    for i, (name, losses) in enumerate(curves.items()):
        losses = np.asarray(losses, np.float64)
        position = np.arange(1, len(losses) + 1)
        window = max(1, len(losses) // 100)
        whole = losses[: len(losses) // window * window].reshape(-1, window)
        middle = np.arange(len(whole)) * window + window / 2
        axes.plot(middle, np.exp(whole.mean(1)), color=f"C{i}", linewidth=0.8, alpha=0.35)
        running = np.exp(np.cumsum(losses) / position)
        start = min(window, len(losses) - 1)  # the first few tokens say nothing yet
        label = f"{name}: {running[-1]:.2f}"
        axes.plot(position[start:], running[start:], color=f"C{i}", label=label)
    axes.legend(title="up to position (thin: per window)")
    _save(figure, path)


def _figure(title: str, x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # here, because it takes a second; needs no display

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: str | Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_whole(path, image.getvalue())
