"""The recurrent cells by name, and the arguments that each takes."""

import inspect

import keras

from dualnet import layers
from dualnet.layers._recurrent_cell import RecurrentCell

# One of your own is an argument, `cell=MyCell`.
CELLS: dict[str, type[RecurrentCell]] = {
    "depth_gated_lstm": layers.DepthGatedLSTMCell,
    "elman": layers.ElmanCell,
    "gru": layers.GRUCell,
    "layernorm_gru": layers.LayerNormGRUCell,
    "layernorm_lstm": layers.LayerNormLSTMCell,
    "lstm": layers.LSTMCell,
    "lstm_per_gate": layers.PerGateLSTMCell,
    "mogrifier_lstm": layers.MogrifierLSTMCell,
    "recurrent_highway": layers.RecurrentHighwayCell,
    "rewired_lstm": layers.RewiredLSTMCell,
}


def arguments_of(kind: type) -> list[str]:
    """Return the names of all arguments of a layer's class, those that its bases take included."""
    names: dict[str, None] = {}
    for base in kind.__mro__[: kind.__mro__.index(keras.layers.Layer)]:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            names |= dict.fromkeys(parameter.name for parameter in named)
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                break
    return list(names)


COMMON = arguments_of(RecurrentCell)  # what the builder passes to every cell


def all_options() -> list[str]:
    """Return the names of the arguments that only some cells of this package take."""
    return sorted({name for kind in CELLS.values() for name in arguments_of(kind)} - {*COMMON})
