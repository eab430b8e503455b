"""How tokens are drawn one after another: one draw and one loop, in Python and in a SavedModel."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from keras import ops

from dualnet._backend import cumsum, like, top_k
from dualnet._types import Tensor

HALVINGS = 48  # weights below 1e-14 of the highest do not matter
COLUMNS = 80  # tokens of which weights are summed at once: a sum of all in order is slow

# From tokens `(rows, 1)` and states to logits `(rows, 1, words)` and the new states.
Advance = Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]


class Draw(NamedTuple):
    """How a token of each row is drawn; see `dualnet.generate`.

    Attributes:
        temperature: float64 `(rows, 1)`, above 0.
        top_p: float64 `(rows, 1)`, or None for all.
        min_p: float64 `(rows, 1)`, the log of the smallest share of the likeliest, or None.
        top_k: How many of the likeliest tokens are sorted, an int or a tensor; None for none.
        counts: int `(rows, 1)`. How many of the sorted tokens each row draws from; None for all.
        in_order: bool `(rows, 1)`. Which rows draw from the sorted tokens; None for all.
    """

    temperature: Tensor
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    top_k: Tensor | None = None
    counts: Tensor | None = None
    in_order: Tensor | None = None

    def __call__(self, logits: Tensor, random: Tensor) -> Tensor:
        """Return the id of each row that `random`, float64 `(rows, 1)`, draws by its `logits`.

        Logits are -inf for a token that must not be drawn; `random` is at least 0 and below 1.
        """
        highest = ops.cast(ops.max(logits, axis=-1, keepdims=True), "float64")

        def weights(logits):
            # float64: float32 rounds away a small top_p, or the tail of a large vocabulary.
            scores = (ops.cast(logits, "float64") - highest) / self.temperature
            if self.min_p is not None:
                scores = ops.where(scores < self.min_p, -math.inf, scores)
            return ops.exp(scores)

        if self.top_k is None:
            of_all = weights(logits)
            if self.top_p is None:
                return drawn_by(of_all, random)
            return drawn_from_nucleus(of_all, random, self.top_p)
        likeliest, ids = top_k(logits, self.top_k)  # as float32, of which XLA finds a few fast
        counts = logits.shape[-1] if self.counts is None else self.counts
        top_p = 1.0 if self.top_p is None else self.top_p
        drawn = drawn_in_order(weights(likeliest), ids, random, counts, top_p)
        if self.in_order is None:
            return drawn
        return ops.where(self.in_order[:, 0], drawn, drawn_by(weights(logits), random))


def drawn_by(weights: Tensor, random: Tensor) -> Tensor:
    """Return the column of each row that `random`, at least 0 and below 1, draws by `weights`."""
    columns = weights.shape[-1]
    blocks = -(-columns // COLUMNS)
    weights = ops.pad(weights, [(0, 0), (0, blocks * COLUMNS - columns)])
    weights = ops.reshape(weights, (-1, blocks, COLUMNS))
    totals = ops.sum(weights, axis=-1)
    sums = cumsum(totals)
    goal = random * sums[:, -1:]
    block = _first_above(sums, goal)
    goal -= ops.take_along_axis(sums - totals, block, axis=-1)
    sums = cumsum(ops.take_along_axis(weights, block[..., None], axis=1)[:, 0])
    return (block * COLUMNS + _first_above(sums, ops.where(goal > 0, goal, 0.0)))[:, 0]


def drawn_from_nucleus(weights: Tensor, random: Tensor, top_p: Tensor) -> Tensor:
    """Return a column of each row, drawn from the fewest, the highest first, that reach `top_p`.

    The least weight of these is found by halving an interval: XLA sorts a vocabulary slowly.
    """

    def above(bound):
        return ops.sum(ops.where(weights >= bound, weights, 0.0), axis=-1, keepdims=True)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        reaches = above(middle) >= goal
        return [ops.where(reaches, middle, low), ops.where(reaches, high, middle)]

    zeros = ops.zeros_like(random)
    goal = top_p * above(zeros)
    low, high = ops.fori_loop(0, HALVINGS, halve, [zeros, zeros + 2.0])
    # Of equal weights between the bounds, as many as are needed, the first first.
    inside, is_last = weights >= high, (weights >= low) & (weights < high)
    total, weight = above(high), ops.max(ops.where(is_last, weights, 0.0), axis=-1, keepdims=True)
    number = ops.sum(ops.cast(is_last, "float64"), axis=-1, keepdims=True)
    needed = (goal - total) / weight
    needed = -_floor(-needed)
    needed = ops.where(needed < 1, 1.0, ops.where(needed < number, needed, number))
    drawn = random * (total + needed * weight)
    place = (_floor((drawn - total) / weight) + 0.5) / number
    takes_last = drawn >= total
    weights = ops.where(takes_last, ops.cast(is_last, "float64"), ops.where(inside, weights, 0.0))
    return drawn_by(weights, ops.where(takes_last, place, drawn / total))


def drawn_in_order(
    weights: Tensor, ids: Tensor, random: Tensor, count: Tensor, top_p: Tensor
) -> Tensor:
    """Return the id of each row that `random` draws by `weights`, the highest first.

    It is one of the first `count` of the row, and of them of the fewest that reach `top_p`.
    """
    is_counted = ops.arange(ops.shape(weights)[1]) < count
    sums = cumsum(ops.where(is_counted, weights, 0.0))
    is_inside = ops.cast(sums[:, :-1] < top_p * sums[:, -1:], "int32")
    total = ops.take_along_axis(sums, ops.sum(is_inside, axis=-1, keepdims=True), axis=-1)
    return ops.take_along_axis(ids, _first_above(sums, random * total), axis=-1)[:, 0]


def _floor(values: Tensor) -> Tensor:
    """Return the floors, float64, which `ops.floor` has on TensorFlow alone."""
    whole = ops.cast(ops.cast(values, "int32"), "float64")
    return whole - ops.cast(whole > values, "float64")


def _first_above(sums: Tensor, goal: Tensor) -> Tensor:
    """Return the first column of each row whose sum exceeds `goal`, or is the highest."""
    is_before = (sums <= goal) & (sums < sums[:, -1:])
    return ops.sum(ops.cast(is_before, "int32"), axis=-1, keepdims=True)


class Drawn(NamedTuple):
    """Tokens that were drawn one after another.

    Attributes:
        ids: int32 `(rows, columns)`; what comes after `lengths` means nothing.
        values: float64 `(rows, columns)`, what the draw said of each.
        lengths: int32 `(rows,)`, without the token that stopped a row.
        logits, states: After the last token.
    """

    ids: Tensor
    values: Tensor
    lengths: Tensor
    logits: Tensor
    states: list[Tensor]


def draw_tokens(
    draw: Callable[[Tensor, Tensor, list[Tensor]], tuple[Tensor, Tensor]],
    advance: Advance,
    logits: Tensor,
    states: list[Tensor],
    *,
    columns: Tensor,
    limits: Tensor,
    stop_ids: Tensor,
    seen: Sequence[Tensor] = (),
) -> Drawn:
    """Draw up to `limits` tokens for each row; a loop for a compiled function.

    Args:
        draw: Function of the number of a token, the logits and `seen`. Returns an id and a value
            for each row.
        advance: The step of the model.
        logits, states: Before the first token.
        columns: int. The most tokens that a row may have.
        limits: int32 `(rows,)`, at most `columns`.
        stop_ids: int32 `(rows,)`, the id before which a row ends, or -1.
        seen: bool `(rows, words)` in a list, the tokens that each text has so far, if `draw` asks.
    """
    rows = ops.shape(logits)[0]

    def step(i, logits, states, running, seen, ids, values, lengths):
        drawn, value = draw(i, logits, seen)
        is_now = ops.arange(columns) == i
        ids = ops.where(is_now, drawn[:, None], ids)
        values = ops.where(is_now, value[:, None], values)
        seen = [one | (ops.arange(one.shape[1]) == drawn[:, None]) for one in seen]
        running = running & (drawn != stop_ids)
        lengths = lengths + ops.cast(running, "int32")
        running = running & (i + 1 < limits)
        # Not needed after the last token, but a branch would cost more than it saves.
        logits, states = advance(drawn[:, None], states)
        return i + 1, logits[:, -1], states, running, seen, ids, values, lengths

    empty = ops.zeros((rows, columns), "int32")
    start = ops.zeros((), "int32"), logits, states, limits > 0, [*seen]
    _, logits, states, _, _, ids, values, lengths = ops.while_loop(
        lambda i, logits, states, running, *_: ops.any(running),
        lambda *carry: like(carry, step(*carry)),
        (*start, empty, ops.cast(empty, "float64"), ops.zeros_like(limits)),
    )
    return Drawn(ids, values, lengths, logits, states)
