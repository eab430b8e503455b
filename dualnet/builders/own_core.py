"""The builder of a language model around a Keras model of your own."""

import json
import re

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.builders.graph import Graph
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.parts import check_registered, classes_in
from dualnet.devices import whole_batches


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
        raise ArgumentError(
            "vocabulary_size",
            f"must be that of the Keras model, {words}.",
            vocabulary_size=vocabulary_size,
        )
    if not isinstance(core, str):
        core = _configuration(graph.core)
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
        raise ArgumentError("core", f"must be {model}. Received: {core.inputs} to {core.outputs}.")
    operation, node, _ = logits._keras_history
    read = operation._inbound_nodes[node].input_tensors
    hidden = read[0] if len(read) == 1 and len(read[0].shape) == 3 else logits
    outputs = (logits, *new_states)
    logits, *new_states = (x if x.dtype == "float32" else ops.cast(x, "float32") for x in outputs)
    return Graph(tokens, states, new_states, hidden, word_logits=logits)


def _configuration(core: keras.Model) -> str:
    """Return the configuration of `core` as JSON, after a check of a copy that is built from it."""
    config = keras.saving.serialize_keras_object(core)
    config.pop("compile_config", None)
    text = json.dumps(config)
    for name, module in classes_in(text).items():
        check_registered("core", name, f"the layer {name} of the module {module}")
    # In float32: the rounding of half precision would hide what the check looks for.
    copy = _rebuilt(re.sub('"(mixed_)?b?float16"', '"float32"', text))
    if len(copy.weights) != len(core.weights):
        raise ArgumentError(
            "core",
            "must have the same weights when it is built again from its configuration.",
            " Where two layers share a weight, make them one, such as "
            "keras.layers.ReversibleEmbedding.",
        )
    copy.set_weights(core.get_weights())
    _check_reading(copy)
    return text


def _rebuilt(text: str) -> keras.Model:
    return keras.saving.deserialize_keras_object(json.loads(text))


def _check_reading(core: keras.Model) -> None:
    """Raise `ArgumentError` if logits depend on later tokens, or on where a text is cut.

    The weights of `core` are drawn anew, since zeros would hide what training brings out. What
    a layer keeps in a weight that is never trained, such as a mask, stays.
    """
    random = np.random.default_rng(0)
    for layer in core._flatten_layers():
        layer.trainable = True  # frozen ones, too
    for weight in core.trainable_variables:
        # More would make large matrices chaotic: rounding would grow from step to step.
        scale = weight.shape[-1] ** -0.5 if len(weight.shape) > 1 else 0.1
        weight.assign(scale * random.standard_normal(weight.shape, "float32"))
    words, cuts = core.outputs[0].shape[-1], [1, 2, 4, 34]
    texts = np.tile(random.integers(words, size=64).astype("int32"), (len(cuts) + 1, 1))
    for text, cut in zip(texts[1:], cuts):
        text[cut:] = (text[cut] + 1) % words
    states = [np.zeros((len(texts), x.shape[1]), "float32") for x in core.inputs[1:]]
    with whole_batches():
        whole, *_ = core.predict_on_batch([texts, *states])
        parts = []
        for part in np.split(texts, cuts, axis=1):
            logits, *states = core.predict_on_batch([part, *states])
            parts.append(logits)
    ahead = max(np.abs(other - whole[0])[:cut].max() for other, cut in zip(whole[1:], cuts))
    carried = np.abs(np.concatenate(parts, axis=1) - whole).max()
    largest = np.abs(whole).max()
    # Parts have other shapes, for which a GPU may round products to 10 bits.
    if ahead > 1e-5 * largest or carried > 1e-3 * largest:
        raise ArgumentError(
            "core",
            "must give the same logits whether it reads a text at once or token by token with its "
            f"states. Received: logits that differ by {max(ahead, carried):.2g}.",
            " A layer reads ahead, or what it knows of the past is not in the states.",
        )
