"""Draws PNG figures from plain numbers."""

import io
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._files import write_whole
from dualnet.plots.fonts import set_fonts
from dualnet.plots.scales import VISIBLE, result_places, spread

IN_TRAINING = "train: measured during the epoch, dropouts on"  # so it may lie above valid
MARKED = 40  # curves of up to this many epochs have a marker per epoch, and are never cut
LONG = 40  # tokens of an alignment, from which on both ends of its axes have labels
SETTLED = 200  # tokens of a text, from which on the scale does not follow the mean of the first
ABSENT = -0.1  # the position below an axis that goes from 0 to 1
DARKEST, LIGHTEST = 0.0, 0.85  # part of viridis that stands out from white
BEST = "#d55e00"  # vermilion, which the colour-blind tell from viridis


def plot_curves(
    curves: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    title: str = "Learning curves",
    cut: bool = False,
    lines: Mapping[str, float] | None = None,
) -> None:
    """Draw perplexity against epochs, one curve for each of `curves`, as a PNG.

    Args:
        curves: name, "<model> valid" or "<model> train", to the perplexity after each epoch. The
            curves of a model share a colour; those in training are thin and dashed.
        cut: bool. Whether the scale of many epochs ends at a small multiple of the lowest value,
            so that curves can be told apart.
        lines: name to the height of a horizontal dotted line, e.g. a published perplexity. A line
            has the colour of the first model whose name begins with the same word.
    """
    lines = lines or {}
    figure, axes = _axes(title, "epoch", "perplexity (log scale)")
    colours: dict[str, str] = {}
    longest = max((len(values) for values in curves.values()), default=0)
    marker = "o" if longest <= MARKED else ""
    valid = {"marker": marker}
    train = {"linestyle": "--", "linewidth": 1, "marker": marker and "."}
    for name, values in curves.items():
        style = train if name.endswith("train") else valid
        colour = colours.setdefault(name.rsplit(" ", 1)[0], f"C{len(colours)}")
        axes.plot(range(1, len(values) + 1), values, label=_plain(name), color=colour, **style)
    first_words = {model.split()[0]: colour for model, colour in reversed(colours.items())}
    for name, value in lines.items():
        colour = first_words.get(name.split()[0], "0.4")
        axes.axhline(value, label=_plain(name), color=colour, linestyle=":", linewidth=1.2)
    axes.set_yscale("log")
    drawn = [*curves.values(), *([value] for value in lines.values())]
    _scale(axes, [np.asarray(values, np.float64) for values in drawn], cut and longest > MARKED)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if longest == 1:
        axes.set_xlim(0, 2)  # narrower, the ticks are fractions of an epoch
    in_training = any(name.endswith("train") for name in curves)
    axes.legend(title=IN_TRAINING if in_training else None, title_fontsize=8, alignment="left",
                loc="upper right" if lines else "best")  # fmt: skip
    _save(figure, path)


def plot_positions(
    curves: Mapping[str, Any], path: str | Path, *, title: str = "Perplexity by position"
) -> None:
    """Draw perplexity against the position in the text, as a PNG.

    `curves` are names to the loss of each token in nats. A strong line shows the perplexity of
    all tokens up to each position, a faint one that of windows of a hundredth of the text, and of
    at least ten tokens.
    """
    from matplotlib.ticker import LogFormatter

    figure, axes = _axes(title, "position in the text (tokens)", "perplexity (log scale)")
    shown = []
    for i, (name, losses) in enumerate(curves.items()):
        losses = np.asarray(losses, np.float64)
        position = np.arange(1, len(losses) + 1)
        window = min(max(10, len(losses) // 100), len(losses))
        whole = losses[: len(losses) // window * window].reshape(-1, window)
        middles = np.arange(len(whole)) * window + window / 2
        axes.plot(middles, np.exp(whole.mean(1)), color=f"C{i}", linewidth=0.8, alpha=0.35)
        running = np.exp(np.cumsum(losses) / position)
        axes.plot(position, running, color=f"C{i}", label=f"{name}: {running[-1]:.2f}")
        start = window if len(losses) > SETTLED else 0  # a mean of few tokens is noise
        shown += [running[start:], np.exp(whole.mean(1))]
    axes.set_yscale("log")
    values = np.concatenate(shown)
    if len(finite := values[np.isfinite(values)]):
        axes.set_ylim(finite.min() / 1.1, finite.max() * 1.1)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(LogFormatter())  # 60, not 6 x 10^1; none where there are many
    axes.legend(title="all tokens up to the position (faint: windows)")
    _save(figure, path)


def plot_bars(
    panels: Mapping[str, Sequence[tuple[str, float]]],
    path: str | Path,
    *,
    title: str,
    axis: str,
    compared: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Draw panels of horizontal bars, each with its label and value, as a PNG.

    Args:
        panels: name to the `(label, value)` of each bar, from the top; values are from 0 to 1.
        axis: label of the values.
        compared: name to the published labels of that panel. They are listed below it, and bars
            with these labels are orange.
    """
    compared = compared or {}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    most_bars = max(len(bars) for bars in panels.values())
    figure, grid = _figure(3.6 * columns + 0.4, (0.3 * most_bars + 1.2) * rows + 0.6, rows, columns)
    figure.suptitle(f"{title} (orange: also published)" if any(compared.values()) else title)
    for (name, bars), axes in zip(panels.items(), grid.flat):
        published = list(compared.get(name, ()))
        labels, values = zip(*bars)
        colours = ["C1" if label in published else "C0" for label in labels]
        _draw_bars(axes, map(_short, labels), values, color=colours)
        for place, value in enumerate(values):
            axes.text(value + 0.02, place, f"{value:.3f}", va="center", fontsize=8)
        # The same bar width everywhere.
        axes.set(xlim=(0, 1.18), ylim=(most_bars - 0.5, -0.5), xticks=[0, 0.5, 1])
        axes.set_title(_plain(_short(name)), fontweight="bold")
        listed = textwrap.fill(", ".join(map(_short, published)), 44)
        axes.set_xlabel(axis + f"\npublished: {_plain(listed)}" * bool(published), fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    _save(figure, path)


def plot_shares(values: Any, groups: Sequence[str], path: str | Path, *, title: str) -> None:
    """Draw a bar for each of `values`, which sum to 1, coloured by group, as a PNG."""
    figure, axes = _axes(title, "expert", "share (mean prior)")
    places = np.arange(1, len(values) + 1)
    for i, group in enumerate(dict.fromkeys(groups)):
        members = [k for k, name in enumerate(groups) if name == group]
        axes.bar(places[members], np.asarray(values)[members], color=f"C{i}", label=group)
    equal = 1 / len(values)
    axes.axhline(equal, label=f"equal use: {equal:.3g}", color="black", linestyle="--", linewidth=1)
    # Above them, room for the legend.
    axes.set(xlim=(0.4, len(values) + 0.6), ylim=(0, 1.25 * max(*values, equal)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=4, loc="upper center")
    _save(figure, path)


def plot_spectra(spectra: Mapping[str, Any], tolerances: Sequence[float], path: str | Path) -> None:
    """Draw singular values relative to the largest, in descending order, on log scales, as a PNG.

    Args:
        spectra: name to the singular values, `(n,)`.
        tolerances: for each spectrum, the value up to which singular values count as zero.
    """
    x, y = "index, the largest first (log scale)", "singular value / largest (log scale)"
    figure, axes = _axes("Singular values of log p", x, y)
    for i, ((name, values), tolerance) in enumerate(zip(spectra.items(), tolerances)):
        largest = values[0] or 1.0
        places = np.arange(1, len(values) + 1)
        axes.plot(places, np.where(values > 0, values / largest, np.nan), color=f"C{i}", label=name)
        if tolerance > 0:
            axes.axhline(tolerance / largest, color=f"C{i}", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(title="dashed: tolerance", loc="lower left")
    _save(figure, path)


def plot_parallel_coordinates(
    columns: Mapping[str, tuple[Sequence[float], Sequence[tuple[float, str]]]],
    results: Sequence[float],
    path: str | Path,
    *,
    title: str,
    result: str,
) -> None:
    """Draw each line across one vertical axis per column and a last one of results, as a PNG.

    Lines are coloured by their result, as a colour bar says; the best is thick, orange and on
    top, and those without a result are dashed and grey. A line without a place on an axis passes
    a cross below it. Lines that meet on an axis are spread out there, the best at the bottom. The
    scale of results is logarithmic. Results so much worse that they would take all the room share
    one position above it.

    Args:
        columns: name to the positions of the lines on its axis, from 0 to 1 or nan for none, and
            to the ticks, `(position, label)`.
        results: above 0, the lower the better; nan for none.
        result: label of the results.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(colormaps["viridis"](np.linspace(DARKEST, LIGHTEST, 256)))
    values = np.asarray(results, np.float64)
    ranked = [int(i) for i in np.argsort(-values) if np.isfinite(values[i])]  # the best is last
    unranked = [i for i in range(len(values)) if i not in ranked]
    scales = {**columns, result: result_places(values)}
    count = len(scales)
    figure, axes = _figure(max(7.0, 1.25 * count + 1), 5.5)
    table = np.array([column for column, _ in scales.values()], np.float64).reshape(count, -1)
    incomplete = [bool(np.isnan(column).any()) for column in table]
    table = np.where(np.isnan(table), ABSENT, table)
    for column in table[:-1]:
        spread(column, [*unranked, *ranked])
    axes.plot(table[:, unranked], color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    for i in ranked:
        colour = colours(min(table[-1, i], 1.0))
        axes.plot(table[:, i], color=colour, linewidth=1.2, alpha=0.8, zorder=2)
    axes.plot(table[:, ranked[-1:]], color=BEST, linewidth=3, zorder=3)
    for x, (has_gaps, (_, labels)) in enumerate(zip(incomplete, scales.values())):
        axes.plot([x, x], [0, 1], color="black", linewidth=0.9, zorder=4)
        if has_gaps:
            labels = [(ABSENT, "failed" if x == count - 1 else "does not apply"), *labels]
            axes.plot(x, ABSENT, marker="x", color="black", markersize=6, zorder=5)
        stride = max(1, -(-len(labels) // 16))  # more labels would touch
        for place, label in labels[::stride]:
            if place != ABSENT:
                axes.plot([x - 0.02, x + 0.02], [place] * 2, color="black", linewidth=0.9, zorder=4)
            box = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6}
            right = x + (0.07 if place == ABSENT else 0.04)
            text = _plain(_short(label))
            axes.text(right, place, text, fontsize=8, va="center", zorder=5, bbox=box)
    axes.xaxis.tick_top()
    rotation = {"rotation": 25, "ha": "left", "rotation_mode": "anchor"} if count > 5 else {}
    axes.set_xticks(range(count), list(map(_plain, scales)), fontsize=9, **rotation)
    axes.tick_params(length=0)
    axes.set(yticks=[], xlim=(-0.15, count - 0.35), ylim=(ABSENT - 0.04, 1.14))
    axes.spines[:].set_visible(False)
    if ranked:
        ticks = scales[result][1]
        extend = "max" if ticks[-1][0] > 1 else "neither"
        scale = ScalarMappable(cmap=colours)
        bar = figure.colorbar(scale, ax=axes, extend=extend, aspect=35, pad=0.02)
        marks, labels = zip(*(tick for tick in ticks if tick[0] <= 1))
        bar.set_ticks(marks, labels=labels, fontsize=8)
        bar.set_label(f"{' '.join(result.split())} (log scale)", fontsize=9)
    figure.suptitle(_plain(textwrap.fill(title, 90)), x=0.01, ha="left", fontsize=11)
    _save(figure, path)


def plot_importance(
    importances: Mapping[str, tuple[float, float]], path: str | Path, *, title: str
) -> None:
    """Draw a bar with an error bar for each of `importances`, the longest on top, as a PNG.

    They are names to the mean and standard deviation of a permutation importance, in units of
    the variance of the target.
    """
    figure, axes = _figure(7.5, max(3.0, 0.28 * len(importances) + 1.8))
    figure.suptitle(_plain(title), fontsize=10)
    names = sorted(importances, key=lambda name: -importances[name][0])
    means, spreads = zip(*(importances[name] for name in names))
    _draw_bars(axes, names, means, xerr=spreads, color="C0", ecolor="0.35", capsize=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("increase in squared error when shuffled, in variances "
                    "(error bars: std. dev. over folds)")  # fmt: skip
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _save(figure, path)


def plot_attention(
    source: Sequence[str], target: Sequence[str], weights: Any, path: str | Path
) -> None:
    """Draw attention weights as a PNG, a column for each source token, the darker the higher.

    Args:
        source, target: the tokens, at least one of each.
        weights: `(target, source)`, from 0 to 1.
    """
    rows, columns = np.shape(weights)
    if (rows, columns) != (len(target), len(source)) or not rows * columns:
        shape = "a row for each target token and a column for each source token, at least one"
        tokens = f"{len(target)} target and {len(source)} source tokens"
        received = f"Received: shape {(rows, columns)}, {tokens}."
        raise ArgumentError("weights", f"must have {shape}. {received}")
    longest = max(rows, columns)
    cell = float(np.clip(10 / longest, 0.17, 0.34))  # inches; a line of the labels needs 0.17
    figure, axes = _figure(min(60, cell * columns + 2.5), min(60, 0.9 * cell * rows + 1.8))
    image = axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    rotation = 60 if cell > 0.25 else 90
    axes.set_xticks(range(columns), [_plain(_short(t)) for t in source], rotation=rotation,
                    ha="left", va="center", rotation_mode="anchor")  # fmt: skip
    axes.set_yticks(range(rows), [_plain(_short(token)) for token in target])
    far = longest > LONG  # from one end to the other: label both
    for tick in axes.xaxis.get_major_ticks():
        tick.label1.set_ha("right")  # those below
    axes.tick_params(labelsize=9, top=True, labeltop=True, labelbottom=far, labelright=far)
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(np.arange(count + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set(xlabel="source", ylabel="translation")
    figure.colorbar(image, label="weight", fraction=0.05, aspect=12)
    _save(figure, path)


def _figure(width: float, height: float, *grid: int) -> tuple[Any, Any]:
    """Return a figure and its axes, an array of them for a `grid` of rows and columns."""
    from matplotlib.figure import Figure  # takes a second to import; needs no display

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*grid, squeeze=not grid)


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    figure, axes = _figure(7, 4.5)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _draw_bars(axes: Any, labels: Iterable[str], values: Sequence[float], **style: Any) -> None:
    """Draw horizontal bars, the first on top."""
    places = range(len(values))
    axes.barh(places, values, **style)
    axes.set_yticks(places, list(map(_plain, labels)))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(axes: Any, curves: list[np.ndarray], cut: bool) -> None:
    """Scale perplexity to the curves; if `cut`, up to shortly above the lowest value of each."""
    finite = [known for values in curves if len(known := values[np.isfinite(values)])]
    if not finite:
        return
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

    low = min(values.min() for values in finite)
    # At least the better half of each curve stays visible.
    high = max(VISIBLE * low, *(1.2 * np.median(values) for values in finite))
    highest = max(values.max() for values in finite)
    if not cut:
        high = highest
    elif high < highest:
        axes.set_ylabel(f"perplexity (log scale, cut off above {high:.0f})")
    margin = max((min(high, highest) / low) ** 0.04, 1.01)  # also around a single value
    low, high = low / margin, min(high, highest) * margin
    axes.set_ylim(low, high)
    few = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10])
    ticks = (few if high < 8 * low else LogLocator(subs=(1, 2, 5))).tick_values(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _short(label: str) -> str:
    if label and not label.strip(" \xa0"):  # blanks alone
        label = "␣" * len(label)
    # A control character as Python writes it: "\n".
    label = "".join(c if c.isprintable() or c == "\xa0" else repr(c)[1:-1] for c in label)
    return label if len(label) <= 18 else label[:17] + "…"


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # else matplotlib parses a formula


def _save(figure: Any, path: str | Path) -> None:
    image = io.BytesIO()
    set_fonts(figure)
    with warnings.catch_warnings():
        # Of a character that no font has, which becomes a box.
        missing = "Glyph .* missing from|Matplotlib currently does not support"
        warnings.filterwarnings("ignore", missing, UserWarning)
        figure.savefig(image, format="png", dpi=120)
    write_whole(path, image.getvalue())
