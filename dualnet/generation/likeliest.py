"""The likeliest continuations by a language model."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualnet.builders import LanguageModel
from dualnet.builders.sharing import predict
from dualnet.generation.beam import Hypothesis, Step, beam_search
from dualnet.generation.sampling import ROWS, check_logits, read


def likeliest_continuations(
    model: LanguageModel, streams: list[np.ndarray], *, beam: int, **settings: Any
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `beam_search` after each of `streams`, of at least one id each."""
    continuations: list[list[Hypothesis]] = [[] for _ in streams]
    order = sorted(range(len(streams)), key=lambda i: len(streams[i]))  # similar lengths together
    count = max(1, ROWS // beam)
    for first in range(0, len(order), count):
        batch = order[first : first + count]
        read_before = [streams[i][:-1] for i in batch]
        hypotheses = beam_search(
            language_model_step(model),
            _states_after(model, read_before),
            first_ids=np.array([streams[i][-1] for i in batch]),
            beam=beam,
            **settings,
        )
        for i, several in zip(batch, hypotheses):
            continuations[i] = several
    return continuations


def language_model_step(model: LanguageModel) -> Step:
    """Return the step of `model` for `beam_search`, on states that are NumPy arrays.

    The log-probabilities are float64: float32 makes ties of logits that differ.
    """

    def step(tokens: np.ndarray, states: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        logits, *states = predict(model.core, [tokens, *states])
        logits = logits[:, -1].astype(np.float64)
        highest = logits.max(axis=-1, keepdims=True)
        check_logits(highest.max())
        logits -= highest
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), states

    return step


def _states_after(model: LanguageModel, streams: list[np.ndarray]) -> list[np.ndarray]:
    """Return the states after each of `streams`, side by side.

    What all are long enough for is read at once, the rest token by token.
    """
    lengths = np.array([len(stream) for stream in streams])
    common = lengths.min()
    _, states = read(model, np.stack([stream[:common] for stream in streams]))
    for position in range(common, lengths.max()):
        unread = (position < lengths)[:, None]
        tokens = [[stream[position] if position < len(stream) else 0] for stream in streams]
        _, *new = predict(model.core, [np.array(tokens, np.int32), *states])
        states = [np.where(unread, *pair) for pair in zip(new, states)]
    return states
