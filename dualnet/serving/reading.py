"""Reads ids in chunks of time with carried state, inside a TensorFlow graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dualnet.builders import LanguageModel
from dualnet.layers import without_gradients

# Tokens that are read at once: 128 MiB of logits, but no more tokens than are any faster.
MAX_LOGITS = 1 << 25
MAX_TOKENS = 2048


class Reader:
    """The graph of `model` as TensorFlow functions, dropouts off."""

    def __init__(self, model: LanguageModel):
        self.core = model.core
        self.sizes = model.state_size
        self.words = model.vocabulary_size
        self.tokens = max(1, min(MAX_TOKENS, MAX_LOGITS // self.words))

    def zeros(self, batch: Any) -> list[Any]:
        """Return the states before a text: list of `(batch, size)`."""
        return [tf.zeros((batch, size)) for size in self.sizes]

    def advance(self, ids: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        """Return the logits of `ids`, int32 `(batch, time)`, and the states after them."""
        with without_gradients():
            logits, *states = self.core([ids, *states], training=False)
        return logits, states

    def log_probabilities(self, ids: Any, targets: Any) -> Any:
        """Return log p of each target given the ids up to its place, from the zero state.

        Args:
            ids: int32 `(batch, time)`.
            targets: int32 `(batch, time)`.

        Returns:
            float32 `(batch, time)`, in nats.
        """
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        # Chunks of one length, at least one of at least one token, so that every shape is known
        # to be whole and an empty text is no special case; the padding is cut off again.
        chunks = tf.maximum(1, _ceil_divide(time, self._chunk_length(batch)))
        length = tf.maximum(1, _ceil_divide(time, chunks))
        padding = [[0, 0], [0, chunks * length - time]]
        ids, targets = tf.pad(ids, padding), tf.pad(targets, padding)

        def read(chunk: Any, found: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
            here = slice(chunk * length, (chunk + 1) * length)
            logits, states = self.advance(ids[:, here], states)
            log_p = tf.gather(tf.nn.log_softmax(logits), targets[:, here], batch_dims=2)
            return chunk + 1, found.write(chunk, tf.transpose(log_p)), states

        _, found, _ = tf.while_loop(
            lambda chunk, *_: chunk < chunks,
            read,
            (0, tf.TensorArray(tf.float32, size=chunks), self.zeros(batch)),
            parallel_iterations=1,  # more would hold the logits of several chunks
        )
        return tf.transpose(found.concat())[:, :time]

    def last(self, ids: Any, lengths: Any) -> tuple[Any, list[Any]]:
        """Return the logits after the last id of each row, and the states there.

        Args:
            ids: int32 `(batch, time)`.
            lengths: int32 `(batch,)`, each from 1 to time.

        Returns:
            `(logits, states)`: float32 `(batch, words)`, and a list of `(batch, size)`.
        """
        batch = tf.shape(ids)[0]
        longest = tf.reduce_max(tf.concat([lengths, [0]], axis=0))
        chunk_length = self._chunk_length(batch)

        def read(start: Any, logits: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
            # Up to where the next row ends, so that each row's state can be kept there.
            going_on = lengths > start
            next_end = tf.reduce_min(tf.where(going_on, lengths, longest))
            end = tf.minimum(start + chunk_length, next_end)
            new_logits, new = self.advance(ids[:, start:end], states)
            keep = going_on[:, None]
            logits = tf.where(keep, new_logits[:, -1], logits)
            return end, logits, [tf.where(keep, one, old) for one, old in zip(new, states)]

        _, logits, states = tf.while_loop(
            lambda start, *_: start < longest,
            read,
            (0, tf.zeros((batch, self.words)), self.zeros(batch)),
            parallel_iterations=1,
        )
        return logits, states

    def _chunk_length(self, batch: Any) -> Any:
        return tf.maximum(1, self.tokens // tf.maximum(1, batch))


def _ceil_divide(a: Any, b: Any) -> Any:
    return (a + b - 1) // b
