"""Draws words one after another, carrying the state, inside a TensorFlow graph."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dualnet.generation.blocks import drawn_by, drawn_in_order
from dualnet.serving import requests
from dualnet.serving.requests import Input, Tensors
from dualnet.serving.served_reader import ServedReader


def settings_of(bound: int) -> dict[str, Input]:
    """Return the inputs that say how a row draws; `bound` is the highest `max_tokens`."""
    limits = f"at least 0 and at most {bound}, the bound of this export"
    return {
        "max_tokens": requests.whole(0, bound, limits),
        "temperature": requests.not_negative(),
        "top_k": Input(tf.int32, (), "at least 0 (0: all words)", lambda x, _: x >= 0),
        "top_p": Input(tf.float32, (), "above 0 and at most 1", lambda x, _: (x > 0) & (x <= 1)),
        "seed": Input(tf.int32),
        "stop_at_eos": Input(tf.bool),
    }


def draw_words(
    reader: ServedReader, prompts: Any, settings: Tensors, eos_id: int, excluded_ids: Sequence[int]
) -> tuple[Any, Any]:
    """Return the words drawn after `prompts`, and their log-probabilities at temperature 1.

    Prompts and words are ragged int32 `(batch, time)`, log-probabilities ragged float32. Every
    text begins after `eos_id`; `excluded_ids` are never drawn. Each row draws as if it were alone:
    it has its own random numbers and its own end. With `stop_at_eos`, the `<eos>` that stopped a
    row is in neither result.
    """
    batch = prompts.nrows()
    start = tf.concat([tf.fill((batch, 1), eos_id), prompts.to_tensor(eos_id)], axis=1)
    logits, states = reader.last(start, tf.cast(prompts.row_lengths(), tf.int32) + 1)

    def body(
        step: Any, logits: Any, states: Any, running: Any, words: Any, scores: Any, lengths: Any
    ) -> tuple[Any, ...]:
        drawn = draw(logits, step, settings, excluded_ids)
        log_p = tf.gather(tf.nn.log_softmax(logits), drawn, batch_dims=1)
        running &= ~(settings["stop_at_eos"] & tf.equal(drawn, eos_id))
        lengths += tf.cast(running, tf.int32)
        words, scores = words.write(step + 1, drawn), scores.write(step + 1, log_p)
        running &= step + 1 < settings["max_tokens"]
        # Unneeded after the very last word, but a branch would cost more than it saves.
        logits, states = reader.advance(drawn[:, None], states)
        return step + 1, logits[:, -1], states, running, words, scores, lengths

    def columns(dtype: Any) -> Any:
        # A dummy first column: an empty array would not know the shape of its elements.
        return tf.TensorArray(dtype, size=1, dynamic_size=True).write(0, tf.zeros(batch, dtype))

    _, _, _, _, words, scores, lengths = tf.while_loop(
        lambda step, logits, states, running, *_: tf.reduce_any(running),
        body,
        (0, logits, states, settings["max_tokens"] > 0, columns(tf.int32), columns(tf.float32),
         tf.zeros(batch, tf.int32)),
    )  # fmt: skip

    def rows(array: Any) -> Any:
        return tf.RaggedTensor.from_tensor(tf.transpose(array.stack()[1:]), lengths)

    return rows(words), rows(scores)


def draw(logits: Any, step: Any, settings: Tensors, excluded_ids: Sequence[int]) -> Any:
    """Return a word for each row of `logits`, `(batch, words)`: int32; see `dualnet.generate`."""
    words = logits.shape[-1]
    logits = tf.where(np.isin(range(words), excluded_ids), -float("inf"), logits)
    # float64: float32 rounds away a small top_p, or the tail of a large vocabulary.
    names = ("temperature", "top_p")
    temperature, top_p = (tf.cast(settings[name], tf.float64)[:, None] for name in names)
    greedy = tf.equal(temperature, 0)
    scores = tf.cast(logits, tf.float64)
    scores -= tf.reduce_max(scores, axis=1, keepdims=True)
    scores /= tf.where(greedy, tf.ones_like(temperature), temperature)
    top_k = tf.where(greedy, 1, settings["top_k"][:, None])
    in_order = (top_k > 0) | (top_p < 1)  # other rows draw from all words, which need no order
    count = tf.where(top_k > 0, tf.minimum(top_k, words), words)
    most = tf.reduce_max(tf.where(in_order, count, 1))
    random = _uniform(settings["seed"], step)[:, None]
    likeliest, ids = tf.math.top_k(scores, most)
    likely = drawn_in_order(likeliest, ids, random, count, top_p)
    return tf.where(in_order[:, 0], likely, drawn_by(tf.exp(scores), random))


def _uniform(seeds: Any, step: Any) -> Any:
    """Return a number in [0, 1) for each of `seeds`, `(batch,)`, at `step`: float64."""
    draw_one = functools.partial(tf.random.stateless_uniform, (), dtype=tf.float64)
    pairs = tf.stack([seeds, tf.fill(tf.shape(seeds), step)], axis=1)
    return tf.map_fn(draw_one, pairs, fn_output_signature=tf.TensorSpec((), tf.float64))
