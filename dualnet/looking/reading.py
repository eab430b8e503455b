"""What a model predicts at each unit of a text, with fixed weights or with weights that learn."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
from keras import ops

from dualnet.adaptation.dynamic import learning
from dualnet.analysis.model_outputs import SEGMENT, find_layer
from dualnet.builders import LanguageModel, token_losses
from dualnet.builders.graph import ranks_of
from dualnet.builders.reader import SegmentReader
from dualnet.evaluation.scoring import reader_of
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
    """Return what `model` predicts for each id of `stream` but the first, from the zero state.

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
        reader = reader_of(model, PredictionReader)
        states = [np.zeros((1, size), np.float32) for size in reader.state_size]
        pieces: list[dict[str, np.ndarray]] = []
        for start in range(0, len(stream) - 1, steps):
            piece = stream[start : start + steps + 1]
            count = len(piece) - 1
            inputs = np.zeros((2, 1, steps), np.int32)  # one shape: each is compiled
            inputs[0, 0, :count], inputs[1, 0, :count] = piece[:-1], piece[1:]
            batch = {"tokens": inputs[0], "targets": inputs[1], "states": states}
            if temperature != 1:
                batch["temperature"] = np.full((1, 1), temperature, np.float32)
            result = reader.predict_on_batch(batch)
            states = result.pop("states")
            pieces.append({name: array[0, :count] for name, array in result.items()})
            if learn is not None:
                learn(piece)
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return Reading(
        losses=whole["losses"].astype(np.float64),
        ranks=whole["ranks"] + 1,
        likeliest=whole["likeliest"],
        probabilities=np.exp(whole["log_probabilities"].astype(np.float64)),
        favoured=whole.get("favoured"),
        gates=whole.get("gates"),
        shares=whole.get("shares"),
        segment=segment,
    )


class PredictionReader(SegmentReader):
    """Scores like `SegmentReader`, and returns the other arrays of `Reading`, too."""

    def call(self, inputs):
        tokens, targets, head = inputs["tokens"], inputs["targets"], self.graph.head
        results = {}
        if isinstance(head, DOCOutput):
            features, *states = self.graph.body([tokens, *inputs["states"]])
            logits = head(features)
            results["shares"] = head.priors(features)
        else:
            logits, states = self.graph.logits(tokens, inputs["states"])
        logits = ops.cast(logits, "float32")
        if "temperature" in inputs:
            logits = logits / inputs["temperature"][0, 0]
        count = min(COUNT, logits.shape[-1])
        log_p, likeliest = ops.top_k(ops.log_softmax(logits), count)
        gate = find_layer(self, "gate")
        if isinstance(gate, IOGate) and not gate.use_hidden:
            results["gates"], results["favoured"] = ops.top_k(gate.gates(tokens), count)
        return {
            **results,
            "losses": token_losses(logits, targets),
            "ranks": ranks_of(logits, targets),
            "likeliest": likeliest,
            "log_probabilities": log_p,
            "states": states,
        }
