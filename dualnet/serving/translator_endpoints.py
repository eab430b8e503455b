"""The endpoints of a translator alone, `encode` and `translate`, which take and give ids."""

from typing import Any

import tensorflow as tf
from keras import ops

from dualnet.builders import TranslationModel
from dualnet.generation.beam import NONE, Finished, Search, likeliest_words, search_in_graph
from dualnet.serving import requests
from dualnet.serving.requests import IDS, Endpoint, Tensors, spec
from dualnet.serving.served_reader import ServedReader

# How a row is translated, see `dualnet.export`: name to dtype of a tensor `(batch,)`.
COUNTS = ("beam", "n_best", "max_tokens")
SETTINGS = {**dict.fromkeys(COUNTS, tf.int32), "length_normalization": tf.float32}


def endpoints(model: TranslationModel, reader: ServedReader, bound: int) -> dict[str, Endpoint]:
    """Return `encode` and `translate`, whose `max_tokens` are at most `bound`."""
    bound = min(bound, tf.int32.max)

    def read(inputs: Tensors) -> tuple[Tensors, list[Any]]:
        inputs, in_row = requests.checked_rows(inputs, model.source_vocabulary_size)
        return inputs, reader.encode(inputs["ids"], in_row)

    def encode(inputs: Tensors) -> Tensors:
        _, encoded = read(inputs)
        return dict(zip(reader.specs, encoded))

    def translate(inputs: Tensors) -> Tensors:
        inputs, encoded = read(inputs)
        settings = checked(inputs, reader.words, bound)
        limits, default = settings["max_tokens"], tf.minimum(2 * inputs["lengths"] + 10, bound)
        settings["max_tokens"] = tf.where(limits > 0, limits, default)
        penalty = settings["length_normalization"]
        settings["length_normalization"] = tf.cast(penalty, tf.float64)
        count, width = len(reader.constants), ops.max(settings["beam"], initial=1)
        # All hypotheses of a sentence share what was read of its source.
        constants = [tf.repeat(part, width, axis=0) for part in encoded[:count]]

        excluded_ids = model.vocabulary.unknown_ids

        def step(tokens: Any, states: list[Any]) -> tuple[Any, Any, list[Any]]:
            logits, states = reader.advance(tokens, [*constants, *states])
            return *likeliest_words(logits[:, -1], width, excluded_ids), states

        running, eos_id = inputs["lengths"] > 0, model.vocabulary.require_eos()
        search = Search(xp=ops, eos_id=eos_id, **settings)
        first_ids = tf.fill(tf.shape(running), eos_id)
        finished, _ = search_in_graph(search, step, encoded[count:], first_ids, is_running=running)
        return _outputs(finished, settings["n_best"], eos_id)

    settings = {name: spec(name, dtype) for name, dtype in SETTINGS.items()}
    return {"encode": (encode, dict(IDS)), "translate": (translate, {**IDS, **settings})}


def checked(inputs: Tensors, words: int, bound: int) -> Tensors:
    """Return the `SETTINGS` of `inputs` with assertions that fail if a value is out of range.

    `bound` is the highest `max_tokens`.
    """
    settings = {name: inputs[name] for name in SETTINGS}
    beam, n_best, penalty = (settings[k] for k in ("beam", "n_best", "length_normalization"))
    limits = (
        f"at least 0 (0: twice the source, and 10) and at most {bound}, the bound of this export"
    )
    valid_penalty = tf.math.is_finite(penalty) & (penalty >= 0)
    within = (n_best >= 1) & (n_best <= beam)
    checks = [
        requests.in_range("beam", beam, 1, words, f"from 1 to {words}, the number of target words"),
        requests.all_valid("n_best", n_best, within, "at least 1 and at most `beam`"),
        requests.in_range("max_tokens", settings["max_tokens"], 0, bound, limits),
        requests.all_valid("length_normalization", penalty, valid_penalty, "finite and at least 0"),
    ]
    return requests.after(checks, settings)


def _outputs(finished: Finished, n_best: Any, eos_id: int) -> Tensors:
    """Return the answer of `translate`; `<eos>` and 0 stand where there is no hypothesis."""
    is_wanted = tf.range(tf.shape(finished.lengths)[1]) < n_best[:, None]
    there = is_wanted & (finished.normalized_scores > NONE)
    lengths = tf.where(there, finished.lengths, 0)
    longest = tf.reduce_max(tf.concat([tf.reshape(lengths, (-1,)), [0]], axis=0))
    ids = finished.ids[..., :longest]
    ids = tf.where(tf.sequence_mask(lengths, longest), ids, eos_id)
    scores = {"scores": finished.scores, "normalized_scores": finished.normalized_scores}
    return {
        "ids": ids,
        "lengths": lengths,
        **{name: tf.where(there, tf.cast(x, tf.float32), 0.0) for name, x in scores.items()},
        "counts": tf.reduce_sum(tf.cast(there, tf.int32), axis=1),
    }
