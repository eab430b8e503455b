"""Tokens drawn one after another, with carried state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel
from dualnet.builders.sharing import predict
from dualnet.evaluation.scoring import WORK

ROWS = 64  # texts that are continued in parallel


def continuations(
    model: LanguageModel,
    streams: list[np.ndarray],
    choose: Callable[[np.ndarray, np.random.Generator], int],
    max_tokens: int,
    *,
    seed: int,
    stop_id: int | None,
    excluded_ids: list[int],
    ends: Callable[[np.ndarray, list[int]], bool] = lambda stream, drawn: False,
) -> list[list[int]]:
    """Return the ids that `choose` draws after each of `streams`.

    Each has its own generator, made from `seed` and its position. A row ends before `stop_id`,
    after `max_tokens`, or when `ends` of its stream and the ids drawn is True. `excluded_ids`
    are never drawn.
    """
    continued: list[list[int]] = [[] for _ in streams]
    order = sorted(range(len(streams)), key=lambda i: len(streams[i]))  # similar lengths together
    for first in range(0, len(order), ROWS):
        batch = order[first : first + ROWS]
        randoms = [np.random.default_rng([seed, i]) for i in batch]
        drawn = _continue(
            model, [streams[i] for i in batch], randoms, choose, max_tokens, stop_id, excluded_ids,
            ends,
        )  # fmt: skip
        for i, ids in zip(batch, drawn):
            continued[i] = ids
    return continued


def _continue(
    model: LanguageModel,
    streams: list[np.ndarray],
    randoms: list[np.random.Generator],
    choose: Callable[[np.ndarray, np.random.Generator], int],
    max_tokens: int,
    stop_id: int | None,
    excluded_ids: list[int],
    ends: Callable[[np.ndarray, list[int]], bool],
) -> list[list[int]]:
    """Return the ids that `choose` draws after each of `streams`, which are read side by side.

    The prefix that all streams are long enough for is read at once. From there, each step reads
    one token per stream: its next one, or the one drawn last.
    """
    rows = len(streams)
    drawn: list[list[int]] = [[] for _ in streams]
    ended = [False] * rows
    position = min(map(len, streams))  # tokens read of each row
    logits, states = read(model, np.stack([stream[:position] for stream in streams]))
    while True:
        tokens = np.zeros((rows, 1), np.int32)  # rows that have ended read padding
        for row, stream in enumerate(streams):
            if position < len(stream):
                tokens[row] = stream[position]
            elif not ended[row]:
                scores = logits[row, -1].astype(np.float64)
                scores[excluded_ids] = -np.inf
                tokens[row] = word_id = choose(scores, randoms[row])
                if word_id != stop_id:
                    drawn[row].append(word_id)
                ended[row] = (
                    word_id == stop_id or len(drawn[row]) == max_tokens or ends(stream, drawn[row])
                )
        if all(ended):
            return drawn
        logits, *states = predict(model.core, [tokens, *states])
        position += 1


def read(model: LanguageModel, tokens: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """Return the last logits and states of int32 `tokens`, `(rows, time)`, from the zero state.

    The logits are None without tokens.
    """
    rows, length = tokens.shape
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    logits = None
    steps = max(1, WORK // rows)  # bounds the memory of a long prompt
    for first in range(0, length, steps):
        segment = tokens[:, first : first + steps]
        logits, *states = predict(model.core, [segment, *states])
    return logits, states


def check_logits(value: float) -> None:
    """Raise `ValueError` unless `value`, the highest of a model's logits, is finite."""
    if not math.isfinite(value):
        raise ArgumentError(
            "model",
            f"must compute finite logits. Received: {value}. Train it again with a smaller "
            "learning_rate.",
        )


def draw(
    scores: np.ndarray,
    random: np.random.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> int:
    """Return the id of one token drawn from `random`; see `generate`.

    `scores` are logits, float64 `(tokens,)`; -inf for one that must not be drawn.
    """
    likeliest = int(np.argmax(scores))  # the lower id in a tie; nan before everything
    check_logits(scores[likeliest])
    if temperature == 0:
        return likeliest
    with np.errstate(over="ignore"):  # an overflow to infinity does no harm
        scores = (scores - scores[likeliest]) / temperature
    ids = None
    if top_k is not None and top_k < len(scores):
        threshold = np.partition(scores, -top_k)[-top_k]
        ids = np.flatnonzero(scores >= threshold)  # more than top_k if there are ties
        ids = ids[np.argsort(-scores[ids], kind="stable")[:top_k]]
    elif top_p is not None and top_p < 1:
        ids = np.argsort(-scores, kind="stable")  # ties go to the lower id
    sums = np.cumsum(np.exp(scores if ids is None else scores[ids]))
    if ids is not None and top_p is not None:
        count = 1 + np.searchsorted(sums[:-1], top_p * sums[-1])
        sums = sums[:count]
    # side="right" never draws a word of probability 0, which does not increase the sum.
    index = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
    return index if ids is None else int(ids[index])
