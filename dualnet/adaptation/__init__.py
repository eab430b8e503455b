"""Weights that keep learning at test time: dynamic evaluation."""

from dualnet._settings import RULES
from dualnet.adaptation.dynamic import (
    DynamicEvaluation,
    GradientStatistics,
    dynamic_evaluation,
    gradient_statistics,
)

__all__ = [
    "RULES",
    "DynamicEvaluation",
    "GradientStatistics",
    "dynamic_evaluation",
    "gradient_statistics",
]
