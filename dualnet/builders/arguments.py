"""What `language_model` takes, refused where it cannot be, and the sizes that follow from it."""

from collections.abc import Sequence

from dualnet._checks import (
    ArgumentError,
    check_choice,
    check_count,
    check_flag,
    check_penalty,
    check_rate,
)
from dualnet.builders.cells import CELLS
from dualnet.builders.initializers import check_initializer
from dualnet.builders.wrappers import check_wrappers
from dualnet.layers.doc_output import ACTIVATIONS, BALANCE_FORMS

CONNECTIONS = ("plain", "dual", "dual_without_input")
FLAGS = (
    "tied",
    "use_bias",
    "output_bias",
    "skip_connections",
    "padded",
    "embedding_dropout_per_row",
    "latent_dropout_per_expert",
    "mask_per_gate",
)
DROPOUTS = (
    "input",
    "recurrent",
    "internal",
    "output",
    "dual_input",
    "dual_output",
    "mogrifier",
    "latent",
)


def check_arguments(**arguments):
    """Refuse what is out of range, by argument name."""
    check_count("vocabulary_size", arguments["vocabulary_size"], least=1)
    check_count("recurrent_layers", arguments["recurrent_layers"], least=1)
    for name in ("units", "embedding_units", "dual_units", "latent_units"):
        if arguments[name] is not None:
            check_count(name, arguments[name], least=1)
    for name in FLAGS:
        check_flag(name, arguments[name])
    cell = check_choice("cell", arguments["cell"], CELLS)
    check_choice("connection", arguments["connection"], CONNECTIONS)
    for name in ("rounds", "rank"):
        check_count(name, arguments[name], least=0)
    if cell != "mogrifier_lstm" and arguments["rounds"] > 0:
        raise ArgumentError(
            "rounds",
            f"must be 0 for the cell {cell!r}. Received: "
            f"rounds={arguments['rounds']!r}. Use cell='mogrifier_lstm'.",
        )
    if not arguments["tied"] and arguments["past_decode_regularization"]:
        raise ArgumentError(
            "past_decode_regularization", "needs a tied output. Received: tied=False. Set it to 0."
        )
    _check_experts(arguments)
    check_wrappers(arguments)
    check_initializer(arguments["initializer"], arguments["initializer_range"])
    for place in (*DROPOUTS, "embedding", "weight"):
        check_rate(f"{place}_dropout", arguments[f"{place}_dropout"])
    if not isinstance(arguments["locked_dropouts"], (list, tuple)):
        raise ArgumentError(
            "locked_dropouts",
            f"must be a list of some of {list(DROPOUTS)}. Received: "
            f"locked_dropouts={arguments['locked_dropouts']!r}.",
        )
    for place in arguments["locked_dropouts"]:
        check_choice("locked_dropouts", place, DROPOUTS)
    for name in arguments:
        if name.endswith(("_l2", "_regularization")):
            check_penalty(name, arguments[name])


def _check_experts(arguments):
    """Refuse experts, and what is about them, that cannot be."""
    experts = arguments["experts"]
    counts = experts if isinstance(experts, (list, tuple)) else [experts]
    for count in counts:
        check_count("experts", count, least=0)
    check_choice("latent_activation", arguments["latent_activation"], ACTIVATIONS)
    check_choice("balance_form", arguments["balance_form"], BALANCE_FORMS)
    if isinstance(experts, (list, tuple)) and sum(counts) == 0:
        raise ArgumentError(
            "experts",
            f"must have at least one that is not 0. Received: experts={experts!r}. For "
            "one softmax give 0.",
        )
    if sum(counts) == 0:
        for name in ("latent_units", "latent_dropout", "balance_regularization"):
            if arguments[name]:
                raise ArgumentError(
                    name, f"needs experts. Received: {name}={arguments[name]!r}, experts=0."
                )
    if sum(counts) == 1 and arguments["balance_regularization"]:
        raise ArgumentError(
            "balance_regularization",
            "needs more than one expert to balance. Received: "
            f"balance_regularization={arguments['balance_regularization']!r}, experts={experts!r}.",
        )
    embedding_units = arguments["embedding_units"] or arguments["units"]
    if arguments["tied"] and arguments["latent_units"] not in (None, embedding_units):
        raise ArgumentError(
            "latent_units",
            f"must equal `embedding_units`, {embedding_units}, since the output is "
            f"tied to the embedding. Received: latent_units={arguments['latent_units']!r}.",
        )


def sizes(units, embedding_units, recurrent_units, recurrent_layers, dual_units, connection, tied):
    """Return the size of the embedding, of each recurrent layer, and of the dual layer."""
    embedding_units = embedding_units or units
    recurrent_units = recurrent_units or units or embedding_units
    if embedding_units is None:
        raise ArgumentError("units", "or `embedding_units` must be given. Received: None for both.")
    if isinstance(recurrent_units, Sequence):
        layer_units = [check_count("recurrent_units", size, least=1) for size in recurrent_units]
        if len(layer_units) != recurrent_layers:
            raise ArgumentError(
                "recurrent_units",
                f"must be one size or {recurrent_layers}, one for each of the "
                f"`recurrent_layers`. Received: recurrent_units={recurrent_units!r}.",
            )
        if tied and connection == "plain" and layer_units[-1] != embedding_units:
            raise ArgumentError(
                "recurrent_units",
                f"must end with `embedding_units`, {embedding_units}, since the "
                f"output is tied to the embedding. Received: recurrent_units={recurrent_units!r}.",
            )
    else:
        check_count("recurrent_units", recurrent_units, least=1)
        layer_units = [recurrent_units] * recurrent_layers
        if tied and connection == "plain":
            layer_units[-1] = embedding_units
    if connection == "plain" and dual_units is not None:
        raise ArgumentError(
            "dual_units",
            f"needs connection='dual'. Received: dual_units={dual_units!r}, connection='plain'.",
        )
    if tied and connection != "plain" and dual_units not in (None, embedding_units):
        raise ArgumentError(
            "dual_units",
            f"must equal `embedding_units`, {embedding_units}, since the output is "
            f"tied to the embedding. Received: dual_units={dual_units!r}.",
        )
    return embedding_units, layer_units, dual_units or embedding_units
