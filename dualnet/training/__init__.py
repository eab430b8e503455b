"""Recipes, and training into a RUN folder that can be stopped, resumed and loaded."""

from dualnet.runs import corpus_of_run, load, read_card
from dualnet.training.combining import combine_runs, train_gate
from dualnet.training.loop import Run, batches_of, card_for, train
from dualnet.training.recipe import Recipe, split_overrides
from dualnet.training.results import versions
from dualnet.training.start import load_corpus

__all__ = [
    "Recipe",
    "Run",
    "batches_of",
    "card_for",
    "combine_runs",
    "corpus_of_run",
    "load",
    "load_corpus",
    "read_card",
    "split_overrides",
    "train",
    "train_gate",
    "versions",
]
