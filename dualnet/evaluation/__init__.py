"""Token-exact perplexity, whatever the batch size and the sequence length; scores of texts."""

from dualnet.evaluation.arguments import (
    check_cache,
    check_temperature,
    check_tokens,
    perplexity_of,
    vocabulary_of,
)
from dualnet.evaluation.perplexities import Evaluation, evaluate, perplexity
from dualnet.evaluation.scoring import WORK
from dualnet.evaluation.temperatures import best_temperature
from dualnet.evaluation.texts import Score, score

__all__ = [
    "WORK",
    "Evaluation",
    "Score",
    "best_temperature",
    "check_cache",
    "check_temperature",
    "check_tokens",
    "evaluate",
    "perplexity",
    "perplexity_of",
    "score",
    "vocabulary_of",
]
