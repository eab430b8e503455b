"""Positions on the axes of figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

VISIBLE = 2  # a cut scale ends at this multiple of the lowest perplexity, or above
BEYOND = 1.09  # the position above an axis that goes from 0 to 1


def spread(places: np.ndarray, order: Sequence[int]) -> None:
    """Spread out lines that meet in one of `places`, those later in `order` further down."""
    distinct = np.unique(places)
    width = 0.35 * min(0.16, *np.diff(distinct)) if len(distinct) > 1 else 0.056
    for place in distinct:
        meeting = [i for i in order if places[i] == place]
        if len(meeting) > 1:
            share = min(1.0, len(meeting) / 10)  # a few lines stay close together
            places[meeting] += share * np.linspace(width / 2, -width / 2, len(meeting))


def limit_of(values: Any) -> float:
    """Return the perplexity beyond which differences no longer matter.

    At least the best quarter of `values`, all finite and above 0, is below it, however bad the
    rest.
    """
    low = np.min(values)
    return float(low * max(VISIBLE, (np.quantile(values, 0.25) / low) ** 6))


def result_places(values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return the positions of results on a logarithmic axis, keeping nan, and its ticks."""
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
    candidates = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    inner = [(float(np.log(tick / low) / np.log(high / low)), f"{tick:g}")
             for tick in candidates if low < tick < high]  # fmt: skip
    ticks = [(0.0, f"{low:.2f}"), *((x, text) for x, text in inner if 0.05 < x < 0.95)]
    ticks.append((1.0, f"{high:.2f}"))
    if (known > limit).any():
        ticks.append((BEYOND, f"above {high:.0f}"))
    return np.where(values > limit, BEYOND, places), ticks
