"""Weights that keep learning at test time: dynamic evaluation."""

from dualnet.adaptation.dynamic import (
    DynamicEvaluation,
    GradientStatistics,
    dynamic_evaluation,
    gradient_statistics,
)
from dualnet.adaptation.rules import RULES

__all__ = [
    "RULES",
    "DynamicEvaluation",
    "GradientStatistics",
    "dynamic_evaluation",
    "gradient_statistics",
]
