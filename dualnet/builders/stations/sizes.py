from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dualnet._checks import ArgumentError, check_count
from dualnet._fields import field
from dualnet.builders.stations.station import Station


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The size of each layer of one model, whether it has a dual layer and experts or not."""

    embedding: int
    recurrent: tuple[int, ...]  # the lowest layer first
    dual: int
    latent: int  # of the experts' latent vectors


class Sizes(Station):
    """The sizes of the layers, under the names of Table 1 of Oliva and Lago-Fernandez.

    Args:
        units: int. Size of every layer whose own size is not given.
        embedding_units: int. Size of the embedding.
        recurrent_units: int, the size of every recurrent layer; or one for each layer, those
            of a depth-gated stack included. A plain connection into a tied output sets the last
            one to `embedding_units`.
        recurrent_layers: int, at least 1.
        dual_units: int. Size of the dual layer; `embedding_units` by default, and always
            where the output is tied.
        latent_units: int. Size of the experts' latent vectors; `embedding_units` by default,
            and always where the output is tied.
    """

    units: int | None = None
    embedding_units: int | None = None
    recurrent_units: int | Sequence[int] | None = None
    recurrent_layers: int = 1
    dual_units: int | None = field(None, unless={"connection": "plain", "tied": True})
    latent_units: int | None = field(None, unless={"experts": 0, "tied": True})

    def check(self) -> None:
        units = self.recurrent_units
        for size in units if isinstance(units, Sequence) else [1 if units is None else units]:
            check_count("recurrent_units", size, least=1)

    def resolve(self, *, last: int | None = None) -> LayerSizes:
        """Return the size of each layer; that of the last recurrent one must be `last`, if any."""
        embedding = self.embedding_units or self.units
        if embedding is None:
            raise ArgumentError(
                "units", "or `embedding_units` must be given. Received: None for both."
            )
        recurrent = self.recurrent_units or self.units or embedding
        if isinstance(recurrent, Sequence):
            sizes = list(recurrent)
            if len(sizes) != self.recurrent_layers:
                raise ArgumentError(
                    "recurrent_units",
                    f"must be one size, or one for each of the {self.recurrent_layers} "
                    f"`recurrent_layers`. Received: recurrent_units={recurrent!r}.",
                )
            if last not in (None, sizes[-1]):
                raise ArgumentError(
                    "recurrent_units",
                    f"must end with `embedding_units`, {last}, since the output is tied to the "
                    f"embedding. Received: recurrent_units={recurrent!r}.",
                )
        else:
            sizes = [recurrent] * self.recurrent_layers
            sizes[-1] = last or recurrent
        dual, latent = self.dual_units or embedding, self.latent_units or embedding
        return LayerSizes(embedding, tuple(sizes), dual, latent)
