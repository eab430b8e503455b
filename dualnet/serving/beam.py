"""`dualnet.generation.beam_search` inside a TensorFlow graph, each sentence with its own beam."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# From tokens `(rows, 1)` and states to float32 log-probabilities `(rows, words)` and new states.
Step = Callable[[Any, list[Any]], tuple[Any, list[Any]]]

NONE = np.float64("-inf")  # the score of a hypothesis that there is not


class Hypotheses(NamedTuple):
    """Finished hypotheses of each sentence, best first, some of them perhaps `NONE`.

    Attributes:
        ids: int32 `(batch, count, time)`, without `<eos>`, and padded with it.
        lengths: int32 `(batch, count)`.
        scores, normalized_scores: float64 `(batch, count)`, as in `dualnet.generation.Hypothesis`.
    """

    ids: Any
    lengths: Any
    scores: Any
    normalized_scores: Any


def beam_search(
    step: Step,
    states: list[Any],
    running: Any,
    settings: dict[str, Any],
    *,
    eos_id: int,
    excluded_ids: Sequence[int],
) -> Hypotheses:
    """Return the likeliest continuations of `<eos>` in `states`, one row for each sentence.

    What ties, what finishes and when a sentence ends is as in `dualnet.generation.beam_search`.
    A sentence that is not `running` has one empty continuation, of score 0. `excluded_ids` are
    never taken. `settings` are int32 `beam`, `n_best` and `max_tokens`, and float32
    `length_normalization`, each `(batch,)`. The loop has as many rows for each sentence as the
    widest beam.
    """
    beam, n_best, limits = (settings[name] for name in ("beam", "n_best", "max_tokens"))
    exponents = -tf.cast(settings["length_normalization"], tf.float64)[:, None]
    batch, width, count = tf.shape(beam)[0], largest(beam), largest(n_best)
    rank = tf.range(width)

    def normalized(scores: Any, lengths: Any) -> Any:
        return scores * tf.pow(tf.cast(lengths, tf.float64), exponents)

    def body(
        length: Any, tokens: Any, states: Any, scores: Any, prefixes: Any, finished: Hypotheses
    ) -> tuple[Any, ...]:
        log_p, states = step(tf.reshape(tokens, (-1, 1)), states)
        words, length = log_p.shape[-1], length + 1
        totals = tf.cast(tf.reshape(log_p, (batch, width, words)), tf.float64) + scores[..., None]
        totals = tf.where(np.isin(range(words), excluded_ids), NONE, totals)
        # Of equal values, `top_k` takes those that come first: the lower id, then the likelier
        # hypothesis.
        totals = tf.reshape(tf.transpose(totals, (0, 2, 1)), (batch, words * width))
        scores, indices = tf.math.top_k(totals, k=width)
        ids, parents = indices // width, indices % width
        scores = tf.where(rank < beam[:, None], scores, NONE)
        prefixes = tf.gather(prefixes, parents, batch_dims=1)
        prefixes = tf.concat([prefixes, ids[..., None]], axis=2)

        ended = tf.equal(ids, eos_id)
        done = ended | tf.equal(length, limits)[:, None]
        new = Hypotheses(
            prefixes,
            length - tf.cast(ended, tf.int32),
            scores,
            tf.where(done & (scores > NONE), normalized(scores, length), NONE),
        )
        padded = tf.pad(finished.ids, [[0, 0], [0, 0], [0, 1]], constant_values=eos_id)
        pairs = zip(finished._replace(ids=padded), new)
        pool = Hypotheses(*(tf.concat(pair, axis=1) for pair in pairs))
        _, order = tf.math.top_k(pool.normalized_scores, k=count)  # the first to finish, in a tie
        finished = Hypotheses(*(tf.gather(part, order, batch_dims=1) for part in pool))

        scores = tf.where(done, NONE, scores)
        worst = tf.gather(finished.normalized_scores, n_best[:, None] - 1, batch_dims=1)
        # Scores only fall, and length helps most at the limit.
        highest = tf.reduce_max(scores, axis=1, keepdims=True)
        scores = tf.where(normalized(highest, limits[:, None]) <= worst, NONE, scores)
        rows = tf.reshape(tf.range(batch)[:, None] * width + parents, (-1,))
        states = [tf.gather(state, rows) for state in states]
        return length, tf.where(scores > NONE, ids, 0), states, scores, prefixes, finished

    first = tf.equal(tf.range(count), 0) & ~running[:, None]
    nothing = tf.zeros((batch, count), tf.float64)
    finished = Hypotheses(
        tf.zeros((batch, count, 0), tf.int32),
        tf.zeros((batch, count), tf.int32),
        nothing,
        tf.where(first, nothing, NONE),
    )
    start = (
        0,
        tf.fill((batch, width), eos_id),
        [tf.repeat(state, width, axis=0) for state in states],
        tf.where(tf.equal(rank, 0) & running[:, None], tf.zeros((), tf.float64), NONE),
        tf.zeros((batch, width, 0), tf.int32),
        finished,
    )
    growing, flat = tf.TensorShape((None, None, None)), tf.TensorShape((None, None))
    shapes = (tf.TensorShape(()), flat, [state.shape for state in states], flat, growing,
              Hypotheses(growing, flat, flat, flat))  # fmt: skip
    *_, finished = tf.while_loop(
        lambda length, tokens, states, scores, *_: tf.reduce_any(scores > NONE),
        body,
        start,
        shape_invariants=shapes,
    )
    wanted = tf.range(count) < n_best[:, None]
    return finished._replace(normalized_scores=tf.where(wanted, finished.normalized_scores, NONE))


def largest(values: Any) -> Any:
    """Return the largest of `values`, int32 of at least 1, or 1 if there are none."""
    return tf.reduce_max(tf.concat([values, [1]], axis=0))
