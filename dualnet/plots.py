"""Draws the PNG files of training and evaluation. Knows of numbers alone."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._files import write_whole

VISIBLE = 2  # times the lowest perplexity: where a scale that is cut ends, if it may
MARKED = 40  # epochs up to which each has a dot of its own
ABSENT, BEYOND = -0.1, 1.09  # places below and above an axis that goes from 0 to 1


def plot_curves(
    curves: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    title: str = "Learning curves",
    cut: bool = False,
    lines: Mapping[str, float] | None = None,
) -> None:
    """Draw perplexity by epoch, one line for each of `curves`, as a PNG.

    A curve whose name ends in "train" is drawn thin and dashed. With `cut` the
    scale ends a few times above the lowest value, so that curves of many epochs
    can be told apart. `lines` are horizontal lines, e.g. published perplexities.
    """
    figure, axes = _figure(title, "epoch", "perplexity (log scale)")
    colours: dict[str, str] = {}
    longest = max((len(values) for values in curves.values()), default=0)
    marker = "o" if longest <= MARKED else ""
    for name, values in curves.items():
        training = name.endswith("train")
        model = name.rsplit(" ", 1)[0]
        colour = colours.setdefault(model, f"C{len(colours)}")
        style = {"linestyle": "--", "linewidth": 1} if training else {"marker": marker}
        axes.plot(range(1, len(values) + 1), values, label=name, color=colour, **style)
    for i, (name, value) in enumerate((lines or {}).items()):
        axes.axhline(value, label=name, color=f"C{i}", linestyle=":", linewidth=1.2)
    axes.set_yscale("log")
    if cut:
        drawn = [*curves.values(), *([value] for value in (lines or {}).values())]
        _cut(axes, [np.asarray(values, np.float64) for values in drawn])
    else:
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
        panels: name to `(label, value)` of each bar, from the top; values from 0 to 1.
        path: file to write.
        title: of the figure.
        axis: what the values are.
        compared: name to other labels of that panel, which stand below it.
    """
    from matplotlib.figure import Figure  # here, because it takes a second; needs no display

    compared = compared or {}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    bars = max(len(each) for each in panels.values())
    figure = Figure(
        figsize=(3.6 * columns + 0.4, (0.3 * bars + 1.2) * rows + 0.6), layout="constrained"
    )
    figure.suptitle(f"{title} (orange: published, too)" if any(compared.values()) else title)
    every = figure.subplots(rows, columns, squeeze=False).flat
    for (name, found), axes in zip(panels.items(), every):
        others = list(compared.get(name, ()))
        colours = ["C1" if label in others else "C0" for label, _ in found]
        places = range(len(found))
        axes.barh(places, [value for _, value in found], color=colours)
        for place, (_, value) in enumerate(found):
            axes.text(value + 0.02, place, f"{value:.3f}", va="center", fontsize=8)
        axes.set_yticks(places, [_plain(_short(label)) for label, _ in found])
        axes.set_ylim(bars - 0.5, -0.5)  # the first on top, bars of one width everywhere
        axes.set_xlim(0, 1.18)
        axes.set_xticks([0, 0.5, 1])
        axes.set_title(_plain(_short(name)), fontweight="bold")
        below = axis
        if others:
            published = textwrap.fill(", ".join(map(_short, others)), 44)
            below += f"\npublished: {_plain(published)}"
        axes.set_xlabel(below, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(every):  # those left over
        axes.set_visible(False)
    _save(figure, path)


def plot_shares(values: Any, groups: Sequence[str], path: str | Path, *, title: str) -> None:
    """Draw a bar for each of `values`, which sum to 1, coloured by group, as a PNG."""
    figure, axes = _figure(title, "expert", "share (mean prior)")
    places = np.arange(1, len(values) + 1)
    for i, group in enumerate(dict.fromkeys(groups)):
        own = [k for k, each in enumerate(groups) if each == group]
        axes.bar(places[own], np.asarray(values)[own], color=f"C{i}", label=group)
    equal = 1 / len(values)
    axes.axhline(equal, color="black", linestyle="--", linewidth=1, label=f"equal: {equal:.3g}")
    axes.set_xlim(0.4, len(values) + 0.6)
    axes.set_ylim(0, 1.25 * max(*values, equal))  # room for the legend
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=4, loc="upper center")
    _save(figure, path)


def plot_spectra(spectra: Mapping[str, Any], tolerances: Sequence[float], path: str | Path) -> None:
    """Draw singular values, the largest first and as parts of it, on log scales, as a PNG.

    Args:
        spectra: name to the singular values, `(n,)`.
        tolerances: what counts as zero in each.
        path: file to write.
    """
    figure, axes = _figure(
        "Singular values of log p", "number", "singular value / the largest (log scale)"
    )
    for i, ((name, values), tolerance) in enumerate(zip(spectra.items(), tolerances)):
        largest = values[0] or 1.0
        places = np.arange(1, len(values) + 1)
        axes.plot(places, np.where(values > 0, values / largest, np.nan), color=f"C{i}", label=name)
        if tolerance > 0:
            axes.axhline(tolerance / largest, color=f"C{i}", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
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
    """Draw each line across one upright axis per column and a last one of results, as a PNG.

    Lines are coloured by their result, the lowest red and on top; those without one are
    thin and grey. Lines that meet on an axis lie side by side there, the best below. The
    scale of results is logarithmic and ends where the few that are much worse would take
    all the room: these go to a place of their own above it.

    Args:
        columns: name to the places of the lines on its axis, from 0 to 1, nan where a line
            has none; and to the ticks, `(place, label)`.
        results: above 0, the lower the better; nan for none.
        path: file to write.
        title: of the figure.
        result: what the results are.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # here, because it takes a second; needs no display

    values = np.asarray(results, np.float64)
    order = [int(i) for i in np.argsort(-values) if np.isfinite(values[i])]  # the best is last
    without = [i for i in range(len(values)) if i not in order]
    places, ticks = _result_places(values)
    drawn = {**columns, result: (places, ticks)}
    count = len(drawn)
    figure = Figure(figsize=(max(7.0, 1.25 * count + 1), 5.5), layout="constrained")
    axes = figure.subplots()
    table = np.array([each for each, _ in drawn.values()], np.float64).reshape(count, -1)
    absent = [bool(np.isnan(each).any()) for each in table]
    table = np.where(np.isnan(table), ABSENT, table)
    for each in table[:-1]:
        _spread(each, [*without, *order])
    for i in without:
        axes.plot(table[:, i], color="0.72", linewidth=0.7, zorder=1)
    colours = colormaps["viridis"]
    for i in order:
        colour = colours(0.95 * min(places[i], 1.0))
        axes.plot(table[:, i], color=colour, linewidth=1.2, alpha=0.8, zorder=2)
    if order:
        axes.plot(table[:, order[-1]], color="C3", linewidth=2.8, zorder=3)
    for x, (own, (_, labels)) in enumerate(zip(absent, drawn.values())):
        axes.plot([x, x], [0, 1], color="black", linewidth=0.9, zorder=4)
        if own:
            none = "failed" if x == count - 1 else "\N{EN DASH}"
            labels = [(ABSENT, none), *labels]
        every = max(1, -(-len(labels) // 16))  # more would touch
        for place, label in labels[::every]:
            axes.plot([x - 0.02, x + 0.02], [place] * 2, color="black", linewidth=0.9, zorder=4)
            box = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6}
            text = _plain(_short(label))
            axes.text(x + 0.04, place, text, fontsize=8, va="center", zorder=5, bbox=box)
    turned: dict[str, Any] = (
        {"rotation": 25, "ha": "left", "rotation_mode": "anchor"} if count > 5 else {}
    )
    axes.xaxis.tick_top()
    axes.set_xticks(range(count), [_plain(name) for name in drawn], fontsize=9, **turned)
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.15, count - 0.35)
    axes.set_ylim(ABSENT - 0.04, 1.14)
    axes.spines[:].set_visible(False)
    figure.suptitle(_plain(textwrap.fill(title, 90)), x=0.01, ha="left", fontsize=11)
    _save(figure, path)


def _spread(places: np.ndarray, order: Sequence[int]) -> None:
    """Move lines that meet in one of `places` apart, those later in `order` down."""
    distinct = np.unique(places)
    width = 0.35 * min(0.16, *np.diff(distinct)) if len(distinct) > 1 else 0.056
    for place in distinct:
        meeting = [i for i in order if places[i] == place]
        if len(meeting) > 1:
            share = min(1.0, len(meeting) / 10)  # few stay close
            places[meeting] += share * np.linspace(width / 2, -width / 2, len(meeting))


def limit_of(values: Any) -> float:
    """Return the value from which on perplexities are so bad that it no longer matters how bad.

    The better part of `values`, all finite and above 0, is below it, however bad the rest is.
    """
    low = np.min(values)
    return float(low * max(VISIBLE, (np.quantile(values, 0.25) / low) ** 6))


def _result_places(values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return the places of results on a logarithmic axis, nan as it is, and its ticks."""
    from matplotlib.ticker import MaxNLocator

    known = values[np.isfinite(values)]
    if not len(known):
        return values, []
    low = known.min()
    limit = limit_of(known)
    high = known[known <= limit].max()
    if high < 1.001 * low:
        high = 1.05 * low
    places = np.log(values / low) / np.log(high / low)
    found = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    inner = [(float(np.log(tick / low) / np.log(high / low)), f"{tick:g}")
             for tick in found if low < tick < high]  # fmt: skip
    ticks = [(0.0, f"{low:.2f}"), *((x, text) for x, text in inner if 0.05 < x < 0.95)]
    ticks.append((1.0, f"{high:.2f}"))
    if (known > limit).any():
        ticks.append((BEYOND, f"above {high:.0f}"))
    return np.where(values > limit, BEYOND, places), ticks


def plot_importance(
    found: Mapping[str, tuple[float, float]], path: str | Path, *, title: str, text: str = ""
) -> None:
    """Draw a bar for each of `found` with its spread, the longest on top, as a PNG.

    Args:
        found: name to mean and standard deviation, in variances of what is predicted.
        path: file to write.
        title: of the figure.
        text: drawn in place of the bars, where there are none.
    """
    from matplotlib.figure import Figure  # here, because it takes a second; needs no display

    figure = Figure(figsize=(7.5, max(3.0, 0.28 * len(found) + 1.8)), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(_plain(title), fontsize=10)
    if not found:
        axes.axis("off")
        axes.text(0.5, 0.5, _plain(text), ha="center", va="center", fontsize=12)
        _save(figure, path)
        return
    names = sorted(found, key=lambda name: -found[name][0])
    means, spreads = zip(*(found[name] for name in names))
    axes.barh(range(len(names)), means, xerr=spreads, color="C0", ecolor="0.35", capsize=2)
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("rise of the squared error when shuffled, in variances (whiskers: folds)")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
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


def _cut(axes: Any, curves: list[np.ndarray]) -> None:
    """End the scale of perplexity above the lowest value of each curve."""
    finite = [values[np.isfinite(values)] for values in curves]
    finite = [values for values in finite if len(values)]
    if not finite:
        return
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    low = min(values.min() for values in finite)
    # At least the better part of each curve is seen.
    high = max(VISIBLE * low, *(1.2 * np.median(values) for values in finite))
    highest = max(values.max() for values in finite)
    if high < highest:
        axes.set_ylabel(f"perplexity (log scale, cut off above {high:.0f})")
    margin = (min(high, highest) / low) ** 0.04
    low, high = low / margin, min(high, highest) * margin
    axes.set_ylim(low, high)
    ticks = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _short(label: str) -> str:
    return label if len(label) <= 18 else label[:17] + "…"


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # else matplotlib reads a formula


def _save(figure: Any, path: str | Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_whole(path, image.getvalue())
