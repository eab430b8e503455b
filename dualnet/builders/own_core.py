"""The builder of a language model around a Keras model of your own."""

import json

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.builders.graph import Graph
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.parts import check_registered, classes_in


def core_model(
    core: keras.Model | str,
    *,
    vocabulary_size: int | None = None,
    name: str = "core_model",
    **others: object,
) -> LanguageModel:
    """Return a language model around a Keras model; see `LanguageModel.from_core`.

    It is the builder of cards and files, which hold `core` as text.

    Args:
        core: `keras.Model`, `[tokens, *states] -> [logits, *states]`; or its configuration, the
            JSON of `keras.saving.serialize_keras_object`, from which it is built anew.
        vocabulary_size: int. The number of its words, if it is to be checked.
        name: str. Name of the model.
        **others: Arguments of other builders, which are refused.

    Returns:
        `LanguageModel`, randomly initialised if `core` is text.

    Example:

    >>> import keras
    >>> from dualnet.builders import core_model
    >>> tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    >>> embedded = keras.layers.Embedding(9, 3)(tokens)
    >>> gru = keras.layers.GRU(4, return_sequences=True, return_state=True)
    >>> hidden, after = gru(embedded, initial_state=state)
    >>> logits = keras.layers.Dense(9)(hidden)
    >>> model = core_model(keras.Model([tokens, state], [logits, after]))
    >>> again = core_model(**model.arguments)
    >>> again.vocabulary_size, again.state_size
    (9, [4])
    """
    for key in filter(others.get, others):
        model = "a model from LanguageModel.from_core, whose parts are those of its Keras model"
        raise ArgumentError(key, f"must be left out of {model}.", **{key: others[key]})
    graph = _graph(_rebuilt(core) if isinstance(core, str) else core)
    words = int(graph.word_logits.shape[-1])
    if vocabulary_size not in (None, words):
        required = f"must be that of the Keras model, {words}."
        raise ArgumentError("vocabulary_size", required, vocabulary_size=vocabulary_size)
    if not isinstance(core, str):
        core = _configuration(graph.core)
        _check_steps(graph)
    arguments = {"vocabulary_size": words, "core": core}
    return LanguageModel(graph, builder="core", arguments=arguments, name=name)


BUILDERS["core"] = core_model


def _graph(core: keras.Model) -> Graph:
    """Return the graph of `core`, after a check of its inputs and outputs."""
    tokens, *states = core.inputs
    logits, *new_states = core.outputs
    shapes, new_shapes = ([tuple(x.shape) for x in tensors] for tensors in (states, new_states))
    are_vectors = all(len(shape) == 2 and shape[1] for shape in shapes)
    has_states = bool(shapes) and are_vectors and shapes == new_shapes
    has_tokens = "int" in tokens.dtype and tuple(tokens.shape) == (None, None)
    has_logits = len(logits.shape) == 3 and logits.shape[:2] == (None, None)
    if not (has_tokens and has_states and has_logits):
        model = "keras.Model([tokens, *states], [logits, *new_states]), with int32 tokens (batch, "
        model += "time), logits (batch, time, words), and at least one state (batch, size)"
        received = f"Received: {core.inputs} to {core.outputs}."
        raise ArgumentError("core", f"must be {model}. {received}")
    operation, node, _ = logits._keras_history
    read = operation._inbound_nodes[node].input_tensors
    hidden = read[0] if len(read) == 1 and len(read[0].shape) == 3 else logits
    outputs = (logits, *new_states)
    logits, *new_states = (x if x.dtype == "float32" else ops.cast(x, "float32") for x in outputs)
    return Graph(tokens, states, new_states, hidden, word_logits=logits)


def _configuration(core: keras.Model) -> str:
    """Return the configuration of `core` as JSON, after building a second one from it."""
    config = keras.saving.serialize_keras_object(core)
    config.pop("compile_config", None)
    text = json.dumps(config)
    for name, module in classes_in(text).items():
        check_registered("core", name, f"the layer {name} of the module {module}")
    if len(_rebuilt(text).weights) != len(core.weights):
        required = "must have the same weights when it is built again from its configuration."
        way_out = " Where two layers share a weight, make them one, such as"
        raise ArgumentError("core", required, f"{way_out} keras.layers.ReversibleEmbedding.")
    return text


def _rebuilt(text: str) -> keras.Model:
    return keras.saving.deserialize_keras_object(json.loads(text))


def _check_steps(graph: Graph) -> None:
    """Raise `ArgumentError` if a text has other logits at once than token by token."""
    words = graph.word_logits.shape[-1]
    tokens = np.random.default_rng(0).integers(words, size=(1, 5)).astype("int32")
    start = state = [ops.zeros((1, tensor.shape[1]), "float32") for tensor in graph.states]
    whole, _ = graph.logits(ops.convert_to_tensor(tokens), start)
    whole, difference = ops.convert_to_numpy(whole)[0], 0.0
    for token, expected in zip(tokens[0], whole):
        logits, state = graph.logits(ops.convert_to_tensor([[token]], "int32"), state)
        difference = max(difference, np.abs(ops.convert_to_numpy(logits) - expected).max())
    if difference > 0.05 * np.abs(whole).max():  # bfloat16 rounds to 0.4%
        how = "whether it reads a text at once or token by token with its states."
        reason = " A layer reads ahead, or what it knows of the past is not in the states."
        received = f"Received: logits that differ by {difference:.2g}."
        raise ArgumentError("core", f"must give the same logits {how} {received}", reason)
