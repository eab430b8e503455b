"""Functional-API builders: embedding, recurrent cells, connection, output."""

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._checks import ArgumentError
from dualnet.builders.arguments import check_arguments, sizes
from dualnet.builders.cells import CELLS, arguments_of, check_options
from dualnet.builders.initializers import initialise
from dualnet.builders.model import LanguageModel
from dualnet.builders.wrappers import WRAPPERS, Parts, quiet, wrap
from dualnet.layers import (
    ActivationRegularization,
    DOCOutput,
    DualConnection,
    EmbeddingDropout,
    LockedDropout,
    MixtureSoftmax,
    OutputProjection,
    PastDecode,
    Recurrence,
    StepDropout,
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
    tied: bool = True,
    use_bias: bool = True,
    output_bias: bool = False,
    skip_connections: bool = False,
    experts: int | Sequence[int] = 0,
    latent_units: int | None = None,
    latent_activation: str = "tanh",
    gate: str = "none",
    gate_units: int = 300,
    gate_initializer_range: float = 0.05,
    cache_size: int = 0,
    cache_weight: float = 0.2,
    cache_scale: float = 0.3,
    cache_start: str = "at_once",
    padded: bool = False,
    embedding_dropout: float = 0.0,
    embedding_dropout_per_row: bool = False,
    input_dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
    weight_dropout: float = 0.0,
    internal_dropout: float = 0.0,
    output_dropout: float = 0.0,
    dual_input_dropout: float = 0.0,
    dual_output_dropout: float = 0.0,
    mogrifier_dropout: float = 0.0,
    latent_dropout: float = 0.0,
    latent_dropout_per_expert: bool = False,
    gate_dropout: float = 0.0,
    locked_dropouts: Sequence[str] = ("input", "recurrent", "mogrifier", "latent"),
    mask_per_gate: bool = False,
    weight_l2: float = 0.0,
    embedding_l2: float = 0.0,
    input_l2: float = 0.0,
    recurrent_l2: float = 0.0,
    activation_l2: float = 0.0,
    dual_l2: float = 0.0,
    mogrifier_l2: float = 0.0,
    activation_regularization: float = 0.0,
    temporal_activation_regularization: float = 0.0,
    fraternal_regularization: float = 0.0,
    past_decode_regularization: float = 0.0,
    balance_regularization: float = 0.0,
    balance_form: str = "code",
    initializer: str = "keras",
    initializer_range: float = 0.0,
    name: str = "language_model",
    **cell_options: Any,
) -> LanguageModel:
    """Return a language model, int32 ids `(batch, time)` to float32 logits.

    Stations: embedding, recurrent cells, connection, output, gate, cache. By default
    the embedding matrix is also the output matrix, without output bias. Tying forces
    what enters the output to be `embedding_units` wide: the last recurrent layer
    (plain), the dual layer (dual), or the latent vectors (with experts).

    Args:
        vocabulary_size: int. Number of words.
        units: int. Size of every layer whose own size is not given.
        embedding_units: int. Size of the embedding.
        recurrent_units: int, the size of every recurrent layer (where a plain
            connection enters a tied output, the last takes `embedding_units`), or
            one for each layer.
        recurrent_layers: int, at least 1.
        dual_units: int. If tied, it must equal `embedding_units`.
        cell: name of a recurrent cell, one of `dualnet.builders.CELLS`.
        rounds: int. Rounds of the Mogrifier, from 0.
        rank: int. Rank of its matrices, 0 for full rank.
        connection: "plain", "dual", or "dual_without_input" (the paper's mdLSTM+).
        tied: bool. The output takes the embedding matrix, or has one of its own.
        use_bias: bool. Whether the recurrent cells have biases.
        output_bias: bool. Whether the output has one.
        skip_connections: bool. The last recurrent output is the sum of the outputs
            of all recurrent layers, which must be of one size (Melis et al.).
        experts: int or list of int. 0: one softmax. A number: a mixture of so many, from
            what enters the output (`MixtureSoftmax`). A list: one number for each layer,
            the embedding first, then the recurrent layers, and with a dual connection
            that, too (`DOCOutput`).
        latent_units: int. Size of the experts' latent vectors; default, and if tied
            without choice, `embedding_units`.
        latent_activation: "tanh" (with bias, as released), or "linear" (without, as
            the DOC paper prints it).
        gate: "none"; or the input-to-output gate on the logits of a model that is
            trained already: "input" (`IOGate`), or its variants "input_and_hidden" and
            "lstm" (an LSTM over the gate's own embedding). The model below is frozen,
            its dropouts and penalties are off. See `dualnet.with_gate`.
        gate_units: int. Size of the gate's embedding (and LSTM).
        gate_initializer_range: its matrices start uniform within it.
        cache_size: int. Words that a neural cache remembers (`NeuralCache`), 0 for none.
            It has no weights; see `dualnet.with_cache`. Past decoding is left out beside it.
        cache_weight: of the cache's probabilities, from 0 to below 1 (lambda).
        cache_scale: of the products of hidden vectors in the cache (theta).
        cache_start: "at_once" or "when_full".
        padded: bool. Tokens below 0 are padding: they change no state, and count
            for nothing. Needed for batches of sentences; costs some speed.
        embedding_dropout: of whole words, wherever they stand in the segment.
        embedding_dropout_per_row: bool. Each row draws its words for itself (the
            variational LSTM), or one draw is shared by all rows (AWD-LSTM).
        input_dropout: on the embedding where it enters the recurrence.
        recurrent_dropout: on each layer's incoming h.
        weight_dropout: of single weights of the recurrent matrices, one draw for
            all rows of a segment (AWD-LSTM).
        internal_dropout: between recurrent layers.
        output_dropout: on the output of the last recurrent layer.
        dual_input_dropout: on the embedding where it enters the dual layer.
        dual_output_dropout: on the output of the dual layer.
        mogrifier_dropout: between the factors of the Mogrifier's matrices.
        latent_dropout: on the latent vectors of the experts.
        latent_dropout_per_expert: bool. Each expert has a mask of its own (MoS), or one
            is shared by all (DOC).
        gate_dropout: on the gate's embedding, a fresh mask at each step.
        locked_dropouts: the dropouts that keep one mask for a whole segment, by
            name without `_dropout`; the others draw a fresh mask at each step.
            Default (our choice, the paper is silent): what the arguments of a
            Keras recurrent layer do, and fresh masks elsewhere.
        mask_per_gate: bool. "input", "internal" (as the inputs of cells) and
            "recurrent" masks differ by gate (Gal and Ghahramani).
        weight_l2: times the sum of squares of all weights, biases too.
        embedding_l2: times the sum of squares of the embedding (and output) matrix.
        input_l2: the same for every recurrent layer's input matrix.
        recurrent_l2: the same for every recurrent layer's recurrent matrix.
        activation_l2: times the sum over time and units, and the mean over the
            batch, of the squared outputs of each recurrent layer (as Keras's
            `activity_regularizer`; the paper is silent).
        dual_l2: as `input_l2` for both matrices of the dual layer.
        mogrifier_l2: the same for all matrices of the Mogrifier.
        activation_regularization: AR of AWD-LSTM, its alpha; in training alone, as
            all that follow.
        temporal_activation_regularization: TAR of AWD-LSTM, its beta.
        fraternal_regularization: kappa of Zolna et al., 2018: a step reads the
            segment twice, with other masks, from the same state; the loss is the
            mean of both, plus kappa times the mean squared difference of the logits.
            One of the two is carried on. Penalties on activations, and past decoding,
            count for both.
        past_decode_regularization: lambda of Brahma, 2019; see `PastDecode`. Needs a
            tied output.
        balance_regularization: lambda of the experts' balance penalty (DOC).
        balance_form: "code" (as released, to which the paper's lambda of 0.001
            belongs), or "paper"; see `DOCOutput`.
        initializer: "keras" (each layer's own; our choice for the embedding, normal
            with standard deviation 1 / sqrt(units)), or one of
            `dualnet.builders.initializers.INITIALIZERS`.
        initializer_range: float, for those that need it.
        name: str. Name of the model.
        **cell_options: the cell's own arguments, e.g. `depth`.

    Returns:
        `LanguageModel`, randomly initialised.

    Raises:
        ValueError: if a value is out of range, or sizes contradict each other.

    Reference: Oliva and Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776,
    section 3 and Table 1.
    """
    arguments = {
        key: value for key, value in locals().items() if key not in ("name", "cell_options")
    }
    check_arguments(**arguments)
    check_options(cell, cell_options)
    if gate != "none" or cache_size > 0:
        below = {**arguments, **cell_options}
        below = (quiet(below) if gate != "none" else below) | WRAPPERS
        return wrap(
            Parts.of(language_model(**below)),
            builder="language_model",
            arguments={**arguments, **cell_options},
            name=name,
        )
    embedding_units, layer_units, dual_units = sizes(
        units,
        embedding_units,
        recurrent_units,
        recurrent_layers,
        dual_units,
        connection,
        tied and not experts,
    )
    if skip_connections and len(set(layer_units)) > 1:
        raise ArgumentError(
            "skip_connections",
            "needs recurrent layers of one size. Received: "
            f"{layer_units}. Set recurrent_units to embedding_units.",
        )

    def dropout(place, tensor, name=None):
        rate = arguments[f"{place}_dropout"]
        if rate == 0:
            return tensor
        kind = LockedDropout if place in locked_dropouts else StepDropout
        return kind(rate, name=name or f"{place}_dropout")(tensor)

    def make_cell(i, size):
        kind = CELLS[cell]
        known = arguments_of(kind)
        own = {name: value for name, value in arguments.items() if name in known} | cell_options
        own |= {"units": size, "input_dropout": 0.0}
        before = "input" if i == 1 else "internal"  # the place before this layer
        if mask_per_gate:
            own["input_dropout"] = arguments[f"{before}_dropout"]
        places = {"input": before}  # what the cell's dropouts are called here
        own["locked"] = [x for x in kind.dropouts if places.get(x, x) in locked_dropouts]
        return kind(name=f"cell_{i}", **own)

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
    embedded = embedding(keras.ops.maximum(tokens, 0) if padded else tokens)
    if embedding_dropout > 0:
        words = EmbeddingDropout(
            embedding_dropout,
            vocabulary_size=vocabulary_size,
            per_row=embedding_dropout_per_row,
            name="embedding_dropout",
        )
        embedded = words([tokens, embedded])
    mask = tokens >= 0 if padded else None
    x = embedded if mask_per_gate else dropout("input", embedded)
    states: list[Any] = []
    new_states: list[Any] = []
    outputs = []
    levels = []  # what experts may read: each layer's output with the dropout that follows it
    for i, size in enumerate(layer_units, start=1):
        if i > 1 and not mask_per_gate:
            x = dropout("internal", x, f"internal_dropout_{i}" if i > 2 else None)
        levels.append(x)
        layer_cell = make_cell(i, size)
        initial = [
            keras.Input((n,), dtype="float32", name=f"state_{len(states) + k}")
            for k, n in enumerate(layer_cell.state_size, start=1)
        ]
        x, *final = Recurrence(layer_cell, name=f"recurrence_{i}")(
            x, initial_state=initial, mask=mask
        )
        states, new_states = states + initial, new_states + final
        if activation_l2 > 0:
            x = keras.layers.ActivityRegularization(l2=activation_l2, name=f"activation_{i}")(x)
        outputs.append(x)
    if skip_connections and len(outputs) > 1:
        x = keras.layers.Add(name="skip_connections")(outputs)
    raw, x = x, dropout("output", x)
    if activation_regularization > 0 or temporal_activation_regularization > 0:
        x = ActivationRegularization(
            activation=activation_regularization,
            temporal=temporal_activation_regularization,
            name="activation_regularization",
        )([x, raw])
    levels.append(x)
    if connection != "plain":
        x = DualConnection(
            dual_units, use_input=connection == "dual", dual_l2=dual_l2, name="connection"
        )([dropout("dual_input", embedded), x])
        x = dropout("dual_output", x)
        levels.append(x)
    features: Any = None
    if not experts:
        logits = OutputProjection(
            None if tied else vocabulary_size,
            tied_to=embedding if tied else None,
            use_bias=output_bias,
            name="output",
        )(x)
    else:
        if isinstance(experts, Sequence) and len(experts) != len(levels):
            places = ["the embedding", *(f"recurrent layer {i + 1}" for i in range(len(outputs)))]
            places += ["the dual connection"] if connection != "plain" else []
            raise ArgumentError(
                "experts",
                f"must have {len(levels)} numbers, one for each layer: "
                f"{', '.join(places)}. Received: experts={list(experts)}.",
            )
        of_layers = isinstance(experts, Sequence)
        features = levels if of_layers else x
        logits = (DOCOutput if of_layers else MixtureSoftmax)(
            vocabulary_size,
            experts,
            latent_units or embedding_units,
            tied_to=embedding if tied else None,
            use_bias=output_bias,
            latent_activation=latent_activation,
            latent_dropout=latent_dropout,
            latent_dropout_per_expert=latent_dropout_per_expert,
            latent_dropout_locked="latent" in locked_dropouts,
            balance=balance_regularization,
            balance_form=balance_form,
            name="output",
        )(features)
    if past_decode_regularization > 0:
        past = PastDecode(past_decode_regularization, tied_to=embedding, name="past_decode")
        logits = past([tokens, logits])
    core = keras.Model([tokens, *states], [logits, *new_states], name="core")
    initialise(core, initializer, initializer_range)
    if weight_l2 > 0:
        for weight in core.trainable_variables:
            own = weight.regularizer.l2 if weight.regularizer is not None else 0.0
            weight.regularizer = keras.regularizers.L2(own + weight_l2)
    return LanguageModel(
        core,
        builder="language_model",
        arguments={**arguments, **cell_options},
        hidden=raw,
        features=features,
        name=name,
    )
