"""N-best lists rescored: read, scored by models, combined by weights that a metric chose."""

from typing import TYPE_CHECKING, Any

from dualnet.extras.rescoring.formats import read_nbest, write_nbest
from dualnet.extras.rescoring.lists import Hypothesis, NBest
from dualnet.extras.rescoring.metrics import Bleu, BracketF1, Wer
from dualnet.extras.rescoring.trees import (
    Candidate,
    Tree,
    clean,
    linearize,
    parse_tree,
    read_tree_nbest,
    read_trees,
)
from dualnet.extras.rescoring.tuning import (
    Comparison,
    Figure,
    compare,
    load_weights,
    save_weights,
    tune,
)

if TYPE_CHECKING:
    from dualnet.extras.rescoring.rescoring import rescore as rescore

__all__ = [
    "Bleu", "BracketF1", "Candidate", "Comparison", "Figure", "Hypothesis", "NBest", "Tree", "Wer",
    "clean", "compare", "linearize", "load_weights", "parse_tree", "read_nbest", "read_tree_nbest",
    "read_trees", "rescore", "save_weights", "tune", "write_nbest",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "rescore":  # which alone needs Keras
        raise AttributeError(f"module 'dualnet.rescoring' has no attribute {name!r}")
    from dualnet.extras.rescoring.rescoring import rescore

    return rescore
