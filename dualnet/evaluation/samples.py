"""Passes with dropout, in a graph made anew from the arguments and the weights of a model."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, is_number
from dualnet.builders import BUILDERS, LanguageModel
from dualnet.builders.arguments import DROPOUTS
from dualnet.builders.wrappers import quiet
from dualnet.evaluation.reading import Scorer


class Sampler(Scorer):
    """A `Scorer` with dropout.

    Args:
        model: `LanguageModel`. It stays as it is, and so do its random generators.
        dropout_scale: float above 0, at most 1. The model's dropout rates, the
            arguments `..._dropout` of its builder, are multiplied by it.
        tempered: as of `Scorer`.

    Attributes:
        masks_rows_apart: bool. Whether each row of a batch has masks of its own.

    Raises:
        ValueError: if all dropout rates are 0.
    """

    def __init__(
        self, model: LanguageModel, dropout_scale: float, *, tempered: bool = False
    ) -> None:
        arguments, used = _scaled_rates(model.arguments, dropout_scale)
        if not used:
            raise ArgumentError(
                "samples",
                "must be 0 for a model without dropout, all passes of which are equal. "
                "Received: a model whose dropout rates are all 0.",
            )
        before = random.getstate()  # from which a new model draws its seeds
        try:
            twin = BUILDERS[model.builder](**arguments)
        finally:
            random.setstate(before)
        super().__init__(twin, tempered=tempered, training=True, name="sampler")
        self.core.set_weights(model.core.get_weights())
        # Of any other (of weights, of words) the rows may share a mask, so that passes read side
        # by side would not be independent.
        apart = {*DROPOUTS, "gate"}
        self.masks_rows_apart = {name.removesuffix("_dropout") for name in used} <= apart

    def draw_anew(self, *seeds: int) -> None:
        """Let the masks that come be those of `seeds`, whatever was drawn before."""
        weights = {id(weight) for weight in self.core.weights}
        states = [each for each in self.core.variables if id(each) not in weights]
        drawn = np.random.default_rng(seeds).integers(2**31, size=len(states))
        for state, seed in zip(states, drawn):
            state.assign([int(seed), 0])


def _scaled_rates(arguments: dict[str, Any], scale: float) -> tuple[dict[str, Any], set[str]]:
    """Return `arguments` with scaled dropout rates, those of members too; the names not at 0."""
    if arguments.get("gate", "none") != "none":  # what is below a gate drops nothing
        arguments = {**quiet(arguments), "gate_dropout": arguments["gate_dropout"]}
    found, used = dict(arguments), set()
    for name, value in arguments.items():
        if name.endswith("_dropout"):
            found[name] = _scaled(value, scale)
            if np.any(found[name]):
                used.add(name)
        elif name == "members":
            found[name] = []
            for member in value:
                own, names = _scaled_rates(member["arguments"], scale)
                found[name].append({**member, "arguments": own})
                used |= names
    return found, used


def _scaled(rate: Any, scale: float) -> Any:
    """Return a dropout rate, or a list of them, times `scale`; None for None."""
    if isinstance(rate, (list, tuple)):
        return [_scaled(each, scale) for each in rate]
    return rate * scale if is_number(rate) else rate
