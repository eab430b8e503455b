"""Token-exact perplexity whatever the batching; scores of texts and of translations."""

from dualnet.evaluation.comparison import Comparable, comparable
from dualnet.evaluation.minimal_pair_accuracy import Accuracy, MinimalPairs, minimal_pairs
from dualnet.evaluation.perplexities import Evaluation, evaluate, perplexity
from dualnet.evaluation.temperatures import best_temperature
from dualnet.evaluation.texts import Score, score
from dualnet.evaluation.translations import rouge, translation_metrics

__all__ = [
    "Accuracy",
    "Comparable",
    "Evaluation",
    "MinimalPairs",
    "Score",
    "best_temperature",
    "comparable",
    "evaluate",
    "minimal_pairs",
    "perplexity",
    "rouge",
    "score",
    "translation_metrics",
]
