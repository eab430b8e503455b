"""Runs a model inside a TensorFlow graph: on ids of any length, in chunks of time."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import ops

from dualnet._types import Tensor, Tensors
from dualnet.builders import Graph, LanguageModel
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.layers import without_gradients
from dualnet.serving import requests
from dualnet.serving.graph_bpe import GraphBPE
from dualnet.serving.graph_tokenizer import GraphTokenizer
from dualnet.serving.requests import Input

TextReader = GraphTokenizer | GraphBPE
Rows = contextlib.AbstractContextManager[object]

# Limits of one chunk: 128 MiB of logits, and no more tokens than make it any faster.
MAX_LOGITS = 1 << 25
MAX_TOKENS = 2048
CONSTANTS = ("memory", "keys", "mask")  # what was read of a source, which no step changes


class ServedReader:
    """Runs `model`, or a `graph` of its layers, dropout off; what goes in and out is float32.

    Attributes:
        words: Number of words.
        constants: Names of what is read of the source: none in a language model.
        inputs: dict of str to `Input`, the constants and all states.
    """

    def __init__(self, model: LanguageModel, graph: Graph | None = None) -> None:
        self.graph, self.encoder = graph or model.graph, model.graph.encoder
        self.sizes, self.words = model.state_size, model.vocabulary_size
        self.max_tokens = max(1, min(MAX_TOKENS, MAX_LOGITS // self.words))
        self.constants = CONSTANTS[: self.graph.constants]
        names = [*self.constants, *(f"state_{i}" for i in range(1, len(self.sizes) + 1))]
        shapes = [state.shape[1:] for state in self.graph.states]
        self.inputs = {name: requests.finite(*shape) for name, shape in zip(names, shapes)}
        # Whether a request has a memory, and the context in which each row is read with its own.
        self.differing: tuple[Tensor, Rows] | None = None
        if "mask" in self.inputs:
            self.inputs["mask"] = Input(tf.bool, (None,))

    def zeros(self, batch: Tensor) -> list[Tensor]:
        """Return the states before a text: list of `(batch, size)`."""
        return [tf.zeros((batch, size)) for size in self.sizes]

    def before(self, inputs: Tensors) -> list[Tensor]:
        """Return the values of a request for `inputs` of the reader, in their order."""
        return [inputs[name] for name in self.inputs]

    def encode(self, ids: Tensor, in_row: Tensor) -> list[Tensor]:
        """Return memory, keys, mask and states of the sources; ids count where `in_row`."""
        ids = tf.where(in_row, ids, PADDING_ID)
        # A position at least, which may be padding: attention needs one.
        missing = tf.maximum(0, 1 - tf.shape(ids)[1])
        ids = tf.pad(ids, [[0, 0], [0, missing]], constant_values=PADDING_ID)
        with without_gradients():
            encoded = self.encoder(ids, training=False)
        return [part if part.dtype == tf.bool else tf.cast(part, tf.float32) for part in encoded]

    def advance(self, ids: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of `ids`, int32 `(batch, time)`, and the states after them.

        In a translator, the ids are those of a target, and the constants stand before the states.
        """

        def read(rows: Rows | None = None) -> tuple[Tensor, list[Tensor]]:
            with rows or contextlib.nullcontext(), without_gradients():
                logits, after = self.graph.logits(ids, states)
            return logits, [tf.cast(state, tf.float32) for state in after]

        if self.differing is None:
            return read()
        has_memory, rows = self.differing
        # One product for all rows is several times faster than one for each.
        return tf.cond(has_memory, lambda: read(rows), read)

    def log_probabilities(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return log p of each target given the ids up to its position, from the zero state.

        Ids and targets are int32, the result float32 in nats, all `(batch, time)`.
        """
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        # Chunks of equal length, at least one, each of at least one token: an empty text needs
        # no special case. The padding is cut off at the end.
        chunks = tf.maximum(1, -(-time // self._chunk_length(batch)))
        length = tf.maximum(1, -(-time // chunks))
        padding = [[0, 0], [0, chunks * length - time]]
        ids, targets = tf.pad(ids, padding), tf.pad(targets, padding)

        def read(first, states):
            window = slice(first, first + length)
            logits, states = self.advance(ids[:, window], states)
            return tf.gather(tf.nn.log_softmax(logits), targets[:, window], batch_dims=2), states

        return by_windows(read, chunks, length, self.zeros(batch))[0][:, :time]

    def last(
        self, ids: Tensor, lengths: Tensor, states: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits after the last id of each row, `(batch, words)`, and the states there.

        `ids` is int32 `(batch, time)`; `lengths` int32 `(batch,)`, each from 1 to time. `states`
        are those before the ids, by default zero.
        """
        batch = tf.shape(ids)[0]
        longest = ops.max(lengths, initial=0)
        chunk_length = self._chunk_length(batch)

        def read_chunk(start, logits, states):
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
            (0, tf.zeros((batch, self.words)), states or self.zeros(batch)),
            parallel_iterations=1,
        )
        return logits, states

    def _chunk_length(self, batch: Tensor) -> Tensor:
        return tf.maximum(1, self.max_tokens // tf.maximum(1, batch))


def by_windows(
    read: Callable[..., tuple[Tensor, Any]], count: Tensor, length: Tensor, carry: Any
) -> tuple[Tensor, Any]:
    """Return the scores of `count` windows side by side, and what the last one carries on.

    `read`, of the first column of a window and of what was carried to it, returns its scores,
    `(batch, length)`, and what it carries on.
    """

    def step(i, scores, carry):
        of_window, carry = read(i * length, carry)
        return i + 1, scores.write(i, tf.transpose(of_window)), carry

    _, scores, carry = tf.while_loop(
        lambda i, *_: i < count,
        step,
        (0, tf.TensorArray(tf.float32, size=count), carry),
        parallel_iterations=1,  # more would hold the logits of several windows
    )
    return tf.transpose(scores.concat()), carry


def begun(texts: Tensor, eos_id: int, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the ids, padded, and lengths of ragged int32 `texts`, after `<eos>` or `first` ids."""
    first = tf.fill(tf.shape(texts.row_lengths()), eos_id) if first is None else first
    ids = tf.concat([first[:, None], texts.to_tensor(eos_id)], axis=1)
    return ids, tf.cast(texts.row_lengths(), tf.int32) + 1


def scored_text(tokenizer: TextReader, ids: Tensor, lengths: Tensor, log_p: Tensor) -> Tensors:
    """Return words, scores and perplexity of texts as from `begun`; `log_p` has no first id."""
    ids, lengths = ids[:, 1:], lengths - 1
    mask = tf.sequence_mask(lengths, tf.shape(ids)[1])
    scores = tf.where(mask, log_p, 0.0)
    # float64: the float32 sum of a long text would lose digits.
    nll = -tf.reduce_sum(tf.cast(scores, tf.float64), axis=1)
    mean = nll / tf.cast(tf.maximum(lengths, 1), tf.float64)
    perplexity = tf.minimum(tf.exp(mean), tf.float32.max)  # JSON has no infinity
    return {
        "words": tf.where(mask, tf.gather(tokenizer.words, ids), ""),
        "log_probabilities": scores,
        "lengths": lengths,
        "perplexity": tf.cast(perplexity, tf.float32),
    }
