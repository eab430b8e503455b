"""Weights that keep learning at test time: dynamic evaluation, surprisal."""

from dualnet.adaptation.dynamic import DynamicEvaluation, dynamic_evaluation
from dualnet.adaptation.statistics import GradientStatistics, gradient_statistics
from dualnet.adaptation.surprisals import surprisal
from dualnet.requests import RULES

__all__ = [
    "RULES", "DynamicEvaluation", "GradientStatistics", "dynamic_evaluation",
    "gradient_statistics", "surprisal",
]  # fmt: skip
