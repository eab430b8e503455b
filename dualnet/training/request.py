"""What `train` was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError, check_count
from dualnet.cards import Card
from dualnet.corpora import Corpus


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `train` that describe a run."""

    folder: Path
    name: str | Card
    corpus: Corpus | str
    seed: int | None
    weights: str  # an absolute path, or ""
    overrides: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer from 0 to 2**32 - 1, else raise `ValueError`."""
    check_count("seed", seed, least=0)
    if seed >= 2**32:
        raise ArgumentError("seed", f"must be below 2**32. Received: seed={seed}.")
    return seed
