"""Perplexity, exact to the token; scores of texts and of translations."""

from dualnet.evaluation.causality import Causality, check_causal
from dualnet.evaluation.comparing import Comparison, compare
from dualnet.evaluation.comparison import Comparable, comparable
from dualnet.evaluation.minimal_pair_accuracy import Accuracy, MinimalPairs, minimal_pairs
from dualnet.evaluation.perplexities import (
    Evaluation,
    Measured,
    best_temperature,
    evaluate,
    perplexity,
)
from dualnet.evaluation.texts import Score, score
from dualnet.evaluation.translations import rouge, translation_metrics

__all__ = [
    "Accuracy", "Causality", "Comparable", "Comparison", "Evaluation", "Measured", "MinimalPairs",
    "Score", "best_temperature", "check_causal", "comparable", "compare", "evaluate",
    "minimal_pairs", "perplexity", "rouge", "score", "translation_metrics",
]  # fmt: skip
