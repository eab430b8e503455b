"""N-best lists: the hypotheses of one utterance or sentence, and their features."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from dualnet._checks import ArgumentError, check_choice
from dualnet.requests import MISSING

BASE = "base"  # the feature that keeps the score that a list came with
LENGTH = "length"
SPACES = " \t\n\v\f\r"  # of ASCII alone, as in EVALB: others may be part of a word


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

    Raises:
        ValueError: if a feature or the score is no finite number.

    Example:

    >>> from dualnet.rescoring import Hypothesis
    >>> Hypothesis("a cat", {"tm": (-1.5, -2.0)}).numbers()
    {'tm_1': -1.5, 'tm_2': -2.0}
    """

    text: str
    features: Mapping[str, float | tuple[float, ...]] = dataclasses.field(default_factory=dict)
    score: float | None = None
    rest: object = None

    def __post_init__(self) -> None:
        for name, number in {"score": self.score or 0.0, **self.numbers()}.items():
            if not math.isfinite(number):
                raise ArgumentError(
                    "features",
                    f"and `score` must be finite. Received: {name} = {number} of {self.text!r}.",
                )

    def numbers(self) -> dict[str, float]:
        """Return the features, those of several numbers as `name_1`, `name_2` and so on."""
        numbers: dict[str, float] = {}
        for name, value in self.features.items():
            if isinstance(value, tuple):
                numbers |= {f"{name}_{i}": number for i, number in enumerate(value, start=1)}
            else:
                numbers[name] = value
        return numbers


@dataclasses.dataclass(frozen=True)
class NBest:
    """The hypotheses of one sentence or utterance, in the order of their list.

    Attributes:
        id: str or int. As the list has it.
        hypotheses: tuple of `Hypothesis`, at least one.

    Raises:
        ValueError: if there are no hypotheses.

    Example:

    >>> from dualnet.rescoring import Hypothesis, NBest
    >>> NBest("7", (Hypothesis("a", score=-2.0), Hypothesis("b", score=-1.0))).best.text
    'b'
    """

    id: str | int
    hypotheses: tuple[Hypothesis, ...]

    def __post_init__(self) -> None:
        if not self.hypotheses:
            raise ArgumentError("hypotheses", "must be at least one. Received: none.")

    @property
    def best(self) -> Hypothesis:
        """The hypothesis of the highest score, or the first of equal ones or without scores."""
        scores = [-math.inf if item.score is None else item.score for item in self.hypotheses]
        return self.hypotheses[scores.index(max(scores))]


def words_of(text: str) -> list[str]:
    """Return the words of `text`, which white space of ASCII separates."""
    return re.findall(f"[^{SPACES}]+", text)


def with_scores(nbest: NBest, scores: Mapping[str, Iterator[float]]) -> NBest:
    """Return a list with more features: the old score, the length, and the next of `scores`."""
    hypotheses = []
    for hypothesis in nbest.hypotheses:
        features = dict(hypothesis.features)
        if hypothesis.score is not None:
            features.setdefault(BASE, hypothesis.score)
        features.setdefault(LENGTH, float(len(words_of(hypothesis.text))))
        for name, column in scores.items():
            if name in features:
                raise ArgumentError(
                    "models",
                    f"must have names that no feature of the lists has. Received: {name!r}. Give "
                    "a dict of other names, or rename the RUN.",
                )
            features[name] = next(column)
        hypotheses.append(dataclasses.replace(hypothesis, features=features, score=None))
    return NBest(nbest.id, tuple(hypotheses))


def weighted(nbest: NBest, weights: Mapping[str, float], missing: str) -> NBest:
    """Return a list whose scores are the sums of the features times their weights."""
    hypotheses = []
    for hypothesis, numbers in zip(nbest.hypotheses, numbers_of(nbest, missing)):
        score = math.fsum(weight * numbers.get(name, 0.0) for name, weight in weights.items())
        hypotheses.append(dataclasses.replace(hypothesis, score=score))
    return NBest(nbest.id, tuple(hypotheses))


def numbers_of(nbest: NBest, missing: str) -> list[dict[str, float]]:
    """Return the numbers of each hypothesis, with those that it lacks, see `Rescoring.missing`."""
    check_choice("missing", missing, MISSING)
    rows = [hypothesis.numbers() for hypothesis in nbest.hypotheses]
    defaults = dict.fromkeys(itertools.chain(*rows), 0.0)
    if missing == "lowest":
        defaults = {name: min(row[name] for row in rows if name in row) for name in defaults}
    return [defaults | row for row in rows]


def numbered(names: Iterable[str]) -> list[str]:
    """Make names unique: the second `lm` becomes `lm_2`."""
    unique = []
    for base in names:
        name, numbers = base, itertools.count(2)
        while name in unique:
            name = f"{base}_{next(numbers)}"
        unique.append(name)
    return unique
