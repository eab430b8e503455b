"""What all stations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._fields import Settings


class Station(Settings):
    """One choice in the making of a model. A subclass owns its fields, which are builder arguments.

    A field `x` is the argument `x` of the builders; `help` of a builder is made from its
    documentation.
    """


def state_inputs(sizes: Sequence[int], *, after: int) -> list[Any]:
    """Return a symbolic input per state, `(batch, size)`, numbered from `after` + 1."""
    return [
        keras.Input((size,), dtype="float32", name=f"state_{number}")
        for number, size in enumerate(sizes, start=after + 1)
    ]
