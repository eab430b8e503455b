"""The plots of a search: parallel coordinates, and what the perplexity depends on."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet.tuning.rows import Row, best_row, completed_rows, in_order, text_of

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job, Parameter

LEAST = 8  # completed trials from which on the importance of parameters is estimated
FOLDS = 5  # of the cross-validation behind it


def write_plots(folder: str | os.PathLike[str], job: Job, rows: Sequence[Row]) -> None:
    """Draw `parallel_coordinates.png` and `importance.png`.

    The first shows the completed trials coloured by perplexity, the best in red, and the
    failed ones grey. The second shows the permutation importance of each parameter in a
    random forest, which was fitted to the logarithm of the perplexity of the completed
    trials: how much the squared error rises, in variances, on trials that the forest was
    not fitted to, where the values of one parameter are shuffled. Perplexities that are
    much worse than the better part count as equal: how bad they are is chance.
    """
    from dualnet.plots import limit_of, plot_importance, plot_parallel_coordinates

    completed = completed_rows(rows)
    failed = [row for row in in_order(rows) if row.status == "failed"]
    axes = {parameter.name: _axis(parameter, [*completed, *failed]) for parameter in job.space}
    best = best_row(rows)
    title = f"{job.name}: trials completed {len(completed)}, failed {len(failed)} (grey)"
    if best is not None:
        title += f"; the best (red) is {best.trial} with {best.val_perplexity:.2f}"
    plot_parallel_coordinates(
        {name: (axis.places, axis.ticks) for name, axis in axes.items()},
        [row.val_perplexity or math.nan for row in completed] + [math.nan] * len(failed),
        Path(folder) / "parallel_coordinates.png",
        title=title,
        result="validation\nperplexity",
    )
    number = len(completed)
    perplexities = np.array([row.val_perplexity for row in completed], np.float64)
    varied = {
        name: axis.places[:number]
        for name, axis in axes.items()
        if len(set(map(str, axis.places[:number]))) > 1
    }
    path = Path(folder) / "importance.png"
    head = f"{job.name}: what the perplexity of {number} trials depends on"
    if number < LEAST:
        text = f"{number} completed trials are too few\nto say what matters: it takes {LEAST}."
        plot_importance({}, path, title=head, text=text)
    elif not varied or perplexities.min() <= 0 or np.ptp(perplexities) == 0:
        text = "The completed trials do not differ\nin their settings or their perplexity."
        plot_importance({}, path, title=head, text=text)
    else:
        limit = limit_of(perplexities)
        found, explained = importances(varied, np.log(np.minimum(perplexities, limit)))
        cut = f", at most {limit:.0f}" if perplexities.max() > limit else ""
        trust = "" if explained >= 0.3 else ": it predicts little, trust no bar"
        title = (
            f"{head}\npermutation importance of a random forest on log perplexity{cut}\n"
            f"cross-validated R² = {explained:.2f}{trust}"
        )
        plot_importance(found, path, title=title)


def importances(
    places: Mapping[str, Sequence[float]], values: np.ndarray
) -> tuple[dict[str, tuple[float, float]], float]:
    """Return how much a random forest needs each parameter to predict `values`, and its R².

    Args:
        places: name to the places of the trials on its scale, nan where it is not active.
        values: `(trials,)`, not all equal.

    Returns:
        For each name the increase of the squared error when its places are shuffled, as a
        part of the variance of `values`: mean and standard deviation over `FOLDS` folds,
        each predicted by a forest that was fitted to the others; and the R² of all these
        predictions, at most 1, below 0 if the mean would predict better.
    """
    from sklearn.ensemble import RandomForestRegressor  # here, because it takes a second
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    table = np.nan_to_num(np.array(list(places.values())).T, nan=-1.0)  # a level of its own
    increases, squares = [], []
    for fitted, held_out in KFold(FOLDS, shuffle=True, random_state=0).split(table):
        forest = RandomForestRegressor(50, random_state=0).fit(table[fitted], values[fitted])
        found = permutation_importance(
            forest,
            table[held_out],
            values[held_out],
            scoring="neg_mean_squared_error",
            n_repeats=5,
            random_state=0,
        )
        increases.append(found.importances_mean / values.var())
        squares.extend((forest.predict(table[held_out]) - values[held_out]) ** 2)
    means, spreads = np.mean(increases, 0), np.std(increases, 0)
    each = {name: (float(means[i]), float(spreads[i])) for i, name in enumerate(places)}
    return each, 1 - float(np.mean(squares) / values.var())


@dataclasses.dataclass(frozen=True)
class _Axis:
    places: list[float]  # of each trial on its scale, from 0 to 1; nan where it is not active
    ticks: list[tuple[float, str]]


def _axis(parameter: Parameter, rows: Sequence[Row]) -> _Axis:
    drawn = [row.drawn.get(parameter.name) for row in rows]
    if parameter.values:
        # As JSON, in which 1 is not true; with those of a job that was edited since.
        known = [*parameter.values, *(value for value in drawn if value is not None)]
        levels = list(dict.fromkeys(map(json.dumps, known)))
        last = max(len(levels) - 1, 1)
        places = [
            math.nan if value is None else levels.index(json.dumps(value)) / last for value in drawn
        ]
        labels = [text_of(json.loads(level)) for level in levels]
        return _Axis(places, [(i / last, label) for i, label in enumerate(labels)])
    low, high = _scaled(parameter, parameter.min_value), _scaled(parameter, parameter.max_value)
    width = high - low or 1.0
    places = [
        math.nan if value is None else (_scaled(parameter, value) - low) / width for value in drawn
    ]
    ticks = [((_scaled(parameter, tick) - low) / width, f"{tick:.6g}")
             for tick in _ticks(parameter)]  # fmt: skip
    return _Axis(places, ticks)


def _scaled(parameter: Parameter, value: Any) -> float:
    value = float(value)
    if parameter.sampling == "log":
        return math.log(value)
    if parameter.sampling == "reverse_log":  # as KerasTuner: the logarithm from the upper end
        low, high = float(parameter.min_value or 0), float(parameter.max_value or 0)
        return -math.log(high + low - value)
    return value


def _ticks(parameter: Parameter) -> list[float]:
    """Return round values on the scale of a range, and its ends."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = float(parameter.min_value or 0), float(parameter.max_value or 0)
    if parameter.sampling == "log" and high >= 30 * low:
        found = LogLocator(numticks=6).tick_values(low, high)
    else:
        integers = all(isinstance(end, int) for end in (parameter.min_value, parameter.max_value))
        found = MaxNLocator(5, integer=integers).tick_values(low, high)
    start, end = _scaled(parameter, low), _scaled(parameter, high)
    apart = 0.07 * (end - start)  # or the labels would touch
    inner = [
        float(tick)
        for tick in found
        if low < tick < high and start + apart < _scaled(parameter, tick) < end - apart
    ]
    return list(dict.fromkeys([low, *inner, high]))
