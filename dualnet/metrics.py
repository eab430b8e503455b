"""Metrics of `evaluate` beside the perplexity: what asks for them, computes and shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import numpy as np

from dualnet._checks import ArgumentError, check_count
from dualnet._fields import Settings, field

Option = TypeVar("Option")
Figure = TypeVar("Figure")


class Metric(NamedTuple, Generic[Option, Figure]):
    """A metric of `evaluate`.

    Attributes:
        option: The field of `Measuring` that asks for it.
        figure: The field of `Measured` that holds it.
        question: The question in `dualnet.builders.questions` that is asked of each token. The
            metric is computed from the answer of the same name; another is `losses`.
        check: Function of the option and the size of the vocabulary; raises `ArgumentError`.
        compute: Function of the answer for all tokens, an array, and of the option.
        lines: Function of the figure that returns the lines to print.
    """

    option: str
    figure: str
    question: str
    check: Callable[[Option, int], None]
    compute: Callable[[np.ndarray, Option], Figure]
    lines: Callable[[Figure], list[str]]


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


def _check_at_most(top_k: Sequence[int], vocabulary_size: int) -> None:
    if max(top_k) > vocabulary_size:
        required = f"must be at most {vocabulary_size}, the size of the vocabulary."
        raise ArgumentError("top_k", f"{required} Received: top_k={max(top_k)}.")


METRICS: list[Metric[Any, Any]] = [
    Metric(
        option="top_k",
        figure="top_k_accuracy",
        question="ranks",
        check=_check_at_most,
        compute=lambda ranks, top_k: {int(k): float(np.mean(ranks < k)) for k in top_k},
        lines=lambda shares: [f"top-{k} accuracy {share:.2%}" for k, share in shares.items()],
    ),
]
