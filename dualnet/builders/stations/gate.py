from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._fields import choice, field
from dualnet.builders.stations.station import Station, state_inputs
from dualnet.layers import FeatureGate, IOGate, LSTMCell, Recurrence, StepDropout

GATES = ("none", "input", "input_and_hidden", "lstm")


class Gate(Station):
    """The input-to-output gate on the logits of a trained, frozen model.

    Args:
        gate: "none"; "input" (`IOGate`); or its variants "input_and_hidden" and "lstm" (an
            LSTM over the gate's own embedding; the paper is silent on its forget bias, here 1,
            and its initial weights, those of `LSTMCell`). The model below is frozen, its
            dropouts and penalties are off. See `dualnet.with_gate`.
        gate_units: int. Size of the gate's embedding (and LSTM).
        gate_dropout: On the gate's embedding, a fresh mask at each step.
        gate_initializer_range: The gate's matrices start uniform within it.
    """

    gate: str = choice("none", GATES)
    gate_units: int = field(300, unless={"gate": "none"})
    gate_dropout: float = field(0.0, unless={"gate": "none"})
    gate_initializer_range: float = field(0.05, unless={"gate": "none"})

    @property
    def is_used(self) -> bool:
        """Whether there is a gate."""
        return self.gate != "none"

    def floats(self, words: int) -> list[tuple[str, int]]:
        """Return the least number of its weights, by argument; see `check_memory`."""
        return [("gate_units", 2 * words * self.gate_units * self.is_used)]

    def apply(
        self,
        tokens: Any,
        logits: Sequence[Any],
        hidden: Sequence[Any],
        *,
        padded: bool,
        states: int,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the gated logits of each model, and the gate's states before and after.

        `logits` and `hidden` are those of each model; the gate's states are numbered behind the
        `states` of the models.
        """
        words = logits[0].shape[-1]
        if self.gate != "lstm":
            gate = IOGate(
                words,
                self.gate_units,
                dropout=self.gate_dropout,
                use_hidden=self.gate == "input_and_hidden",
                initializer_range=self.gate_initializer_range,
                name="gate",
            )
            read = hidden if self.gate == "input_and_hidden" else ()
            return _as_list(gate([tokens, *read, *logits])), [], []
        scale = self.gate_initializer_range
        embedded = keras.layers.Embedding(
            words,
            self.gate_units,
            embeddings_initializer=keras.initializers.RandomUniform(-scale, scale),
            name="gate_embedding",
        )(keras.ops.maximum(tokens, 0) if padded else tokens)
        embedded = StepDropout(self.gate_dropout, name="gate_dropout")(embedded)
        cell = LSTMCell(self.gate_units, name="gate_cell")
        before = state_inputs(cell.state_size, after=states)
        features, *after = Recurrence(cell, name="gate_recurrence")(
            embedded, initial_state=before, mask=tokens >= 0 if padded else None
        )
        gated = FeatureGate(words, initializer_range=scale, name="gate")([features, *logits])
        return _as_list(gated), before, after


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
