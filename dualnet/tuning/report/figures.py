"""The plots of a search: parallel coordinates, and the importance of each parameter."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet.tuning.job import Job, Parameter
from dualnet.tuning.report.tables import Row, best_row, completed_rows, text_of

LEAST = 10  # completed trials needed to estimate importances
IMPORTANCE = "importance.png"
FOLDS = 5  # of the cross-validation
Ticks = list[tuple[float, str]]


def write_plots(folder: Path, job: Job, rows: Sequence[Row]) -> dict[str, str]:
    """Draw `parallel_coordinates.png` and `importance.png`.

    The first shows the completed trials coloured by perplexity, the best in orange, and the
    failed ones in grey. The second shows the permutation importance of each parameter in a
    random forest fitted to the log perplexity of the completed trials: the rise of the squared
    error on held-out trials, in variances, when the values of the parameter are shuffled.
    Perplexities far above those of the better trials are clipped: how far is chance.

    Returns:
        The name of a plot that is left out, if any, and the reason: importances need
        `LEAST` completed trials that differ.
    """
    from dualnet.plots import plot_importance, plot_parallel_coordinates
    from dualnet.plots.scales import limit_of

    completed = completed_rows(rows)
    failed = [row for row in rows if row.status == "failed"]
    axes = {parameter.name: _axis(parameter, [*completed, *failed]) for parameter in job.space}
    best = best_row(rows)
    title = f"{job.name}: {len(completed)} trials completed"
    if failed:
        title += f", {len(failed)} failed (dashed)"
    if best is not None:
        title += f"; best (thick): trial {best.trial}, {best.val_perplexity:.2f}"
    results = [row.val_perplexity or math.nan for row in completed] + [math.nan] * len(failed)
    path, result = folder / "parallel_coordinates.png", "validation\nperplexity"
    plot_parallel_coordinates(axes, results, path, title=title, result=result)
    number = len(completed)
    perplexities = np.array([row.val_perplexity for row in completed], np.float64)
    places = {name: axis[:number] for name, (axis, _) in axes.items()}
    varied = {name: axis for name, axis in places.items() if len(set(map(str, axis))) > 1}
    if number < LEAST:
        return {IMPORTANCE: f"it needs {LEAST} completed trials, and there are {number}"}
    if not varied or perplexities.min() <= 0 or np.ptp(perplexities) == 0:
        reason = "the completed trials do not differ in their settings or their perplexity"
        return {IMPORTANCE: reason}
    limit = limit_of(perplexities)
    bars, r2 = importances(varied, np.log(np.minimum(perplexities, limit)))
    clipped = f", clipped at {limit:.0f}" if perplexities.max() > limit else ""
    warning = "" if r2 >= 0.3 else ": too low to trust the bars"
    title = (
        f"{job.name}: importance of the parameters in {number} trials\n"
        f"permutation importance in a random forest on log perplexity{clipped}\n"
        f"cross-validated R² = {r2:.2f}{warning}"
    )
    plot_importance(bars, folder / IMPORTANCE, title=title)
    return {}


def importances(
    places: Mapping[str, Sequence[float]], values: np.ndarray
) -> tuple[dict[str, tuple[float, float]], float]:
    """Return the importance of each parameter in a random forest, and the forest's R².

    `places` maps each name to the position of each trial on its scale, nan where it is
    inactive. The importance is the rise of the squared error when these are shuffled, as a
    fraction of the variance of `values`: mean and standard deviation over `FOLDS` folds, each
    predicted by a forest fitted to the others.
    """
    from sklearn.ensemble import RandomForestRegressor  # imported here: takes a second
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    table = np.nan_to_num(np.array(list(places.values())).T, nan=-1.0)  # inactive: its own level
    rises, squares = [], []
    for fitted, held_out in KFold(FOLDS, shuffle=True, random_state=0).split(table):
        forest = RandomForestRegressor(50, random_state=0).fit(table[fitted], values[fitted])
        of_trials = (forest, table[held_out], values[held_out])
        result = permutation_importance(
            *of_trials, scoring="neg_mean_squared_error", n_repeats=5, random_state=0
        )
        rises.append(result.importances_mean / values.var())
        squares.extend((forest.predict(table[held_out]) - values[held_out]) ** 2)
    means, deviations = np.mean(rises, 0).tolist(), np.std(rises, 0).tolist()
    r2 = 1 - float(np.mean(squares) / values.var())
    return dict(zip(places, zip(means, deviations))), r2


def _axis(parameter: Parameter, rows: Sequence[Row]) -> tuple[list[float], Ticks]:
    """Return the place of each trial on the scale of `parameter`, 0 to 1, and the ticks.

    The place is nan where the parameter is inactive.
    """
    drawn = [row.drawn.get(parameter.name) for row in rows]
    if parameter.values:
        # As JSON, where 1 and true differ; drawn values may be missing from an edited job.
        known = [*parameter.values, *(value for value in drawn if value is not None)]
        levels = list(dict.fromkeys(map(json.dumps, known)))
        last = max(len(levels) - 1, 1)
        ticks = [(i / last, text_of(json.loads(level))) for i, level in enumerate(levels)]

        def place(value: Any) -> float:
            return levels.index(json.dumps(value)) / last
    else:
        from keras_tuner.engine.hyperparameters import Float

        ends = [float(end) for end in parameter.ends]
        place = Float(parameter.name, *ends, sampling=parameter.sampling).value_to_prob
        ticks = [(place(tick), f"{tick:.6g}") for tick in _ticks(parameter, place)]
    return [math.nan if value is None else place(value) for value in drawn], ticks


def _ticks(parameter: Parameter, place: Any) -> list[float]:
    """Return the ends of a range and round values between them."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = (float(end) for end in parameter.ends)
    if parameter.sampling == "log" and high >= 30 * low:
        values = LogLocator(numticks=6).tick_values(low, high)
    else:
        values = MaxNLocator(5, integer=parameter.is_integer_range).tick_values(low, high)
    gap = 0.07  # labels closer together would touch
    inner = [float(v) for v in values if low < v < high and gap < place(v) < 1 - gap]
    return list(dict.fromkeys([low, *inner, high]))
