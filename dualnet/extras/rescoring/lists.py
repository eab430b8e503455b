"""N-best lists: the hypotheses of one utterance or sentence, and their features."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dualnet._checks import ArgumentError, check_choice, check_finite
from dualnet.extras.rescoring.lines import words_of
from dualnet.requests import MISSING

BASE = "base"  # the feature that keeps the score that a list came with
LENGTH = "length"


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One of the texts of an n-best list.

    Attributes:
        text: str.
        features: dict of a name to a number, or to a tuple of numbers.
        score: float, by which the hypotheses are ranked, or None.
        rest: What else its line holds, which is written back: a dict of the other keys of a JSON
            object, a tuple of the other fields of a Moses line, the number of a Kaldi key, or the
            bracketed tree.
        line: int or None. The line of its file, for errors; two hypotheses are compared without.

    Raises:
        ValueError: if a feature or the score is no finite number, or two features have one name.

    Example:

    >>> from dualnet.rescoring import Hypothesis
    >>> Hypothesis("a cat", {"tm": (-1.5, -2.0)}).numbers()
    {'tm_1': -1.5, 'tm_2': -2.0}
    """

    text: str
    features: Mapping[str, float | tuple[float, ...]] = dataclasses.field(default_factory=dict)
    score: float | None = None
    rest: Any = None
    line: int | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_finite("score", self.score or 0.0)
        for name, number in self.numbers().items():
            check_finite(f"features[{name!r}]", number)

    def numbers(self) -> dict[str, float]:
        """Return the features, those of several numbers as `name_1`, `name_2` and so on."""
        numbers: dict[str, Any] = {}
        for feature, value in self.features.items():
            several = enumerate(value, start=1) if isinstance(value, tuple) else ()
            one = {feature: value}
            values: dict[str, Any] = {f"{feature}_{i}": number for i, number in several} or one
            if twice := numbers.keys() & values:
                required = "must have different names, `x_1` for the first of several numbers."
                received = f"Received: two that are named {min(twice)!r}. Rename {feature!r}."
                raise ArgumentError("features", f"{required} {received}")
            numbers |= values
        return numbers

    def total(self, weights: Mapping[str, float]) -> float:
        """Return the sum of the features times their `weights`; one without a weight has 0."""
        return _total(self.numbers(), weights)


@dataclasses.dataclass(frozen=True)
class NBest:
    """The hypotheses of one sentence or utterance, in the order of their list.

    Attributes:
        id: str or int. As the list has it.
        hypotheses: tuple of `Hypothesis`, at least one.

    Example:

    >>> from dualnet.rescoring import Hypothesis, NBest
    >>> NBest("7", (Hypothesis("a", score=-2.0), Hypothesis("b", score=-1.0))).best.text
    'b'
    """

    id: str | int
    hypotheses: tuple[Hypothesis, ...]

    def __post_init__(self) -> None:
        if not self.hypotheses:
            received = f"Received: none in the list {self.id!r}."
            raise ArgumentError("hypotheses", f"must be at least one. {received}")

    @property
    def best(self) -> Hypothesis:
        """The hypothesis of the highest score, or the first of equal ones or without scores."""
        scores = [-math.inf if item.score is None else item.score for item in self.hypotheses]
        return self.hypotheses[scores.index(max(scores))]


def with_scores(nbest: NBest, scores: Mapping[str, Iterator[float]]) -> NBest:
    """Return a list with more features: the old score, the length, and the next of `scores`."""
    hypotheses = []
    for hypothesis in nbest.hypotheses:
        features = dict(hypothesis.features)
        if hypothesis.score is not None:
            features.setdefault(BASE, hypothesis.score)
        features.setdefault(LENGTH, float(len(words_of(hypothesis.text))))
        for name, column in scores.items():
            if name in features:  # `numbers` refuses one of the numbers of a feature
                required = "must have names that no feature of the lists has."
                way_out = "Give a dict of other names, or rename the RUN."
                raise ArgumentError("models", f"{required} Received: {name!r}. {way_out}")
            features[name] = next(column)
        hypotheses.append(_changed(hypothesis, features=features, score=None))
    return NBest(nbest.id, tuple(hypotheses))


def weighted(nbest: NBest, weights: Mapping[str, float], missing: str) -> NBest:
    """Return a list whose scores are the sums of the features times their weights."""
    scores = [_total(numbers, weights) for numbers in numbers_of(nbest, missing)]
    pairs = zip(nbest.hypotheses, scores)
    return NBest(nbest.id, tuple(_changed(item, score=score) for item, score in pairs))


def _changed(hypothesis: Hypothesis, **fields: Any) -> Hypothesis:
    """Return a hypothesis with other `fields`, which are known to be right."""
    changed = copy.copy(hypothesis)
    vars(changed).update(fields)
    return changed


def numbers_of(nbest: NBest, missing: str) -> list[dict[str, float]]:
    """Return the numbers of each hypothesis, with those that it lacks, see `Rescoring.missing`."""
    check_choice("missing", missing, MISSING)
    rows = [hypothesis.numbers() for hypothesis in nbest.hypotheses]
    instead: dict[str, float] = {}
    for name, number in (pair for row in rows for pair in row.items()):
        instead[name] = min(number, instead.get(name, number)) if missing == "lowest" else 0.0
    return [{**instead, **row} for row in rows]


def _total(numbers: Mapping[str, float], weights: Mapping[str, float]) -> float:
    terms = [weight * numbers.get(name, 0.0) for name, weight in weights.items()]
    if not math.isfinite(sum(map(abs, terms))):
        message = f"must keep the score finite. Received: {dict(weights)} for {dict(numbers)}."
        raise ArgumentError("weights", message)
    return math.fsum(terms)


def numbered(names: Iterable[str]) -> list[str]:
    """Return names of which no two are equal: the second `lm` is `lm_2`."""
    unique: list[str] = []
    for base in names:
        candidates = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2)))
        unique.append(next(name for name in candidates if name not in unique))
    return unique
