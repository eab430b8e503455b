"""Passes with dropout, on a copy of a model."""

import functools
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError, is_number
from dualnet.builders import BUILDERS, LanguageModel, Reader, questions
from dualnet.builders.composing import without_regularization
from dualnet.builders.stations import PLACES
from dualnet.builders.wrapping import copy_weights
from dualnet.cards import all_arguments, with_members


class DropoutReader(Reader):
    """Asks for the losses of a pass with dropout.

    The model is left untouched, and so are its random generators. Its dropout rates, the
    arguments `..._dropout`, are multiplied by `dropout_scale`; one must not be 0. The attribute
    `masks_differ_by_row` says whether each row of a batch draws its own masks.
    """

    is_pure = False  # the random states go on

    def __init__(self, model: LanguageModel, dropout_scale: float) -> None:
        arguments = _scaled_rates(model.arguments, dropout_scale)
        rates = (pair for own in all_arguments(arguments) for pair in own.items())
        active = {name for name, rate in rates if name.endswith("_dropout") and np.any(rate)}
        if not active:
            raise ArgumentError(
                "mc_dropout_samples",
                "must be 0 for a model without dropout, all passes of which are equal. Received: "
                "a model whose dropout rates are all 0.",
            )
        random_state = random.getstate()  # a new model draws its seeds from it
        try:
            copy = BUILDERS[model.builder](**arguments)
        finally:
            random.setstate(random_state)
        super().__init__(copy.graph, functools.partial(questions.losses, training=True))
        copy_weights(model, copy)
        # All rows share the masks of weights and, where the rows do not draw words for
        # themselves, of words: passes that are read side by side would not be independent.
        self.masks_differ_by_row = active <= {f"{place}_dropout" for place in (*PLACES, "gate")}

    def set_seeds(self, *seeds: int) -> None:
        """Reseed all dropout layers, so that the next masks depend on `seeds` alone."""
        weights = {id(weight) for weight in self.core.weights}
        states = [variable for variable in self.core.variables if id(variable) not in weights]
        drawn = np.random.default_rng(seeds).integers(2**31, size=len(states))
        for state, seed in zip(states, drawn):
            state.assign([int(seed), 0])


def _scaled_rates(arguments: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Return `arguments` with scaled dropout rates, those of the members of an ensemble, too."""
    if arguments.get("gate", "none") != "none":  # what is below a gate drops nothing
        arguments = without_regularization(arguments) | {"gate_dropout": arguments["gate_dropout"]}

    def scaled(rate: object) -> object:
        return rate * scale if is_number(rate) else rate

    rates = {name: value for name, value in arguments.items() if name.endswith("_dropout")}
    changed = {**arguments, **keras.tree.map_structure(scaled, rates)}  # a rate, several, or None
    return with_members(changed, lambda own: _scaled_rates(own, scale))
