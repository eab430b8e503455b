"""Recipes, and training into a RUN folder that can be stopped, resumed and loaded."""

from dualnet.training.from_runs import combine_runs, train_gate, train_seeds
from dualnet.training.initial_weights import load_corpus
from dualnet.training.loop import Run, epoch_seconds, train, versions
from dualnet.training.recipe import Recipe, split_overrides
from dualnet.training.start import batches_of, card_for

__all__ = [
    "Recipe", "Run", "batches_of", "card_for", "combine_runs", "epoch_seconds", "load_corpus",
    "split_overrides", "train", "train_gate", "train_seeds", "versions",
]  # fmt: skip
