"""Recipes, and training into a RUN folder that can be stopped, resumed and loaded."""

from __future__ import annotations

import os
import warnings
from typing import Any

from dualnet import runs as _runs
from dualnet.training.from_runs import combine_runs, train_gate
from dualnet.training.initial_weights import load_corpus
from dualnet.training.loop import Run, train
from dualnet.training.recipe import Recipe, split_overrides
from dualnet.training.results import versions
from dualnet.training.seeds import train_seeds
from dualnet.training.start import batches_of, card_for

__all__ = [
    "Recipe",
    "Run",
    "batches_of",
    "card_for",
    "combine_runs",
    "load_corpus",
    "split_overrides",
    "train",
    "train_gate",
    "train_seeds",
    "versions",
]


def __getattr__(name: str) -> Any:
    if name not in _runs.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    returns = ", which returns a `Card` instead of a dict" * (name == "read_card")
    warnings.warn(
        f"`dualnet.training.{name}` is deprecated. Use `dualnet.runs.{name}`{returns}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return _card_as_dict if name == "read_card" else getattr(_runs, name)


def _card_as_dict(folder: str | os.PathLike[str]) -> dict[str, Any]:
    return _runs.folder.card_table(_runs.read_card(folder))
