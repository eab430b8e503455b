"""Metrics of `evaluate` beside the perplexity: what asks for them, and holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypedDict

from dualnet._checks import ArgumentError, check_count
from dualnet._fields import Settings, field


def check_top_k(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a list of integers of at least 1."""
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(name, f"must be a list of integers. Received: {name}={value!r}.")
    for k in value:
        check_count(name, k)


class Measuring(Settings):
    """What is measured beside the perplexity."""

    group = "how to read"

    top_k: Sequence[int] = field((), check_top_k, metavar="K", type=int, nargs="+")
    """ints, at least 1. Also compute the share of tokens that are among the k likeliest units, for
    each k. A unit as likely as the token counts as likelier, so that a model that cannot tell units
    apart scores 0. Excludes MC dropout."""


class MeasuringArguments(TypedDict, total=False):
    """The fields of `Measuring`, for type checkers."""

    top_k: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What `evaluate` found beside the perplexity.

    Attributes:
        top_k_accuracy: dict. For each k of `top_k`, the share of the tokens that were among the
            k likeliest units.

    Example:

    >>> from dualnet.evaluation import Measured
    >>> Measured(top_k_accuracy={1: 0.25}).top_k_accuracy
    {1: 0.25}
    """

    top_k_accuracy: dict[int, float] = dataclasses.field(default_factory=dict)
