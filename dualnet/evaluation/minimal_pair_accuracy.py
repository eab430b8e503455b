"""Minimal pairs: how often a model prefers the acceptable one of two sentences."""

import dataclasses
import math

import numpy as np

from dualnet._checks import checked
from dualnet.builders import LanguageModel, questions
from dualnet.builders.reader import reader_of
from dualnet.corpora.sentence_pairs import Pairs, read_pairs
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
        accuracy: float from 0 to 1: `correct / pairs`.
        interval: Wilson's 95 % interval of the accuracy, `(low, high)`.

    Reference: Wilson, 1927, https://doi.org/10.1080/01621459.1927.10502953

    Example:

    >>> from dualnet.evaluation import Accuracy
    >>> result = Accuracy(pairs=10, correct=7, ties=0)
    >>> result.accuracy, [round(bound, 3) for bound in result.interval]
    (0.7, [0.397, 0.892])
    """

    pairs: int
    correct: int
    ties: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.pairs

    @property
    def interval(self) -> tuple[float, float]:
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
    """

    overall: Accuracy
    by_uid: dict[str, Accuracy]
    by_field: dict[str, Accuracy]
    log_probabilities: np.ndarray = dataclasses.field(repr=False, compare=False)
    unknown: float

    @property
    def mean_accuracy(self) -> float:
        return math.fsum(uid.accuracy for uid in self.by_uid.values()) / len(self.by_uid)


@checked
def minimal_pairs(model: LanguageModel, pairs: Pairs) -> MinimalPairs:
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
            of such paths or of such objects (dicts). An object has the keys `sentence_good` and
            `sentence_bad`, and may have `UID` and `field`, which default to the name of the file.

    Returns:
        `MinimalPairs`: the accuracy overall, per UID and per field, each with the number of
        pairs and ties and a 95 % interval.

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
    sentence_pairs = read_pairs(pairs)
    vocabulary, eos_id = vocabulary_with_eos(model)
    places: dict[bytes, int] = {}  # of each sequence of ids in `streams`
    streams: list[np.ndarray] = []
    columns = np.empty((len(sentence_pairs), 2), np.int64)
    tokens = unknown = 0
    for row, pair in enumerate(sentence_pairs):
        for column, sentence in enumerate((pair.good, pair.bad)):
            ids = vocabulary.encode(sentence)
            if not len(ids):
                raise ValueError(
                    f"Each sentence must hold a token. Received: {sentence!a} in {pair.place}, "
                    f"which {vocabulary!r} reads as none."
                )
            tokens += len(ids)
            unknown += int((ids == vocabulary.unk_id).sum()) if vocabulary.unk_id is not None else 0
            place = places.setdefault(ids.tobytes(), len(streams))
            if place == len(streams):
                streams.append(np.insert(ids, 0, eos_id))
            columns[row, column] = place
    losses = scoring.read(reader_of(model, questions.losses), streams)["losses"]
    sums = np.array([-math.fsum(row) for row in losses])
    log_probabilities = sums[columns]
    good, bad = log_probabilities.T
    ties = np.isclose(good, bad, rtol=ROUNDING, atol=0.0)
    correct = (good > bad) & ~ties

    def accuracies(key: str) -> dict[str, Accuracy]:
        rows: dict[str, list[int]] = {}
        for i, pair in enumerate(sentence_pairs):
            rows.setdefault(getattr(pair, key), []).append(i)
        return {name: _accuracy(correct[i], ties[i]) for name, i in rows.items()}

    return MinimalPairs(
        overall=_accuracy(correct, ties),
        by_uid=accuracies("uid"),
        by_field=accuracies("field"),
        log_probabilities=log_probabilities,
        unknown=unknown / tokens,
    )


def _accuracy(correct: np.ndarray, ties: np.ndarray) -> Accuracy:
    return Accuracy(pairs=len(correct), correct=int(correct.sum()), ties=int(ties.sum()))
