"""Draws words one after another, carrying the state, inside a TensorFlow graph."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from keras import ops

from dualnet._types import Tensor, Tensors
from dualnet.generation.drawing import Draw, draw_tokens
from dualnet.serving import requests
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader, TextReader, begun


def generate_text(
    reader: ServedReader, tokenizer: TextReader, excluded_ids: Sequence[int], bound: int
) -> Endpoint:
    """Return the endpoint `generate_text`; `bound` is the highest `max_tokens`.

    Every text begins after `<eos>`; `excluded_ids` are never drawn. Each row draws as if it were
    alone: it has its own random numbers and its own end. With `stop_at_eos`, the `<eos>` that
    stopped a row is not in the answer.
    """
    is_excluded = np.isin(range(reader.words), excluded_ids)

    def generate_text(inputs):
        prompts = tokenizer.encode(inputs["prompts"], "prompts")
        logits, states = reader.last(*begun(prompts, tokenizer.eos_id))
        draw_one = drawing(reader.words, inputs)

        def draw(i, logits, _):
            random = _uniform(inputs["seed"], i)[:, None]
            drawn = draw_one(tf.where(is_excluded, -math.inf, logits), random)
            log_p = tf.gather(tf.nn.log_softmax(logits), drawn, batch_dims=1)
            return drawn, tf.cast(log_p, tf.float64)

        drawn = draw_tokens(
            draw,
            reader.advance,
            logits,
            states,
            columns=ops.max(inputs["max_tokens"], initial=0),
            limits=inputs["max_tokens"],
            stop_ids=tf.where(inputs["stop_at_eos"], tokenizer.eos_id, -1),
        )
        in_rows = functools.partial(tf.RaggedTensor.from_tensor, lengths=drawn.lengths)
        return {
            "texts": tokenizer.decode(tf.concat([prompts, in_rows(drawn.ids)], axis=1)),
            "log_probabilities": in_rows(tf.cast(drawn.values, tf.float32)).to_tensor(0.0),
            "lengths": drawn.lengths,
        }

    return generate_text, {"prompts": Input(tf.string), **settings_of(bound)}


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


def drawing(words: int, settings: Tensors) -> Draw:
    """Return the `Draw` of each row's next word, one of `words`; see `dualnet.generate`."""
    names = ("temperature", "top_p")
    temperature, top_p = (tf.cast(settings[name], tf.float64)[:, None] for name in names)
    greedy = tf.equal(temperature, 0)
    top_k = tf.where(greedy, 1, settings["top_k"][:, None])
    in_order = (top_k > 0) | (top_p < 1)  # other rows draw from all words, which need no order
    counts = tf.where(top_k > 0, tf.minimum(top_k, words), words)
    return Draw(
        temperature=tf.where(greedy, tf.ones_like(temperature), temperature),
        top_p=top_p,
        top_k=tf.reduce_max(tf.where(in_order, counts, 1)),
        counts=counts,
        in_order=in_order,
    )


def _uniform(seeds: Tensor, step: Tensor) -> Tensor:
    """Return a number in [0, 1) for each of `seeds`, `(batch,)`, at `step`: float64."""
    draw_one = functools.partial(tf.random.stateless_uniform, (), dtype=tf.float64)
    pairs = tf.stack([seeds, tf.fill(tf.shape(seeds), step)], axis=1)
    return tf.map_fn(draw_one, pairs, fn_output_signature=tf.TensorSpec((), tf.float64))
