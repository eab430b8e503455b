"""The masks that a cell asks for, and the names of the cells' dropouts."""

from typing import NamedTuple


class MaskSpec(NamedTuple):
    """One dropout mask of a cell; whoever runs the cell draws it before the loop.

    Attributes:
        name: str. Key under which the cell looks the mask up.
        rate: float. The fraction that is dropped.
        size: int. Number of features of the mask.
        locked: bool. One mask per segment, or a fresh one at each step.
    """

    name: str
    rate: float
    size: int
    locked: bool


def check_locked(locked, places):
    """Return `locked` if it lists some of `places` and nothing else."""
    if isinstance(locked, str) or not set(locked) <= set(places):
        raise ValueError(
            f"`locked` must be a list of some of {list(places)} (the dropouts whose mask is "
            f"kept for a whole segment). Received: locked={locked!r}."
        )
    return tuple(locked)


def cell_masks(cell, masks, training):
    """Return the masks to use in one step of `cell`; raise if they are missing."""
    if masks is not None:
        return masks
    if training and cell.mask_specs():
        raise ValueError(
            f"`{type(cell).__name__}` with a dropout rate above 0 cannot train under "
            "`keras.layers.RNN`, which gives a cell no masks. Wrap it in "
            "`dualnet.recurrence.Recurrence`, or set the cell's dropout rates to 0."
        )
    return {}
