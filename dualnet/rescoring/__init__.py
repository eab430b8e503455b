"""N-best lists rescored: read, scored by models, combined by weights that a metric chose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualnet.rescoring.formats import read_nbest, write_nbest
from dualnet.rescoring.lists import Hypothesis, NBest
from dualnet.rescoring.metrics import Bleu, Wer
from dualnet.rescoring.tuning import (
    Comparison,
    Figure,
    compare,
    load_weights,
    save_weights,
    tune,
)

if TYPE_CHECKING:
    from dualnet.rescoring.rescoring import rescore as rescore

__all__ = [
    "Bleu",
    "Comparison",
    "Figure",
    "Hypothesis",
    "NBest",
    "Wer",
    "compare",
    "load_weights",
    "read_nbest",
    "rescore",
    "save_weights",
    "tune",
    "write_nbest",
]


def __getattr__(name: str) -> Any:
    if name != "rescore":  # which alone needs Keras
        raise AttributeError(f"module 'dualnet.rescoring' has no attribute {name!r}")
    from dualnet.rescoring.rescoring import rescore

    return rescore
