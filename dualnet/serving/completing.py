"""The endpoint `complete_text`: whole words, as `dualnet.complete` offers them."""

import contextlib
import functools

import tensorflow as tf
from keras import ops

from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.generation.completion import KEPT, spellings, words_of_run
from dualnet.requests import BEAM
from dualnet.serving import requests
from dualnet.serving.graph_tokenizer import GraphLower
from dualnet.serving.learning import Memories, Rows
from dualnet.serving.requests import Endpoint, Input
from dualnet.serving.served_reader import ServedReader, TextReader, begun
from dualnet.text.pieces import LONGEST, SPACES, patterns


class CompleteText(tf.Module):
    """Completes texts as `Completer` does; `words` and `stop_words` are separated by spaces."""

    def __init__(
        self,
        model: LanguageModel,
        reader: ServedReader,
        tokenizer: TextReader,
        memories: Memories | None,
    ) -> None:
        super().__init__(name="complete_text")
        self.reader, self.tokenizer, self.memories = reader, tokenizer, memories
        self.pieces = model.vocabulary.pieces
        self.spelt = tf.constant([*self.pieces.spelt, b""])  # the last one for -1
        self.lower = GraphLower() if self.pieces.lowercase else tf.identity
        of_run = words_of_run(model)
        self.is_open = of_run is None
        known = [*self.pieces.words.union(of_run or [""])]
        pairs = tf.lookup.KeyValueTensorInitializer(known, tf.ones(len(known), tf.int32))
        self.known = tf.lookup.StaticHashTable(pairs, default_value=0)

    def endpoint(self) -> Endpoint:
        """Return the endpoint."""
        k = requests.whole(1, BEAM, f"from 1 to {BEAM}")
        texts = dict.fromkeys(("prompts", "words", "stop_words"), Input(tf.string))
        memory = {} if self.memories is None else self.memories.input
        return self._complete, {**texts, "k": k, **memory}

    def _complete(self, inputs: Tensors) -> Tensors:
        text = inputs["prompts"]
        rows: Rows = contextlib.nullcontext
        if self.memories is not None:
            rows = self.memories.rows(inputs)
        before, word, typed = self._typed(text)
        ids, lengths = begun(self.tokenizer.encode(before, "prompts"), self.tokenizer.eos_id)
        with rows(1):
            logits, states = self.reader.last(ids, lengths, self.reader.zeros(tf.size(text)))

        def advance(ids: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            with rows(BEAM):
                return self.reader.advance(ids, states)

        typed["k"] = inputs["k"][:, None]
        found = spellings(self.pieces, advance, logits, states, typed)
        words = tf.strings.reduce_join(tf.gather(self.spelt, found["ids"] % len(self.spelt)), -1)
        words = tf.strings.regex_replace(words, "^ ", "")
        same = tf.equal(words[:, :, None], words[:, None])
        sums = tf.reduce_sum(tf.where(same, tf.exp(found["log_p"])[:, None], 0.0), axis=-1)
        is_first = tf.equal(
            tf.argmax(tf.cast(same, tf.int32), axis=-1), tf.range(KEPT, dtype=tf.int64)
        )
        is_word = tf.strings.regex_full_match(words, patterns()[1])
        valid = is_first & is_word & self._is_known(words, inputs)
        width = ops.max(inputs["k"], initial=1)
        sums, places = tf.math.top_k(tf.where(valid, sums, 0.0), width)
        within = (sums > 0) & (tf.range(width) < typed["k"])
        words = tf.gather(words, places, batch_dims=1)
        length = tf.strings.length(self.lower(word))[:, None]
        rest = _part(words, tf.minimum(length, tf.strings.length(words)))
        return {
            "words": tf.where(within, word[:, None] + rest, ""),
            "probabilities": tf.where(within, sums, 0.0),
        }

    def _typed(self, text: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """Return the text before a word, the word, and what `spellings` reads of it."""
        pieces, length = self.pieces, tf.strings.length
        before = tf.strings.regex_replace(text, rf"{patterns()[0]}\z", "")
        word = _part(text, length(before))
        last = _part(before, tf.maximum(length(before) - 1, 0))
        has_space = tf.equal(last, " ") & pieces.is_spaced
        before = tf.where(has_space, tf.strings.regex_replace(before, r" \z", ""), before)
        has_space |= pieces.always_spaced
        is_after_space = tf.reduce_any(tf.equal(last[:, None], ["", *SPACES]), axis=1)
        may_space = ~(tf.not_equal(word, "") | has_space | is_after_space)
        spelt = tf.where(has_space, " ", "") + self.lower(word)
        typed = {"length": tf.minimum(length(spelt), LONGEST), "may_space": may_space}
        typed = {name: tf.cast(column, tf.int32)[:, None] for name, column in typed.items()}
        data = tf.io.decode_raw(spelt, tf.uint8, fixed_length=LONGEST)
        return before, word, {**typed, "spelt": tf.cast(data, tf.int32)}

    def _is_known(self, words: Tensor, inputs: Tensors) -> Tensor:
        """Return which of `words`, string `(batch, KEPT)`, may be offered."""

        def is_among(lists: Tensor, words: Tensor) -> Tensor:
            others = tf.strings.split(lists).to_tensor("")
            return tf.reduce_any(tf.equal(words[..., None], others[:, None]), axis=-1)

        lower = functools.partial(tf.strings.lower, encoding="utf-8")
        is_stopped = is_among(lower(inputs["stop_words"]), lower(words))
        in_text = tf.strings.regex_replace(
            self.lower(inputs["prompts"]), f"({patterns()[1]})", r" \1 "
        )
        known = self.known.lookup(words) > 0
        known |= is_among(in_text, words) | is_among(inputs["words"], words)
        if self.is_open:
            known |= tf.equal(inputs["words"], "")[:, None]
        return known & ~is_stopped


def _part(texts: Tensor, starts: Tensor) -> Tensor:
    """Return the bytes of each of `texts` from one of `starts` on."""
    return tf.strings.substr(texts, starts, tf.fill(tf.shape(starts), tf.int32.max))
