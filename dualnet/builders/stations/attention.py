from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from dualnet._fields import choice
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.recurrent import Recurrent
from dualnet.builders.stations.station import Station
from dualnet.layers import AdditiveAttentionCell, GeneralAttentionCell, Recurrence

ATTENTIONS = ("general", "additive")


class Attention(Station):
    """How the decoder looks at the source, and what it hands to the output.

    Args:
        attention: "general" (Luong): the attentional vector a = tanh(W [h; c]) of the highest
            output h and the context c enters the output, and the next step (input feeding);
            or "additive" (Bahdanau): the context of the step before enters the recurrence, and
            the output reads a = tanh(h + Q c + P e), e the current word (depth-gated LSTM).
        attention_units: int. Size of a; `embedding_units` by default, and always where the
            output is tied. With "additive", a is as wide as h.
        alignment_units: int. Size of the hidden layer that scores a position, for "additive".
    """

    attention: str = choice("general", ATTENTIONS)
    attention_units: int | None = None
    alignment_units: int = 32

    def keys(self, memory: Any, layer_units: Sequence[int]) -> Any:
        """Return a key for each vector of the memory, which the steps compare with a query."""
        units = layer_units[-1] if self.attention == "general" else self.alignment_units
        return keras.layers.Dense(units, use_bias=False, name="keys")(memory)

    def decoder(
        self, recurrent: Recurrent, layer_units: Sequence[int], size: int, dropouts: Dropouts
    ) -> Decoder:
        """Return the decoder, whose attentional vector has the `size`."""
        cells = [
            recurrent.make_cell(number, units, dropouts)
            for number, units in enumerate(layer_units, start=1)
        ]
        settings: dict[str, Any] = {
            "internal_dropout": 0.0 if recurrent.mask_per_gate else recurrent.internal_dropout,
            "internal_locked": "internal" in dropouts.locked_dropouts,
            "name": "attention",
        }
        if self.attention == "general":
            cell = GeneralAttentionCell(cells, size, **settings)
            return Decoder(Recurrence(cell, name="decoder"), None)
        readout = [
            keras.layers.Dense(layer_units[-1], use_bias=False, name=name)
            for name in ("readout_context", "readout_embedding")
        ]
        cell = AdditiveAttentionCell(cells, self.alignment_units, **settings)
        return Decoder(Recurrence(cell, name="decoder"), readout)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The recurrence of the decoder, and the layers of its readout."""

    recurrence: Recurrence
    readout: Sequence[keras.layers.Dense] | None

    def run(
        self, embedded: Any, constants: Sequence[Any], states: Sequence[Any]
    ) -> tuple[list[Any], Any, list[Any]]:
        """Return the outputs of all cells, the attentional vector, and the new states."""
        outputs, *new_states = self.recurrence(
            embedded, initial_state=list(states), constants=list(constants)
        )
        sizes = self.recurrence.cell.level_sizes
        ends = [sum(sizes[:number]) for number in range(1, len(sizes))]
        *levels, last = ops.split(outputs, ends, axis=-1)
        if self.readout is None:
            return levels, last, new_states
        context, word = self.readout
        return levels, ops.tanh(levels[-1] + context(last) + word(embedded)), new_states
