"""Beam search: the likeliest continuations of sentences, whatever model predicts them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from dualnet._backend import double_precision, like, top_k
from dualnet._checks import ArgumentError, check_count, check_ids
from dualnet.builders import Graph, LanguageModel, Question, bucket_length, reader_of
from dualnet.requests import Translating

# From tokens `(rows, 1)` and states to the log-probabilities of the next token and the new states.
Step = Callable[[np.ndarray, Any], tuple[Any, Any]]

BLOCK = 80  # columns whose highest value is taken first
HYPOTHESES = 320  # that are open side by side, of all sentences
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


# The likeliest extensions of the open hypotheses of each sentence, best first: their scores,
# float64, of which some may be NONE, their last tokens, and which hypotheses they extend, int, all
# `(sentences, beam)`.
Chosen = tuple[Any, Any, Any]


class Finished(NamedTuple):
    """The finished hypotheses of each sentence, best first, some of them perhaps `NONE`.

    Attributes:
        ids: int32 `(sentences, n_best, time)`; what comes after the length means nothing.
        lengths: int32 `(sentences, n_best)`, without `<eos>`.
        scores, normalized_scores: float64 `(sentences, n_best)`, as in `Hypothesis`.
    """

    ids: Any
    lengths: Any
    scores: Any
    normalized_scores: Any

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
    states: Any,
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
    if eos_id is not None:
        check_count("eos_id", eos_id, least=0)
    first_ids = check_ids("first_ids", first_ids, least=1)
    count, excluded = len(first_ids), list(excluded_ids)
    shape = np.shape(max_tokens)
    if shape not in ((), (count,)):
        required = f"must be an integer, or one for each of the {count} sentences."
        raise ArgumentError("max_tokens", f"{required} Received: shape {shape}.")
    limits = np.broadcast_to(max_tokens, count)
    limits = np.array([check_count("max_tokens", limit, least=1) for limit in limits])
    search = Search(
        xp=np,
        beam=np.full(count, beam),
        n_best=np.full(count, n_best),
        length_normalization=np.full(count, float(request.length_normalization)),
        max_tokens=limits,
        eos_id=eos_id,
    )
    scores, prefixes, finished = search.start()
    rows = np.repeat(np.arange(count), beam).reshape(count, beam)
    tokens = first_ids.astype(np.int32)[rows]
    for length in range(1, limits.max() + 1):
        log_p, states = step(tokens.reshape(-1, 1), _take(states, rows))
        log_p = ops.convert_to_numpy(log_p).reshape(count, beam, -1)
        if excluded and not 0 <= min(excluded) <= max(excluded) < log_p.shape[-1]:
            raise ArgumentError("excluded_ids", f"must be at least 0 and below {log_p.shape[-1]}.")
        is_open = scores[..., None] > NONE
        totals = np.where(is_open, log_p + np.where(is_open, scores[..., None], 0), NONE)
        totals[..., excluded] = NONE
        extended = search.extend(length, _likeliest(totals, beam), prefixes, finished)
        tokens, rows, scores, prefixes, finished = extended
        if not (scores > NONE).any():
            break
    return finished.hypotheses(limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What beam searches of several sentences keep: open and finished hypotheses, as arrays.

    Attributes:
        xp: NumPy, or `keras.ops` for a search inside a compiled function.
        beam, n_best, max_tokens: int `(sentences,)`. Arrays have as many columns as the largest.
        length_normalization: float64 `(sentences,)`.
        eos_id: As for `beam_search`.
        sizes: The largest `beam`, `n_best` and `max_tokens`, where they are known.
    """

    xp: Any
    beam: Any
    n_best: Any
    length_normalization: Any
    max_tokens: Any
    eos_id: int | None
    sizes: tuple[Any, Any, Any] | None = None

    def start(self, is_running: Any = True) -> tuple[Any, Any, Finished]:
        """Return scores, float64, and prefixes, int32 `(..., time)`, of all, and what is finished.

        A sentence that is not running has one finished hypothesis, which is empty.
        """
        xp, sentences = self.xp, self.xp.shape(self.beam)[0]
        settings = (self.beam, self.n_best, self.max_tokens)
        width, count, time = self.sizes or (xp.max(each, initial=1) for each in settings)
        is_running = xp.reshape(is_running, (-1, 1))
        zeros = xp.zeros((sentences, count), "float64")
        finished = Finished(
            xp.zeros((sentences, count, time), "int32"),
            xp.zeros((sentences, count), "int32"),
            zeros,
            xp.where(xp.logical_not(is_running) & (xp.arange(count) == 0), zeros, NONE),
        )
        zeros = xp.zeros((sentences, width), "float64")
        scores = xp.where(is_running & (xp.arange(width) == 0), zeros, NONE)
        return scores, xp.zeros((sentences, width, time), "int32"), finished

    def extend(
        self, length: Any, chosen: Chosen, prefixes: Any, finished: Finished
    ) -> tuple[Any, Any, Any, Any, Finished]:
        """Return the tokens to read after a step, and the rows whose states follow them.

        With them come new scores, prefixes and finished hypotheses, as of `start`; hypotheses have
        `length` tokens now. A token without an open hypothesis is padding, id 0.
        """
        xp, (totals, ids, parents) = self.xp, chosen
        totals = xp.where(xp.arange(xp.shape(totals)[1]) < self.beam[:, None], totals, NONE)
        rows = _rows(xp, parents, totals)
        is_last = xp.arange(xp.shape(prefixes)[2]) == length - 1
        prefixes = xp.where(is_last, ids[..., None], _taken(xp, prefixes, rows))

        has_ended = ids == (-1 if self.eos_id is None else self.eos_id)
        is_done = has_ended | (self.max_tokens[:, None] == length)
        normalized = xp.where(is_done & (totals > NONE), self._normalized(totals, length), NONE)
        new = Finished(prefixes, xp.where(has_ended, length - 1, length), totals, normalized)
        pool = Finished(*(xp.concatenate(pair, axis=1) for pair in zip(finished, new)))
        count = xp.shape(finished.scores)[1]
        sort = functools.partial(np.argsort, kind="stable") if xp is np else ops.argsort
        best = sort(-pool.normalized_scores, axis=1)[:, :count]  # the first to finish, in a tie
        best = _rows(xp, best, pool.scores)
        finished = Finished(*(_taken(xp, part, best) for part in pool))

        scores = xp.where(is_done, NONE, totals)
        last = _rows(xp, self.n_best[:, None] - 1, finished.scores)
        worst = _taken(xp, finished.normalized_scores, last)
        # Scores only fall, and length helps most at the limit.
        bound = self._normalized(xp.max(scores, axis=1, keepdims=True), self.max_tokens[:, None])
        scores = xp.where(bound <= worst, NONE, scores)
        return xp.where(scores > NONE, ids, 0), rows, scores, prefixes, finished

    def _normalized(self, scores: Any, lengths: Any) -> Any:
        # A negative power underflows to 0, where a positive one would be infinite; -inf * 0 is nan.
        factor = self.xp.power(lengths, -self.length_normalization[:, None])
        return self.xp.where(scores > NONE, self.xp.maximum(scores, -1e300) * factor, NONE)


def _rows(xp: Any, columns: Any, of: Any) -> Any:
    """Return where the `columns` of each row of `of` are if all of them form one axis."""
    count, width = xp.shape(of)[:2]
    return xp.arange(count)[:, None] * width + columns


def _taken(xp: Any, of: Any, rows: Any) -> Any:
    """Return elements of `of`, by rows as from `_rows`."""
    return xp.take(xp.reshape(of, (-1, *xp.shape(of)[2:])), rows, axis=0)


def _likeliest(totals: np.ndarray, count: int) -> Chosen:
    """Return the `count` highest of `totals`, `(sentences, hypotheses, words)`.

    Ties go to the lower word, then to the likelier hypothesis.
    """
    highest = totals.max(axis=1)
    if not highest.max() < np.inf:
        raise ArgumentError("step", f"must return log-probabilities. Received: {highest.max()}.")
    # `count` words reach `least`, so nothing below is needed; few entries remain to be sorted.
    least: Any = NONE
    if count < highest.shape[1]:
        least = np.partition(highest, -count, axis=1)[:, -count, None, None]
    sentences, parents, ids = np.nonzero((totals >= least) & (totals > NONE))
    values = totals[sentences, parents, ids]
    order = np.lexsort((parents, ids, -values, sentences))
    rank = np.arange(len(order)) - np.searchsorted(sentences, sentences)
    order, rank = order[rank < count], rank[rank < count]
    places = sentences[order], rank
    chosen: Any = tuple(np.full((len(totals), count), empty) for empty in (NONE, 0, 0))
    for part, found in zip(chosen, (values, ids, parents)):
        part[places] = found[order]
    return chosen


def likeliest_words(logits: Any, count: Any, excluded_ids: Collection[int]) -> tuple[Any, Any]:
    """Return log-probabilities, float64, and ids of the `count` likeliest words of each row.

    Of equal ones, the lower ids. `logits` are float32 `(rows, words)`.
    """
    highest = ops.max(logits, axis=-1, keepdims=True)
    sums = ops.sum(ops.exp(logits - highest), axis=-1, keepdims=True)
    is_excluded = np.isin(range(logits.shape[-1]), [*excluded_ids])
    if is_excluded.any():
        logits = ops.where(is_excluded, NONE, logits)
    # float64: float32 makes ties of logits that differ.
    likeliest, ids = _top_k(logits, count)
    highest, sums, likeliest = (ops.cast(x, "float64") for x in (highest, sums, likeliest))
    return likeliest - highest - ops.log(sums), ids


def _top_k(values: Any, count: Any) -> tuple[Any, Any]:
    """Return `ops.top_k`, which is slow for many columns, of those blocks that have the highest."""
    columns = values.shape[-1]
    blocks = -(-columns // BLOCK)
    if not isinstance(count, int) or blocks < 2 * count:
        return top_k(values, count)
    if missing := blocks * BLOCK - columns:
        values = ops.pad(values, [(0, 0), (0, missing)], constant_values=NONE)
    values = ops.reshape(values, (-1, blocks, BLOCK))
    best = ops.sort(top_k(ops.max(values, axis=-1), count)[1], axis=-1)
    inside = _taken(ops, values, _rows(ops, best, values))
    highest, place = top_k(ops.reshape(inside, (-1, count * BLOCK)), count)
    chosen = _taken(ops, best, _rows(ops, place // BLOCK, best))
    return highest, chosen * BLOCK + place % BLOCK


def search_in_graph(
    search: Search,
    step: Callable[[Any, Any], tuple[Any, Any, Any]],
    states: list[Any],
    first_ids: Any,
    *,
    is_running: Any = True,
) -> tuple[Finished, Any]:
    """Return the finished hypotheses of a beam search in a compiled function.

    `step` returns what `likeliest_words` does for the widest beam, and the new states; `first_ids`
    are `(sentences,)`. With what is finished comes a number that is nan if a log-probability was.
    """
    scores, prefixes, finished = search.start(is_running)
    tokens = ops.zeros_like(prefixes[..., 0]) + first_ids[:, None]
    every_row = _rows(ops, ops.zeros_like(tokens), finished.scores[:, :1])

    def body(
        length: Any, tokens: Any, states: Any, scores: Any, prefixes: Any, finished: Any, total: Any
    ) -> Any:
        log_p, ids, states = step(ops.reshape(tokens, (-1, 1)), states)
        width, count, before = ops.shape(scores)[1], ops.shape(ids)[1], ops.reshape(scores, (-1, 1))
        log_p = ops.where(before > NONE, before + log_p, NONE)
        total += ops.sum(ops.where(before > NONE, log_p[:, :1], 0))

        # Those of a sentence in one row: the lower word first, then the likelier hypothesis.
        totals, ids = (ops.reshape(each, (-1, width * count)) for each in (log_p, ids))
        parents = ops.arange(width * count) // count
        order = _rows(ops, ops.argsort(ids * width + parents, axis=1), ids)
        totals, columns = top_k(_taken(ops, totals, order), width)
        taken = _taken(ops, order, _rows(ops, columns, ids))
        chosen = totals, _taken(ops, ids, taken), taken // count % width
        tokens, rows, *kept = search.extend(length + 1, chosen, prefixes, finished)
        states = [ops.take(state, ops.reshape(rows, (-1,)), axis=0) for state in states]
        return length + 1, tokens, states, *kept, total

    states = [ops.take(state, ops.reshape(every_row, (-1,)), axis=0) for state in states]
    total = ops.zeros((), "float64")
    *_, finished, total = ops.while_loop(
        lambda length, tokens, states, scores, *_: ops.any(scores > NONE),
        lambda *carry: like(carry, body(*carry)),
        (ops.zeros((), "int32"), tokens, states, scores, prefixes, finished, total),
    )
    return finished, total


@functools.cache
def _search(beam: int, n_best: int, eos_id: int | None, excluded_ids: tuple[int, ...]) -> Question:
    """Return a question that is answered with the `Finished` of a whole search.

    A segment has the `states` of each sentence, or its `source`; `first_ids` and `max_tokens`,
    int32, and `length_normalization`, float64, all `(sentences, 1)`; `max_tokens` has a column for
    each token of the longest one instead, so that its shape tells their number.
    """

    def question(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
        limits = {name: segment[name][:, 0] for name in ("max_tokens", "length_normalization")}
        sizes = beam, n_best, ops.shape(segment["max_tokens"])[1]
        first_ids = segment["first_ids"][:, 0]
        beams = {"beam": ops.full_like(first_ids, beam), "n_best": ops.full_like(first_ids, n_best)}
        search = Search(xp=ops, eos_id=eos_id, **beams, **limits, sizes=sizes)
        count = graph.constants
        # All hypotheses of a sentence share what was read of its source.
        constants = [ops.repeat(part, beam, axis=0) for part in segment["states"][:count]]

        def step(tokens: Any, states: Any) -> tuple[Any, Any, Any]:
            logits, states = graph.logits(tokens, [*constants, *states])
            return *likeliest_words(ops.cast(logits[:, -1], "float32"), beam, excluded_ids), states

        finished, total = search_in_graph(search, step, segment["states"][count:], first_ids)
        return {**finished._asdict(), "total": total}

    return question


def compiled_search(
    model: LanguageModel,
    segment: dict[str, Any],
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
        ValueError: if `steps` is empty, or, when it is called, if they have different tokens.

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
    steps = list(steps)
    if not steps:
        raise ArgumentError("steps", "must hold at least one step. Received: none.")

    def step(tokens: np.ndarray, states: Any) -> tuple[Any, list[Any]]:
        results = [member(tokens, state) for member, state in zip(steps, states, strict=True)]
        if len(results) == 1:
            [(row, state)] = results
            return ops.convert_to_numpy(row), [state]
        rows = [ops.convert_to_numpy(row).astype(np.float64) for row, _ in results]
        if len({row.shape for row in rows}) > 1:
            received = f"Received: log-probabilities of {[row.shape[-1] for row in rows]} tokens."
            raise ArgumentError("steps", f"must have the same tokens. {received}")
        return np.logaddexp.reduce(rows) - np.log(len(rows)), [state for _, state in results]

    return step


def check_logits(value: float) -> None:
    """Raise `ValueError` unless `value`, the highest of a model's logits, is finite."""
    if not math.isfinite(value):
        way_out = "Train it again with a smaller learning_rate."
        raise ArgumentError("model", f"must compute finite logits. Received: {value}. {way_out}")


def _take(states: Any, rows: np.ndarray) -> Any:
    """Return `rows` of each of `states`."""

    def take(state: Any) -> Any:
        xp = np if isinstance(state, np.ndarray) else ops
        return xp.take(state, rows.ravel(), axis=0)

    return keras.tree.map_structure(take, states)
