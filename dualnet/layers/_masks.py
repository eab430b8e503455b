"""The masks that a cell asks for, and the names of the cells' dropouts."""

from typing import NamedTuple

from dualnet._checks import ArgumentError


class MaskSpec(NamedTuple):
    """One dropout of a cell; whoever runs the cell draws it before the loop.

    Attributes:
        name: str. Key under which the cell looks up what was drawn.
        rate: float. The fraction that is dropped.
        size: int, number of features of a mask `(batch, size)`; or the shape, a tuple, of
            the cell's weight `name`, of which the cell then gets a dropped-out copy
            in place of a mask (DropConnect), the same for all rows and steps.
        locked: bool. One mask per segment, or a fresh one at each step.
    """

    name: str
    rate: float
    size: int | tuple[int, ...]
    locked: bool


def check_locked(locked, places):
    """Return `locked` if it lists some of `places` and nothing else."""
    if isinstance(locked, str) or not set(locked) <= set(places):
        raise ArgumentError(
            "locked",
            f"must be a list of some of {list(places)} (the dropouts whose mask is "
            f"kept for a whole segment). Received: locked={locked!r}.",
        )
    return tuple(locked)
