"""Continuations by a language model: drawn token by token, or the likeliest."""

import itertools
import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel
from dualnet.builders.sharing import predict
from dualnet.evaluation.scoring import WORK
from dualnet.generation.beam import Hypothesis, Step, beam_search
from dualnet.requests import Beaming, Drawing

ROWS = 64  # texts that are continued in parallel


def continuations(
    model: LanguageModel,
    streams: list[np.ndarray],
    request: Drawing,
    *,
    ends: Callable[[np.ndarray, list[int]], bool] = lambda stream, drawn: False,
) -> list[list[int]]:
    """Return the ids that are drawn after each of `streams`, which has its own generator.

    A row ends before `<eos>` if `request` says so, after its `max_tokens`, or when `ends` of its
    stream and the ids drawn is True.
    """
    seed = secrets.randbits(64) if request.seed is None else request.seed
    stop_id = model.vocabulary.eos_id if request.stop_at_eos else None
    excluded_ids, penalty = excluded(model, request), request.repetition_penalty
    first = 0 if model.vocabulary.eos_id is None else 1  # after the `<eos>` that texts begin after
    how = {name: getattr(request, name) for name in ("temperature", "top_k", "top_p", "min_p")}

    def continue_batch(batch: list[int]) -> list[list[int]]:
        randoms = [np.random.default_rng([seed, i]) for i in batch]
        drawn: list[list[int]] = [[] for _ in batch]
        ended = [False] * len(batch)
        logits, states = read(model, [streams[i] for i in batch])
        while True:
            tokens = np.zeros((len(batch), 1), np.int32)  # rows that have ended read padding
            for row, random in enumerate(randoms):
                if ended[row]:
                    continue
                scores = logits[row].astype(np.float64)
                if penalty != 1:
                    seen = np.unique([*streams[batch[row]][first:], *drawn[row]])
                    scores[seen] *= np.where(scores[seen] > 0, 1 / penalty, penalty)
                scores[excluded_ids] = -np.inf
                word_id = draw(scores, random, **how)
                tokens[row] = word_id
                if word_id != stop_id:
                    drawn[row].append(word_id)
                is_last = len(drawn[row]) == request.max_tokens
                ended[row] = word_id == stop_id or is_last or ends(streams[batch[row]], drawn[row])
            if all(ended):
                return drawn
            logits, *states = predict(model.core, [tokens, *states])
            logits = logits[:, -1]

    return _in_batches(continue_batch, streams, ROWS)


def _in_batches(
    function: Callable[[list[int]], list[Any]], streams: list[np.ndarray], rows: int
) -> list[Any]:
    """Return the results of `function` of indices, for all `streams`, `rows` at a time."""
    results: list[Any] = [None] * len(streams)
    order = sorted(range(len(streams)), key=lambda i: len(streams[i]))  # similar lengths together
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        for i, result in zip(batch, function(batch)):
            results[i] = result
    return results


def excluded(model: LanguageModel, request: Drawing) -> list[int]:
    """Return the ids that must not be drawn."""
    return [] if request.allow_unknown else model.vocabulary.unknown_ids


def read(model: LanguageModel, streams: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the logits and the states after the last token of each of `streams`, side by side.

    What all are long enough for is read at once, the rest token by token. Before the first token,
    logits and states are zeros.
    """
    rows, lengths = len(streams), np.array([len(stream) for stream in streams])
    common, longest = int(lengths.min()), int(lengths.max())
    tokens = np.zeros((rows, longest), np.int32)
    for row, stream in zip(tokens, streams):
        row[: len(stream)] = stream
    logits = np.zeros((rows, model.vocabulary_size), np.float32)
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    steps = max(1, WORK // rows)  # bounds the memory of a long prompt
    ends = [*range(steps, common, steps), *range(common, longest + 1)]
    for start, end in itertools.pairwise([0, *ends]):
        if end > start:
            unread = (start < lengths)[:, None]
            new_logits, *new = predict(model.core, [tokens[:, start:end], *states])
            logits = np.where(unread, new_logits[:, -1], logits)
            states = [np.where(unread, *pair) for pair in zip(new, states)]
    return logits, states


def check_logits(value: float) -> None:
    """Raise `ValueError` unless `value`, the highest of a model's logits, is finite."""
    if not math.isfinite(value):
        way_out = "Train it again with a smaller learning_rate."
        raise ArgumentError("model", f"must compute finite logits. Received: {value}. {way_out}")


def draw(
    scores: np.ndarray,
    random: np.random.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
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
    if min_p is not None:
        scores[scores < math.log(min_p)] = -np.inf
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


# --- the likeliest continuations


def likeliest_continuations(
    model: LanguageModel, streams: list[np.ndarray], request: Drawing
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `beam_search` after each of `streams`, of at least one id each."""
    settings = request.given(Beaming.names())

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        _, states = read(model, [streams[i][:-1] for i in batch])
        return beam_search(
            language_model_step(model),
            states,
            first_ids=np.array([streams[i][-1] for i in batch]),
            max_tokens=request.max_tokens,
            eos_id=model.vocabulary.eos_id,
            excluded_ids=excluded(model, request),
            **settings,
        )

    return _in_batches(search, streams, max(1, ROWS // settings["beam"]))


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
