"""What a model predicts at each token of a text, with fixed weights or with weights that learn."""

import contextlib
import math
from typing import NamedTuple

import numpy as np
from keras import ops

from dualnet._checks import ArgumentError
from dualnet._types import Tensors
from dualnet.adaptation import GradientStatistics
from dualnet.adaptation.dynamic import adapting
from dualnet.builders import Graph, LanguageModel, questions, reader_of, token_losses
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import perplexity_of
from dualnet.evaluation.inside import parts_of_logits, read_inside
from dualnet.layers import DOCOutput, IOGate
from dualnet.requests import DynamicEvaluating

SEGMENT = 256  # tokens that a call reads
COUNT = 5  # words shown at each token
LOGITS = 2**24  # computed by a call at most: 64 MB


class Reading(NamedTuple):
    """What a model predicted at each token of a text.

    Attributes:
        perplexity: float, on the text.
        segment: int or None. Tokens that the model scored before it learnt from them.
        columns: dict of arrays with a row for each token: `bits`, its surprisal; `ranks`, its place
            among all by probability, from 1 on; `likeliest`, ids of the likeliest tokens, and their
            `probabilities`. With a gate, `favoured`, ids of its largest values, and these values,
            `gates`. With a mixture, `shares`, the prior of each expert.
        inside: dict of arrays with a number for each token, with fixed weights: the mean of each
            gate as it was read, and the bits that the word before and the past add to its logit.
    """

    perplexity: float
    segment: int | None
    columns: dict[str, np.ndarray]
    inside: dict[str, np.ndarray]


def read(
    model: LanguageModel,
    stream: np.ndarray,
    temperature: float,
    request: DynamicEvaluating | None = None,
    statistics: GradientStatistics | None = None,
) -> Reading:
    """Return the predictions of `model` for all ids of `stream` but the first, from the zero state.

    Args:
        request: How the weights learn; None for fixed weights.
        statistics: As for `dualnet.dynamic_evaluation`.
    """
    with contextlib.ExitStack() as stack:
        adaptation, segment = None, None
        steps = max(1, min(SEGMENT, LOGITS // model.vocabulary_size))
        if request is not None:
            context = adapting(model, request, temperature=temperature, statistics=statistics)
            adaptation = stack.enter_context(context)
            segment = int(adaptation.settings["sequence_length"])
            steps = min(segment, max(steps, len(stream) - 1))  # no padding far beyond the text
        pieces = []
        reader = reader_of(adaptation.copy if adaptation else model, _predictions)
        answers = scoring.segments(reader, [stream], [len(stream) - 1], 1, steps, temperature)
        for [(_, _, start)], answer in answers:
            piece = stream[start : start + steps + 1]
            pieces.append({name: array[0, : len(piece) - 1] for name, array in answer.items()})
            if adaptation is not None:
                adaptation.learn(piece)
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    losses, logs = (whole.pop(n).astype(np.float64) for n in ("losses", "log_probabilities"))
    whole |= {"bits": losses / math.log(2), "probabilities": np.exp(logs)}
    whole["ranks"] += 1
    inside = {} if request is not None else _inside(model, stream)
    return Reading(perplexity_of(losses), segment, whole, inside)


def _inside(model: LanguageModel, stream: np.ndarray) -> dict[str, np.ndarray]:
    """Return `Reading.inside`; labels that end in "adds" are of numbers to add up."""
    values, columns = read_inside(model, stream), {}
    with contextlib.suppress(ArgumentError):  # not every model has these parts
        before = {key: vectors[:-1] for key, vectors in values.items()}
        parts = parts_of_logits(model, before, stream[1:])
        for part, label in (("input", "the word before"), ("recurrence", "the past")):
            columns[f"bits that {label} adds"] = parts[part] / math.log(2)
    for (layer, name), vectors in values.items():
        if layer.startswith("recurrence") and vectors.min() >= 0 and vectors.max() <= 1:
            columns[f"mean of {name} in {layer}"] = vectors[1:].mean(-1)
    return columns


def _predictions(graph: Graph, segment: Tensors) -> Tensors:
    """Answer with the columns of `Reading`, as logarithms and losses, and ranks from 0 on."""
    tokens, targets, head = segment["tokens"], segment["targets"], graph.head
    answer = {}
    if isinstance(head, DOCOutput):
        features, *states = graph.body([tokens, *segment["states"]])
        logits = head(features)
        answer["shares"] = head.priors(features)
    else:
        logits, states = graph.logits(tokens, segment["states"])
    logits = questions.heated(logits, segment)
    count = min(COUNT, logits.shape[-1])
    answer["log_probabilities"], answer["likeliest"] = ops.top_k(ops.log_softmax(logits), count)
    gate = graph.layer("gate")
    if isinstance(gate, IOGate) and not gate.use_hidden:
        answer["gates"], answer["favoured"] = ops.top_k(gate.gates(tokens), count)
    losses, ranks = token_losses(logits, targets), questions.ranks_of(logits, targets)
    return {**answer, "losses": losses, "ranks": ranks, "states": states}
