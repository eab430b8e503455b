"""What a model predicts at each unit of a text, with fixed weights or with weights that learn."""

import contextlib
import dataclasses
from typing import Any

import numpy as np
from keras import ops

from dualnet.adaptation.dynamic import learning
from dualnet.analysis.model_outputs import SEGMENT, find_layer
from dualnet.builders import Graph, LanguageModel, questions, reader_of, token_losses
from dualnet.evaluation import scoring
from dualnet.layers import DOCOutput, IOGate
from dualnet.requests import DynamicEvaluating

COUNT = 5  # words shown at each unit
LOGITS = 2**24  # computed by a call at most: 64 MB


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a model predicted at each unit of a text.

    Attributes:
        losses: float64 `(units,)`, -log p of each unit in nats.
        ranks: int `(units,)`, the place of each unit among all by probability, from 1 on.
        likeliest: int `(units, count)`, ids of the likeliest units.
        probabilities: float64 `(units, count)`, those of `likeliest`.
        favoured: int `(units, count)`, ids of the largest values of the gate; None without one.
        gates: float64 `(units, count)`, those values.
        shares: float64 `(units, experts)`, the prior of each expert; None without a mixture.
        segment: int or None. Units that the model scored before it learnt from them.
    """

    losses: np.ndarray
    ranks: np.ndarray
    likeliest: np.ndarray
    probabilities: np.ndarray
    favoured: np.ndarray | None = None
    gates: np.ndarray | None = None
    shares: np.ndarray | None = None
    segment: int | None = None


def read(
    model: LanguageModel,
    stream: np.ndarray,
    *,
    temperature: float,
    request: DynamicEvaluating | None = None,
    statistics: Any = None,
) -> Reading:
    """Return the predictions of `model` for all ids of `stream` but the first, from the zero state.

    Args:
        request: How the weights learn; None for fixed weights.
        statistics: As for `dualnet.dynamic_evaluation`.
    """
    with contextlib.ExitStack() as stack:
        learn, segment = None, None
        steps = max(1, min(SEGMENT, LOGITS // model.vocabulary_size))
        if request is not None:
            context = learning(model, request, temperature=temperature, statistics=statistics)
            learn, settings = stack.enter_context(context)
            segment = settings["sequence_length"]
            steps = min(segment, max(steps, len(stream) - 1))  # no padding far beyond the text
        pieces: list[dict[str, np.ndarray]] = []
        reader, lengths = reader_of(model, _predictions), [len(stream) - 1]
        sizes: Any = {"rows": 1, "steps": steps, "temperature": temperature}
        for [(_, _, start)], answer in scoring.segments(reader, [stream], lengths, **sizes):
            piece = stream[start : start + steps + 1]
            pieces.append({name: array[0, : len(piece) - 1] for name, array in answer.items()})
            if learn is not None:
                learn(piece)
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    whole |= {"losses": whole["losses"].astype(np.float64), "ranks": whole["ranks"] + 1}
    log_probabilities = whole.pop("log_probabilities").astype(np.float64)
    return Reading(**whole, probabilities=np.exp(log_probabilities), segment=segment)


def _predictions(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
    """Answer with the arrays of `Reading`, probabilities as logarithms, and ranks from 0 on."""
    tokens, targets, head = segment["tokens"], segment["targets"], graph.head
    answer: dict[str, Any] = {}
    if isinstance(head, DOCOutput):
        features, *states = graph.body([tokens, *segment["states"]])
        logits = head(features)
        answer["shares"] = head.priors(features)
    else:
        logits, states = graph.logits(tokens, segment["states"])
    logits = questions.heated(logits, segment)
    count = min(COUNT, logits.shape[-1])
    answer["log_probabilities"], answer["likeliest"] = ops.top_k(ops.log_softmax(logits), count)
    gate = find_layer(graph, "gate")
    if isinstance(gate, IOGate) and not gate.use_hidden:
        answer["gates"], answer["favoured"] = ops.top_k(gate.gates(tokens), count)
    losses, ranks = token_losses(logits, targets), questions.ranks_of(logits, targets)
    return {**answer, "losses": losses, "ranks": ranks, "states": states}
