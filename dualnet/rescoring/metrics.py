"""What weights are tuned on: BLEU and WER, from statistics that add up over sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from dualnet._checks import check_choice, checked, extra
from dualnet.rescoring.bracket_f1 import BracketF1, sums_of

EXTRA = ("rescore", "Tuning needs sacrebleu and jiwer")


@runtime_checkable
class Metric(Protocol):
    """A metric of a corpus that is a function of sums over its sentences.

    `statistics` returns the numbers of a sentence, float64 `(n,)`; `value` takes their sums over
    sentences. `higher_is_better` says which of two values is preferred.
    """

    @property
    def higher_is_better(self) -> bool: ...

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray: ...

    def value(self, sums: np.ndarray) -> float: ...


class Bleu:
    """BLEU of plain text, cased, from 0 to 100, as `sacrebleu` computes it by default.

    The statistics are the matches and the numbers of 1 to 4 words, and both lengths.

    Needs the packages of `pip install "dualnet[rescore]"`.

    Reference: Post, 2018, https://arxiv.org/abs/1804.08771

    Example:

    >>> from dualnet.rescoring import Bleu
    >>> sums = Bleu().statistics("a b c d x", "a b c d e f")
    >>> sums.astype(int), round(Bleu().value(sums), 1)
    (array([4, 3, 2, 1, 5, 4, 3, 2, 5, 6]), 54.8)
    """

    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        with extra(*EXTRA):
            import sacrebleu
        self._bleu: Any = sacrebleu.BLEU(effective_order=True)  # counts are the same without

    @checked
    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Return the ten statistics of a sentence, float64."""
        score = self._bleu.sentence_score(hypothesis, [reference])
        lengths = [score.sys_len, score.ref_len]
        return np.array([*score.counts, *score.totals, *lengths], "float64")

    def value(self, sums: np.ndarray) -> float:
        """Return the BLEU of statistics summed over sentences."""
        return float(self.values(sums_of(sums, 10)[None])[0])

    def values(self, sums: np.ndarray) -> np.ndarray:
        """Return the BLEU of each row of `sums`, `(rows, 10)`."""
        sums = sums_of(sums, 10, axes=2)
        matches, totals, (ours, theirs) = sums[:, :4], sums[:, 4:8], sums[:, 8:].T
        # Smoothing "exp": the precision of the k-th length without a match is 1 / (2^k total).
        halves = 0.5 ** np.cumsum(matches == 0, axis=1)
        precisions = np.where(matches == 0, halves, matches) / np.maximum(totals, 1)
        brevity = np.minimum(0.0, 1 - theirs / np.maximum(ours, 1))
        bleu = 100 * np.exp(brevity + np.log(precisions).mean(axis=1))
        return np.where((matches.sum(axis=1) == 0) | (totals.min(axis=1) == 0), 0.0, bleu)


class Wer:
    """Word error rate in percent, as `jiwer` computes it; words are what white space separates.

    The statistics are the errors, and the words of the reference.

    Needs the packages of `pip install "dualnet[rescore]"`.

    Example:

    >>> from dualnet.rescoring import Wer
    >>> Wer().value(Wer().statistics("the cat sat in", "the cat sits"))
    66.66666666666667
    """

    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        with extra(*EXTRA):
            import jiwer
        self._process: Any = jiwer.process_words

    @checked
    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Return the errors of a sentence and the words of its reference, float64."""
        # jiwer itself divides words at spaces alone.
        counts = self._process(*(" ".join(text.split()) for text in (reference, hypothesis)))
        misses = counts.substitutions + counts.deletions
        return np.array([misses + counts.insertions, misses + counts.hits], "float64")

    def value(self, sums: np.ndarray) -> float:
        """Return the word error rate of statistics summed over sentences."""
        return float(self.values(sums_of(sums, 2)[None])[0])

    def values(self, sums: np.ndarray) -> np.ndarray:
        """Return the word error rate of each row of `sums`, `(rows, 2)`."""
        sums = sums_of(sums, 2, axes=2)
        return 100 * sums[:, 0] / np.maximum(sums[:, 1], 1)


METRICS: dict[str, Callable[[], Metric]] = {"bleu": Bleu, "f1": BracketF1, "wer": Wer}


def metric_of(metric: str | Metric) -> Metric:
    """Return the metric of a name, or the one that is given."""
    if not isinstance(metric, str):
        return metric
    return METRICS[check_choice("metric", metric, METRICS)]()


def gains(metric: Metric, sums: np.ndarray) -> np.ndarray:
    """Return the value of each row of `sums`, with its sign such that higher is better."""
    values = getattr(metric, "values", None)
    figures = values(sums) if values else np.array([metric.value(row) for row in sums])
    return figures if metric.higher_is_better else -figures
