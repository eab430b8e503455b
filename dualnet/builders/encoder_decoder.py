"""The builder of a model that translates, from its stations."""

import dataclasses
from typing import Any, Self, Unpack

import keras

from dualnet._checks import ArgumentError, check_count
from dualnet._fields import documented
from dualnet._types import Tensor
from dualnet.builders.arguments import ModelArguments
from dualnet.builders.cells import CELLS
from dualnet.builders.composing import CommonStations
from dualnet.builders.graph import Graph
from dualnet.builders.model import BUILDERS
from dualnet.builders.parts import class_of, options_of
from dualnet.builders.stations import LayerSizes, Recurrent
from dualnet.builders.translation_model import TranslationModel
from dualnet.builders.translation_stations import Attention, Encoder
from dualnet.cards import Arguments
from dualnet.layers import FirstState, RecurrentCell

# What the stations of a language model offer, and a decoder has no place for.
NOT_HERE = (
    "skip_connections", "residual", "cell_dropout", "activation_l2", "activation_regularization",
    "temporal_activation_regularization", "fraternal_regularization", "past_decode_regularization",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationStations(CommonStations):
    """All stations of one encoder-decoder, and the rules that concern two of them."""

    encoder: Encoder
    attention: Attention

    def __post_init__(self) -> None:
        arguments = self.arguments()
        for name in NOT_HERE:
            if arguments[name]:
                raise ArgumentError(
                    name, "must be left out of an encoder-decoder.", **{name: arguments[name]}
                )
        if not self.embedding.padded:
            raise ArgumentError(
                "padded", "must be True: sentences of a batch differ in length.", padded=False
            )
        cell = self.recurrent.cell
        if not issubclass(class_of("cell", cell), RecurrentCell):
            required = "must be a subclass of dualnet.layers.RecurrentCell in an encoder-decoder,"
            raise ArgumentError("cell", f"{required} whose attention runs its parts.", cell=cell)

    @classmethod
    def of(cls, arguments: Arguments) -> Self:
        return super().of({"padded": True, **_with_layers(arguments)})

    def layer_sizes(self) -> LayerSizes:
        sizes, units = self.sizes.resolve(), self.attention.attention_units
        name, attentional = "attention_units", units or sizes.embedding
        if self.attention.attention == "additive":
            name, attentional = "recurrent_units", sizes.recurrent[-1]
            if units not in (None, attentional):
                raise ArgumentError(
                    "attention_units",
                    f"must be that of the highest recurrent layer, {attentional}.",
                    attention_units=units,
                )
        self.check_tied(sizes, name, attentional)
        return dataclasses.replace(sizes, attentional=attentional)


def _with_layers(arguments: Arguments) -> dict[str, Any]:
    """Return `arguments` with `recurrent_layers` for the `depth` of a cell that has none."""
    cell = arguments.get("cell", Recurrent.cell)
    if "depth" not in arguments or cell not in CELLS or "depth" in options_of("cell", cell):
        return dict(arguments)
    if "recurrent_layers" in arguments:
        raise ArgumentError(
            "depth",
            f"must be left out beside `recurrent_layers` for the cell {cell!r}.",
            depth=arguments["depth"],
        )
    renamed = {"depth": "recurrent_layers"}
    return {renamed.get(name, name): value for name, value in arguments.items()}


@documented(*TranslationStations.classes().values(), rest="cell_options")
def encoder_decoder(
    vocabulary_size: int,
    *,
    source_vocabulary_size: int | None = None,
    share_embeddings: bool = False,
    name: str = "encoder_decoder",
    **arguments: Unpack[ModelArguments],
) -> TranslationModel:
    """Return a model that translates: source ids and target ids to logits of the target words.

    The decoder has the stations of a language model, and an attention to what the encoder has
    read, so that any cell, connection and output can stand in it. `experts` has a number for
    the embedding, for each cell of the decoder, for the attentional vector, and for the dual
    layer if there is one.

    Args:
        vocabulary_size: int. Number of words of the target.
        source_vocabulary_size: int. Number of words of the source; that of the target by
            default.
        share_embeddings: bool. Whether source and target words have the same vectors, for one
            vocabulary of both.
        {arguments}
        name: str. Name of the model.
        **cell_options: Arguments of the cell alone. `depth` fits every cell: for one without a
            depth of its own it is `recurrent_layers`, the number of cells on top of each other.

    Returns:
        `TranslationModel`, randomly initialised.

    Example:

    >>> import numpy as np
    >>> from dualnet.builders import encoder_decoder
    >>> model = encoder_decoder(20, units=8, recurrent_layers=2, experts=[0, 0, 0, 2])
    >>> source, target = np.array([[3, 4, 5, -1]]), np.array([[0, 7]])
    >>> tuple(model({"source": source, "target": target}).shape)
    (1, 2, 20)

    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143, section 6; Yao et al.,
    2015, https://arxiv.org/abs/1508.03790. Differs from both in what they leave
    open; the cards of the zoo say where.
    """
    vocabulary_size = check_count("vocabulary_size", vocabulary_size)
    source_size = vocabulary_size
    if source_vocabulary_size is not None:
        source_size = check_count("source_vocabulary_size", source_vocabulary_size)
    if share_embeddings and source_size != vocabulary_size:
        raise ArgumentError(
            "share_embeddings",
            "needs one vocabulary of source and target. Received: share_embeddings=True, "
            f"{source_size} source words and {vocabulary_size} target words.",
        )
    stations = TranslationStations.of(arguments)
    complete = {
        "vocabulary_size": vocabulary_size,
        "source_vocabulary_size": source_size,
        "share_embeddings": share_embeddings,
        **stations.arguments(),
    }
    parts = _parts(vocabulary_size, source_size, share_embeddings, stations)
    return TranslationModel(*parts, builder="encoder_decoder", arguments=complete, name=name)


BUILDERS["encoder_decoder"] = encoder_decoder


def _parts(
    vocabulary_size: int, source_size: int, shared: bool, stations: TranslationStations
) -> tuple[keras.Model, Graph, keras.Model]:
    """Return the encoder, the graph of the decoder, and both connected."""
    sizes, dropouts = stations.layer_sizes(), stations.dropouts
    recurrent, embedding = stations.recurrent, stations.embedding
    source = keras.Input((None,), dtype="int32", name="source")
    tokens = keras.Input((None,), dtype="int32", name="target")
    layer, embedded = embedding.embed(tokens, vocabulary_size, sizes.embedding)
    if shared:
        source_vectors = embedding.vectors(source, layer, name="source_embedding")
    else:
        name, size = "source_embedding", sizes.embedding
        _, source_vectors = embedding.embed(source, source_size, size, name=name)
    mask = source >= 0
    memory, states = stations.encoder.read(source_vectors, mask, sizes.recurrent, stations)
    keys = stations.attention.keys(memory, sizes.recurrent)
    decoder = stations.attention.decoder(sizes.recurrent, sizes.attentional, stations)
    state_size = decoder.recurrence.cell.state_size
    states = _first_states(state_size, states, source, stations.encoder.first_state)
    encoded = [memory, keys, mask, *states]
    x = embedded
    if not recurrent.mask_per_gate:
        x = dropouts.drop("input", recurrent.input_dropout, x)
    outputs, hidden, new_states = decoder.run(x, encoded[:3], states)
    levels = [x]
    for number, output in enumerate(outputs, start=1):
        rate, level = recurrent.internal_dropout, f"level_{number}_dropout"
        levels.append(dropouts.drop("internal", rate, output, name=level))
    levels.append(dropouts.drop("output", recurrent.output_dropout, hidden))
    top = stations.top(layer, embedded, levels, sizes, vocabulary_size)
    # The decoder alone begins where the encoder ends.
    graph = Graph(tokens, encoded, new_states, hidden, **top, padded=True, constants=3)
    encoder = keras.Model(source, encoded, name="encoder")
    whole = keras.Model([source, tokens], graph.word_logits, name="whole")
    stations.start(whole)
    return encoder, graph, whole


def _first_states(sizes: list[int], after: list[Tensor], source: Tensor, rule: str) -> list[Tensor]:
    """Return the first states of the decoder, those `after` the encoder where the rule says so."""
    if rule != "encoder":
        return FirstState(sizes, learned=rule == "learned", name="first_state")(source)
    # The attentional vector, if it is a state, starts as zero.
    encoded, own = [state.shape[-1] for state in after], len(sizes) - len(after)
    if encoded != list(sizes[own:]):
        raise ArgumentError(
            "first_state",
            "must be 'learned' or 'zeros' where the states of the encoder, of the sizes "
            f"{encoded}, are not those of the decoder, {list(sizes[own:])}. Received: 'encoder'.",
        )
    zeros = FirstState(sizes[:own], name="first_state")(source) if own else []
    return [*zeros, *after]
