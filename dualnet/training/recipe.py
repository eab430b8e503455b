"""How a model is trained: the optimizer, its settings, and the batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from dualnet import zoo
from dualnet._checks import check_choice, check_count, check_fraction, check_penalty, did_you_mean
from dualnet.builders import BUILDERS

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "nadam": keras.optimizers.Nadam,
    "sgd": keras.optimizers.SGD,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Args:
        optimizer: "nadam", "adam" or "sgd".
        learning_rate: float above 0.
        beta_1: float, at least 0 and below 1. Momentum of "nadam" and "adam".
        clipnorm: float. Largest norm of each weight's gradient; 0 for none.
        batch_size: int. Number of parallel streams.
        sequence_length: int. Tokens between two updates, and the reach of back-propagation.
        epochs: int. Passes over the training text.

    Raises:
        ValueError: if a value is out of range.
    """

    optimizer: str = "nadam"
    learning_rate: float = 1e-3
    beta_1: float = 0.9
    clipnorm: float = 0.0
    batch_size: int = 32
    sequence_length: int = 25
    epochs: int = 100

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("batch_size", "sequence_length", "epochs"):
            check_count(name, getattr(self, name), least=1)
        for name in ("learning_rate", "clipnorm"):
            check_penalty(name, getattr(self, name))
        check_fraction("beta_1", self.beta_1)
        if self.learning_rate == 0:
            raise ValueError("`learning_rate` must be above 0. Received: learning_rate=0.")

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """Return a fresh optimizer."""
        settings: dict[str, Any] = {"learning_rate": self.learning_rate}
        if self.optimizer != "sgd":
            settings["beta_1"] = self.beta_1
        if self.clipnorm:
            settings["clipnorm"] = self.clipnorm
        return OPTIMIZERS[self.optimizer](**settings)


def split_overrides(card: zoo.Card, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe]:
    """Return the builder's arguments and the recipe of `card`, each with its `overrides`.

    Raises:
        ValueError: for a key that neither takes, or a value of the recipe out of range.
    """
    builder = BUILDERS[check_choice("builder", card.builder, BUILDERS)]
    arguments = [key for key in zoo.builder_arguments(builder) if key != "name"]
    fields = [field.name for field in dataclasses.fields(Recipe)]
    config, recipe = dict(card.config), dict(card.recipe)
    given = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in overrides.items()
    }
    for key in (*config, *given):
        if key not in arguments and not (key in given and key in fields):
            raise ValueError(
                f"`{key}` must be an argument of the builder or of the recipe."
                f"{did_you_mean(key, arguments + fields)} Builder: {', '.join(sorted(arguments))}. "
                f"Recipe: {', '.join(fields)}."
            )
    for key in recipe:
        if key not in fields:
            raise ValueError(
                f"`{key}` must be an argument of the recipe.{did_you_mean(key, fields)} "
                f"It takes {', '.join(fields)}."
            )
    config = zoo.resolve(config, {key: given[key] for key in given if key in arguments})
    return config, Recipe(**{**recipe, **{key: given[key] for key in given if key in fields}})
