"""Minimal pairs: how often a model prefers the acceptable one of two sentences."""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from dualnet._columns import Column, labels_of, to_frame
from dualnet.builders import LanguageModel, questions, reader_of
from dualnet.corpora.sentence_pairs import SentencePair, read_pairs
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import vocabulary_with_eos

Z = 1.959963984540054  # the 97.5th percentile of the normal distribution
ROUNDING = 1e-6  # relative; what float32 sums of another order may differ by


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The share of pairs whose acceptable sentence is the likelier one.

    Attributes:
        pairs: int. Number of pairs.
        correct: int. Pairs whose acceptable sentence is likelier.
        ties: int. Pairs whose sentences are equally likely, which count as wrong.
        accuracy: float from 0 to 1: `correct / pairs`; 0 without pairs.
        interval: Wilson's 95 % interval of the accuracy, `(low, high)`.

    Reference: Wilson, 1927, https://doi.org/10.1080/01621459.1927.10502953

    Example:

    >>> from dualnet.evaluation import Accuracy
    >>> result = Accuracy(pairs=10, correct=7, ties=0)
    >>> result.accuracy, [round(bound, 3) for bound in result.interval]
    (0.7, [0.397, 0.892])
    >>> result
    Accuracy(70.0% of 10 pairs, 39.7% to 89.2%, ties=0)
    """

    pairs: int = 0
    correct: int = 0
    ties: int = 0

    def __repr__(self) -> str:
        low, high = self.interval
        share = f"{self.accuracy:.1%} of {self.pairs:,} pairs, {low:.1%} to {high:.1%}"
        return f"Accuracy({share}, ties={self.ties})"

    def __add__(self, other: "Accuracy") -> "Accuracy":
        return Accuracy(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    @property
    def accuracy(self) -> float:
        return self.correct / self.pairs if self.pairs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        if not self.pairs:
            return 0.0, 1.0
        p, n = self.accuracy, self.pairs
        centre = p + Z**2 / (2 * n)
        margin = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        scale = 1 + Z**2 / n
        # Rounding may put a bound of 0 or 1 on the wrong side.
        return max(0.0, min(p, (centre - margin) / scale)), max(p, (centre + margin) / scale)


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
    """The result of `minimal_pairs`.

    Attributes:
        overall: `Accuracy` on all pairs.
        by_uid: dict of str to `Accuracy`: on the pairs of each UID, of each file of BLiMP.
        by_field: dict of str to `Accuracy`: on the pairs of each field.
        mean_accuracy: float. The mean of the accuracies of the UIDs, each with the same weight.
        log_probabilities: float64 `(pairs, 2)`: log p in nats of the acceptable and the
            unacceptable sentence of each pair, in the order of the pairs.
        unknown: float. The share of the tokens that the model reads as `<unk>`.
        pairs: The pairs, each with `good`, `bad`, `uid` and `field`.
        labels: Index of the DataFrame that they come from, or None.
        tokens: Number of tokens of all sentences.
    """

    overall: Accuracy
    by_uid: dict[str, Accuracy] = dataclasses.field(repr=False)
    by_field: dict[str, Accuracy] = dataclasses.field(repr=False)
    log_probabilities: np.ndarray = dataclasses.field(repr=False, compare=False)
    unknown: float
    pairs: Sequence[SentencePair] = dataclasses.field(default=(), repr=False)
    labels: Any = dataclasses.field(default=None, repr=False, compare=False)
    tokens: int = dataclasses.field(default=0, repr=False)

    @property
    def mean_accuracy(self) -> float:
        return math.fsum(uid.accuracy for uid in self.by_uid.values()) / max(len(self.by_uid), 1)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each pair: sentences, log-probabilities, and whether it is correct.

        `difference` is by how many nats the acceptable sentence is likelier; 0 for a tie.
        """
        good, bad = self.log_probabilities.T
        differences = np.where(_are_ties(good, bad), 0.0, good - bad).tolist()
        return [
            {
                "sentence_id": number,
                "UID": pair.uid,
                "field": pair.field,
                "sentence_good": pair.good,
                "sentence_bad": pair.bad,
                "log_probability_good": first,
                "log_probability_bad": second,
                "difference": difference,
                "correct": difference > 0,
            }
            for number, (pair, (first, second), difference) in enumerate(
                zip(self.pairs, self.log_probabilities.tolist(), differences), 1
            )
        ]

    def to_frame(self) -> Any:
        """Return `rows` as a `pandas.DataFrame`, under the labels of the pairs."""
        return to_frame(self.rows(), self.labels)


def minimal_pairs(
    model: LanguageModel, pairs: Any, *, column: Sequence[Column] | None = None
) -> MinimalPairs:
    """Return the share of pairs whose acceptable sentence `model` gives the higher probability.

    The probability is that of the whole sentence. It is read after `<eos>` from the zero state,
    and no `<eos>` is scored at its end, as BLiMP and lm-evaluation-harness do. Sentences are read
    as they are: capitals and punctuation must be as in the text that the model was trained on.

    A tie counts as wrong. Rounding does not decide it: sentences that the model reads as the
    same tokens are scored once, and log-probabilities that differ by less than a millionth, which
    float32 does not resolve, are a tie.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`.
        pairs: The path of a file with one JSON object per line, as those of BLiMP, or a sequence
            of such paths, of such objects (dicts), or of tuples of two sentences, the acceptable
            one first. An object has the keys `sentence_good` and `sentence_bad`, and may have
            `UID` and `field`, which default to the name of the file. Or a table with such
            columns: a DataFrame or a dict of columns.
        column: Two str or int. The columns of the table that have the acceptable sentences and the
            others, if they have other names.

    Returns:
        `MinimalPairs`: the accuracy overall, per UID and per field, each with the number of
        pairs and ties and a 95 % interval. Its methods `rows()` and `to_frame()` give the figures
        of each pair.

    Raises:
        ValueError: if a file cannot be read or has no pairs; if a pair lacks a sentence or has
            an empty one; or if the probabilities are not numbers.

    Reference: Warstadt et al., 2020, https://arxiv.org/abs/1912.00582

    Example:

    >>> import dualnet
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> pair = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps."}
    >>> dualnet.minimal_pairs(model, [pair]).overall.pairs
    1
    """
    sentence_pairs = read_pairs(pairs, column)
    vocabulary, eos_id = vocabulary_with_eos(model)
    ids = []
    for pair in sentence_pairs:
        for sentence in (pair.good, pair.bad):
            ids.append(vocabulary.encode(sentence))
            if not len(ids[-1]):
                raise ValueError(
                    f"Each sentence must hold a token. Received: {sentence!a} in {pair.place}, "
                    f"which {vocabulary!r} reads as none."
                )
    keys = [of_sentence.tobytes() for of_sentence in ids]
    streams = {key: np.insert(of_sentence, 0, eos_id) for key, of_sentence in zip(keys, ids)}
    losses = scoring.read(reader_of(model, questions.losses), [*streams.values()])["losses"]
    totals = {key: -math.fsum(row) for key, row in zip(streams, losses)}
    log_probabilities = np.array([totals[key] for key in keys]).reshape(-1, 2)
    tokens = np.concatenate(ids)
    good, bad = log_probabilities.T
    ties = _are_ties(good, bad)
    correct = (good > bad) & ~ties

    def accuracies(key: str) -> dict[str, Accuracy]:
        names = np.array([getattr(pair, key) for pair in sentence_pairs])
        groups = {name: names == name for name in dict.fromkeys(names.tolist())}
        return {name: _accuracy(correct[group], ties[group]) for name, group in groups.items()}

    return MinimalPairs(
        overall=_accuracy(correct, ties),
        by_uid=accuracies("uid"),
        by_field=accuracies("field"),
        log_probabilities=log_probabilities,
        unknown=float(np.mean(tokens == vocabulary.unk_id)),
        pairs=tuple(sentence_pairs),
        labels=labels_of(pairs),
        tokens=len(tokens),
    )


def _are_ties(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    return np.isclose(good, bad, rtol=ROUNDING, atol=0.0)


def _accuracy(correct: np.ndarray, ties: np.ndarray) -> Accuracy:
    return Accuracy(pairs=len(correct), correct=int(correct.sum()), ties=int(ties.sum()))
