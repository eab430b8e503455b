"""Beam search: the likeliest continuations of sentences, whatever model predicts them."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from dualnet._checks import ArgumentError, check_count, check_ids, checked
from dualnet.builders.graph import Graph
from dualnet.builders.reader import Question
from dualnet.requests import Translating

# From tokens `(rows, 1)` and states to the log-probabilities of the next token and the new states.
Step = Callable[[np.ndarray, Any], tuple[Any, Any]]


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


class Candidates(NamedTuple):
    """What the step of a model returns in place of all log-probabilities: enough for a beam.

    Attributes:
        log_probabilities: float64 `(rows, beam)`, those of the likeliest tokens that are not
            excluded; of equal ones, the lower ids.
        ids: int32 `(rows, beam)`.
    """

    log_probabilities: Any
    ids: Any


@checked
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
    count = len(first_ids)
    limits = np.asarray(max_tokens)
    if limits.shape not in ((), (count,)):
        required = f"must be an integer, or one for each of the {count} sentences."
        raise ArgumentError("max_tokens", f"{required} Received: shape {limits.shape}.")
    excluded = list(excluded_ids)
    sentences = [
        _Sentence(request, check_count("max_tokens", limit, least=1), eos_id, excluded)
        for limit in np.broadcast_to(limits, count)
    ]
    first_rows = np.arange(count)[:, None]
    tokens = np.repeat(first_ids.astype(np.int32)[:, None], beam, axis=1)  # (sentences, beam)
    states = _take(states, np.broadcast_to(first_rows, tokens.shape))
    while True:
        log_probabilities, states = step(tokens.reshape(-1, 1), states)
        word_ids = None
        if isinstance(log_probabilities, Candidates):
            word_ids = log_probabilities.ids.reshape(count, beam, -1)
            log_probabilities = log_probabilities.log_probabilities
        log_probabilities = ops.convert_to_numpy(log_probabilities).reshape(count, beam, -1)
        size = log_probabilities.shape[-1]
        if word_ids is None and excluded and not 0 <= min(excluded) <= max(excluded) < size:
            raise ArgumentError("excluded_ids", f"must be at least 0 and below {size}.")
        tokens = np.zeros_like(tokens)
        parents = np.zeros_like(tokens)
        for i, sentence in enumerate(sentences):
            if sentence.prefixes:
                known = None if word_ids is None else word_ids[i]
                rows, ids = sentence.extend(log_probabilities[i], known)
                parents[i, : len(rows)], tokens[i, : len(ids)] = rows, ids
        if not any(sentence.prefixes for sentence in sentences):
            return [sentence.finished for sentence in sentences]
        states = _take(states, first_rows * beam + parents)


@functools.cache
def likeliest_words(beam: int, excluded_ids: tuple[int, ...]) -> Question:
    """Return a question on TensorFlow that is answered with `Candidates` and the new states.

    So that Python does not look at all words of each hypothesis at each step.
    """

    def likeliest(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
        states = [*segment["constants"], *segment["states"]]
        logits, states = graph.logits(segment["tokens"], states)
        logits = ops.cast(logits[:, -1], "float32")
        highest = ops.max(logits, axis=-1, keepdims=True)
        sums = ops.sum(ops.cast(ops.exp(logits - highest), "float64"), axis=-1, keepdims=True)
        is_excluded = np.isin(range(logits.shape[-1]), excluded_ids)
        # float64: float32 makes ties of logits that differ.
        values, ids = ops.top_k(ops.where(is_excluded, -np.inf, logits), beam)
        values = ops.cast(values, "float64") - ops.cast(highest, "float64") - ops.log(sums)
        return {"log_p": values, "ids": ids, "states": states}

    return likeliest


@checked
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
            if isinstance(row, Candidates):
                return row, [state]
            return ops.convert_to_numpy(row), [state]
        rows = [ops.convert_to_numpy(row).astype(np.float64) for row, _ in results]
        if len({row.shape for row in rows}) > 1:
            received = f"Received: log-probabilities of {[row.shape[-1] for row in rows]} tokens."
            raise ArgumentError("steps", f"must have the same tokens. {received}")
        return np.logaddexp.reduce(rows) - np.log(len(rows)), [state for _, state in results]

    return step


@dataclasses.dataclass
class _Sentence:
    """The hypotheses of one sentence: open ones, likeliest first, and the best finished ones."""

    request: Translating
    limit: int  # of its tokens
    eos_id: int | None
    excluded_ids: list[int]
    prefixes: list[tuple[int, ...]] = dataclasses.field(default_factory=lambda: [()])
    scores: list[float] = dataclasses.field(default_factory=lambda: [0.0])  # of the prefixes
    finished: list[Hypothesis] = dataclasses.field(default_factory=list)

    def extend(
        self, log_probabilities: np.ndarray, word_ids: np.ndarray | None
    ) -> tuple[list[int], list[int]]:
        """Extend the open hypotheses; return, for those open now, the parents and the last ids.

        `word_ids` are those of the columns in each row, by default all in their order.
        """
        totals = log_probabilities[: len(self.prefixes)].astype(np.float64)
        totals += np.array(self.scores)[:, None]
        if word_ids is None:
            totals[:, self.excluded_ids] = -np.inf
            parents, columns = _likeliest(totals, self.request.beam)
            ids = columns
        else:
            check_highest(totals.max())
            parents, columns = np.nonzero(totals > -np.inf)
            ids = word_ids[parents, columns]
            order = np.lexsort((parents, ids, -totals[parents, columns]))[: self.request.beam]
            parents, columns, ids = parents[order], columns[order], ids[order]
        length = len(self.prefixes[0]) + 1
        extended = []
        scores = totals[parents, columns].tolist()
        for parent, token, score in zip(parents.tolist(), ids.tolist(), scores):
            prefix, ended = self.prefixes[parent], token == self.eos_id
            if ended or length == self.limit:
                words = prefix if ended else (*prefix, token)
                normalized_score = self._normalized(score, length)
                self.finished.append(Hypothesis(words, score, normalized_score, ended))
            else:
                extended.append((parent, token, (*prefix, token), score))
        self.finished.sort(key=lambda hypothesis: -hypothesis.normalized_score)  # stable
        del self.finished[self.request.n_best :]
        if extended and len(self.finished) == self.request.n_best:
            # Scores only fall, and length helps most at the limit.
            bound = self._normalized(extended[0][-1], self.limit)
            if bound <= self.finished[-1].normalized_score:
                extended = []
        self.prefixes = [prefix for *_, prefix, _ in extended]
        self.scores = [score for *_, score in extended]
        return [parent for parent, *_ in extended], [token for _, token, *_ in extended]

    def _normalized(self, score: float, length: int) -> float:
        # A negative power underflows to 0 where a positive one would be an OverflowError.
        return score * float(length) ** -self.request.length_normalization


def _likeliest(totals: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the `count` highest of `totals` that are not -inf, best first.

    Ties go to the lower column, then to the lower row.
    """
    highest = totals.max(axis=0)
    check_highest(highest.max())
    # `count` columns reach `least`, so nothing below is needed; few entries remain to be sorted.
    least = np.partition(highest, -count)[-count] if count < len(highest) else -np.inf
    rows, columns = np.nonzero((totals >= least) & (totals > -np.inf))
    order = np.lexsort((rows, columns, -totals[rows, columns]))[:count]
    return rows[order], columns[order]


def check_highest(value: float) -> None:
    """Raise `ArgumentError` unless `value`, the highest of the log-probabilities, can be one."""
    if not value < np.inf:
        raise ArgumentError("step", f"must return log-probabilities. Received: {value}.")


def _take(states: Any, rows: np.ndarray) -> Any:
    """Return `rows` of each of `states`."""
    rows = rows.ravel()

    def take(state: Any) -> Any:
        if isinstance(state, np.ndarray):
            return state[rows]
        return ops.take(state, rows, axis=0)

    return keras.tree.map_structure(take, states)
