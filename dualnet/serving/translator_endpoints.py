"""The endpoints of a translator alone, `encode` and `translate`, which take and give ids."""

import tensorflow as tf
from keras import ops

from dualnet._types import Tensor, Tensors
from dualnet.builders import TranslationModel
from dualnet.generation.beam import NONE, Finished, Search, likeliest_step
from dualnet.serving import requests
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader


def endpoints(model: TranslationModel, reader: ServedReader, bound: int) -> dict[str, Endpoint]:
    """Return `encode` and `translate`, whose `max_tokens` are at most `bound`."""
    rows = requests.rows_of(model.source_vocabulary_size)
    declared = settings_of(reader.words, bound)

    def read(inputs):
        return reader.encode(inputs["ids"], requests.in_row(inputs))

    def encode(inputs):
        return dict(zip(reader.inputs, read(inputs)))

    def translate(inputs):
        settings = {name: inputs[name] for name in declared}
        limits, default = settings["max_tokens"], tf.minimum(2 * inputs["lengths"] + 10, bound)
        settings["max_tokens"] = tf.where(limits > 0, limits, default)
        settings["length_normalization"] = tf.cast(settings["length_normalization"], tf.float64)
        eos_id = model.vocabulary.require_eos()
        states, count = read(inputs), len(reader.constants)
        width, excluded_ids = ops.max(settings["beam"], initial=1), model.vocabulary.unknown_ids
        step = likeliest_step(reader.advance, states[:count], width, excluded_ids)
        first_ids = tf.fill(tf.shape(inputs["lengths"]), eos_id)
        finished, _ = Search(eos_id=eos_id, **settings).run(step, states[count:], first_ids)
        return _outputs(finished, settings["n_best"], eos_id, inputs["lengths"] == 0)

    return {"encode": (encode, rows), "translate": (translate, rows | declared)}


def settings_of(words: int, bound: int) -> dict[str, Input]:
    """Return the inputs that say how a row is translated; `bound` is the highest `max_tokens`."""
    default = "0: twice the source, and 10"
    limits = f"at least 0 ({default}) and at most {bound}, the bound of this export"
    beam = f"from 1 to {words}, the number of target words"
    within = "at least 1 and at most `beam`"
    return {
        "beam": requests.whole(1, words, beam),
        "n_best": Input(tf.int32, (), within, lambda n, inputs: (n >= 1) & (n <= inputs["beam"])),
        "max_tokens": requests.whole(0, bound, limits),
        "length_normalization": requests.not_negative(),
    }


def _outputs(finished: Finished, n_best: Tensor, eos_id: int, is_empty: Tensor) -> Tensors:
    """Return the answer of `translate`; `<eos>` and 0 stand where there is no hypothesis.

    A row that `is_empty` has one, which is empty, too.
    """
    is_wanted = tf.range(tf.shape(finished.lengths)[1]) < n_best[:, None]
    there = is_wanted & (finished.normalized_scores > NONE) & ~is_empty[:, None]
    lengths = tf.where(there, finished.lengths, 0)
    longest = ops.max(lengths, initial=0)
    ids = tf.where(tf.sequence_mask(lengths, longest), finished.ids[..., :longest], eos_id)
    scores = {"scores": finished.scores, "normalized_scores": finished.normalized_scores}
    return {
        "ids": ids,
        "lengths": lengths,
        **{name: tf.where(there, tf.cast(x, tf.float32), 0.0) for name, x in scores.items()},
        "counts": tf.where(is_empty, 1, tf.reduce_sum(tf.cast(there, tf.int32), axis=1)),
    }
