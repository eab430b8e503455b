"""Scorers: rows and totals of texts that come block by block, however many there are."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel, TranslationModel
from dualnet.corpora.sentence_pairs import SentencePair
from dualnet.evaluation.comparison import Totals
from dualnet.evaluation.minimal_pair_accuracy import Accuracy, MinimalPairs, minimal_pairs
from dualnet.evaluation.texts import scores_of
from dualnet.requests import Scoring, Surprising

Row = dict[str, Any]
# From texts and the `sentence_id` of the first to the rows and totals of each.
RowsOfTexts = Callable[[Sequence[str], int], Iterable[tuple[list[Row], Totals]]]


class TextScorer:
    """Scores texts, a row for each; as `dualnet.score`.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`.
        request: `Scoring`.

    Attributes:
        columns: dict. The names of a row, and the kind of each value.
        totals: `Totals` of all texts so far.

    Example:

    >>> import dualnet
    >>> from dualnet.scorers import TextScorer
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> scorer = TextScorer(model)
    >>> rows = scorer.rows(["a b"]) + scorer.rows(["c"], first=2)
    >>> [(row["sentence_id"], row["tokens"]) for row in rows], scorer.totals.tokens
    ([(1, 3), (2, 1)], 4)
    """

    def __init__(self, model: LanguageModel, request: Scoring | None = None) -> None:
        self.model, self.request = model, request or Scoring()
        if isinstance(model, TranslationModel):
            raise ArgumentError(
                "model",
                "must be a language model, since a row holds no source. Received: "
                f"{model.name!r}, which translates.",
                " In Python, dualnet.score takes the `source`.",
            )
        self.totals = Totals()
        self.columns: dict[str, object] = {
            "sentence_id": int, "perplexity": float, "tokens": int, "log_probability": float,
            "words": list[str], "log_probabilities": list[float],
        }  # fmt: skip
        if model.vocabulary is not None and model.vocabulary.kind != "words":
            self.columns |= {"whole_words": list[str], "whole_word_log_probabilities": list[float]}

    @property
    def tokens(self) -> int:
        return self.totals.tokens

    def rows(self, texts: Sequence[str], first: int = 1) -> list[Row]:
        """Return the rows of the next texts, of which the first has this `sentence_id`."""
        rows = []
        scored = scores_of(self.model, texts, [], self.request.temperature)
        for number, (score, totals) in enumerate(scored, first):
            own = {"sentence_id": number, "log_probability": -totals.nats}
            rows.append({name: own.get(name, getattr(score, name, None)) for name in self.columns})
            self.totals += totals
        return rows

    def state(self) -> Row:
        """Return the totals as JSON."""
        return dataclasses.asdict(self.totals)

    def restore(self, state: Row) -> None:
        self.totals = Totals(**state)


class SurprisalScorer(TextScorer):
    """Scores texts, a row for each token or word; as `dualnet.surprisal`.

    Args:
        of_texts: the function that `adaptation.surprisals.surprisals` yields.
    """

    def __init__(self, model: LanguageModel, request: Surprising, of_texts: RowsOfTexts) -> None:
        super().__init__(model, request)
        self.of_texts = of_texts
        self.columns = {"sentence_id": int, "token_id": int, "token": str, "surprisal": float}
        if request.entropy:
            self.columns["entropy"] = float

    def rows(self, texts: Sequence[str], first: int = 1) -> list[Row]:
        rows = []
        for of_text, totals in self.of_texts(texts, first):
            rows += of_text
            self.totals += totals
        return rows


class PairScorer:
    """Scores minimal pairs, a row for each; as `dualnet.minimal_pairs`.

    Attributes:
        columns: As of `TextScorer`.
    """

    columns = {
        "sentence_id": int, "UID": str, "field": str, "sentence_good": str, "sentence_bad": str,
        "log_probability_good": float, "log_probability_bad": float, "difference": float,
        "correct": bool,
    }  # fmt: skip

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.by: dict[str, dict[str, Accuracy]] = {
            kind: collections.defaultdict(Accuracy) for kind in ("uid", "field")
        }
        self.tokens = self.unknown = 0

    def rows(self, pairs: Sequence[SentencePair], first: int = 1) -> list[Row]:
        """Return the rows of the next pairs, of which the first has this `sentence_id`."""
        result = minimal_pairs(self.model, pairs)
        for kind, by in self.by.items():
            for name, accuracy in getattr(result, f"by_{kind}").items():
                by[name] += accuracy
        self.tokens += result.tokens
        self.unknown += round(result.unknown * result.tokens)
        return [{**row, "sentence_id": i} for i, row in enumerate(result.rows(), first)]

    @property
    def totals(self) -> MinimalPairs:
        """The accuracies on all pairs so far."""
        return MinimalPairs(
            overall=sum(self.by["uid"].values(), Accuracy()),
            by_uid=dict(self.by["uid"]),
            by_field=dict(self.by["field"]),
            log_probabilities=np.empty((0, 2)),
            unknown=self.unknown / max(self.tokens, 1),
            tokens=self.tokens,
        )

    def state(self) -> Row:
        """Return the totals as JSON."""
        by = {
            kind: {name: dataclasses.astuple(accuracy) for name, accuracy in accuracies.items()}
            for kind, accuracies in self.by.items()
        }
        return {"tokens": self.tokens, "unknown": self.unknown, **by}

    def restore(self, state: Row) -> None:
        self.tokens, self.unknown = state["tokens"], state["unknown"]
        for kind, by in self.by.items():
            by.update({name: Accuracy(*numbers) for name, numbers in state[kind].items()})


Scorer = TextScorer | PairScorer
