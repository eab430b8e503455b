"""Questions that a `Reader` asks a language model about each token of a segment."""

import keras
import numpy as np
from keras import ops

from dualnet._types import Tensor
from dualnet.builders.graph import Graph, token_losses
from dualnet.layers._fused_cross_entropy import Chunks

Segment = dict[str, Tensor]  # with the list of `states`
Answer = dict[str, Tensor]


def losses(graph: Graph, segment: Segment, *, training: bool = False) -> Answer:
    """Answer with `losses`: -log p of each target, in nats."""
    read = (segment[name] for name in ("tokens", "states", "targets"))
    losses, states = graph.losses(*read, training=training, temperature=_temperature(segment))
    return {"losses": losses, "states": states}


def ranks(graph: Graph, segment: Segment) -> Answer:
    """Answer with `losses` and `ranks`, as `ranks_of` counts them.

    Where there is a head, the logits of few tokens exist at a time.
    """
    targets = segment["targets"]
    if graph.head is None:
        features, states = graph.logits(segment["tokens"], segment["states"])
    else:
        features, *states = graph.body([segment["tokens"], *segment["states"]], training=False)
    words, units = graph.word_logits.shape[-1], keras.tree.flatten(features)[-1].shape[-1]
    batch, time = ops.shape(targets)
    chunks = Chunks(batch * time, words * 4, least=1 if graph.head is None else units // 2)

    def read(targets: Tensor, *features_of_chunk: Tensor) -> list[Tensor]:
        logits = keras.tree.pack_sequence_as(features, [rows[None] for rows in features_of_chunk])
        logits = logits if graph.head is None else graph.head(logits)
        losses = token_losses(heated(logits, segment), targets[None])
        return [losses[0], ranks_of(logits[0], targets)]

    tensors = [targets, *keras.tree.flatten(features)]  # (batch, time, ...)
    rows = [ops.reshape(tensor, (-1, *tensor.shape[2:])) for tensor in tensors]
    results = chunks.map(read, rows, [chunks.like("float32"), chunks.like("int32")])
    losses, ranks = (ops.reshape(result, (batch, time)) for result in results)
    return {"losses": losses, "ranks": ranks, "states": states}


def entropies(graph: Graph, segment: Segment, some: np.ndarray | None = None) -> Answer:
    """Answer with `losses`, and `entropies`: those of the predicted distributions, in nats.

    With `some`, bool `(words,)`, also with `of_some`: -log p that one of these words is next.
    """
    logits, states = _logits(graph, segment)
    log_p = ops.log_softmax(logits)
    p = ops.exp(log_p)
    entropies = -ops.sum(ops.where(p > 0, p * log_p, 0.0), axis=-1)
    losses = token_losses(logits, segment["targets"])
    answer = {"losses": losses, "entropies": entropies, "states": states}
    if some is not None:
        answer["of_some"] = -ops.log(ops.sum(ops.where(some, p, 0.0), axis=-1))
    return answer


def greedy(graph: Graph, segment: Segment) -> Answer:
    """Answer with `losses`, and `greedy`: whether no other word is likelier than the target."""
    logits, states = _logits(graph, segment)
    greedy = ops.argmax(logits, axis=-1) == segment["targets"]
    return {"losses": token_losses(logits, segment["targets"]), "greedy": greedy, "states": states}


def logits(graph: Graph, segment: Segment) -> Answer:
    """Answer with `logits`, those of all words."""
    logits, states = _logits(graph, segment)
    return {"logits": logits, "states": states}


def ranks_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of other words whose logit is not below the target's; 0 is likeliest.

    Args:
        logits: `(..., words)`.
        targets: int `(...)`.
    """
    targets = ops.cast(targets, "int32")[..., None]
    below = logits < ops.take_along_axis(logits, targets, axis=-1)  # never where one is nan
    itself = ops.arange(ops.shape(logits)[-1], dtype="int32") == targets
    counted = ops.logical_not(ops.logical_or(below, itself))
    return ops.sum(ops.cast(counted, "int32"), axis=-1)


def heated(logits: Tensor, segment: Segment) -> Tensor:
    """Return `logits` as float32, divided by the temperature if `segment` has one."""
    temperature = _temperature(segment)
    logits = ops.cast(logits, "float32")
    return logits if temperature is None else logits / temperature


def _logits(graph: Graph, segment: Segment) -> tuple[Tensor, list[Tensor]]:
    logits, states = graph.logits(segment["tokens"], segment["states"])
    return heated(logits, segment), states


def _temperature(segment: Segment) -> Tensor | None:
    return segment["temperature"][0, 0] if "temperature" in segment else None
