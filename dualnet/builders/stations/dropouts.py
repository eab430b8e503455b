from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dualnet._checks import check_choice
from dualnet.builders.stations.station import Station
from dualnet.layers import LockedDropout, StepDropout

# The places of dropouts that may be locked: `input` is the argument `input_dropout`.
PLACES = (
    "input",
    "recurrent",
    "internal",
    "output",
    "dual_input",
    "dual_output",
    "mogrifier",
    "latent",
)


class Dropouts(Station):
    """How long a dropout keeps its mask. The rates belong to the stations where they act.

    Args:
        locked_dropouts: The dropouts that keep one mask for a whole segment, by name without
            `_dropout`; the others draw a fresh mask at each step. Default (our choice, the
            paper is silent): what the arguments of a Keras recurrent layer do, and fresh
            masks elsewhere.
    """

    locked_dropouts: Sequence[str] = ("input", "recurrent", "mogrifier", "latent")

    def check(self) -> None:
        if not isinstance(self.locked_dropouts, (list, tuple)):
            self.refuse("locked_dropouts", f"must be a list of some of {list(PLACES)}.")
        for place in self.locked_dropouts:
            check_choice("locked_dropouts", place, PLACES)

    def drop(self, place: str, rate: float, tensor: Any, *, name: str | None = None) -> Any:
        """Return `tensor` with dropout at `rate`, locked or fresh as `place` says."""
        if rate == 0:
            return tensor
        layer = LockedDropout if place in self.locked_dropouts else StepDropout
        return layer(rate, name=name or f"{place}_dropout")(tensor)
