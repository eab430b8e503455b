"""N-best lists rescored: trees for a language model, and their F1."""

from dualnet.rescoring.bracket_f1 import BracketF1
from dualnet.rescoring.trees import (
    Candidate,
    Tree,
    clean,
    linearize,
    parse_tree,
    read_tree_nbest,
    read_trees,
)

__all__ = [
    "BracketF1",
    "Candidate",
    "Tree",
    "clean",
    "linearize",
    "parse_tree",
    "read_tree_nbest",
    "read_trees",
]
