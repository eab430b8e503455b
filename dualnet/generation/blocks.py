"""Tokens drawn in blocks: the loop over the tokens of a block is inside a compiled function."""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from dualnet import layers
from dualnet._backend import compiled, double_precision, like
from dualnet.builders import Graph, LanguageModel, Question, reader_of
from dualnet.requests import Drawing

# Tokens of a block: a call of the compiled function costs as much as ten of them.
BLOCK = 64
PIECE = 16  # where each piece of the text is awaited

LONG = 32  # tokens of a text for which XLA compiles the whole block, in about half a second
WIDE = 8  # rows from which XLA compiles the draw of a shorter text: of fewer it gains nothing
COLUMNS = 80  # words of which probabilities are summed at once: a sum of all in order is slow
PLAIN = (
    keras.layers.InputLayer, keras.layers.Embedding, layers.DualConnection,
    layers.EmbeddingDropout, layers.LockedDropout, layers.OutputProjection, layers.Recurrence,
    layers.StepDropout,
)  # fmt: skip


class Batch(NamedTuple):
    """Texts that are continued side by side, a row each.

    Attributes:
        model, request: What draws, and how.
        randoms: The generator of each row.
        excluded_ids: The ids that are never drawn.
        stop_id: The id that ends a row, or None.
        seen: The ids of each row that `repetition_penalty` is for.
        ended: Whether each row needs no more. Who draws keeps this and `seen` up to date.
    """

    model: LanguageModel
    request: Drawing
    randoms: list[np.random.Generator]
    excluded_ids: list[int]
    stop_id: int | None
    seen: list[set[int]]
    ended: list[bool]


Drawn = Iterator[tuple[np.ndarray, np.ndarray]]


def blocks(batch: Batch, logits: np.ndarray, states: list[np.ndarray], size: int) -> Drawn:
    """Yield the next ids of all rows, as `sampling.draw` draws them, `(rows, size)` or fewer.

    With them come the highest logits that they were drawn from. What comes after the `stop_id` of
    a row means nothing. The random numbers are those that single calls would give.
    """
    model, request = batch.model, batch.request
    sizes = request.top_k, request.top_p is not None and request.top_p < 1
    rows, is_long = len(logits), request.max_tokens >= LONG
    kind = request.temperature == 0, is_long, rows >= WIDE
    reader = reader_of(model, _draw_block(tuple(batch.excluded_ids), batch.stop_id, *kind, *sizes))
    if is_long and not (request.sorts_slowly or reader.compiled):
        parts = model.core.layers  # those that XLA is known to compile, in float32
        if all(isinstance(part, PLAIN) and part.compute_dtype == "float32" for part in parts):
            reader.compile(jit_compile=True)
    settings = {
        "temperature": request.temperature or 1.0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "least": -math.inf if request.min_p is None else math.log(request.min_p),
        "penalty": request.repetition_penalty,
    }
    segment: dict[str, Any] = {
        name: np.full((rows, 1), float(value)) for name, value in settings.items()
    }
    for first in range(0, request.max_tokens, size):
        steps = min(size, request.max_tokens - first)
        segment |= {"logits": logits, "states": states, "steps": np.full((rows, 1), steps, "int32")}
        segment["ended"] = np.array(batch.ended)[:, None]
        segment["randoms"] = np.stack([random.random(size) for random in batch.randoms])
        if request.repetition_penalty != 1:
            segment["seen"] = np.zeros(logits.shape, bool)
            for row, ids in zip(segment["seen"], batch.seen):
                row[[*ids]] = True
        with double_precision():
            answer = reader.predict_on_batch(segment)
        logits, states = answer["logits"], answer["states"]
        yield answer["ids"][:, :steps], answer["highest"][:, :steps]


@functools.cache
def _draw_block(
    excluded_ids: tuple[int, ...],
    stop_id: int | None,
    is_greedy: bool,
    is_long: bool,  # of which there is a reader of its own
    is_wide: bool,
    top_k: int | None,
    is_nucleus: bool,
) -> Question:
    """Return the question that is answered with `ids` and the `highest` logits of a block."""

    def draw_block(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
        words = segment["logits"].shape[-1]
        randoms, steps = segment["randoms"], segment["steps"]
        is_excluded = np.isin(range(words), excluded_ids)
        is_sorted = is_nucleus or (top_k is not None and top_k < words)
        settings = [segment[name] for name in ("temperature", "top_p", "least", "penalty")]

        def draw(logits: Any, random: Any, seen: Any = None) -> tuple[Any, Any]:
            temperature, top_p, least, penalty = settings
            scores, ids = logits, None
            if seen is not None:
                factor = ops.where(scores > 0, 1 / penalty, penalty)
                scores = ops.where(seen, ops.cast(scores, "float64") * factor, scores)
            scores = ops.where(is_excluded, -math.inf, scores)
            highest = ops.max(scores, axis=-1, keepdims=True)
            if is_greedy:  # the lower id in a tie
                place = ops.where(scores >= highest, ops.arange(words), words - 1)
                return ops.min(place, axis=-1), ops.cast(highest[:, 0], "float64")
            if is_sorted:  # as float32 without a penalty: of these, XLA finds a few fast
                scores, ids = ops.top_k(scores, min(top_k or words, words))  # the lower id first
            # float64: float32 rounds away a small top_p, or the tail of a large vocabulary.
            scores, highest = (ops.cast(values, "float64") for values in (scores, highest))
            scores = (scores - highest) / temperature
            scores = ops.where(scores < least, -math.inf, scores)
            if ids is None:
                return drawn_by(ops.exp(scores), random), highest[:, 0]
            return drawn_in_order(scores, ids, random, words, top_p), highest[:, 0]

        draw = compiled(draw) if is_wide and not is_sorted else draw  # XLA sorts slowly

        def step(i: Any, carry: Any, running: Any, seen: Any, results: Any) -> Any:
            drawn, highest = draw(carry[0], ops.take(randoms, [i], axis=1), *seen)
            is_now = ops.arange(ops.shape(randoms)[1]) == i
            results = [
                ops.where(is_now, new[:, None], old) for new, old in zip((drawn, highest), results)
            ]
            seen = [each | (ops.arange(words) == drawn[:, None]) for each in seen]
            if stop_id is not None:
                running = running & (drawn != stop_id)
            logits, states = graph.logits(drawn[:, None], carry[1:])
            return i + 1, [logits[:, -1], *states], running, seen, results

        _, carry, _, _, (ids, highest) = ops.while_loop(
            lambda i, carry, running, *_: (i < steps[0, 0]) & ops.any(running),
            lambda *carry: like(carry, step(*carry)),
            (ops.zeros((), "int32"), [segment["logits"], *segment["states"]],
             ops.logical_not(segment["ended"][:, 0]),
             [segment[name] for name in ("seen",) if name in segment],
             [ops.zeros_like(randoms, "int32"), ops.zeros_like(randoms)]),
        )  # fmt: skip
        return {"ids": ids, "highest": highest, "logits": carry[0], "states": carry[1:]}

    return draw_block


def drawn_by(weights: Any, random: Any) -> Any:
    """Return the column of each row that `random`, at least 0 and below 1, draws by `weights`."""
    columns = weights.shape[-1]
    blocks = -(-columns // COLUMNS)
    weights = ops.pad(weights, [(0, 0), (0, blocks * COLUMNS - columns)])
    weights = ops.reshape(weights, (-1, blocks, COLUMNS))
    parts = ops.sum(weights, axis=-1)
    sums = ops.cumsum(parts, axis=-1)
    goal = random * sums[:, -1:]
    block = _place(sums, goal)
    goal -= ops.take_along_axis(sums - parts, block, axis=-1)
    sums = ops.cumsum(ops.take_along_axis(weights, block[..., None], axis=1)[:, 0], axis=-1)
    return (block * COLUMNS + _place(sums, ops.maximum(goal, 0)))[:, 0]


def drawn_in_order(scores: Any, ids: Any, random: Any, count: Any, top_p: Any) -> Any:
    """Return the id of each row that `random` draws by exp of `scores`, the highest first.

    It is one of the first `count` of the row, and of them of the fewest that reach `top_p`.
    """
    is_counted = ops.arange(ops.shape(scores)[1]) < count
    sums = ops.cumsum(ops.where(is_counted, ops.exp(scores), 0.0), axis=-1)
    is_inside = ops.cast(sums[:, :-1] < top_p * sums[:, -1:], "int32")
    total = ops.take_along_axis(sums, ops.sum(is_inside, axis=-1, keepdims=True), axis=-1)
    return ops.take_along_axis(ids, _place(sums, random * total), axis=-1)[:, 0]


def _place(sums: Any, goal: Any) -> Any:
    """Return the first column of each row whose sum exceeds `goal`, or is the highest."""
    is_before = (sums <= goal) & (sums < sums[:, -1:])
    return ops.sum(ops.cast(is_before, "int32"), axis=-1, keepdims=True)
