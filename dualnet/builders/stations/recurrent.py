from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet.builders.cells import CELLS, arguments_of, check_options
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.station import Station, state_inputs
from dualnet.layers import ActivationRegularization, Recurrence


class Recurrent(Station):
    """The recurrent layers: their cells, dropouts and penalties.

    Args:
        cell: Name of a recurrent cell, one of `dualnet.builders.CELLS`.
        use_bias: bool. Whether the cells have biases.
        skip_connections: bool. Whether the output is the sum of the outputs of all recurrent
            layers, which must then be of one size (Melis et al.).
        input_dropout: On the embedding where it enters the recurrence.
        recurrent_dropout: On each layer's incoming h, in the Mogrifier before its rounds.
        weight_dropout: On single weights of the recurrent matrices, one draw for all rows of
            a segment (AWD-LSTM).
        internal_dropout: Between recurrent layers.
        output_dropout: On the output of the last recurrent layer.
        mogrifier_dropout: Between the factors of the Mogrifier's matrices.
        mask_per_gate: bool. Whether the masks of "input", "internal" (as the inputs of cells)
            and "recurrent" differ by gate (Gal and Ghahramani).
        input_l2: Penalty: times the sum of squares of every layer's input matrix.
        recurrent_l2: The same for the recurrent matrices.
        mogrifier_l2: The same for all matrices of the Mogrifier.
        activation_l2: Times the sum over time and units, and the mean over the batch, of the
            squared outputs of each recurrent layer (as Keras's `activity_regularizer`; the
            paper is silent).
        activation_regularization: AR of AWD-LSTM, its alpha; in training only, as
            everything named `_regularization`.
        temporal_activation_regularization: TAR of AWD-LSTM, its beta.
    """

    cell: str = choice("lstm", CELLS)
    use_bias: bool = True
    skip_connections: bool = field(False, unless={"recurrent_layers": 1})
    input_dropout: float = 0.0
    recurrent_dropout: float = 0.0
    weight_dropout: float = 0.0
    internal_dropout: float = field(0.0, unless={"recurrent_layers": 1})
    output_dropout: float = 0.0
    mogrifier_dropout: float = field(0.0, unless={"rounds": 0})
    mask_per_gate: bool = False
    input_l2: float = 0.0
    recurrent_l2: float = 0.0
    mogrifier_l2: float = field(0.0, unless={"rounds": 0})
    activation_l2: float = 0.0
    activation_regularization: float = 0.0
    temporal_activation_regularization: float = 0.0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the cell alone

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in super().names() if name != "options"]

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **self.options}

    @classmethod
    def idle(cls, settings: Mapping[str, Any]) -> set[str]:
        names = super().idle(settings)
        if settings.get("rounds") == 0:
            names.add("rank")  # of the Mogrifier
        if "internal_dropout" in arguments_of(CELLS[settings.get("cell", cls.cell)]):
            names.discard("internal_dropout")  # of a stack inside one cell
        return names

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.cell, self.options)

    def count(self, option: str, default: int) -> int:
        """Return an option of the cell, or `default`, also where the cell will refuse the value."""
        value = self.options.get(option, default)
        return value if isinstance(value, int) else default

    def run(
        self, embedded: Any, layer_units: Sequence[int], dropouts: Dropouts, mask: Any
    ) -> RecurrentOutput:
        """Run the layers over `embedded`; `mask` is False where a step is padding, or None."""
        if self.skip_connections and len(set(layer_units)) > 1:
            raise ArgumentError(
                "skip_connections",
                f"needs recurrent layers of one size. Received: {list(layer_units)}. Set "
                "recurrent_units to embedding_units.",
            )
        x = embedded
        if not self.mask_per_gate:  # else the cells drop their inputs themselves
            x = dropouts.drop("input", self.input_dropout, x)
        levels, outputs = [], []
        states: list[Any] = []
        new_states: list[Any] = []
        for number, units in enumerate(layer_units, start=1):
            if number > 1 and not self.mask_per_gate:
                name = f"internal_dropout_{number}" if number > 2 else None
                x = dropouts.drop("internal", self.internal_dropout, x, name=name)
            levels.append(x)
            cell = self.make_cell(number, units, dropouts)
            inputs = state_inputs(cell.state_size, after=len(states))
            x, *final = Recurrence(cell, name=f"recurrence_{number}")(
                x, initial_state=inputs, mask=mask
            )
            states, new_states = states + inputs, new_states + final
            if self.activation_l2 > 0:
                name = f"activation_{number}"
                x = keras.layers.ActivityRegularization(l2=self.activation_l2, name=name)(x)
            outputs.append(x)
        if self.skip_connections and len(outputs) > 1:
            x = keras.layers.Add(name="skip_connections")(outputs)
        hidden, x = x, dropouts.drop("output", self.output_dropout, x)
        if self.activation_regularization > 0 or self.temporal_activation_regularization > 0:
            x = ActivationRegularization(
                activation=self.activation_regularization,
                temporal=self.temporal_activation_regularization,
                name="activation_regularization",
            )([x, hidden])
        return RecurrentOutput([*levels, x], hidden, states, new_states)

    def make_cell(self, number: int, units: int, dropouts: Dropouts) -> keras.layers.Layer:
        """Return the cell of layer `number`, from 1, of size `units`."""
        cell = CELLS[self.cell]
        # The dropout before this layer, whose masks the cell draws with `mask_per_gate`.
        place = "input" if number == 1 else "internal"
        rate = self.input_dropout if number == 1 else self.internal_dropout
        places = {"input": place}  # of the cell's own dropouts, by the names here
        settings = {
            "use_bias": self.use_bias,
            "input_dropout": rate if self.mask_per_gate else 0.0,
            "recurrent_dropout": self.recurrent_dropout,
            "weight_dropout": self.weight_dropout,
            "mask_per_gate": self.mask_per_gate,
            "input_l2": self.input_l2,
            "recurrent_l2": self.recurrent_l2,
            "locked": [p for p in cell.dropouts if places.get(p, p) in dropouts.locked_dropouts],
        }
        for_some_cells = {
            "rounds": 0,  # the options may have another number
            "mogrifier_dropout": self.mogrifier_dropout,
            "mogrifier_l2": self.mogrifier_l2,
            "internal_dropout": self.internal_dropout,  # of a stack inside one cell
        }
        of_cell = arguments_of(cell)
        settings |= {name: value for name, value in for_some_cells.items() if name in of_cell}
        return cell(units, name=f"cell_{number}", **{**settings, **self.options})


@dataclasses.dataclass(frozen=True)
class RecurrentOutput:
    """Symbolic tensors of the recurrent layers; `hidden` and the states are those of `Graph`."""

    # What enters each recurrent layer, and what leaves the last one, each with its dropout.
    levels: list[Any]
    hidden: Any
    states: list[Any]
    new_states: list[Any]
