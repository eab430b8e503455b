"""Beam search: the likeliest continuations of sentences, whatever model predicts them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from dualnet._backend import argsort, double_precision, like, numpy_of, top_k
from dualnet._checks import ArgumentError, check_count, check_ids
from dualnet._types import Tensor, Tensors
from dualnet.builders import Graph, LanguageModel, Question, bucket_length, reader_of
from dualnet.generation.drawing import Advance
from dualnet.requests import Translating

# One row, or `beam` of them, for each sentence: an array, or arrays in lists and dicts.
States = Any
# From tokens `(rows, 1)` and states to the log-probabilities of the next token and the new states.
Step = Callable[[np.ndarray, States], tuple[Tensor, States]]
# The same for the likeliest next tokens alone, with their ids: `(rows, tokens)`, likeliest first.
LikeliestStep = Callable[[Tensor, States], tuple[Tensor, Tensor, States]]

BLOCK = 80  # columns whose highest value is taken first
HYPOTHESES = 320  # that are open side by side, of all sentences
POSITIONS = 64 * HYPOTHESES  # of their sources, padding included: fewer rows for longer sentences
NONE = -np.inf  # the score of a hypothesis that there is not


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """The result of `beam_search`: one of the likeliest continuations of a sentence.

    Attributes:
        ids: Its tokens, without `<eos>`.
        score: Log-probability of the tokens in nats, that of `<eos>` included if it ended.
        normalized_score: `score` divided by its number of tokens, `<eos>` included if it ended,
            to the power `length_normalization`. Hypotheses are ranked by it.
        ended: Whether it ended with `<eos>`; if not, `max_tokens` cut it off.
    """

    ids: tuple[int, ...]
    score: float
    normalized_score: float
    ended: bool


class Finished(NamedTuple):
    """The finished hypotheses of each sentence, best first, some of them perhaps `NONE`.

    Attributes:
        ids: int32 `(sentences, n_best, time)`; what comes after the length means nothing.
        lengths: int32 `(sentences, n_best)`, without `<eos>`.
        scores, normalized_scores: float64 `(sentences, n_best)`, as in `Hypothesis`.
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor
    normalized_scores: Tensor

    def hypotheses(self, limits: np.ndarray) -> list[list[Hypothesis]]:
        """Return those of each sentence, none of them longer than its limit."""
        columns = (column.tolist() for column in self[1:])
        return [
            [
                Hypothesis(tuple(row[:length].tolist()), score, normalized, length < limit)
                for row, length, score, normalized in zip(*sentence)
                if normalized > NONE
            ]
            for limit, *sentence in zip(limits.tolist(), self.ids, *columns)
        ]


def beam_search(
    step: Step,
    states: States,
    *,
    first_ids: np.ndarray | Sequence[int],
    beam: int,
    max_tokens: int | np.ndarray | Sequence[int],
    eos_id: int | None,
    n_best: int = 1,
    length_normalization: float = 0.0,
    excluded_ids: Collection[int] = (),
) -> list[list[Hypothesis]]:
    """Return the likeliest continuations of each of several sentences, best first.

    Each step extends every open hypothesis of a sentence by every token and keeps the `beam`
    likeliest results. In a tie the lower id wins, then the extension of the likelier hypothesis.
    Results that end with `eos_id` leave the beam as finished; those that have reached
    `max_tokens` are finished, too. A sentence ends when no open hypothesis can overtake the best
    `n_best` finished ones. A beam of 1 is greedy search. A beam that holds every prefix finds the
    likeliest continuation of all.

    Sentences are searched side by side, and do not depend on each other beyond float rounding.
    Every call of `step` has the same shape, `sentences * beam` rows: row `s * beam + b` belongs to
    sentence `s`, so what all hypotheses of a sentence share may stay in `step`. Rows without an
    open hypothesis read padding, id 0. States are carried, and never computed twice. Scores are
    summed in float64.

    Args:
        step: Function of int32 tokens `(rows, 1)` and states, which returns the log-probabilities
            of the next token in nats, float `(rows, size)`, and the new states.
        states: Array, or nested list of arrays, with one row for each sentence. NumPy arrays or
            tensors of the backend; `step` sees them with `beam` rows for each sentence.
        first_ids: int `(sentences,)`, at least one. The token that each sentence reads first.
        beam: int, at least 1. Hypotheses that are open at a time.
        max_tokens: int, at least 1, or one for each sentence. Tokens of the longest hypothesis,
            `<eos>` included.
        eos_id: int, the id that ends a hypothesis, or None.
        n_best: int from 1 to `beam`. Hypotheses to return for each sentence.
        length_normalization: float, at least 0. Finished hypotheses are ranked by `score / length
            ** length_normalization`: 0 ranks by log-probability, and 1 by the mean over tokens,
            which favours longer ones.
        excluded_ids: Ids that no hypothesis takes. The other probabilities stay as they are.

    Returns:
        A list of at most `n_best` `Hypothesis` for each sentence, fewer if there are no more. In a
        tie, the one that finished first comes first.

    Raises:
        ValueError: if an argument is out of range, or a log-probability is nan.

    Example: greedy search takes the likeliest token each time, a wider beam finds a likelier
    sentence.

    >>> import numpy as np
    >>> from dualnet.generation import beam_search
    >>> table = np.log([[0.1, 0.6, 0.3], [0.3, 0.4, 0.3], [0.9, 0.05, 0.05]])
    >>> def step(tokens, states):
    ...     return table[tokens[:, 0]], states  # each token depends on the one before
    >>> for beam in (1, 2):
    ...     [[best]] = beam_search(step, [], first_ids=[0], beam=beam, max_tokens=4, eos_id=0)
    ...     print(best.ids, round(float(np.exp(best.score)), 4), best.ended)
    (1, 1, 1, 1) 0.0384 False
    (2,) 0.27 True

    Reference: Sutskever et al., 2014, https://arxiv.org/abs/1409.3215, section 3.2
    """
    request = Translating(beam=beam, n_best=n_best, length_normalization=length_normalization)
    first_ids = check_ids("first_ids", first_ids, least=1)
    limits = np.broadcast_to(max_tokens, len(first_ids))
    limits = np.array([check_count("max_tokens", limit) for limit in limits])
    excluded = [*excluded_ids]

    def likeliest(tokens, states):
        log_p, states = step(tokens.astype(np.int32), states)
        log_p = np.array(ops.convert_to_numpy(log_p), np.float64)
        if not log_p.max() < np.inf:
            raise ArgumentError("step", f"must return log-probabilities. Received: {log_p.max()}.")
        log_p[:, excluded] = NONE
        return *top_columns(log_p, min(beam, log_p.shape[-1])), states

    search = Search(
        beam=np.array([beam]),
        n_best=np.array([n_best]),
        length_normalization=np.array([request.length_normalization]),
        max_tokens=limits,
        eos_id=eos_id,
    )
    progress = search.start(states, first_ids)
    while search.is_open(*progress):
        progress = search.advance(likeliest, *progress)
    return progress[-2].hypotheses(limits)


# What a step of a search begins with: `length` of the hypotheses; `tokens` that they read next and
# `states`; `scores` and `prefixes` of the open ones; `finished`; and a sum of log-probabilities.
Progress = tuple[Tensor, Tensor, States, Tensor, Tensor, Finished, Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Beam searches of several sentences side by side, one step at a time.

    Attributes:
        beam, n_best, max_tokens: int `(sentences,)`, or `(1,)` for all. Arrays have as many columns
            as the largest.
        length_normalization: float64, likewise.
        eos_id: As for `beam_search`.
        time: The largest `max_tokens`, where it is known.
    """

    beam: Tensor
    n_best: Tensor
    length_normalization: Tensor
    max_tokens: Tensor
    eos_id: int | None
    time: Tensor | None = None

    def run(
        self, step: LikeliestStep, states: States, first_ids: Tensor
    ) -> tuple[Finished, Tensor]:
        """Return the finished hypotheses, and a sum of log-probabilities, nan if one of them was.

        The loop can be compiled.
        """
        *_, finished, total = ops.while_loop(
            self.is_open,
            lambda *progress: like(progress, self.advance(step, *progress)),
            self.start(states, first_ids),
        )
        return finished, total

    def start(self, states: States, first_ids: Tensor) -> Progress:
        """Return the progress before the first step."""
        xp = numpy_of(first_ids)
        sentences, time = xp.shape(first_ids)[0], self.time
        time = xp.max(self.max_tokens, initial=1) if time is None else time
        width, count = (numpy_of(x).max(x, initial=1) for x in (self.beam, self.n_best))
        zeros = xp.zeros((sentences, count), "float64")
        finished = Finished(
            xp.zeros((sentences, count, time), "int32"),
            xp.zeros((sentences, count), "int32"),
            zeros,
            zeros + NONE,
        )
        scores = xp.where(xp.arange(width) == 0, xp.zeros((sentences, width), "float64"), NONE)
        prefixes = xp.zeros((sentences, width, time), "int32")
        tokens = prefixes[..., 0] + first_ids[:, None]
        every_row = rows_of(xp.zeros_like(tokens), finished.scores[:, :1])
        states = _take(states, every_row)
        start = xp.zeros((), "int32"), tokens, states, scores, prefixes
        return *start, finished, xp.zeros((), "float64")

    def is_open(
        self, length: Tensor, tokens: Tensor, states: States, scores: Tensor, *_: Tensor
    ) -> Tensor:
        """Return True while a sentence has an open hypothesis."""
        return numpy_of(scores).any(scores > NONE)

    def advance(
        self,
        step: LikeliestStep,
        length: Tensor,
        tokens: Tensor,
        states: States,
        scores: Tensor,
        prefixes: Tensor,
        finished: Finished,
        total: Tensor,
    ) -> Progress:
        """Return the progress after one step."""
        xp = numpy_of(scores)
        log_p, ids, states = step(xp.reshape(tokens, (-1, 1)), states)
        width, count, before = xp.shape(scores)[1], xp.shape(ids)[1], xp.reshape(scores, (-1, 1))
        log_p = xp.where(before > NONE, before + log_p, NONE)
        total = total + xp.sum(xp.where(before > NONE, log_p[:, :1], 0))

        # Those of a sentence in one row: the lower word first, then the likelier hypothesis.
        totals, ids = (xp.reshape(values, (-1, width * count)) for values in (log_p, ids))
        parents = xp.arange(width * count) // count
        order = rows_of(argsort(ids * width + parents), ids)
        totals, columns = top_k(taken(totals, order), width)
        chosen = taken(order, rows_of(columns, ids))
        ids, rows = taken(ids, chosen), rows_of(chosen // count % width, totals)
        # `beam` may be of NumPy, which tensors of PyTorch are not compared with.
        totals = xp.where(xp.less(xp.arange(width), self.beam[:, None]), totals, NONE)
        length, states = length + 1, _take(states, rows)
        is_last = xp.arange(xp.shape(prefixes)[2]) == length - 1
        prefixes = xp.where(is_last, ids[..., None], taken(prefixes, rows))

        has_ended = ids == (-1 if self.eos_id is None else self.eos_id)
        is_done = has_ended | (self.max_tokens[:, None] == length)
        normalized = xp.where(is_done & (totals > NONE), self._normalized(totals, length), NONE)
        new = Finished(prefixes, xp.where(has_ended, length - 1, length), totals, normalized)
        pool = Finished(*(xp.concatenate(pair, axis=1) for pair in zip(finished, new)))
        order = argsort(-pool.normalized_scores)  # the first to finish, in a tie
        best = rows_of(order[:, : xp.shape(finished.scores)[1]], pool.scores)
        finished = Finished(*(taken(part, best) for part in pool))

        scores = xp.where(is_done, NONE, totals)
        last = rows_of(self.n_best[:, None] - 1, finished.scores)
        worst = taken(finished.normalized_scores, last)
        # Scores only fall, and length helps most at the limit.
        bound = self._normalized(xp.max(scores, axis=1, keepdims=True), self.max_tokens[:, None])
        scores = xp.where(bound <= worst, NONE, scores)
        tokens = xp.where(scores > NONE, ids, 0)  # padding where none is open
        return length, tokens, states, scores, prefixes, finished, total

    def _normalized(self, scores: Tensor, lengths: Tensor) -> Tensor:
        # A negative power underflows to 0, where a positive one would be infinite; -inf * 0 is nan.
        xp = numpy_of(scores)
        factor = xp.power(xp.array(lengths, "float64"), -self.length_normalization[:, None])
        lowest = xp.where(scores > -1e300, scores, -1e300)
        return xp.where(scores > NONE, lowest * factor, NONE)


def rows_of(columns: Tensor, of: Tensor) -> Tensor:
    """Return `columns` as indices into the flattened `of`: each row's are offset by its start."""
    xp = numpy_of(of)
    count, width = xp.shape(of)[:2]
    return xp.add(xp.arange(count)[:, None] * width, columns)


def taken(of: Tensor, rows: Tensor) -> Tensor:
    """Return elements of `of`, by rows as from `rows_of`."""
    xp = numpy_of(of)
    return xp.take(xp.reshape(of, (-1, *xp.shape(of)[2:])), rows, axis=0)


def likeliest_step(
    advance: Advance, constants: list[Tensor], beam: Tensor, excluded_ids: Collection[int]
) -> LikeliestStep:
    """Return the step of `Search.run` from that of a model, `constants` before its states.

    All hypotheses of a sentence, `beam`, share what was read of its source.
    """
    constants = [ops.repeat(part, beam, axis=0) for part in constants]

    def step(tokens, states):
        logits, states = advance(tokens, [*constants, *states])
        logits = logits[:, -1]
        highest = ops.max(logits, axis=-1, keepdims=True)
        sums = ops.sum(ops.exp(logits - highest), axis=-1, keepdims=True)
        is_excluded = np.isin(range(logits.shape[-1]), [*excluded_ids])
        if is_excluded.any():
            logits = ops.where(is_excluded, NONE, logits)
        # float64: float32 makes ties of logits that differ.
        likeliest, ids = top_columns(logits, beam)
        highest, sums, likeliest = (ops.cast(x, "float64") for x in (highest, sums, likeliest))
        return likeliest - highest - ops.log(sums), ids, states

    return step


def top_columns(values: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return `ops.top_k`, which is slow for many columns, of those blocks that have the highest."""
    xp, columns = numpy_of(values), values.shape[-1]
    blocks = -(-columns // BLOCK)
    if not isinstance(count, int) or blocks < 2 * count:
        return top_k(values, count)
    if missing := blocks * BLOCK - columns:
        values = xp.pad(values, [(0, 0), (0, missing)], constant_values=NONE)
    values = xp.reshape(values, (-1, blocks, BLOCK))
    best = xp.sort(top_k(xp.max(values, axis=-1), count)[1], axis=-1)
    inside = taken(values, rows_of(best, values))
    highest, place = top_k(xp.reshape(inside, (-1, count * BLOCK)), count)
    chosen = taken(best, rows_of(place // BLOCK, best))
    return highest, chosen * BLOCK + place % BLOCK


def batches_by_length(lengths: Sequence[int], *, rows: int, copies: int = 0) -> Iterator[list[int]]:
    """Yield the positions of `lengths` above 0, similar ones together, at most `rows` at a time.

    There are a half, a quarter, ... of them where that keeps what is read at a time, `copies` of
    each and padding included, within POSITIONS; one that is longer by itself is alone.
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: lengths[i])
    first = 0
    while first < len(order):
        count = rows
        while (batch := order[first : first + count]) and count > 1:
            if len(batch) * copies * bucket_length(max(lengths[i] for i in batch)) <= POSITIONS:
                break
            count //= 2
        yield batch
        first += count


@functools.cache
def _search(beam: int, n_best: int, eos_id: int | None, excluded_ids: tuple[int, ...]) -> Question:
    """Return a question that is answered with the `Finished` of a whole search.

    A segment has the `states` of each sentence, or its `source`; `first_ids` and `max_tokens`,
    int32, and `length_normalization`, float64, all `(sentences, 1)`; `max_tokens` has a column for
    each token of the longest one instead, so that its shape tells their number.
    """

    def question(graph: Graph, segment: Tensors) -> Tensors:
        limits = {name: segment[name][:, 0] for name in ("max_tokens", "length_normalization")}
        beams = {"beam": np.array([beam], "int32"), "n_best": np.array([n_best], "int32")}
        time = ops.shape(segment["max_tokens"])[1]
        search = Search(eos_id=eos_id, **beams, **limits, time=time)
        states, count = segment["states"], graph.constants
        step = likeliest_step(graph.logits, states[:count], beam, excluded_ids)
        finished, total = search.run(step, states[count:], segment["first_ids"][:, 0])
        return {**finished._asdict(), "total": total}

    return question


def compiled_search(
    model: LanguageModel,
    segment: Tensors,
    *,
    first_ids: np.ndarray,
    beam: int,
    max_tokens: int | np.ndarray,
    eos_id: int | None,
    n_best: int = 1,
    length_normalization: float = 0.0,
    excluded_ids: Collection[int] = (),
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `beam_search`, by one call of a compiled function.

    `segment` holds the `states` of each sentence, or the `source`.
    """
    reader = reader_of(model, _search(beam, n_best, eos_id, tuple(excluded_ids)))
    limits = np.full(first_ids.shape, max_tokens, "int32")
    segment = segment | {
        "first_ids": first_ids.astype("int32")[:, None],
        "max_tokens": np.tile(limits[:, None], bucket_length(int(limits.max()))),
        "length_normalization": np.full((len(limits), 1), float(length_normalization)),
    }
    with double_precision():
        answer = reader.predict_on_batch(segment)
    check_logits(answer.pop("total"))
    return Finished(**answer).hypotheses(limits)


def ensemble_step(steps: Sequence[Step]) -> Step:
    """Return one step for `beam_search` whose probabilities are the mean of those of `steps`.

    The mean is computed in log space, in float64. All steps must have the same tokens.

    Args:
        steps: Functions as `beam_search` takes them, at least one.

    Returns:
        A step whose states are a list with the states of each of `steps`.

    Raises:
        ValueError: if `steps` is empty.

    Example:

    >>> import numpy as np
    >>> from dualnet.generation import beam_search, ensemble_step
    >>> def constant(*probabilities):
    ...     return lambda tokens, states: (np.log([probabilities] * len(tokens)), states)
    >>> step = ensemble_step([constant(0.2, 0.8), constant(0.9, 0.1)])
    >>> [[best]] = beam_search(step, [[], []], first_ids=[0], beam=1, max_tokens=1, eos_id=None)
    >>> best.ids, round(float(np.exp(best.score)), 4)
    ((0,), 0.55)
    """
    if not steps:
        raise ArgumentError("steps", "must hold at least one step. Received: none.")

    def step(tokens: np.ndarray, states: States) -> tuple[Tensor, States]:
        results = [member(tokens, state) for member, state in zip(steps, states, strict=True)]
        rows = [ops.convert_to_numpy(row).astype(np.float64) for row, _ in results]
        return np.logaddexp.reduce(rows) - np.log(len(rows)), [state for _, state in results]

    return step


def check_logits(value: float) -> None:
    """Raise `ValueError` unless `value`, the highest of a model's logits, is finite."""
    if not math.isfinite(value):
        way_out = "Train it again with a smaller learning_rate."
        raise ArgumentError("model", f"must compute finite logits. Received: {value}. {way_out}")


def _take(states: States, rows: Tensor) -> States:
    """Return `rows` of each of `states`."""
    rows = numpy_of(rows).reshape(rows, (-1,))

    def take(state):
        return numpy_of(state).take(state, rows, axis=0)

    return keras.tree.map_structure(take, states)
