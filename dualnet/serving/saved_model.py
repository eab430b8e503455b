"""The SavedModel: ids or text in, scores or text out; state goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dualnet.builders import LanguageModel
from dualnet.serving import endpoints
from dualnet.serving.drawing import Settings, draw_words
from dualnet.serving.reading import Reader
from dualnet.serving.text import Text

Tensors = dict[str, Any]
Endpoint = tuple[Callable[[Tensors], Tensors], dict[str, Any]]


def write_saved_model(model: LanguageModel, directory: str) -> None:
    """Write `model` with its `endpoints` into the empty folder `directory`."""
    archive = keras.export.ExportArchive()
    archive.track(model.core)
    reader = Reader(model)
    made = {"score": _score(reader), "step": _step(reader)}
    names = endpoints(model)  # the first is the default
    if "score_text" in names:
        text = Text(model.vocabulary)
        archive.track(text)
        made["score_text"] = _score_text(reader, text)
        made["generate_text"] = _generate_text(reader, text)
    for name in names:
        function, specs = made[name]
        archive.add_endpoint(name, function, [specs])
    archive.write_out(directory, verbose=False)


def _score(reader: Reader) -> Endpoint:
    def score(inputs: Tensors) -> Tensors:
        ids, lengths = inputs["ids"], inputs["lengths"]
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        chosen = reader.log_probabilities(ids[:, :-1], ids[:, 1:])
        # One column more in front, cut to the time there is, so that an empty text is answered.
        scores = tf.concat([tf.zeros((batch, 1)), chosen], axis=1)[:, :time]
        inside = tf.sequence_mask(lengths, time, dtype=tf.float32)
        return {"log_probabilities": scores * inside}

    return score, {"ids": _spec("ids", tf.int32, None), "lengths": _spec("lengths", tf.int32)}


def _step(reader: Reader) -> Endpoint:
    states = {f"state_{i}": size for i, size in enumerate(reader.sizes, start=1)}

    def step(inputs: Tensors) -> Tensors:
        logits, new = reader.advance(inputs["ids"], [inputs[name] for name in states])
        return {"logits": logits, **dict(zip(states, new))}

    specs = {name: _spec(name, tf.float32, size) for name, size in states.items()}
    return step, {"ids": _spec("ids", tf.int32, None), **specs}


def _score_text(reader: Reader, text: Text) -> Endpoint:
    def score_text(inputs: Tensors) -> Tensors:
        ids = text.encode(inputs["texts"], "texts")
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        ids = ids.to_tensor(text.eos_id)
        batch, time = tf.shape(ids)[0], tf.shape(ids)[1]
        before = tf.concat([tf.fill((batch, 1), text.eos_id), ids], axis=1)[:, :time]
        inside = tf.sequence_mask(lengths, time)
        scores = tf.where(inside, reader.log_probabilities(before, ids), 0.0)
        words = tf.where(inside, tf.gather(text.words, ids), "")
        # float64: float32 would lose digits in the sum of a long text.
        nll = -tf.reduce_sum(tf.cast(scores, tf.float64), axis=1)
        mean = nll / tf.cast(tf.maximum(lengths, 1), tf.float64)
        # JSON has no infinity.
        perplexity = tf.minimum(tf.exp(mean), tf.float32.max)
        return {
            "words": words,
            "log_probabilities": scores,
            "lengths": lengths,
            "perplexity": tf.cast(perplexity, tf.float32),
        }

    return score_text, {"texts": _spec("texts", tf.string)}


def _generate_text(reader: Reader, text: Text) -> Endpoint:
    dtypes = {
        "max_tokens": tf.int32,
        "temperature": tf.float32,
        "top_k": tf.int32,
        "top_p": tf.float32,
        "seed": tf.int32,
        "stop_at_eos": tf.bool,
    }

    def generate_text(inputs: Tensors) -> Tensors:
        settings = Settings(**{name: inputs[name] for name in dtypes})
        prompts = text.encode(inputs["prompts"], "prompts")
        settings = settings.checked(tf.size(inputs["prompts"]))
        drawn, scores = draw_words(
            reader, prompts, settings, eos_id=text.eos_id, unk_id=text.unk_id
        )
        return {
            "texts": text.decode(tf.concat([prompts, drawn], axis=1)),
            "log_probabilities": scores.to_tensor(0.0),
            "lengths": tf.cast(drawn.row_lengths(), tf.int32),
        }

    specs = {name: _spec(name, dtype) for name, dtype in dtypes.items()}
    return generate_text, {"prompts": _spec("prompts", tf.string), **specs}


def _spec(name: str, dtype: Any, *shape: int | None) -> Any:
    """Return the spec of the input `name`, of shape `(batch, *shape)`."""
    return tf.TensorSpec((None, *shape), dtype, name=name)
