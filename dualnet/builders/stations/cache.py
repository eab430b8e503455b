from __future__ import annotations

from typing import Any

from dualnet._checks import ArgumentError, check_fraction
from dualnet._fields import choice, field
from dualnet.builders.stations.station import Station, state_inputs
from dualnet.layers import NeuralCache
from dualnet.layers.neural_cache import SCALE, STARTS, WEIGHT


class Cache(Station):
    """The neural cache on top of everything else. It has no weights.

    Args:
        cache_size: int. Words that the neural cache remembers (`NeuralCache`), 0 for none.
            See `dualnet.with_cache`. Past decoding is left out beside it.
        cache_weight: Of the cache's probabilities, at least 0 and below 1 (lambda).
        cache_scale: Of the products of hidden vectors in the cache (theta).
        cache_start: "at_once" or "when_full".
    """

    cache_size: int = 0
    cache_weight: float = field(WEIGHT, check_fraction, unless={"cache_size": 0})
    cache_scale: float = field(SCALE, unless={"cache_size": 0})
    cache_start: str = choice(STARTS[0], STARTS, unless={"cache_size": 0})

    @property
    def is_used(self) -> bool:
        """Whether there is a cache."""
        return self.cache_size > 0

    def check_padding(self, padded: bool) -> None:
        """Raise `ArgumentError` for a cache over a model of padded sentences."""
        if self.is_used and padded:
            raise ArgumentError(
                "cache_size",
                "must be 0 for a model of padded sentences, which a cache would reach across. "
                f"Received: cache_size={self.cache_size!r}, padded=True.",
            )

    def floats(self, hidden_units: int) -> list[tuple[str, int]]:
        """Return the number of floats in the state of one row, by argument; see `check_memory`."""
        return [("cache_size", self.cache_size * (hidden_units + 1))]

    def apply(
        self, tokens: Any, hidden: Any, logits: Any, *, states: int
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return the log-probabilities with the cache, and its states before and after.

        The cache's keys are `hidden`; its states are numbered behind the model's `states`.
        """
        settings = {"weight": self.cache_weight, "scale": self.cache_scale}
        cache = NeuralCache(self.cache_size, start=self.cache_start, **settings, name="cache")
        before = state_inputs(cache.state_sizes(hidden.shape[-1]), after=states)
        log_probabilities, *after = cache([tokens, hidden, logits], initial_state=before)
        return log_probabilities, before, after
