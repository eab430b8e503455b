"""Weights of features, learnt on lists with references by line search on the metric itself."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tomli_w

from dualnet._checks import ArgumentError, StrPath, check_count, did_you_mean
from dualnet._files import write_whole
from dualnet._toml import read_toml
from dualnet.extras.rescoring.lists import NBest, numbers_of, weighted, with_scores
from dualnet.extras.rescoring.metrics import Metric, gains, metric_of

RESAMPLES = 1000
LEAST = 1e-9  # of a gain that counts, and of an interval of a line
SAME = 1e-12  # deviation, as a share of the largest number, of a feature that is always the same


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
    """The result of `compare`: the metric of four choices from the same lists.

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


def tune(
    lists: Sequence[NBest],
    references: Sequence[str],
    *,
    metric: str | Metric = "bleu",
    seed: int = 0,
    starts: int = 10,
    missing: str = "zero",
) -> dict[str, float]:
    """Return the feature weights whose best hypotheses maximise the metric.

    Along a line of weights the metric is constant between the points where the best hypothesis
    of a list changes. They are found exactly, as by Och, and so is the best stretch of the line.
    From each start the search goes along each feature and as many random directions, in turn,
    until none helps. The first start is zero, the order of the lists; so the result is at least
    as good as the first hypotheses. Features are scaled by their deviation for the search, and
    the sum of the weights' absolute values is 1.

    Args:
        lists: `NBest`, with features.
        references: str for each list.
        metric: "bleu", "wer" or "f1" (brackets of trees), or a `Metric`.
        seed: int, at least 0. Of the starts and of the directions.
        starts: int, at least 1.
        missing: "zero" or "lowest". What a feature that a hypothesis lacks counts there: 0, which
            is more than any log-probability, or the lowest number of its list.

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
    check_count("starts", starts)
    lists, metric = list(lists), metric_of(metric)
    search = _Search(lists, metric, statistics_of(lists, references, metric), missing)
    return search.run(np.random.default_rng(seed), starts)


def compare(
    lists: Sequence[NBest],
    references: Sequence[str],
    weights: Mapping[str, float],
    *,
    metric: str | Metric = "bleu",
    seed: int = 0,
    missing: str = "zero",
) -> Comparison:
    """Return the metric of the first, the preferred and the best hypotheses of lists.

    The intervals are of 1,000 resamples of the sentences, the same for all figures. The oracle
    takes the best hypothesis of each list alone, then changes one at a time while that helps:
    exact for WER, a lower bound for BLEU and F1, which are no means over sentences.

    Args:
        lists, references, metric, missing: As for `tune`.
        weights: dict of a feature, which some hypothesis has, to its weight.
        seed: int, at least 0. Of the resamples.

    Example:

    >>> from dualnet.rescoring import Hypothesis, NBest, compare
    >>> lists = [NBest(0, (Hypothesis("a dog", {"lm": -2.0}), Hypothesis("a cat", {"lm": -1.0})))]
    >>> comparison = compare(lists, ["a cat"], {"lm": 1.0}, metric="wer")
    >>> comparison.base.value, comparison.rescored.value
    (50.0, 0.0)
    """
    lists, metric = list(lists), metric_of(metric)
    statistics = statistics_of(lists, references, metric)
    check_features(weights, lists)
    sign = 1.0 if metric.higher_is_better else -1.0
    preferred = []
    for nbest in lists:
        scored = weighted(nbest, weights, missing)
        preferred.append(scored.hypotheses.index(scored.best))
    chosen = zip(statistics, preferred, _oracle(metric, statistics))
    rows = np.stack([of_list[[0, *best]].ravel() for of_list, *best in chosen])
    random, share = np.random.default_rng(seed), np.full(len(lists), 1 / len(lists))
    samples = (random.multinomial(len(lists), share) @ rows for _ in range(RESAMPLES))
    sums = np.stack([rows.sum(axis=0), *samples])  # of base, rescored and oracle side by side
    values = [sign * gains(metric, columns) for columns in np.split(sums, 3, axis=1)]
    figures = [
        Figure(float(row[0]), *map(float, np.percentile(row[1:], [2.5, 97.5])))
        for row in [*values, values[1] - values[0]]
    ]
    return Comparison(*figures)


def save_weights(path: StrPath, weights: Mapping[str, float], **about: object) -> None:
    """Write weights as TOML, with the values `about` how they were found.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import load_weights, save_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(pathlib.Path(folder, "weights.toml"), {"lm": 0.25}, metric="wer")
    ...     load_weights(pathlib.Path(folder, "weights.toml"))
    {'lm': 0.25}
    """
    table = {name: float(weight) for name, weight in weights.items()}
    write_whole(path, tomli_w.dumps({**about, "weights": table}))


def load_weights(path: StrPath) -> dict[str, float]:
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
    if not isinstance(weights, dict):
        raise ArgumentError(
            "weights", f"must be a table of numbers, [weights]. Received: {str(path)!r} without it."
        )
    return {name: float(weight) for name, weight in weights.items()}


def check_features(weights: Mapping[str, float], lists: Iterable[NBest]) -> None:
    """Raise `ArgumentError` for a weight of a feature that no hypothesis of the lists has."""
    known: set[str] = set()
    for nbest in lists:
        known.update(*(hypothesis.numbers() for hypothesis in nbest.hypotheses))
    for name, weight in weights.items():
        if weight and name not in known:
            raise ArgumentError(
                "weights",
                f"must be of features of the lists, which are {', '.join(sorted(known))}. "
                f"Received: {name!r}.{did_you_mean(name, known)}",
            )


def check_lists(
    lists: Iterable[NBest], models: Iterable[str], weights: Mapping[str, float] | None
) -> None:
    """Raise `ArgumentError` for lists that have a feature of a model, or lack that of a weight."""
    zeros = {name: itertools.repeat(0.0) for name in models}
    check_features(weights or {}, (with_scores(nbest, zeros) for nbest in lists))


def statistics_of(
    lists: Sequence[NBest], references: Sequence[str], metric: Metric
) -> list[np.ndarray]:
    """Return the statistics of the hypotheses of each list, float64 `(hypotheses, n)`."""
    if not lists or len(lists) != len(references):
        received = f"Received: {len(references)} references for {len(lists)} lists."
        raise ArgumentError("references", f"must be one for each list, at least one. {received}")
    return [
        np.array([metric.statistics(item.text, reference) for item in nbest.hypotheses], np.float64)
        for nbest, reference in zip(lists, references)
    ]


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
    """The search of `tune`, on the hypotheses of all lists, one after the other.

    `features` are `(hypotheses, features)` and `statistics` `(hypotheses, n)`; `starts` has the
    first hypothesis of each list, `owners` the list of each hypothesis.
    """

    def __init__(
        self, lists: Sequence[NBest], metric: Metric, statistics: list[np.ndarray], missing: str
    ) -> None:
        numbers = [row for nbest in lists for row in numbers_of(nbest, missing)]
        self.names = list(dict.fromkeys(name for row in numbers for name in row))
        if not self.names:
            raise ArgumentError("lists", "must have features. Received: none.")
        self.metric = metric
        self.statistics = np.concatenate(statistics)
        sizes = np.array([len(nbest.hypotheses) for nbest in lists])
        self.starts = np.cumsum(sizes) - sizes
        self.owners = np.repeat(np.arange(len(lists)), sizes)
        features = np.array([[row.get(name, 0.0) for name in self.names] for row in numbers])
        largest = np.abs(features).max(axis=0)
        # What all hypotheses of a list share chooses none of them.
        features -= features[self.starts][self.owners]
        features -= (np.add.reduceat(features, self.starts) / sizes[:, None])[self.owners]
        deviations = np.sqrt((features**2).mean(axis=0))
        deviations[deviations <= SAME * largest] = np.inf
        self.features = features / deviations
        self.scale = deviations

    def run(self, random: np.random.Generator, starts: int) -> dict[str, float]:
        size = len(self.names)
        first = [np.zeros(size), *random.normal(size=(starts - 1, size))]
        ends = [self._climb(weights, random) for weights in first]
        weights, _ = max(ends, key=lambda end: end[1])  # of equal ones the first
        weights = weights / self.scale
        weights = weights / (np.abs(weights).sum() or 1.0)
        return dict(zip(self.names, weights.tolist()))

    def _climb(self, weights: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return the weights at a local maximum, and their gain."""
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
        chosen = _first_largest(self.features @ weights, self.starts)
        return float(gains(self.metric, self.statistics[chosen].sum(axis=0)[None])[0])

    def line_search(self, weights: np.ndarray, direction: np.ndarray) -> float:
        """Return the step along `direction` of the best value; of equal ones the widest stretch.

        The totals of a list's hypotheses are lines; the highest one changes where two cross.
        """
        at, slopes = self.features @ weights, self.features @ direction
        flattest = slopes == np.minimum.reduceat(slopes, self.starts)[self.owners]
        # Far to the left.
        chosen = _first_largest(np.where(flattest, at, -np.inf), self.starts)
        sums = self.statistics[chosen].sum(axis=0)
        points, changes = [], []
        steeper = np.arange(len(at))
        while True:
            rise = slopes[steeper] - slopes[chosen[self.owners[steeper]]]
            steeper, rise = steeper[rise > 1e-12], rise[rise > 1e-12]
            if not len(steeper):
                break
            now = chosen[self.owners[steeper]]
            crossings = (at[now] - at[steeper]) / rise
            starts = np.flatnonzero(np.diff(self.owners[steeper], prepend=-1))
            nearest = np.minimum.reduceat(crossings, starts)
            # Of those that cross at once, the steepest one is the highest after it.
            at_once = crossings == np.repeat(nearest, np.diff(starts, append=len(steeper)))
            then = steeper[_first_largest(np.where(at_once, rise, -np.inf), starts)]
            points.append(nearest)
            changes.append(self.statistics[then] - self.statistics[now[starts]])
            chosen[self.owners[then]] = then
        if not points:
            return 0.0
        ends = np.concatenate(points)
        order = np.argsort(ends, kind="stable")
        ends = ends[order]
        stretches = np.cumsum(np.vstack([sums, np.concatenate(changes)[order]]), axis=0)
        edges = np.concatenate([[ends[0] - 2.0], ends, [ends[-1] + 2.0]])
        widths = np.diff(edges)
        heights = np.where(widths > LEAST, gains(self.metric, stretches), -np.inf)
        best = np.flatnonzero(heights >= heights.max() - LEAST)
        k = best[widths[best].argmax()]
        return float((edges[k] + edges[k + 1]) / 2)


def _first_largest(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the index of the first of the largest values of each part that begins at `starts`."""
    sizes = np.diff(starts, append=len(values))
    largest = np.flatnonzero(values == np.repeat(np.maximum.reduceat(values, starts), sizes))
    return largest[np.searchsorted(largest, starts)]
