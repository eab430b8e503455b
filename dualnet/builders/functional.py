"""Functional-API builders: embedding, recurrent cells, connection, output."""

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._checks import check_choice, check_count, check_penalty, check_rate
from dualnet.builders.model import LanguageModel
from dualnet.layers import (
    DualConnection,
    LockedDropout,
    LSTMCell,
    MogrifierLSTMCell,
    OutputProjection,
    StepDropout,
)
from dualnet.recurrence import Recurrence

CELLS = {"lstm": LSTMCell, "mogrifier_lstm": MogrifierLSTMCell}
CONNECTIONS = ("plain", "dual", "dual_without_input")
DROPOUTS = (
    "input",
    "recurrent",
    "internal",
    "output",
    "dual_input",
    "dual_output",
    "mogrifier",
)


def language_model(
    vocabulary_size: int,
    *,
    units: int | None = None,
    embedding_units: int | None = None,
    recurrent_units: int | Sequence[int] | None = None,
    recurrent_layers: int = 1,
    dual_units: int | None = None,
    cell: str = "lstm",
    rounds: int = 0,
    rank: int = 0,
    connection: str = "plain",
    input_dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
    internal_dropout: float = 0.0,
    output_dropout: float = 0.0,
    dual_input_dropout: float = 0.0,
    dual_output_dropout: float = 0.0,
    mogrifier_dropout: float = 0.0,
    locked_dropouts: Sequence[str] = ("input", "recurrent", "mogrifier"),
    embedding_l2: float = 0.0,
    input_l2: float = 0.0,
    recurrent_l2: float = 0.0,
    activation_l2: float = 0.0,
    dual_l2: float = 0.0,
    mogrifier_l2: float = 0.0,
    name: str = "language_model",
) -> LanguageModel:
    """Return a language model with tied output, int32 ids `(batch, time)` to logits.

    The embedding matrix is also the output matrix, and there is no output bias.
    Tying forces what enters the output to be `embedding_units` wide: the last
    recurrent layer (plain) or the dual layer (dual).

    Args:
        vocabulary_size: int. Number of words.
        units: int. Size of every layer whose own size is not given.
        embedding_units: int. Size of the embedding.
        recurrent_units: int, the size of every recurrent layer (with a plain
            connection the last takes `embedding_units`), or one for each layer.
        recurrent_layers: int, at least 1.
        dual_units: int. If given, it must equal `embedding_units`.
        cell: "lstm" or "mogrifier_lstm".
        rounds: int. Rounds of the Mogrifier, from 0.
        rank: int. Rank of its matrices, 0 for full rank.
        connection: "plain", "dual", or "dual_without_input" (the paper's mdLSTM+).
        input_dropout: on the embedding where it enters the recurrence.
        recurrent_dropout: on each layer's incoming h.
        internal_dropout: between recurrent layers.
        output_dropout: on the output of the last recurrent layer.
        dual_input_dropout: on the embedding where it enters the dual layer.
        dual_output_dropout: on the output of the dual layer.
        mogrifier_dropout: between the factors of the Mogrifier's matrices.
        locked_dropouts: the dropouts that keep one mask for a whole segment, by
            name without `_dropout`; the others draw a fresh mask at each step.
            Default (our choice, the paper is silent): what the arguments of a
            Keras recurrent layer do, and fresh masks elsewhere.
        embedding_l2: times the sum of squares of the embedding (and output) matrix.
        input_l2: the same for every recurrent layer's input matrix.
        recurrent_l2: the same for every recurrent layer's recurrent matrix.
        activation_l2: times the sum over time and units, and the mean over the
            batch, of the squared outputs of each recurrent layer (as Keras's
            `activity_regularizer`; the paper is silent).
        dual_l2: as `input_l2` for both matrices of the dual layer.
        mogrifier_l2: the same for all matrices of the Mogrifier.
        name: str. Name of the model.

    Returns:
        `LanguageModel`, randomly initialised.

    Raises:
        ValueError: if a value is out of range, or sizes contradict each other.

    Reference: Oliva and Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776,
    section 3 and Table 1.
    """
    arguments = {key: value for key, value in locals().items() if key != "name"}
    _check(**arguments)
    embedding_units, layer_units, dual_units = _sizes(
        units, embedding_units, recurrent_units, recurrent_layers, dual_units, connection
    )

    def dropout(place, tensor):
        rate = arguments[f"{place}_dropout"]
        if rate == 0:
            return tensor
        kind = LockedDropout if place in locked_dropouts else StepDropout
        return kind(rate, name=f"{place}_dropout")(tensor)

    cell_arguments: dict[str, Any] = {
        "recurrent_dropout": recurrent_dropout,
        "input_l2": input_l2,
        "recurrent_l2": recurrent_l2,
    }
    if cell == "mogrifier_lstm":
        cell_arguments |= {
            "rounds": rounds,
            "rank": rank,
            "mogrifier_dropout": mogrifier_dropout,
            "mogrifier_l2": mogrifier_l2,
        }
    make_cell = CELLS[cell]
    cell_arguments["locked"] = [place for place in make_cell.dropouts if place in locked_dropouts]

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = keras.layers.Embedding(
        vocabulary_size,
        embedding_units,
        # Logits of a fresh tied model then vary by about 1 per unit of its input (as in the
        # reference code of Melis et al.); Keras's default, a third of that, starts far slower.
        embeddings_initializer=keras.initializers.RandomNormal(stddev=embedding_units**-0.5),
        embeddings_regularizer=keras.regularizers.L2(embedding_l2),
        name="embedding",
    )
    embedded = embedding(tokens)
    x = dropout("input", embedded)
    states: list[Any] = []
    new_states: list[Any] = []
    for i, size in enumerate(layer_units, start=1):
        if i > 1:
            x = dropout("internal", x)
        layer_cell = make_cell(size, name=f"cell_{i}", **cell_arguments)
        initial = [
            keras.Input((n,), dtype="float32", name=f"state_{len(states) + k}")
            for k, n in enumerate(layer_cell.state_size, start=1)
        ]
        x, *final = Recurrence(layer_cell, name=f"recurrence_{i}")(x, initial_state=initial)
        states, new_states = states + initial, new_states + final
        if activation_l2 > 0:
            x = keras.layers.ActivityRegularization(l2=activation_l2, name=f"activation_{i}")(x)
    x = dropout("output", x)
    if connection != "plain":
        x = DualConnection(
            dual_units, use_input=connection == "dual", dual_l2=dual_l2, name="connection"
        )([dropout("dual_input", embedded), x])
        x = dropout("dual_output", x)
    logits = OutputProjection(tied_to=embedding, use_bias=False, name="output")(x)
    core = keras.Model([tokens, *states], [logits, *new_states], name="core")
    return LanguageModel(core, builder="language_model", arguments=arguments, name=name)


def _check(**arguments):
    """Refuse what is out of range, by argument name."""
    check_count("vocabulary_size", arguments["vocabulary_size"], least=1)
    check_count("recurrent_layers", arguments["recurrent_layers"], least=1)
    for name in ("units", "embedding_units", "dual_units"):
        if arguments[name] is not None:
            check_count(name, arguments[name], least=1)
    check_choice("cell", arguments["cell"], CELLS)
    check_choice("connection", arguments["connection"], CONNECTIONS)
    for name in ("rounds", "rank"):
        check_count(name, arguments[name], least=0)
    if arguments["cell"] == "lstm" and arguments["rounds"] > 0:
        raise ValueError(
            "`rounds` must be 0 for the cell 'lstm'. Received: "
            f"rounds={arguments['rounds']!r}. Use cell='mogrifier_lstm'."
        )
    for place in DROPOUTS:
        check_rate(f"{place}_dropout", arguments[f"{place}_dropout"])
    if not isinstance(arguments["locked_dropouts"], (list, tuple)):
        raise ValueError(
            f"`locked_dropouts` must be a list of some of {list(DROPOUTS)}. Received: "
            f"locked_dropouts={arguments['locked_dropouts']!r}."
        )
    for place in arguments["locked_dropouts"]:
        check_choice("locked_dropouts", place, DROPOUTS)
    for name in ("embedding", "input", "recurrent", "activation", "dual", "mogrifier"):
        check_penalty(f"{name}_l2", arguments[f"{name}_l2"])


def _sizes(units, embedding_units, recurrent_units, recurrent_layers, dual_units, connection):
    """Return the size of the embedding, of each recurrent layer, and of the dual layer."""
    embedding_units = embedding_units or units
    recurrent_units = recurrent_units or units or embedding_units
    if embedding_units is None:
        raise ValueError("`units` or `embedding_units` must be given. Received: None for both.")
    if isinstance(recurrent_units, Sequence):
        layer_units = [check_count("recurrent_units", size, least=1) for size in recurrent_units]
        if len(layer_units) != recurrent_layers:
            raise ValueError(
                f"`recurrent_units` must be one size or {recurrent_layers}, one for each of the "
                f"`recurrent_layers`. Received: recurrent_units={recurrent_units!r}."
            )
        if connection == "plain" and layer_units[-1] != embedding_units:
            raise ValueError(
                f"`recurrent_units` must end with `embedding_units`, {embedding_units}, since the "
                f"output is tied to the embedding. Received: recurrent_units={recurrent_units!r}."
            )
    else:
        check_count("recurrent_units", recurrent_units, least=1)
        layer_units = [recurrent_units] * recurrent_layers
        if connection == "plain":
            layer_units[-1] = embedding_units
    if connection == "plain" and dual_units is not None:
        raise ValueError(
            f"`dual_units` needs connection='dual'. Received: dual_units={dual_units!r}, "
            "connection='plain'."
        )
    if connection != "plain" and dual_units not in (None, embedding_units):
        raise ValueError(
            f"`dual_units` must equal `embedding_units`, {embedding_units}, since the output is "
            f"tied to the embedding. Received: dual_units={dual_units!r}."
        )
    return embedding_units, layer_units, embedding_units
