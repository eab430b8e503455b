"""The builder of one language model, from its stations."""

from typing import Unpack

import keras

from dualnet._checks import check_count
from dualnet._fields import documented
from dualnet.builders.arguments import ModelArguments
from dualnet.builders.composing import STATIONS, Stations, without_regularization
from dualnet.builders.graph import Graph
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.wrapping import wrap
from dualnet.builders.wrapping_stations import Cache, Gate


@documented(*STATIONS.values(), rest="cell_options")
def language_model(
    vocabulary_size: int, *, name: str = "language_model", **arguments: Unpack[ModelArguments]
) -> LanguageModel:
    """Return a language model, int32 ids `(batch, time)` to float32 logits.

    The stations are embedding, recurrent layers, connection, output, gate and cache; each
    class in `dualnet.builders.stations` owns some of the arguments. By default the embedding
    matrix is also the output matrix, without output bias. Tying makes what enters the output
    `embedding_units` wide: the last recurrent layer (plain), the dual layer (dual), or the
    latent vectors (with experts).

    Args:
        vocabulary_size: int. Number of words.
        {arguments}
        name: str. Name of the model.
        **cell_options: Arguments of the cell alone, e.g. `depth`, or `rounds` and `rank` of the
            Mogrifier, which has no rounds by default.

    Returns:
        `LanguageModel`, randomly initialised.

    Example:

    >>> from dualnet.builders import language_model
    >>> model = language_model(100, units=8, connection="dual", cell="mogrifier_lstm", rounds=4)
    >>> model.count_params()
    1768

    Reference: Oliva and Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776, section 3
    and Table 1.
    """
    vocabulary_size = check_count("vocabulary_size", vocabulary_size)
    stations = Stations.of(arguments)
    complete = {"vocabulary_size": vocabulary_size, **stations.arguments()}
    if stations.gate.is_used or stations.cache.is_used:
        base = without_regularization(complete) if stations.gate.is_used else complete
        below = language_model(**base | Gate().arguments() | Cache().arguments())
        graph = wrap(below, stations.gate, stations.cache)
    else:
        graph = _graph(vocabulary_size, stations)
    return LanguageModel(graph, builder="language_model", arguments=complete, name=name)


BUILDERS["language_model"] = language_model


def _graph(vocabulary_size: int, stations: Stations) -> Graph:
    """Connect the stations of a model without gate and cache."""
    sizes, dropouts = stations.layer_sizes(), stations.dropouts
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding, embedded = stations.embedding.embed(tokens, vocabulary_size, sizes.embedding)
    mask, recurrent = stations.embedding.mask(tokens), stations.recurrent
    levels, hidden, states, after = recurrent.run(embedded, sizes.recurrent, dropouts, mask)
    top = stations.top(embedding, embedded, levels, sizes, vocabulary_size)
    past_decode, padded = stations.output.past_decode(embedding), stations.embedding.padded
    graph = Graph(tokens, states, after, hidden, **top, past_decode=past_decode, padded=padded)
    stations.start(graph.core)
    return graph
