"""The endpoint `complete_text`: whole words, as `dualnet.complete` offers them."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import ops

from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.generation.completion import KEPT, spellings, words_of_run
from dualnet.requests import BEAM
from dualnet.serving import requests
from dualnet.serving.learning import Memories
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader, TextReader, begun
from dualnet.text.pieces import LONGEST, SPACES, Pieces, patterns

TEXTS = ("prompts", "words", "stop_words")  # the last two are words, separated by spaces
lower_case = functools.partial(tf.strings.lower, encoding="utf-8")


def complete_text(
    model: LanguageModel,
    reader: ServedReader,
    tokenizer: TextReader,
    memories: Memories | None,
    track: Callable[[object], None],
) -> Endpoint:
    """Return the endpoint; `track` is called with what a SavedModel has to store for it."""
    pieces, listed = model.vocabulary.pieces, words_of_run(model)
    words = [*pieces.words.union(listed or [""])]
    pairs = tf.lookup.KeyValueTensorInitializer(words, tf.ones(len(words), tf.int32))
    table = tf.lookup.StaticHashTable(pairs, default_value=0)
    lower = tokenizer.lower
    track(table)
    spelt = tf.constant([*pieces.spelt, b""])  # the last one for -1

    def is_known(words, inputs):
        texts = lower(inputs["prompts"])
        in_text = tf.strings.regex_replace(texts, f"({patterns()[1]})", r" \1 ")
        known = table.lookup(words) > 0
        known |= _is_among(in_text, words) | _is_among(inputs["words"], words)
        if listed is None:
            known |= tf.equal(inputs["words"], "")[:, None]
        return known & ~_is_among(lower_case(inputs["stop_words"]), lower_case(words))

    def complete(inputs):
        rows: Any = contextlib.nullcontext
        if memories is not None:
            rows = functools.partial(memories.reading, inputs)
        before, word, typed = _typed(pieces, lower, inputs["prompts"])
        ids, lengths = begun(tokenizer.encode(before, "prompts"), tokenizer.eos_id)
        typed["k"] = inputs["k"][:, None]
        with rows(1):
            logits, states = reader.last(ids, lengths)
        with rows(BEAM):
            candidates = spellings(pieces, reader.advance, logits, states, typed)
        words = tf.strings.reduce_join(tf.gather(spelt, candidates["ids"] % len(spelt)), -1)
        words = tf.strings.regex_replace(words, "^ ", "")
        same = tf.equal(words[:, :, None], words[:, None])
        sums = tf.reduce_sum(tf.where(same, tf.exp(candidates["log_p"])[:, None], 0.0), axis=-1)
        first = tf.argmax(tf.cast(same, tf.int32), axis=-1, output_type=tf.int32)
        is_word = tf.strings.regex_full_match(words, patterns()[1])
        valid = tf.equal(first, tf.range(KEPT)) & is_word & is_known(words, inputs)
        width = ops.max(inputs["k"], initial=1)
        sums, places = tf.math.top_k(tf.where(valid, sums, 0.0), width)
        within = (sums > 0) & (tf.range(width) < typed["k"])
        words = tf.gather(words, places, batch_dims=1)
        length = tf.strings.length(lower(word))[:, None]
        rest = _part(words, tf.minimum(length, tf.strings.length(words)))
        return {
            "words": tf.where(within, word[:, None] + rest, ""),
            "probabilities": tf.where(within, sums, 0.0),
        }

    k = requests.whole(1, BEAM, f"from 1 to {BEAM}")
    memory = {} if memories is None else memories.input
    return complete, {**dict.fromkeys(TEXTS, Input(tf.string)), "k": k, **memory}


def _typed(
    pieces: Pieces, lower: Callable[[Tensor], Tensor], text: Tensor
) -> tuple[Tensor, Tensor, Tensors]:
    """Return the text before a word, the word, and what `spellings` reads, as `Pieces.typed`."""
    length = tf.strings.length
    before = tf.strings.regex_replace(text, rf"{patterns()[0]}\z", "")
    word = _part(text, length(before))
    last = _part(before, tf.maximum(length(before) - 1, 0))
    has_space = tf.equal(last, " ") & pieces.is_spaced
    before = tf.where(has_space, tf.strings.regex_replace(before, r" \z", ""), before)
    has_space |= pieces.always_spaced
    is_after_space = tf.reduce_any(tf.equal(last[:, None], ["", *SPACES]), axis=1)
    may_space = ~(tf.not_equal(word, "") | has_space | is_after_space)
    spelt = tf.where(has_space, " ", "") + lower(word)
    data = tf.io.decode_raw(spelt, tf.uint8, fixed_length=LONGEST)
    return (
        before,
        word,
        {
            "length": tf.minimum(length(spelt), LONGEST)[:, None],
            "may_space": tf.cast(may_space, tf.int32)[:, None],
            "spelt": tf.cast(data, tf.int32),
        },
    )


def _is_among(lists: Tensor, words: Tensor) -> Tensor:
    """Return a mask of the `words`, `(batch, KEPT)`, that occur in a text of words, `(batch,)`."""
    others = tf.strings.split(lists).to_tensor("")
    return tf.reduce_any(tf.equal(words[..., None], others[:, None]), axis=-1)


def _part(texts: Tensor, starts: Tensor) -> Tensor:
    """Return the bytes of each of `texts` from one of `starts` on."""
    return tf.strings.substr(texts, starts, tf.fill(tf.shape(starts), tf.int32.max))
