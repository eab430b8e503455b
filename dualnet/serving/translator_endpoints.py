"""The endpoints of a translator: `encode`, `step` and `translate`, which take and give ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dualnet.builders import TranslationModel
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.layers import without_gradients
from dualnet.serving import requests
from dualnet.serving.beam import Hypotheses, beam_search, largest
from dualnet.serving.requests import IDS, Endpoint, Tensors, spec

CONSTANTS = ("memory", "keys", "mask")  # what was read of a source, which no step changes
# How a row is translated, see `dualnet.export`: name to dtype of a tensor `(batch,)`.
SETTINGS = {
    "beam": tf.int32,
    "n_best": tf.int32,
    "max_tokens": tf.int32,
    "length_normalization": tf.float32,
}


def endpoints(model: TranslationModel, names: list[str], max_tokens: int) -> dict[str, Endpoint]:
    """Return the endpoints `names` of `model`; `max_tokens` is the bound of `translate`."""
    reader = TranslationReader(model)
    built = {"encode": _encode(reader), "step": _step(reader)}
    if "translate" in names:
        tokenizer = model.vocabulary
        built["translate"] = _translate(
            reader, tokenizer.eos_id, tokenizer.unk_id, min(max_tokens, tf.int32.max)
        )
    return built


class TranslationReader:
    """Runs encoder and decoder of `model`, dropout off; what goes in and out is float32."""

    def __init__(self, model: TranslationModel):
        self.encoder, self.graph = model.encoder, model.graph
        self.words, self.source_words = model.vocabulary_size, model.source_vocabulary_size
        self.state_sizes = model.state_size

    @property
    def state_specs(self) -> dict[str, Any]:
        """The specs of what `encode` returns, in its order."""
        memory, keys, _ = self.graph.states[: self.graph.constants]
        states = enumerate(self.state_sizes, start=1)
        return {
            "memory": spec("memory", tf.float32, None, memory.shape[-1]),
            "keys": spec("keys", tf.float32, None, keys.shape[-1]),
            "mask": spec("mask", tf.bool, None),
            **{f"state_{i}": spec(f"state_{i}", tf.float32, size) for i, size in states},
        }

    def encode(self, ids: Any, in_row: Any) -> list[Any]:
        """Return memory, keys, mask and states of the sources; ids count where `in_row`."""
        ids = tf.where(in_row, ids, PADDING_ID)
        # A position at least, which may be padding: attention needs one.
        missing = tf.maximum(0, 1 - tf.shape(ids)[1])
        ids = tf.pad(ids, [[0, 0], [0, missing]], constant_values=PADDING_ID)
        with without_gradients():
            encoded = self.encoder(ids, training=False)
        return [part if part.dtype == tf.bool else tf.cast(part, tf.float32) for part in encoded]

    def advance(self, ids: Any, state: list[Any]) -> tuple[Any, list[Any]]:
        """Return the logits of target `ids`, and the new states, which begin after the mask."""
        with without_gradients():
            logits, states = self.graph.logits(ids, state)
        return logits, [tf.cast(part, tf.float32) for part in states]


def _encode(reader: TranslationReader) -> Endpoint:
    def encode(inputs: Tensors) -> Tensors:
        inputs, in_row = requests.checked_rows(inputs, reader.source_words)
        return dict(zip(reader.state_specs, reader.encode(inputs["ids"], in_row)))

    return encode, dict(IDS)


def _step(reader: TranslationReader) -> Endpoint:
    specs = reader.state_specs

    def step(inputs: Tensors) -> Tensors:
        checks = [
            *requests.same_rows(inputs, "ids"),
            requests.are_words("ids", inputs["ids"], reader.words),
            requests.not_empty("ids", inputs["ids"]),
            *requests.same_columns({name: inputs[name] for name in CONSTANTS}, "memory"),
        ]
        inputs = requests.after(checks, inputs)
        logits, states = reader.advance(inputs["ids"], [inputs[name] for name in specs])
        return {"logits": logits, **dict(zip(list(specs)[len(CONSTANTS) :], states))}

    return step, {"ids": spec("ids", tf.int32, None), **specs}


def _translate(reader: TranslationReader, eos_id: int, unk_id: int | None, bound: int) -> Endpoint:
    def translate(inputs: Tensors) -> Tensors:
        inputs, in_row = requests.checked_rows(inputs, reader.source_words)
        settings = checked(inputs, reader.words, bound)
        limits, default = settings["max_tokens"], tf.minimum(2 * inputs["lengths"] + 10, bound)
        settings["max_tokens"] = tf.where(limits > 0, limits, default)
        encoded = reader.encode(inputs["ids"], in_row)
        count, width = reader.graph.constants, largest(settings["beam"])
        # All hypotheses of a sentence share what was read of its source.
        constants = [tf.repeat(part, width, axis=0) for part in encoded[:count]]

        def step(tokens: Any, states: list[Any]) -> tuple[Any, list[Any]]:
            logits, states = reader.advance(tokens, [*constants, *states])
            return tf.nn.log_softmax(logits[:, -1]), states

        running = inputs["lengths"] > 0
        hypotheses = beam_search(
            step, encoded[count:], running, settings, eos_id=eos_id, unk_id=unk_id
        )
        return _outputs(hypotheses, eos_id)

    return translate, {**IDS, **{name: spec(name, dtype) for name, dtype in SETTINGS.items()}}


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


def _outputs(hypotheses: Hypotheses, eos_id: int) -> Tensors:
    """Return the answer of `translate`; `<eos>` and 0 stand where there is no hypothesis."""
    there = tf.math.is_finite(hypotheses.normalized_scores)
    lengths = tf.where(there, hypotheses.lengths, 0)
    longest = tf.reduce_max(tf.concat([tf.reshape(lengths, (-1,)), [0]], axis=0))
    ids = tf.where(there[..., None], hypotheses.ids, eos_id)[..., :longest]
    scores = {"scores": hypotheses.scores, "normalized_scores": hypotheses.normalized_scores}
    return {
        "ids": ids,
        "lengths": lengths,
        **{name: tf.where(there, tf.cast(x, tf.float32), 0.0) for name, x in scores.items()},
        "counts": tf.reduce_sum(tf.cast(there, tf.int32), axis=1),
    }
