"""The stations of a translator alone: its encoder, and the attention of its decoder."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

from dualnet import layers
from dualnet._fields import choice
from dualnet._types import Tensor
from dualnet.builders.stations import Station

if TYPE_CHECKING:
    from dualnet.builders.composing import CommonStations


class Encoder(Station):
    """What reads the source: the memory that the decoder attends to, and its first state."""

    encoder: str = choice("bidirectional", ("bidirectional", "embeddings"))
    """"bidirectional": recurrent layers like the decoder's that read the source from its start, and
    others that read it from its end; or "embeddings", the vectors of the source words alone
    (depth-gated LSTM)."""

    encoder_merge: str = choice("sum", ("sum", "concatenate"))
    """How both directions become one vector for each position, and one first state: "sum", as in
    the code that the authors of DOC modified (their paper does not say); or "concatenate", with
    half of the units in each direction."""

    first_state: str = choice("encoder", ("encoder", "learned", "zeros"))
    """Where the decoder starts: "encoder", layer by layer from the states after the last step of
    both directions; "learned", one state for all sentences, which starts as zero; or "zeros"."""

    def check(self) -> None:
        if self.encoder == "embeddings" and self.first_state == "encoder":
            self.refuse("first_state", "must be 'learned' or 'zeros' with encoder='embeddings'.")

    def read(
        self,
        embedded: Tensor,
        mask: Tensor,
        layer_units: Sequence[int],
        stations: "CommonStations",
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the memory `(batch, source, size)`, and the states after both directions.

        Args:
            embedded: the vectors of the source words, `(batch, source, units)`.
            mask: bool `(batch, source)`, False at padding.
            layer_units: of the decoder.
            stations: those of the decoder, whose cells and dropouts the encoder has.
        """
        recurrent, dropouts = stations.recurrent, stations.dropouts
        per_gate = recurrent.mask_per_gate
        if not per_gate or self.encoder == "embeddings":
            rate = recurrent.input_dropout
            embedded = dropouts.drop("input", rate, embedded, name="source_dropout")
        if self.encoder == "embeddings":
            return embedded, []

        def stack(direction: str, x: Tensor, mask: Tensor) -> list[Tensor]:
            """Return the output of the layers of one direction, and their states."""
            states = []
            directions = 1 if self.encoder_merge == "sum" else 2
            for number, units in enumerate(layer_units, start=1):
                name = f"encoder_{direction}_{number}"
                if number > 1 and not per_gate:
                    rate = recurrent.internal_dropout
                    x = dropouts.drop("internal", rate, x, name=f"{name}_dropout")
                cell = recurrent.make_cell(number, units // directions, dropouts)
                x, *final = layers.Recurrence(cell, name=name)(x, mask=mask)
                states += final
            return [x, *states]

        forward = stack("forward", embedded, mask)
        backward = stack("backward", ops.flip(embedded, 1), ops.flip(mask, 1))
        backward[0] = ops.flip(backward[0], 1)  # in the order of the source
        merges = {"sum": ops.add, "concatenate": lambda *pair: ops.concatenate(pair, axis=-1)}
        memory, *states = map(merges[self.encoder_merge], forward, backward)
        return memory, states


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The recurrence of the decoder, and the layers of its readout."""

    recurrence: layers.Recurrence
    readout: Sequence[keras.layers.Dense] | None

    def run(
        self, embedded: Tensor, constants: list[Tensor], states: list[Tensor]
    ) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """Return the outputs of all cells, the attentional vector, and the new states."""
        outputs, *new_states = self.recurrence(embedded, initial_state=states, constants=constants)
        sizes = self.recurrence.cell.level_sizes
        ends = [sum(sizes[:number]) for number in range(1, len(sizes))]
        *levels, last = ops.split(outputs, ends, axis=-1)
        if self.readout is None:
            return levels, last, new_states
        context, word = self.readout
        return levels, ops.tanh(levels[-1] + context(last) + word(embedded)), new_states


class Attention(Station):
    """How the decoder looks at the source, and what it hands to the output."""

    attention: str = choice("general", ("general", "additive"))
    """"general" (Luong): the attentional vector a = tanh(W [h; c]) of the highest output h and the
    context c enters the output, and the next step (input feeding); or "additive" (Bahdanau): the
    context of the step before enters the recurrence, and the output reads a = tanh(h + Q c + P e),
    e the current word (depth-gated LSTM)."""

    attention_units: int | None = None
    """int. Size of a; `embedding_units` by default, and always where the output is tied. With
    "additive", a is as wide as h."""

    alignment_units: int = 32
    """int. Size of the hidden layer that scores a position, for "additive"."""

    def keys(self, memory: Tensor, layer_units: Sequence[int]) -> Tensor:
        """Return a key for each vector of the memory, which the steps compare with a query."""
        units = layer_units[-1] if self.attention == "general" else self.alignment_units
        return keras.layers.Dense(units, use_bias=False, name="keys")(memory)

    def decoder(self, layer_units: Sequence[int], size: int, stations: "CommonStations") -> Decoder:
        """Return the decoder, whose attentional vector has the `size`."""
        recurrent, dropouts = stations.recurrent, stations.dropouts
        cells = [recurrent.make_cell(n, u, dropouts) for n, u in enumerate(layer_units, start=1)]
        is_general = self.attention == "general"
        cell_class = layers.GeneralAttentionCell if is_general else layers.AdditiveAttentionCell
        cell = cell_class(
            cells,
            size if is_general else self.alignment_units,
            internal_dropout=0.0 if recurrent.mask_per_gate else recurrent.internal_dropout,
            internal_locked="internal" in dropouts.locked_dropouts,
            name="attention",
        )
        readout = None
        if not is_general:
            names = ("readout_context", "readout_embedding")
            units = layer_units[-1]
            readout = [keras.layers.Dense(units, use_bias=False, name=name) for name in names]
        return Decoder(layers.Recurrence(cell, name="decoder"), readout)
