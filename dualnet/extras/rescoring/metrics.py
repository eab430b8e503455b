"""Metrics to tune weights on: BLEU, WER and bracket F1, from sums over sentences."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dualnet._checks import ArgumentError, check_choice, extra
from dualnet.extras.rescoring.lists import SPACES
from dualnet.extras.rescoring.trees import (
    ROOTS,
    TAG,
    TRACE,
    Tree,
    category,
    linearize,
    parse_tree,
)


@dataclass(frozen=True, kw_only=True)
class BracketF1:
    """Labelled-bracket F1 in percent, by the rules of EVALB; a metric for tuning weights.

    A bracket is the label of a constituent with its first and last word. Two trees of a sentence
    match in a bracket as often as both have it. Sums over sentences, not means, give the F1:
    2 x matched / (brackets of the hypotheses + brackets of the references).

    The defaults are those of EVALB's COLLINS.prm, with the outer brackets of other parsers.
    Functions are cut off: NP-SBJ is NP. Differs from EVALB where it would leave a sentence out:
    a word that only one tree tags as punctuation stays in both (EVALB does so for the tags of
    its QUOTE_LABEL), and a hypothesis without words has no brackets, so that its recall is 0.
    A word without a tag, as in the linear form, has that of the other tree; so give references
    in brackets.

    Args:
        roots: tuple of str. Labels whose brackets do not count (`DELETE_LABEL TOP`).
        traces: tuple of str. Tags of words that are deleted from each tree (`DELETE_LABEL -NONE-`).
        punctuation: tuple of str. Tags of words that are deleted where both trees have them
            (`DELETE_LABEL ,` and so on). A bracket without words does not count.
        equivalent: tuple of pairs of str. Labels that count as one (`EQ_LABEL ADVP PRT`).
        labeled: bool. Whether labels must match (`LABELED 1`).
        longest: int or None. Sentences of more words, punctuation included, do not count
            (`CUTOFF_LEN`). None: all do.

    Source: the README of EVALB, https://nlp.cs.nyu.edu/evalb.

    Example:

    >>> from dualnet.rescoring import BracketF1
    >>> reference = "(S (NP (NNS dogs)) (VP (VBP bark) (PRT (RP up))) (. .))"
    >>> hypothesis = "(S (NP dogs )NP (VP bark (NP up )NP )VP . )S"
    >>> metric = BracketF1()
    >>> metric.statistics(hypothesis, reference)
    array([3., 4., 4.])
    >>> metric.value(metric.statistics(hypothesis, reference))
    75.0
    """

    roots: tuple[str, ...] = ROOTS
    traces: tuple[str, ...] = (TRACE,)
    punctuation: tuple[str, ...] = (",", ":", "``", "''", ".")
    equivalent: tuple[tuple[str, str], ...] = (("ADVP", "PRT"),)
    labeled: bool = True
    longest: int | None = None
    higher_is_better: ClassVar[bool] = True

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Return the brackets of a sentence that match, of its hypothesis, of its reference.

        Args:
            hypothesis: str. A tree in brackets or in the linear form.
            reference: str. Likewise.

        Returns:
            float64 `(3,)`.

        Raises:
            ValueError: if either is not one tree, or their words differ.
        """
        ours = parse_tree(hypothesis) if hypothesis.strip(SPACES) else Tree("", ())
        theirs = parse_tree(reference)
        leaves, expected = self._leaves(ours), self._leaves(theirs)
        if leaves and [leaf.word for leaf in leaves] != [leaf.word for leaf in expected]:
            received = f"Received: {linearize(ours)!r} for {linearize(theirs)!r}."
            raise ArgumentError("hypothesis", f"must have the words of its reference. {received}")
        if self.longest is not None and len(expected) > self.longest:
            return np.zeros(3)
        kept = []
        for pair in zip(leaves or expected, expected):
            tags = {leaf.label for leaf in pair} - {TAG}
            kept.append(not tags or not tags.issubset(self.punctuation))
        counts = self._brackets(ours, kept), self._brackets(theirs, kept)
        matched = counts[0] & counts[1]
        return np.array([matched.total(), counts[0].total(), counts[1].total()], "float64")

    def _leaves(self, tree: Tree) -> list[Tree]:
        return [leaf for leaf in tree.leaves() if leaf.label not in self.traces]

    def value(self, sums: np.ndarray) -> float:
        """Return the F1 in percent of statistics summed over sentences; 0 without brackets.

        Precision is `sums[0] / sums[1]`, recall `sums[0] / sums[2]`.
        """
        matched, of_hypotheses, of_references = sums.tolist()
        return 200 * matched / max(of_hypotheses + of_references, 1.0)

    def _brackets(self, tree: Tree, kept: list[bool]) -> Counter[tuple[str, int, int]]:
        """Count the brackets of `tree`; `kept` tells for each word but traces whether it counts."""
        names = {second: first for first, second in self.equivalent}
        words = iter(kept)
        brackets: Counter[tuple[str, int, int]] = Counter()

        def count(tree: Tree, start: int) -> int:
            """Count the brackets of a tree that begins at word `start`; return its end."""
            if tree.word is not None:
                return start + (tree.label not in self.traces and next(words))
            end = start
            for child in tree.trees:
                end = count(child, end)
            label = category(tree.label)
            if end > start and label not in self.roots:
                brackets[names.get(label, label) if self.labeled else "", start, end] += 1
            return end

        count(tree, 0)
        return brackets


EXTRA = ("rescore", "Tuning needs sacrebleu and jiwer")


class Metric(Protocol):
    """A metric of a corpus that is a function of sums over its sentences.

    `statistics` returns the numbers of a sentence, float64 `(n,)`; `value` takes their sums over
    sentences. `higher_is_better` says which of two values is preferred.
    """

    @property
    def higher_is_better(self) -> bool: ...

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray: ...

    def value(self, sums: np.ndarray) -> float | np.ndarray: ...


class Bleu:
    """BLEU of plain text, cased, from 0 to 100, as `sacrebleu` computes it by default.

    The statistics are the matches and the numbers of 1 to 4 words, and both lengths.

    Needs the packages of `pip install "dualnet[rescore]"`.

    Reference: Post, 2018, https://arxiv.org/abs/1804.08771

    Example:

    >>> from dualnet.rescoring import Bleu
    >>> sums = Bleu().statistics("a b c d x", "a b c d e f")
    >>> print(sums.astype(int), Bleu().value(sums).round(1))
    [4 3 2 1 5 4 3 2 5 6] 54.8
    """

    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        with extra(*EXTRA):
            import sacrebleu
        self._bleu: Any = sacrebleu.BLEU(effective_order=True)  # counts are the same without

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Return the ten statistics of a sentence, float64."""
        score = self._bleu.sentence_score(hypothesis, [reference])
        return np.array([*score.counts, *score.totals, score.sys_len, score.ref_len], "float64")

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Return the BLEU of statistics summed over sentences, `(10,)`, or of each row of them."""
        matches, totals, lengths = np.split(sums, [4, 8], axis=-1)
        # Smoothing "exp": the precision of the k-th length without a match is 1 / (2^k total).
        halves = 0.5 ** np.cumsum(matches == 0, axis=-1)
        precisions = np.where(matches == 0, halves, matches) / np.maximum(totals, 1)
        brevity = np.minimum(0.0, 1 - lengths[..., 1] / np.maximum(lengths[..., 0], 1))
        bleu = 100 * np.exp(brevity + np.log(precisions).mean(axis=-1))
        is_zero = (matches.sum(axis=-1) == 0) | (totals.min(axis=-1) == 0)
        return np.where(is_zero, 0.0, bleu)[()]  # a number for one row


class Wer:
    """Word error rate in percent, as `jiwer` computes it; words are what white space separates.

    The statistics are the errors, and the words of the reference.

    Needs the packages of `pip install "dualnet[rescore]"`.

    Example:

    >>> from dualnet.rescoring import Wer
    >>> print(Wer().value(Wer().statistics("the cat sat in", "the cat sits")))
    66.66666666666667
    """

    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        with extra(*EXTRA):
            import jiwer
        self._process: Any = jiwer.process_words

    def statistics(self, hypothesis: str, reference: str) -> np.ndarray:
        """Return the errors of a sentence and the words of its reference, float64."""
        # jiwer itself divides words at spaces alone.
        counts = self._process(*(" ".join(text.split()) for text in (reference, hypothesis)))
        misses = counts.substitutions + counts.deletions
        return np.array([misses + counts.insertions, misses + counts.hits], "float64")

    def value(self, sums: np.ndarray) -> np.ndarray:
        """Return the word error rate of statistics summed over sentences, or of each row of them.

        `sums` are `(2,)` or `(rows, 2)`.
        """
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)


METRICS: dict[str, Callable[[], Metric]] = {"bleu": Bleu, "f1": BracketF1, "wer": Wer}


def metric_of(metric: str | Metric) -> Metric:
    """Return the metric of this name; a metric itself is returned unchanged."""
    return METRICS[check_choice("metric", metric, METRICS)]() if isinstance(metric, str) else metric


def gains(metric: Metric, sums: np.ndarray) -> np.ndarray:
    """Return the value of each row of `sums`, with its sign such that higher is better."""
    if isinstance(metric, Bleu | Wer):  # which take all rows at once
        figures = metric.value(sums)
    else:
        figures = np.array([metric.value(row) for row in sums])
    return figures if metric.higher_is_better else -figures
