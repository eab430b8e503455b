"""Which weights of a model learn: all, a station, some by name, or a few that are added."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops, tree

from dualnet._checks import ArgumentError
from dualnet._types import Tensor
from dualnet.builders import Graph, LanguageModel, cached, names_in
from dualnet.builders.wrapping_stations import Cache
from dualnet.layers import AdaptationMatrix, Recurrence
from dualnet.layers._configured import ConfiguredLayer, Role
from dualnet.requests import check_weights

# Those that are added; a matrix may have a rank, as in "matrix:16".
MATRIX, RECURRENT, OUTPUT, BIAS = "matrix", "recurrent_matrix", "output_matrix", "output_bias"
STATIONS = {  # by patterns of the names of layers; the recurrence of a translator is its decoder
    "connection": ["connection"],
    "recurrence": ["recurrence_*", "decoder"],
    "output": ["output"],
    "embedding": ["embedding"],
}


@dataclasses.dataclass(frozen=True, eq=False)
class Adapted:
    """A model, and which of its weights learn.

    Attributes:
        graph: `Graph` of the model, without past decoding, with the weights that were added.
        trainable: dict from names to all weights that could learn.
        weights: dict, those of them that do.
        items: The list of what was asked for; empty for all weights.
        cache: int. Number of tokens of a cache of n-grams on the graph, 0 without one.
    """

    graph: Graph
    trainable: dict[str, keras.Variable]
    weights: dict[str, keras.Variable]
    items: list[str]
    cache: int = 0

    @property
    def adds(self) -> bool:
        """Whether there are weights that the model does not have."""
        return any(_is_added(item) for item in self.items)


class OutputBias(ConfiguredLayer):
    """Adds a bias, zero at first, to logits."""

    def build(self, input_shape):
        self.bias = self.add_zeros("bias", input_shape[-1], role=Role.BIAS)

    def call(self, inputs):
        return inputs + self.bias


class OutputMatrix(AdaptationMatrix):
    """Adds (h A) B, of a rank, to logits: a difference of the matrix that makes them from h."""

    def build(self, input_shapes):
        features, logits = input_shapes
        self.build_factors(features[-1], logits[-1])

    def call(self, inputs):
        features, logits = inputs
        return logits + self.product(features)


class RecurrentMatrix(AdaptationMatrix):
    """The adaptation matrix of a recurrence: returns its factors for each row of the tokens."""

    def __init__(self, units, rank=None, **kwargs):
        super().__init__(rank, **kwargs)
        self.units = units

    def build(self, input_shape):
        self.build_factors(self.units, self.units)

    def call(self, tokens):
        # A learner has one for each row already.
        values = [ops.reshape(w.value, (-1, *w.shape)) for w in self.factors]
        return [ops.broadcast_to(v, (ops.shape(tokens)[0], *v.shape[1:])) for v in values]


def adapted(
    model: LanguageModel,
    adapt: str | Sequence[str] | None,
    *,
    cache: int | None = None,
    name: str = "adapt",
) -> Adapted:
    """Return the graph of `model` and the weights that learn, as `adapt` says; None for all.

    With `cache`, it has a cache of n-grams of that size.
    """
    if adapt is not None:
        check_weights("adapt", adapt)
    items = [adapt] if isinstance(adapt, str) else list(adapt or [])
    items = [] if "all" in items else list(dict.fromkeys(items))
    graph = model.graph.without_past_decode()
    added = {item: item.partition(":")[0] for item in items if _is_added(item)}
    try:
        for station, add in ADDED.items():
            several = [item for item in added if added[item] == station]
            if len(several) > 1:
                raise ArgumentError("adapt", f"can name one {station!r}. Received: {several}.")
            for item in several:
                graph = add(graph, item)
        ids = {*map(id, graph.core.trainable_variables), *_frozen(model.core, model.arguments)}
        names = {id(weight): path for path, weight in names_in(graph.core).items()}
        trainable = {names[id(w)]: w for w in graph.core.weights if id(w) in ids}
        if not trainable:
            raise ArgumentError(
                "model",
                f"must have weights that are trainable, to learn. Received: {model.name!r} "
                "without.",
                " Set model.trainable = True, or let 'output_bias' learn.",
            )
        chosen = {path for item in items for path in _matches(item, graph, trainable)}
    except ArgumentError as error:
        if error.argument != "adapt":
            raise
        raise ArgumentError(name, str(error).removeprefix("`adapt` ")) from None
    weights = {name: w for name, w in trainable.items() if name in chosen or not items}
    if cache:
        if graph.encoder is not None or model.graph.is_normalised:
            raise ArgumentError(
                "cache",
                "must be 0 for a translator, and for a model that has a cache of n-grams.",
                cache=cache,
            )
        graph = cached(graph, Cache(cache_size=cache, cache_kind="ngram"))
    return Adapted(graph, trainable, weights, items, cache or 0)


def _is_added(item: str) -> bool:
    return item == BIAS or item.partition(":")[0] in (MATRIX, RECURRENT, OUTPUT)


def _matches(item: str, graph: Graph, trainable: Mapping[str, keras.Variable]) -> list[str]:
    """Return the names of the weights that `item` means; raise `ArgumentError` if it is none."""
    if _is_added(item):
        names = [name for name in trainable if name.startswith(f"{item.partition(':')[0]}/")]
    elif item in STATIONS:
        of_station = _weights_of(graph.core, STATIONS[item])
        names = [name for name, weight in trainable.items() if id(weight) in of_station]
    else:
        names = fnmatch.filter(trainable, item)
    if not names:
        ranks = [f"{name}:RANK" for name in (OUTPUT, MATRIX, RECURRENT)]
        own = {id(weight) for weight in trainable.values()}
        stations = [name for name in STATIONS if own & _weights_of(graph.core, STATIONS[name])]
        listed = ", ".join(map(repr, ["all", *stations, BIAS, *ranks, MATRIX, RECURRENT]))
        required = f"must name weights of this model: {listed}, or names or patterns of"
        raise ArgumentError("adapt", f"{required} {', '.join(trainable)}. Received: {item!r}.")
    return names


def _weights_of(core: keras.Model, patterns: Sequence[str]) -> set[int]:
    """Return the weights, as `id`, of all layers with one of the names, those of members too."""
    ids = set()
    for layer in core.layers:
        if _is_named(layer, patterns):
            ids |= {id(weight) for weight in layer.weights}
        elif isinstance(layer, keras.Model):
            ids |= _weights_of(layer, patterns)
    return ids


def _is_named(layer: keras.layers.Layer, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(layer.name, pattern) for pattern in patterns)


def _with_matrix(graph: Graph, item: str) -> Graph:
    """Return `graph` with an adaptation matrix on what the head reads, the last output of several.

    That is the last layer's among the outputs that DOC mixes.
    """
    *others, last = _features(graph, item)
    matrix = AdaptationMatrix(_rank(item), name=MATRIX)
    features = tree.pack_sequence_as(graph.features, [*others, matrix(last)])
    logits = graph.head(features)
    return dataclasses.replace(graph, features=features, word_logits=logits, core=None)


def _with_output_matrix(graph: Graph, item: str) -> Graph:
    """Return `graph` with a product of what the head reads, the last of several, on its logits."""
    rank = _rank(item)
    if rank is None:
        required = f"must give {OUTPUT!r} a rank, as in '{OUTPUT}:8'."
        raise ArgumentError("adapt", f"{required} Received: {item!r}. 'output' has them all.")
    *_, last = _features(graph, item)
    logits = OutputMatrix(rank, name=OUTPUT, dtype="float32")([last, graph.word_logits])
    return graph.with_logits(logits)


def _features(graph: Graph, item: str) -> list[Tensor]:
    if graph.head is None:
        raise ArgumentError(
            "adapt",
            "must be in a model whose output layer makes its logits: no gate, cache, ensemble or "
            f"core of your own. Received: {item!r}.",
        )
    return tree.flatten(graph.features)


def _with_recurrent_matrix(graph: Graph, item: str) -> Graph:
    """Return `graph` with an adaptation matrix in its last recurrent layer."""
    layers = [layer for layer in graph.core.layers if isinstance(layer, Recurrence)]
    layers = [layer for layer in layers if _is_named(layer, STATIONS["recurrence"])]
    if not layers or graph.encoder is not None:
        required = f"can name {RECURRENT!r} in a language model with recurrent layers, not members."
        raise ArgumentError("adapt", f"{required} Received: {item!r}.")
    matrix = RecurrentMatrix(layers[-1].cell.output_size, _rank(item), name=RECURRENT)
    return graph.with_adapted_recurrence(layers[-1].name, matrix)


def _rank(item: str) -> int | None:
    name, colon, text = item.partition(":")
    if colon and not (text.isdecimal() and int(text) > 0):
        required = f"must be '{name}:RANK' with a whole number above 0 for RANK."
        raise ArgumentError("adapt", f"{required} Received: {item!r}.")
    return int(text) if colon else None


def _with_bias(graph: Graph, item: str) -> Graph:
    """Return `graph` with a bias on its logits, those of a mixture or a gate too."""
    logits = OutputBias(name=BIAS, dtype="float32")(graph.word_logits)
    return graph.with_logits(logits, is_normalised=False)


ADDED = {
    MATRIX: _with_matrix,
    OUTPUT: _with_output_matrix,
    RECURRENT: _with_recurrent_matrix,
    BIAS: _with_bias,
}


def _frozen(graph: keras.Model, arguments: Mapping[str, Any]) -> set[int]:
    """Return the weights, as `id`, that are frozen below the gate of `graph` or of a member."""
    if arguments.get("gate", "none") != "none":
        frozen = [layer for layer in graph.layers if not layer.trainable]
        parts = [part for layer in frozen for part in layer._flatten_layers()]
        return {id(weight) for part in parts for weight in part._trainable_variables}
    ids = set()
    for number, member in enumerate(arguments.get("members", ()), start=1):
        ids |= _frozen(graph.get_layer(f"member_{number}"), member["arguments"])
    return ids
