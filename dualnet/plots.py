"""Draws PNG figures from plain numbers."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dualnet._files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IN_TRAINING = "train: measured during the epoch, dropouts on"  # so it may lie above valid
MARKED = 40  # curves of up to this many epochs have a marker per epoch, and are never cut
VISIBLE = 2  # a cut scale ends at this multiple of the lowest perplexity, or above
LONG = 40  # tokens of an alignment, from which on both ends of its axes have labels
SETTLED = 200  # tokens of a text, from which on the scale does not follow the mean of the first
BEST = "#d55e00"  # vermilion, which the colour-blind tell from blue


def plot_curves(
    curves: Mapping[str, Sequence[float]],
    path: str | Path,
    *,
    title: str = "Learning curves",
    cut: bool = False,
    start: float | None = None,
) -> None:
    """Draw perplexity against epochs, one curve for each of `curves`, as a PNG.

    Args:
        curves: name, "<model> valid" or "<model> train", to the perplexity after each epoch. The
            curves of a model share a colour; those in training are thin and dashed.
        cut: bool. Whether the scale of many epochs ends at a small multiple of the lowest value,
            so that curves can be told apart.
        start: float. Perplexity before training, drawn as a line.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _axes(title, "epoch", "perplexity (log scale)")
    longest = max(map(len, curves.values()), default=0)
    models = [*dict.fromkeys(name.rpartition(" ")[0] for name in curves)]
    for name, values in curves.items():
        model, _, split = name.rpartition(" ")
        colour = f"C{models.index(model)}"
        [line] = axes.plot(range(1, len(values) + 1), values, color=colour, label=_plain(name))
        if split == "train":
            line.set(linestyle="--", linewidth=1)
        if longest <= MARKED:
            line.set_marker("." if split == "train" else "o")
    shown = [np.asarray(values) for values in curves.values()]
    if start is not None:
        label = f"valid before training: {start:.1f}"
        axes.axhline(start, color="black", linestyle=":", linewidth=1, label=label)
        shown.append(np.array([start]))
    _scale(axes, shown, cut and longest > MARKED)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if longest == 1:
        axes.set_xlim(0, 2)  # narrower, the ticks are fractions of an epoch
    in_training = any(name.endswith("train") for name in curves)
    axes.legend(title=IN_TRAINING if in_training else None, title_fontsize=8, alignment="left")
    _save(figure, path)


def plot_positions(curves: Mapping[str, npt.ArrayLike], path: str | Path) -> None:
    """Draw perplexity against the position in the text, as a PNG.

    `curves` are names to the loss of each token in nats. A strong line shows the perplexity of
    all tokens up to each position, a faint one that of windows of a hundredth of the text, and of
    at least ten tokens.
    """
    from matplotlib.ticker import LogFormatter

    x, y = "position in the text (tokens)", "perplexity (log scale)"
    figure, axes = _axes("Perplexity by position", x, y)
    shown = []
    for i, (name, values) in enumerate(curves.items()):
        losses, colour = np.asarray(values, np.float64), f"C{i}"
        sums, positions = np.cumsum(losses), np.arange(1, len(losses) + 1)
        size = min(max(10, len(losses) // 100), len(losses))
        ends = positions[size - 1 :: size]
        windows = np.exp(np.diff(sums[ends - 1], prepend=0) / size)
        axes.plot(ends - size / 2, windows, color=colour, linewidth=0.8, alpha=0.35)
        running = np.exp(sums / positions)
        axes.plot(positions, running, color=colour, label=f"{name}: {running[-1]:.2f}")
        settled = size if len(losses) > SETTLED else 0  # a mean of few tokens is noise
        shown += [running[settled:], windows]
    axes.set_yscale("log")
    finite = np.ma.masked_invalid(np.concatenate(shown)).compressed()
    if len(finite):
        axes.set_ylim(finite.min() / 2, finite.max() * 1.1)  # room for the legend
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(LogFormatter())  # 60, not 6 x 10^1; none where there are many
    axes.legend(title="all tokens up to the position (faint: windows)", loc="lower center")
    _save(figure, path)


def plot_bars(
    panels: Mapping[str, Sequence[tuple[str, float]]],
    path: str | Path,
    *,
    title: str,
    axis: str,
) -> None:
    """Draw panels of horizontal bars, each with its label and value, as a PNG.

    Args:
        panels: name to the `(label, value)` of each bar, from the top; values are from 0 to 1.
        axis: label of the values.
    """
    most = max(map(len, panels.values()))
    figure, grid = _grid(len(panels), columns=3, width=3.6, height=0.3 * most + 1.2)
    figure.suptitle(title)
    for (name, bars), axes in zip(panels.items(), grid):
        labels, values = zip(*bars) if bars else ((), ())
        axes.bar_label(axes.barh(range(len(bars)), values), fmt="%.3f", padding=2, fontsize=8)
        axes.set_yticks(range(len(bars)), map(_short, labels))
        # The same bar width everywhere.
        axes.set(xlim=(0, 1.18), ylim=(most - 0.5, -0.5), xticks=[0, 0.5, 1], xlabel=axis)
        axes.set_title(_short(name), fontweight="bold")
    _save(figure, path)


def plot_shares(
    values: npt.ArrayLike, groups: Sequence[str], path: str | Path, *, title: str
) -> None:
    """Draw a bar for each of `values`, which sum to 1, coloured by group, as a PNG."""
    from matplotlib.ticker import MaxNLocator

    shares, names = np.asarray(values), np.asarray(groups)
    figure, axes = _axes(title, "expert", "share (mean prior)")
    places = np.arange(1, len(shares) + 1)
    for group in dict.fromkeys(groups):
        members = names == group
        axes.bar(places[members], shares[members], label=group)
    equal = 1 / len(shares)
    axes.axhline(equal, label=f"equal use: {equal:.3g}", color="black", linestyle="--", linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.legend()
    _save(figure, path)


def plot_spectra(
    spectra: Mapping[str, npt.ArrayLike], tolerances: Sequence[float], path: str | Path
) -> None:
    """Draw singular values relative to the largest, in descending order, on log scales, as a PNG.

    Args:
        spectra: name to the singular values, `(n,)`.
        tolerances: for each spectrum, the value up to which singular values count as zero.
    """
    x, y = "index, the largest first (log scale)", "singular value / largest (log scale)"
    figure, axes = _axes("Singular values of log p", x, y)
    for (name, spectrum), tolerance in zip(spectra.items(), tolerances):
        values = np.asarray(spectrum)
        largest = values[0] or 1.0
        places = np.arange(1, len(values) + 1)
        [line] = axes.plot(places, np.where(values > 0, values / largest, np.nan), label=name)
        if tolerance > 0:
            axes.axhline(tolerance / largest, color=line.get_color(), linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log")
    axes.legend(title="dashed: tolerance", loc="lower left")
    _save(figure, path)


def plot_search(
    settings: Mapping[str, tuple[Sequence[float], Sequence[str]]],
    perplexities: Sequence[float],
    path: str | Path,
    *,
    title: str,
    logarithmic: Collection[str],
) -> None:
    """Draw perplexity against each setting of a search, a panel for each, as a PNG.

    The best trial is orange. Perplexities far above the median share the upper edge.

    Args:
        settings: name to the value in each trial, nan where the setting does not apply; and to
            labels, if the values are their indices.
        perplexities: perplexity of each trial.
        logarithmic: names of the settings on a log scale.
    """
    figure, grid = _grid(len(settings), columns=4, width=2.8, height=2.4)
    figure.suptitle(_plain(title), fontsize=10)
    results = np.asarray(perplexities, np.float64)
    results = np.minimum(results, VISIBLE * np.median(results))
    best = int(np.argmin(results))
    for (name, (values, labels)), axes in zip(settings.items(), grid):
        axes.scatter(values, results, s=14, alpha=0.6)
        axes.scatter(values[best], results[best], s=30, color=BEST)
        axes.set_xlabel(name, fontsize=9)
        axes.set_ylabel("perplexity", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        _scale(axes, [results], cut=False)
        if name in logarithmic and np.isfinite(values).any():
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter("")
        if labels:
            axes.set_xticks(range(len(labels)), map(_short, labels), rotation=20, ha="right")
            axes.set_xlim(-0.5, len(labels) - 0.5)
    _save(figure, path)


def plot_attention(
    source: Sequence[str], target: Sequence[str], weights: npt.ArrayLike, path: str | Path
) -> None:
    """Draw attention weights as a PNG, a column for each source token, the darker the higher.

    Args:
        source, target: the tokens, at least one of each.
        weights: `(target, source)`, from 0 to 1.
    """
    longest = max(len(source), len(target))
    cell = float(np.clip(10 / longest, 0.17, 0.34))  # inches; a line of the labels needs 0.17
    width, height = cell * len(source) + 2.5, 0.9 * cell * len(target) + 1.8
    figure, (axes,) = _grid(1, columns=1, width=min(60, width), height=min(60, height))
    image = axes.imshow(np.asarray(weights), cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(source)), map(_short, source), rotation=90)
    axes.set_yticks(range(len(target)), map(_short, target))
    far = longest > LONG  # from one end to the other: label both
    axes.tick_params(length=0, labelsize=9, labeltop=True, labelbottom=far, labelright=far)
    axes.set(xlabel="source", ylabel="translation")
    figure.colorbar(image, label="weight", fraction=0.05, aspect=12)
    _save(figure, path)


def plot_heat(
    panels: Mapping[str, np.ndarray],
    words: Sequence[str],
    count: int,
    path: str | Path,
    *,
    title: str,
) -> None:
    """Draw a heat map of each of `panels`, `(units, words)`, below each other, as a PNG.

    Shows the `count` units whose values vary most. Values from 0 to 1 go from white to black, all
    others from blue to red around 0.
    """
    width, height = min(60, 0.42 * len(words) + 2), 0.13 * count + 0.5
    figure, grid = _grid(len(panels), columns=1, width=width, height=height)
    figure.suptitle(f"Inside {_plain(title)}")
    for (name, values), axes in zip(panels.items(), grid):
        units = np.sort(np.argsort(-values.std(-1), kind="stable")[:count])
        is_gate = values.min() >= 0 and values.max() <= 1
        most = 1 if is_gate else np.abs(values).max()
        colours, least = ("Greys", 0) if is_gate else ("RdBu_r", -most)
        image = axes.imshow(values[units], cmap=colours, vmin=least, vmax=most, aspect="auto")
        axes.set_yticks(range(len(units)), map(str, units), fontsize=6)
        axes.set_xticks(range(len(words)), map(_short, words), rotation=60, fontsize=8)
        axes.set_ylabel(f"unit of {_plain(name)}")
        figure.colorbar(image, fraction=0.05)
    _save(figure, path)


def plot_parts(parts: Mapping[str, np.ndarray], tokens: np.ndarray, path: str | Path) -> None:
    """Draw bars for the parts of the logit of each token, and a mark at their sum, as a PNG."""
    places, thickness = np.arange(len(tokens)), 0.8 / len(parts)
    title = "What the word before (input) and\nthe past (recurrence) add to each logit"
    figure, (axes,) = _grid(1, columns=1, width=min(60, 0.45 * len(tokens) + 4.5), height=3.4)
    for i, (name, values) in enumerate(parts.items()):
        axes.bar(places + (i - 1) * thickness, values, thickness, label=name)
    axes.plot(places, sum(parts.values()), "k_", markersize=12, label="sum")
    axes.set_xticks(places, map(_short, tokens), rotation=60)
    axes.set(title=title, ylabel="logit above the mean (nats)")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))  # beside the bars
    _save(figure, path)


def _grid(
    panels: int, *, columns: int, width: float, height: float
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of so many panels in rows, each of a size in inches."""
    from matplotlib.figure import Figure  # takes a second to import; needs no display

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure, (axes,) = _grid(1, columns=1, width=7, height=3.9)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _scale(axes: Axes, curves: Iterable[np.ndarray], cut: bool) -> None:
    """Scale perplexity to the curves; if `cut`, up to shortly above the lowest value of each."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    finite = [values for x in curves if len(values := x[np.isfinite(x)])]
    if not finite:
        return
    low = min(values.min() for values in finite)
    high = max(values.max() for values in finite)
    # At least the better half of each curve stays visible.
    limit = max(VISIBLE * low, *(1.2 * np.median(values) for values in finite))
    if cut and limit < high:
        high = limit
        axes.set_ylabel(f"perplexity (log scale, cut off above {high:.0f})")
    margin = max((high / low) ** 0.04, 1.01)  # also around a single value
    axes.set_ylim(low / margin, high * margin)
    is_narrow = high < 8 * low
    ticks = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]) if is_narrow else LogLocator(subs=(1, 2, 5))
    axes.yaxis.set_major_locator(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _short(label: str) -> str:
    if label and not label.strip(" \xa0"):  # blanks alone
        label = "␣" * len(label)
    # A control character as Python writes it: "\n".
    label = "".join(c if c.isprintable() or c == "\xa0" else repr(c)[1:-1] for c in label)
    return _plain(label if len(label) <= 18 else label[:17] + "…")


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # else matplotlib parses a formula


def _save(figure: Figure, path: str | Path) -> None:
    image = io.BytesIO()
    _set_fonts(figure)
    with warnings.catch_warnings():
        # Of a character that no font has, which becomes a box.
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from|Matplotlib currently does not support", UserWarning
        )
        figure.savefig(image, format="png", dpi=120)
    write_whole(path, image.getvalue())


def _set_fonts(figure: Figure) -> None:
    """Let matplotlib draw the texts of `figure` in installed fonts that have their characters.

    Nothing changes where the default font has them all.
    """
    from matplotlib import rcParams
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    families = _fallbacks("".join(text.get_text() for text in texts))
    for text in texts if families else ():
        # Not bold: few of these fonts are, and matplotlib reports each that is not.
        text.set(fontfamily=[*rcParams["font.family"], *families], fontweight="normal")


def _fallbacks(text: str) -> list[str]:
    """Return the families of installed fonts for the characters that the default font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    default = get_font(findfont(FontProperties()))
    missing = {*map(ord, text)} - {ord("\n")} - default.get_charmap().keys()
    families = []
    for font in fontManager.ttflist if missing else ():
        if not font.name.startswith("Last Resort"):  # it has a box for every character
            with contextlib.suppress(OSError, RuntimeError):  # a font that cannot be read
                characters = get_font(font.fname).get_charmap().keys()
                if missing & characters:
                    families.append(font.name)
                    missing = missing - characters
    return families
