"""Sizes for a budget: the largest model with a given number of weights, after Melis et al."""

import bisect
from collections.abc import Mapping

from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet.builders import BUILDERS
from dualnet.training import split_overrides
from dualnet.tuning.job import SOLVE_FOR, Job

LEAST = 2  # the smallest size that every cell accepts: layer normalisation needs two units


def solve(
    card: zoo.Card, settings: Mapping[str, object], parameters: int, solve_for: str = "units"
) -> int:
    """Return the largest size with which a model has at most `parameters` weights.

    Each weight is a product of at most two sizes, so the number of weights is a polynomial of
    degree 2 in each size. It is fitted to three models of a few units and checked on a
    fourth; the model itself, which may be large, is not built.

    `parameters` counts as the cards and `count_params` do, without carried state and seeds.
    `solve_for` is "units", which replaces all sizes of the card and of the members of an
    ensemble, or one size, such as "recurrent_units", for all layers; its value in `settings` is
    ignored.

    Reference: Melis et al., 2018, https://arxiv.org/abs/1707.05589
    """
    first, second, third, fourth = (
        _count(card, {**settings, solve_for: LEAST + i}) for i in range(4)
    )

    def count(size: int) -> int:  # Newton's form of the polynomial, exact in integers
        i = size - LEAST
        return first + i * (second - first) + i * (i - 1) // 2 * (third - 2 * second + first)

    if first == second or count(LEAST + 3) != fourth:
        raise ArgumentError(
            "solve_for",
            f"must be a size of which the weights of {card.name!r} depend, one of {SOLVE_FOR}.",
            solve_for=solve_for,
        )
    if parameters < first:
        raise ArgumentError(
            "parameters",
            f"must be at least {first}, the weights of {card.name!r} for {solve_for}={LEAST}.",
            parameters=parameters,
        )
    sizes = range(LEAST, parameters + 1)  # each unit has at least one weight
    return sizes[bisect.bisect_right(sizes, parameters, key=count) - 1]


def solved(
    job: Job, card: zoo.Card, settings: Mapping[str, object], vocabulary_size: int
) -> dict[str, object]:
    """Return the `settings` of a trial with the size that the budget of `job` leaves, if any."""
    if job.parameters is None:
        return {**settings}
    of_text = {**settings, "vocabulary_size": vocabulary_size}
    return {**settings, job.solve_for: solve(card, of_text, job.parameters, job.solve_for)}


def _count(card: zoo.Card, settings: Mapping[str, object]) -> int:
    """Return the number of weights of the model of `card` with `settings`, by building it."""
    with zoo.located(card, settings):
        arguments, _ = split_overrides(card, settings)
        return int(BUILDERS[card.builder](**arguments).count_params())
