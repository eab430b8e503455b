"""Inner values of layers: gates, memories, and the contribution of the current word to a logit."""

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError
from dualnet._types import Tensors
from dualnet.builders import Graph, LanguageModel, reader_of
from dualnet.evaluation.scoring import segments
from dualnet.layers import DualConnection, OutputProjection
from dualnet.layers._records import recorded

Values = dict[tuple[str, str], np.ndarray]  # by layer and name, float32 (tokens, units)


def read_inside(model: LanguageModel, stream: np.ndarray) -> Values:
    """Return the values of each layer at each token of `stream`, read from the zero state.

    The cells themselves record it, one token at a time: their equations have no second form.
    """
    answers = segments(reader_of(model, _inside), [stream], [len(stream)], 1, 1)
    rows = [answer for _, answer in answers]
    layers = list(model.graph.layer_outputs)
    keys = sorted((key.split("/") for key in rows[0]), key=lambda key: layers.index(key[0]))
    return {
        (layer, name): np.concatenate([row[f"{layer}/{name}"][0] for row in rows])
        for layer, name in keys
    }


def _inside(graph: Graph, segment: Tensors) -> Tensors:
    # Keras's own RNN has a loop even for one token, whose values are of no use outside of it.
    layers = [one for one in graph.core.layers if not isinstance(one, keras.layers.RNN)]
    names = {id(getattr(layer, "cell", layer)): layer.name for layer in layers}
    with recorded() as records:
        outputs, states = graph.hidden_states(segment["tokens"], segment["states"])
    answer = {f"{name}/output": vectors for name, vectors in outputs.items()}
    for layer, name, value in records:
        if id(layer) in names:  # else of a loop, or of a member of an ensemble
            value = ops.reshape(ops.cast(value, "float32"), (1, 1, -1))
            answer[f"{names[id(layer)]}/{name}"] = value
    return {**answer, "states": states}


def parts_of_logits(
    model: LanguageModel, values: Values, targets: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the parts of the logits that `contributions` returns.

    Args:
        values: Result of `read_inside`.
        targets: int `(tokens,)`, one after each token; None for all words, `(tokens, words)`.
    """
    graph, head = model.graph, model.graph.head
    connection = graph.layer("connection")
    is_dual = isinstance(connection, DualConnection) and connection.use_input
    if not (is_dual and isinstance(head, OutputProjection)):
        raise ArgumentError(
            "model",
            "must have a dual connection that reads the current word, and an output of one "
            "softmax, without gate or cache.",
            " Build one with connection='dual'.",
        )
    kernel, bias = head.output_weights()
    matrix = ops.convert_to_numpy(kernel).astype(np.float64)
    matrix = matrix if head.tied_to is None else matrix.T
    bias = np.zeros(matrix.shape[1]) if bias is None else ops.convert_to_numpy(bias)
    matrix, bias = matrix - matrix.mean(1, keepdims=True), bias - bias.mean(dtype=np.float64)
    equation = "tu,uw->tw"
    if targets is not None:
        matrix, bias, equation = matrix[:, targets], bias[targets], "tu,ut->t"
    names = "output", "from_input", "from_recurrence"
    output, word, past = (values["connection", name].astype(np.float64) for name in names)
    parts = {"input": word * (output > 0), "recurrence": past * (output > 0)}
    parts["bias"] = output - parts["input"] - parts["recurrence"]
    logits = {part: np.einsum(equation, units, matrix) for part, units in parts.items()}
    return logits | {"bias": logits["bias"] + bias}
