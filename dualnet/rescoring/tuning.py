"""Weights of features, learnt on lists with references by line search on the metric itself."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w

from dualnet._checks import ArgumentError, check_count, checked, did_you_mean, is_number
from dualnet._files import write_whole
from dualnet._toml import read_toml
from dualnet.rescoring.lists import NBest
from dualnet.rescoring.metrics import Metric, gains, metric_of

RESAMPLES = 1000
LEAST = 1e-9  # of a gain that counts, and of an interval of a line


@dataclasses.dataclass(frozen=True)
class Figure:
    """A value of a metric, and the 95 % interval of the bootstrap over sentences.

    Example:

    >>> from dualnet.rescoring import Figure
    >>> print(Figure(30.05, 29.3, 30.8))
    30.05 [29.30, 30.80]
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`: what a metric says of lists.

    Attributes:
        base: `Figure` of the first hypothesis of each list.
        rescored: `Figure` of those that the weights prefer.
        oracle: `Figure` of the best choice that is found from references.
        difference: `Figure` of `rescored` minus `base`, from the same resamples.

    Example:

    >>> from dualnet.rescoring import Comparison, Figure
    >>> Comparison(*[Figure(0.5, 0.0, 1.0)] * 4).base.value
    0.5
    """

    base: Figure
    rescored: Figure
    oracle: Figure
    difference: Figure


@checked
def tune(
    lists: Sequence[NBest],
    references: Sequence[str],
    *,
    metric: str | Metric = "bleu",
    seed: int = 0,
    starts: int = 10,
) -> dict[str, float]:
    """Return the weights of the features whose best hypotheses the metric likes most.

    Along a line of weights the metric is constant between the points where the best hypothesis
    of a list changes. They are found exactly, as by Och, and so is the best stretch of the line.
    From each start the search goes along each feature and as many random directions, in turn,
    until none helps. The first start is zero, the order of the lists; so the result is at least
    as good as the first hypotheses. Features are scaled by their deviation for the search, and
    the sum of the weights' absolute values is 1.

    Args:
        lists: `NBest`, with features. One that a hypothesis lacks is 0.
        references: str for each list.
        metric: "bleu", "wer" or "f1" (brackets of trees), or a `Metric`.
        seed: int, at least 0. Of the starts and of the directions.
        starts: int, at least 1.

    Returns:
        dict of a feature to its weight. All are 0 if nothing is better than the first hypotheses.

    Raises:
        ImportError: if the package of a metric is missing.
        ValueError: if there are no lists or features, or not as many references.

    Reference: Och, 2003, https://aclanthology.org/P03-1021

    Example:

    >>> from dualnet.rescoring import Hypothesis, NBest, tune
    >>> lists = [NBest(0, (Hypothesis("a dog", {"lm": -2.0}), Hypothesis("a cat", {"lm": -1.0})))]
    >>> tune(lists, ["a cat"], metric="wer")
    {'lm': 1.0}
    """
    check_count("seed", seed, least=0)
    check_count("starts", starts, least=1)
    return _Search(lists, metric_of(metric), _statistics(lists, references, metric)).run(
        np.random.default_rng(seed), starts
    )


@checked
def compare(
    lists: Sequence[NBest],
    references: Sequence[str],
    weights: Mapping[str, float],
    *,
    metric: str | Metric = "bleu",
    seed: int = 0,
) -> Comparison:
    """Return the metric of the first, the preferred and the best hypotheses of lists.

    The intervals are of 1,000 resamples of the sentences, the same for all figures. The oracle
    takes the best hypothesis of each list alone, then changes one at a time while that helps:
    exact for WER, a lower bound for BLEU and F1, which are no means over sentences.

    Args:
        lists, references, metric: As for `tune`.
        weights: dict of a feature to its weight.
        seed: int, at least 0. Of the resamples.

    Example:

    >>> from dualnet.rescoring import Hypothesis, NBest, compare
    >>> lists = [NBest(0, (Hypothesis("a dog", {"lm": -2.0}), Hypothesis("a cat", {"lm": -1.0})))]
    >>> comparison = compare(lists, ["a cat"], {"lm": 1.0}, metric="wer")
    >>> comparison.base.value, comparison.rescored.value
    (50.0, 0.0)
    """
    check_count("seed", seed, least=0)
    metric = metric_of(metric)
    statistics = _statistics(lists, references, metric)
    sign = 1.0 if metric.higher_is_better else -1.0
    firsts = np.zeros(len(lists), int)
    totals = [[hypothesis.total(weights) for hypothesis in nbest.hypotheses] for nbest in lists]
    preferred = np.array([int(np.argmax(row)) for row in totals])
    chosen = [firsts, preferred, _oracle(metric, statistics)]
    counts = np.random.default_rng(seed).multinomial(
        len(lists), np.full(len(lists), 1 / len(lists)), size=RESAMPLES
    )
    counts = np.concatenate([np.ones((1, len(lists)), int), counts])
    values = [
        sign * gains(metric, counts @ np.array([rows[i] for rows, i in zip(statistics, indices)]))
        for indices in chosen
    ]
    figures = [
        Figure(float(row[0]), *map(float, np.percentile(row[1:], [2.5, 97.5])))
        for row in [*values, values[1] - values[0]]
    ]
    return Comparison(*figures)


@checked
def save_weights(path: str | os.PathLike[str], weights: Mapping[str, float], **about: Any) -> None:
    """Write weights as TOML, with the values `about` how they were found.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import load_weights, save_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(pathlib.Path(folder, "weights.toml"), {"lm": 0.25}, metric="wer")
    ...     load_weights(pathlib.Path(folder, "weights.toml"))
    {'lm': 0.25}
    """
    write_whole(path, tomli_w.dumps({**about, "weights": dict(weights)}))


@checked
def load_weights(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return the weights of a TOML file, which has a table `[weights]` of numbers.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not such a file.

    Example: see `save_weights`.

    >>> from dualnet.rescoring import load_weights
    >>> load_weights("nowhere.toml")
    Traceback (most recent call last):
    FileNotFoundError: There is no file 'nowhere.toml'.
    """
    weights = read_toml(path, what="A file of weights").get("weights")
    if (
        not isinstance(weights, dict)
        or not weights
        or not all(is_number(weight) and math.isfinite(weight) for weight in weights.values())
    ):
        raise ArgumentError(
            "weights",
            "must be a table of numbers, [weights], which `dualnet rescore --save-weights` "
            f"writes. Received: {os.fspath(path)!r} without it.",
        )
    return {name: float(weight) for name, weight in weights.items()}


def check_features(weights: Mapping[str, float], nbest: NBest) -> None:
    """Raise `ArgumentError` unless the first hypothesis has a feature for each weight but 0."""
    known = sorted(nbest.hypotheses[0].numbers())
    for name, weight in weights.items():
        if weight and name not in known:
            raise ArgumentError(
                "weights",
                f"must be of features of the lists, which are {', '.join(known)}. Received: "
                f"{name!r}.{did_you_mean(name, known)}",
            )


def _statistics(
    lists: Sequence[NBest], references: Sequence[str], metric: str | Metric
) -> list[np.ndarray]:
    """Return the statistics of each list, `(hypotheses, n)`."""
    metric = metric_of(metric)
    if not lists or len(lists) != len(references):
        raise ArgumentError(
            "references",
            f"must be one for each list, at least one. Received: {len(references)} references "
            f"for {len(lists)} lists.",
        )
    statistics = []
    for nbest, reference in zip(lists, references):
        of_text = {
            text: np.asarray(metric.statistics(text, reference), np.float64)
            for text in {hypothesis.text for hypothesis in nbest.hypotheses}
        }
        statistics.append(np.stack([of_text[hypothesis.text] for hypothesis in nbest.hypotheses]))
    return statistics


def _oracle(metric: Metric, statistics: Sequence[np.ndarray]) -> np.ndarray:
    """Return the index of the oracle hypothesis of each list, by greedy search."""
    chosen = np.array([int(np.argmax(gains(metric, rows))) for rows in statistics])
    total = sum(rows[i] for rows, i in zip(statistics, chosen))
    best = gains(metric, total[None])[0]
    while True:
        before = best
        for k, rows in enumerate(statistics):
            gained = gains(metric, total - rows[chosen[k]] + rows)
            if gained.max() > best + LEAST:
                best, i = gained.max(), int(np.argmax(gained))
                total, chosen[k] = total + rows[i] - rows[chosen[k]], i
        if best <= before + LEAST:
            return chosen


class _Search:
    """The search of `tune`; `features` are `(lists, hypotheses, features)`, padded."""

    def __init__(self, lists: Sequence[NBest], metric: Metric, rows: list[np.ndarray]) -> None:
        numbers = [[hypothesis.numbers() for hypothesis in nbest.hypotheses] for nbest in lists]
        self.names = list(dict.fromkeys(n for several in numbers for item in several for n in item))
        if not self.names:
            raise ArgumentError("lists", "must have features. Received: none.")
        self.metric = metric
        most = max(map(len, numbers))
        self.statistics = np.zeros((len(lists), most, rows[0].shape[1]))
        self.features = np.zeros((len(lists), most, len(self.names)))
        self.absent = np.ones((len(lists), most), bool)
        for k, (several, figures) in enumerate(zip(numbers, rows)):
            values = [[hypothesis.get(name, 0.0) for name in self.names] for hypothesis in several]
            self.features[k, : len(several)] = values
            self.statistics[k, : len(several)] = figures
            self.absent[k, : len(several)] = False
        # What all hypotheses of a list share chooses none of them.
        counts = (~self.absent).sum(axis=1)[:, None, None]
        self.features -= self.features.sum(axis=1, keepdims=True) / counts
        self.features[self.absent] = 0.0
        variance = (self.features**2).sum(axis=(0, 1)) / counts.sum()
        self.scale = np.where(variance > 1e-20, np.sqrt(np.maximum(variance, 1e-20)), np.inf)
        self.features /= self.scale

    def run(self, random: np.random.Generator, starts: int) -> dict[str, float]:
        size = len(self.names)
        first = [np.zeros(size), *random.normal(size=(starts - 1, size))]
        ends = [self._climb(weights, random) for weights in first]
        weights, _ = max(ends, key=lambda end: end[1])  # of equal ones the first
        weights = weights / self.scale
        total = np.abs(weights).sum()
        weights = weights / total if total else weights
        return dict(zip(self.names, weights.tolist()))

    def _climb(self, weights: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return the weights from which no direction leads up, and their gain."""
        best = self._gain(weights)
        size = len(weights)
        while True:
            before = best
            for direction in [*np.eye(size), *random.normal(size=(size, size))]:
                step = self.line_search(weights, direction)
                gain = self._gain(weights + step * direction)
                if gain > best + LEAST:
                    best, weights = gain, weights + step * direction
            if best <= before + LEAST:
                return weights, best

    def _gain(self, weights: np.ndarray) -> float:
        totals = np.where(self.absent, -np.inf, self.features @ weights)
        rows = self.statistics[np.arange(len(totals)), totals.argmax(axis=1)]
        return float(gains(self.metric, rows.sum(axis=0)[None])[0])

    def line_search(self, weights: np.ndarray, direction: np.ndarray) -> float:
        """Return the step along `direction` of the best value; of equal ones the widest stretch.

        The totals of a list's hypotheses are lines; the highest one changes where two cross.
        """
        at, slopes = self.features @ weights, self.features @ direction
        rows = np.arange(len(at))
        slopes_or_none = np.where(self.absent, np.inf, slopes)
        flattest = slopes_or_none == slopes_or_none.min(axis=1, keepdims=True)
        chosen = np.where(flattest, at, -np.inf).argmax(axis=1)  # far to the left
        sums = self.statistics[rows, chosen].sum(axis=0)
        points: list[np.ndarray] = []
        changes: list[np.ndarray] = []
        while len(rows):
            rise = slopes[rows] - slopes[rows, chosen][:, None]
            steeper = (rise > 1e-12) & ~self.absent[rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                crossings = (at[rows, chosen][:, None] - at[rows]) / rise
            crossings = np.where(steeper, crossings, np.inf)
            nearest = crossings.min(axis=1, keepdims=True)
            left = np.isfinite(nearest[:, 0])
            # Of those that cross at once, the steepest one is the highest after it.
            following = np.where(crossings == nearest, rise, -np.inf).argmax(axis=1)
            points.append(nearest[left, 0])
            now, then = chosen[left], following[left]
            rows = rows[left]
            changes.append(self.statistics[rows, then] - self.statistics[rows, now])
            chosen = then
        ends = np.concatenate(points) if points else np.zeros(0)
        if not len(ends):
            return 0.0
        order = np.argsort(ends, kind="stable")
        ends = ends[order]
        stretches = sums + np.concatenate(
            [np.zeros((1, len(sums))), np.cumsum(np.concatenate(changes)[order], axis=0)]
        )
        edges = np.concatenate([[ends[0] - 2.0], ends, [ends[-1] + 2.0]])
        widths = np.diff(edges)
        heights = np.where(widths > LEAST, gains(self.metric, stretches), -np.inf)
        best = np.flatnonzero(heights >= heights.max() - LEAST)
        k = best[widths[best].argmax()]
        return float((edges[k] + edges[k + 1]) / 2)
