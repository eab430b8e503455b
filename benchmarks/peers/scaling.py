"""The cost of a training step against each size of a model and of its batches."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import fnmatch
import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dualnet._files import write_whole, written_beside
from peers import report
from peers.cases import NO_RECURRENT, Case, settings_for

BASE = Case(
    "scaling", "lstm", "training", 32, 25, {"units": 200, "recurrent_dropout": 0.0},
    note=NO_RECURRENT,
)  # fmt: skip
DEFAULT = ("dualnet-tensorflow-float32", "dualnet-tensorflow-bfloat16")


def _with(**overrides: Any) -> Case:
    return dataclasses.replace(BASE, overrides=BASE.overrides | overrides)


@dataclasses.dataclass(frozen=True)
class Plot:
    """One plot: its axis, the sizes on it, the case of each, and how the products grow."""

    axis: str
    sizes: tuple[int, ...]
    case: Callable[[int], Case]
    order: int = 1


PLOTS = {
    "vocabulary": Plot(
        "vocabulary (words)", (10_000, 33_278, 267_735), lambda n: _with(vocabulary_size=n)
    ),
    "units": Plot(
        "units of the embedding and the layer", (100, 200, 400, 800, 1600),
        lambda n: _with(units=n), order=2,
    ),
    "depth": Plot("recurrent layers", (1, 2, 4, 8), lambda n: _with(recurrent_layers=n)),
    "segment": Plot(
        "tokens of a segment", (5, 10, 25, 50, 100), lambda n: dataclasses.replace(BASE, time=n)
    ),
    "batch": Plot(
        "rows of a batch", (4, 8, 16, 32, 64, 128), lambda n: dataclasses.replace(BASE, batch=n)
    ),
}  # fmt: skip


def draw(options: Any, names: list[str], measure: Callable) -> None:
    """Measure and draw the plots `names`, all by default; with `quick` two points of each."""
    for name in names:
        if name not in PLOTS:
            raise SystemExit(f"no plot {name!r}; there are {', '.join(PLOTS)}")
    for name in names or PLOTS:
        _draw(name, PLOTS[name], options, measure)


def _draw(name: str, plot: Plot, options: Any, measure: Callable) -> None:
    sizes = plot.sizes[:2] if options.quick else plot.sizes
    patterns = DEFAULT if options.settings == ["*"] else options.settings
    pairs, places = [], []
    for size in sizes:
        case = plot.case(size)
        for setting in settings_for(case):
            if any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in patterns):
                pairs.append((case, setting))
                places.append(size)
    found, idle = measure(pairs, options.repeats, options.seconds)
    curves: dict[str, list[tuple[int, Any, Case]]] = {}
    for size, (case, setting), each in zip(places, pairs, found):
        if each.seconds:
            curves.setdefault(setting.name, []).append((size, each, case))
    lines = [
        f"{datetime.date.today()}, seconds of a training step of {BASE.model} against the "
        f"{plot.axis}; else batch {BASE.batch}, time {BASE.time}, 200 units, vocabulary 10,000; "
        f"{BASE.note}",
        report.machine(found),
        f"median of {options.repeats} rounds in turn; waiting workers took {100 * idle:.2f} % of "
        "a core",
    ]
    for setting, points in curves.items():
        steepest = max(_slopes(points), default=float("nan"))
        lines.append(f"{setting}: grows at most as size ** {steepest:.2f} between two points")
    table = io.StringIO()
    table.writelines(f"# {line}\n" for line in lines)
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow((name, "setting", "seconds", "iqr", "repeats", "tokens_per_second", "peak_mb"))
    for setting, points in curves.items():
        for size, each, case in points:
            rate = report.tokens_of(case) / each.median
            row = (f"{each.median:.5g}", f"{each.spread:.3g}", len(each.seconds), f"{rate:.0f}")
            writer.writerow((size, setting, *row, f"{each.peak_mb:.0f}"))
    print(table.getvalue(), flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{datetime.date.today()}-speed-{name}{'-quick' * options.quick}"
    write_whole(path.with_suffix(".csv"), table.getvalue())
    _picture(path.with_suffix(".png"), plot, curves)
    print(f"kept in {path.with_suffix('.csv')} and .png", flush=True)


def _slopes(points: list) -> list[float]:
    """Return how steep each piece is in a picture of logarithms."""
    return [
        float(np.log(after.median / before.median) / np.log(size_after / size_before))
        for (size_before, before, _), (size_after, after, _) in itertools.pairwise(points)
    ]


def _picture(path: Any, plot: Plot, curves: dict) -> None:
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for setting, points in curves.items():
        sizes, seconds = [size for size, *_ in points], [each.median for _, each, _ in points]
        low, high = np.transpose([np.percentile(each.seconds, [25, 75]) for _, each, _ in points])
        bars = np.maximum([seconds - low, high - seconds], 0)
        axes.errorbar(sizes, seconds, bars, marker="o", markersize=4, capsize=2, label=setting)
    if curves:
        sizes = np.array(sorted({size for points in curves.values() for size, *_ in points}))
        last = max(points[-1][1].median for points in curves.values() if points)
        for order in range(1, plot.order + 1):
            kind = {1: "linear", 2: "quadratic"}[order]
            line = 1.25 * last * (sizes / sizes[-1]) ** order
            axes.plot(sizes, line, color="0.5", linestyle="--" if order == 1 else ":", label=kind)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    axes.set_title(f"{BASE.model}, {report.processor()}, {report.threads()} threads", fontsize=10)
    axes.set_xlabel(plot.axis)
    axes.set_ylabel("seconds of a training step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=120)
