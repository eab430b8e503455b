"""The recurrent cells by name, and the arguments that each takes."""

import inspect
from collections.abc import Mapping
from typing import Any

from dualnet._checks import ArgumentError, check_choice, did_you_mean
from dualnet.layers import (
    DepthGatedLSTMCell,
    ElmanCell,
    GRUCell,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    MogrifierLSTMCell,
    PerGateLSTMCell,
    RecurrentHighwayCell,
)
from dualnet.layers._recurrent_cell import RecurrentCell

CELLS: dict[str, type[RecurrentCell]] = {
    "depth_gated_lstm": DepthGatedLSTMCell,
    "elman": ElmanCell,
    "gru": GRUCell,
    "layernorm_gru": LayerNormGRUCell,
    "layernorm_lstm": LayerNormLSTMCell,
    "lstm": LSTMCell,
    "lstm_per_gate": PerGateLSTMCell,
    "mogrifier_lstm": MogrifierLSTMCell,
    "recurrent_highway": RecurrentHighwayCell,
}
# Arguments that the builder passes to every cell.
COMMON = (
    "units",
    "use_bias",
    "input_dropout",
    "recurrent_dropout",
    "weight_dropout",
    "mask_per_gate",
    "input_l2",
    "recurrent_l2",
    "locked",
)


def arguments_of(kind: type) -> list[str]:
    """Return the names of all arguments of a cell's class, those of its bases included."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base):
            names |= dict.fromkeys(inspect.signature(vars(base)["__init__"]).parameters)
        if base is RecurrentCell:
            break
    return [name for name in names if name not in ("self", "kwargs")]


def options_of(cell: str) -> list[str]:
    """Return the names of the arguments that only this kind of cell takes."""
    return [name for name in arguments_of(CELLS[cell]) if name not in COMMON]


def all_options() -> list[str]:
    """Return the names of the arguments that only some cells take."""
    return sorted({name for cell in CELLS for name in options_of(cell)})


def check_options(cell: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an option that `cell` does not take."""
    check_choice("cell", cell, CELLS)
    own_options = options_of(cell)
    for name in options:
        if name in own_options:
            continue
        takers = [repr(other) for other in CELLS if name in options_of(other)]
        if takers:
            raise ArgumentError(
                name,
                f"must be left out for the cell {cell!r}, which does not take it. "
                f"Received: {name}={options[name]!r}. Cells that do: {', '.join(takers)}.",
            )
        raise ArgumentError(
            name,
            f"must be an argument of the builder or of the cell {cell!r}."
            f"{did_you_mean(name, own_options)} The cell takes {', '.join(own_options) or 'none'}.",
        )
