"""Sizes for a budget: the largest model with a given number of weights, after Melis et al."""

import bisect
from collections.abc import Mapping
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet.builders import BUILDERS
from dualnet.training import split_overrides
from dualnet.tuning.job import SOLVE_FOR, Job

LEAST = 2  # the smallest size that every cell accepts: layer normalisation needs two units


def solve(
    card: zoo.Card,
    settings: Mapping[str, Any],
    parameters: int,
    solve_for: str = "units",
    vocabulary_size: int | None = None,
) -> int:
    """Return the largest size with which a model has at most `parameters` weights.

    Each weight is a product of at most two sizes, so the number of weights is a polynomial of
    degree 2 in each size. It is fitted to three models of a few units and checked on a
    fourth; the model itself, which may be large, is not built.

    `parameters` counts as the cards and `count_params` do, without carried state and seeds.
    `solve_for` is "units", which replaces all sizes of the card and of the members of an
    ensemble, or one size, such as "recurrent_units", for all layers; its value in `settings` is
    ignored. `vocabulary_size` defaults to that of the settings or the card.

    Reference: Melis et al., 2018, https://arxiv.org/abs/1707.05589
    """
    parameters = check_count("parameters", parameters, least=1)
    check_choice("solve_for", solve_for, SOLVE_FOR)
    if vocabulary_size is not None:
        settings = {**settings, "vocabulary_size": vocabulary_size}
    first, second, third, fourth = (
        _count(card, {**settings, solve_for: LEAST + i}, solve_for) for i in range(4)
    )

    def count(size: int) -> int:  # Newton's form of the polynomial, exact in integers
        i = size - LEAST
        return first + i * (second - first) + i * (i - 1) // 2 * (third - 2 * second + first)

    received = f"Received: solve_for={solve_for!r} for {card.name!r}"
    way_out = f"Choose another of {', '.join(SOLVE_FOR)}"
    if first == second:
        message = f"must be a size of the model. {received}, which has {first:,} weights whatever"
        other = "or leave out the settings that override it"
        raise ArgumentError("solve_for", f"{message} it is. {way_out}, {other}.")
    if count(LEAST + 3) != fourth:
        message = "must be a size in which the number of weights is a polynomial of degree 2."
        raise ArgumentError("solve_for", f"{message} {received}. {way_out}.")
    if parameters < first:
        message = f"must be at least {first}, the weights of {card.name!r} for {solve_for}={LEAST}"
        message += " with these settings" * bool(settings)
        raise ArgumentError("parameters", f"{message}.", parameters=parameters)
    sizes = range(LEAST, parameters + 1)  # each unit has at least one weight
    return sizes[bisect.bisect_right(sizes, parameters, key=count) - 1]


def solved(
    job: Job, card: zoo.Card, settings: Mapping[str, Any], vocabulary_size: int
) -> dict[str, Any]:
    """Return the `settings` of a trial with the size that the budget of `job` leaves, if any."""
    if job.parameters is None:
        return {**settings}
    size = solve(card, settings, job.parameters, job.solve_for, vocabulary_size=vocabulary_size)
    return {**settings, job.solve_for: size}


def _count(card: zoo.Card, settings: Mapping[str, Any], solve_for: str) -> int:
    """Return the number of weights of the model of `card` with `settings`, by building it."""
    with zoo.located(card, settings):
        arguments, _ = split_overrides(card, settings)
        if zoo.vocabulary_size_of(arguments) is None:
            raise ArgumentError("vocabulary_size", "must be given, by the card or as an argument.")
        try:
            return int(BUILDERS[card.builder](**arguments).count_params())
        except ValueError as error:
            raise ValueError(
                f"{error} (With {solve_for}={settings[solve_for]}, while solving for the budget.)"
            ) from None
