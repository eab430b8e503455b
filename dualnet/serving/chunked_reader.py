"""Runs a model over token ids in chunks of time, carrying the state, inside a TensorFlow graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dualnet.builders import LanguageModel
from dualnet.layers import without_gradients

# Limits of one chunk: 128 MiB of logits, and no more tokens than make it any faster.
MAX_LOGITS = 1 << 25
MAX_TOKENS = 2048


class ChunkedReader:
    """Runs `model`, dropout off, on ids of any length with bounded memory."""

    def __init__(self, model: LanguageModel):
        self.core = model.core
        self.sizes = model.state_size
        self.words = model.vocabulary_size
        self.max_tokens = max(1, min(MAX_TOKENS, MAX_LOGITS // self.words))

    def zeros(self, batch: Any) -> list[Any]:
        """Return the states before a text: list of `(batch, size)`."""
        return [tf.zeros((batch, size)) for size in self.sizes]

    def advance(self, ids: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        """Return the logits of `ids`, int32 `(batch, time)`, and the states after them."""
        with without_gradients():
            logits, *states = self.core([ids, *states], training=False)
        return logits, states

    def log_probabilities(self, ids: Any, targets: Any) -> Any:
        """Return log p of each target given the ids up to its position, from the zero state.

        Ids and targets are int32, the result float32 in nats, all `(batch, time)`.
        """
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        # Chunks of equal length, at least one, each of at least one token: an empty text needs
        # no special case. The padding is cut off at the end.
        chunks = tf.maximum(1, _ceil_divide(time, self._chunk_length(batch)))
        length = tf.maximum(1, _ceil_divide(time, chunks))
        padding = [[0, 0], [0, chunks * length - time]]
        ids, targets = tf.pad(ids, padding), tf.pad(targets, padding)

        def read_chunk(chunk: Any, scores: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
            window = slice(chunk * length, (chunk + 1) * length)
            logits, states = self.advance(ids[:, window], states)
            log_p = tf.gather(tf.nn.log_softmax(logits), targets[:, window], batch_dims=2)
            return chunk + 1, scores.write(chunk, tf.transpose(log_p)), states

        _, scores, _ = tf.while_loop(
            lambda chunk, *_: chunk < chunks,
            read_chunk,
            (0, tf.TensorArray(tf.float32, size=chunks), self.zeros(batch)),
            parallel_iterations=1,  # more would hold the logits of several chunks
        )
        return tf.transpose(scores.concat())[:, :time]

    def last(self, ids: Any, lengths: Any) -> tuple[Any, list[Any]]:
        """Return the logits after the last id of each row, `(batch, words)`, and the states there.

        `ids` is int32 `(batch, time)`; `lengths` int32 `(batch,)`, each from 1 to time.
        """
        batch = tf.shape(ids)[0]
        longest = tf.reduce_max(tf.concat([lengths, [0]], axis=0))
        chunk_length = self._chunk_length(batch)

        def read_chunk(start: Any, logits: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
            # A chunk ends where the next row does, so that the state of that row can be kept.
            unfinished = lengths > start
            next_end = tf.reduce_min(tf.where(unfinished, lengths, longest))
            end = tf.minimum(start + chunk_length, next_end)
            new_logits, new_states = self.advance(ids[:, start:end], states)
            mask = unfinished[:, None]
            logits = tf.where(mask, new_logits[:, -1], logits)
            return end, logits, [tf.where(mask, new, old) for new, old in zip(new_states, states)]

        _, logits, states = tf.while_loop(
            lambda start, *_: start < longest,
            read_chunk,
            (0, tf.zeros((batch, self.words)), self.zeros(batch)),
            parallel_iterations=1,
        )
        return logits, states

    def _chunk_length(self, batch: Any) -> Any:
        return tf.maximum(1, self.max_tokens // tf.maximum(1, batch))


def _ceil_divide(a: Any, b: Any) -> Any:
    return (a + b - 1) // b
