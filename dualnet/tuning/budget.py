"""The size of a model that has a given number of weights, as Melis et al. compare models."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet.builders import BUILDERS
from dualnet.training import split_overrides

SIZES = ("units", *zoo.SIZES)  # what can be solved for
LEAST = 2  # the smallest size that every cell takes: one with layer normalisation has no smaller


def solve(
    card: zoo.Card,
    settings: Mapping[str, Any],
    parameters: int,
    solve_for: str = "units",
    vocabulary_size: int | None = None,
) -> int:
    """Return the largest size with which a model has at most `parameters` weights.

    Every weight is a product of two sizes at most, so their number is a polynomial of
    degree 2 in each size: that through the counts of three models of a few units, with a
    fourth as a check. The model itself, which may be large, is not built.

    Args:
        card: the model's card.
        settings: arguments of the builder and of the recipe, in place of the card's; a
            value for `solve_for` among them is not used.
        parameters: int. Number of weights as the cards and `count_params` count them,
            without carried state and seeds.
        solve_for: "units", which replaces all sizes of the card, those of the members of
            an ensemble, too; or one size, such as "recurrent_units", for all layers.
        vocabulary_size: int. Number of words; default that of the settings or the card.

    Returns:
        int, at least 2. The value of `solve_for`.

    Raises:
        ValueError: if `parameters` is too small for two units, `solve_for` is unknown
            or without influence, or a setting cannot be.

    Reference: Melis et al., 2018, https://arxiv.org/abs/1707.05589
    """
    parameters = check_count("parameters", parameters, least=1)
    check_choice("solve_for", solve_for, SIZES)
    if vocabulary_size is not None:
        settings = {**settings, "vocabulary_size": vocabulary_size}

    def built(size: int) -> int:
        return _built(card, {**settings, solve_for: size}, solve_for)

    count = _polynomial(built)
    if count(LEAST) == count(LEAST + 1):
        raise ArgumentError(
            "solve_for",
            f"must be a size of the model. Received: solve_for={solve_for!r}, with "
            f"which {card.name!r} always has {count(LEAST):,} weights. Solve for another of "
            f"{', '.join(SIZES)}, or leave out the settings that replace it.",
        )
    if count(LEAST + 3) != built(LEAST + 3):
        raise ArgumentError(
            "solve_for",
            "must be a size of which the number of weights is a polynomial of degree "
            f"2. Received: solve_for={solve_for!r} for {card.name!r}. Solve for another of "
            f"{', '.join(SIZES)}.",
        )
    if parameters < count(LEAST):
        of_settings = " at these settings" if settings else ""
        raise ArgumentError(
            "parameters",
            f"must be at least {count(LEAST)}, the weights of {card.name!r} with "
            f"{solve_for}={LEAST}{of_settings}. Received: parameters={parameters}.",
        )
    sizes = range(LEAST, parameters + 1)  # each unit has a weight at least
    return sizes[bisect.bisect_right(sizes, parameters, key=count) - 1]


def _polynomial(built: Callable[[int], int]) -> Callable[[int], int]:
    """Return the polynomial of degree 2 through the three values of `built` from `LEAST` on."""
    first, second, third = (built(LEAST + i) for i in range(3))
    step, bend = second - first, third - 2 * second + first

    def value(size: int) -> int:  # Newton's form, in whole numbers
        i = size - LEAST
        return first + i * step + i * (i - 1) // 2 * bend

    return value


def _built(card: zoo.Card, settings: Mapping[str, Any], solve_for: str) -> int:
    """Return the number of weights of the model of `card` with `settings`, by building it."""
    with zoo.located(card, settings):
        arguments, _ = split_overrides(card, settings)
        if zoo.vocabulary_size_of(arguments) is None:
            raise ArgumentError("vocabulary_size", "must be given, by the card or as an argument.")
        try:
            return int(BUILDERS[card.builder](**arguments).count_params())
        except ValueError as error:
            tried = f"{solve_for}={settings[solve_for]}"
            raise ValueError(f"{error} (With {tried}, to find the one that fits.)") from None
