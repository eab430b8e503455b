from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from dualnet._checks import ArgumentError
from dualnet._fields import choice
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.recurrent import Recurrent
from dualnet.builders.stations.station import Station
from dualnet.layers import Recurrence

ENCODERS = ("bidirectional", "embeddings")
MERGES = ("sum", "concatenate")
FIRST_STATES = ("encoder", "learned", "zeros")


class Encoder(Station):
    """What reads the source: the memory that the decoder attends to, and its first state.

    Args:
        encoder: "bidirectional": recurrent layers like the decoder's that read the source from
            its start, and others that read it from its end; or "embeddings", the vectors of
            the source words alone (depth-gated LSTM).
        encoder_merge: How both directions become one vector for each position, and one first
            state: "sum" (DOC); or "concatenate", with half of the units in each direction.
        first_state: Where the decoder starts: "encoder", layer by layer from the states after
            the last step of both directions; "learned", one state for all sentences, which
            starts as zero; or "zeros".
    """

    encoder: str = choice("bidirectional", ENCODERS)
    encoder_merge: str = choice("sum", MERGES)
    first_state: str = choice("encoder", FIRST_STATES)

    def check(self) -> None:
        if self.encoder == "embeddings" and self.first_state == "encoder":
            what = "must be 'learned' or 'zeros' with encoder='embeddings', which has no states."
            self.refuse("first_state", what)

    def sizes(self, layer_units: Sequence[int]) -> list[int]:
        """Return the units of each layer in each direction, for a decoder of `layer_units`."""
        if self.encoder_merge == "sum":
            return list(layer_units)
        odd = [units for units in layer_units if units % 2]
        if odd and self.encoder == "bidirectional":
            raise ArgumentError(
                "recurrent_units",
                "must be even with encoder_merge='concatenate', where each direction has half of "
                f"them. Received: {odd[0]}.",
            )
        return [units // 2 for units in layer_units]

    def read(
        self,
        embedded: Any,
        mask: Any,
        recurrent: Recurrent,
        layer_units: Sequence[int],
        dropouts: Dropouts,
    ) -> tuple[Any, list[Any]]:
        """Return the memory `(batch, source, size)`, and the states after both directions.

        Args:
            embedded: the vectors of the source words, `(batch, source, units)`.
            mask: bool `(batch, source)`, False at padding.
            recurrent: the station of the decoder, whose cells and dropouts the encoder has.
            layer_units: of the decoder.
            dropouts: `Dropouts`.
        """
        if not recurrent.mask_per_gate or self.encoder == "embeddings":
            embedded = dropouts.drop(
                "input", recurrent.input_dropout, embedded, name="source_dropout"
            )
        if self.encoder == "embeddings":
            return embedded, []
        sizes = self.sizes(layer_units)
        forward, forward_states = self._stack("forward", embedded, mask, recurrent, sizes, dropouts)
        backward, backward_states = self._stack(
            "backward", ops.flip(embedded, 1), ops.flip(mask, 1), recurrent, sizes, dropouts
        )
        backward = ops.flip(backward, 1)  # in the order of the source
        states = [self._merge(*pair) for pair in zip(forward_states, backward_states)]
        return self._merge(forward, backward), states

    def _stack(
        self,
        direction: str,
        x: Any,
        mask: Any,
        recurrent: Recurrent,
        sizes: Sequence[int],
        dropouts: Dropouts,
    ) -> tuple[Any, list[Any]]:
        states: list[Any] = []
        for number, units in enumerate(sizes, start=1):
            name = f"encoder_{direction}_{number}"
            if number > 1 and not recurrent.mask_per_gate:
                rate = recurrent.internal_dropout
                x = dropouts.drop("internal", rate, x, name=f"{name}_dropout")
            cell = recurrent.make_cell(number, units, dropouts)
            x, *final = Recurrence(cell, name=name)(x, mask=mask)
            states += final
        return x, states

    def _merge(self, forward: Any, backward: Any) -> Any:
        if self.encoder_merge == "sum":
            return ops.add(forward, backward)
        return ops.concatenate([forward, backward], axis=-1)
