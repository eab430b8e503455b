"""Maps text to the ids of a byte-level BPE, or of bytes, and back inside a TensorFlow graph."""

import re

import numpy as np
import tensorflow as tf

from dualnet._types import Tensor
from dualnet.serving.graph_tokenizer import END_PATTERNS, GraphLower
from dualnet.text import ByteTokenizer, LibraryTokenizer
from dualnet.text.byte_level import OTHER, SPACE, ByteLevelBPE, character_classes, lower_case

# Characters of private use, each of which stands for something else where a NUL follows it: a
# NUL, the end of a row, `<eos>`, the two sides of a unit that may be added, and added units.
NUL, ROW, END, LEFT, RIGHT, ADDED = range(0xF0000, 0xF0006)
NO_RANK = tf.int32.max
NONE = OTHER + 1  # the class of what is no character


def _mark(code: int) -> str:
    return chr(code) + "\0"


class GraphBPE(tf.Module):
    """A byte-level BPE, or bytes themselves, which are one without merges.

    A byte that is not UTF-8 is read as it is, as a character of its own.

    A text is divided into words as GPT-2's pattern does,
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`,
    from the classes of each character and its neighbours. All words are merged at once.
    """

    def __init__(self, tokenizer: LibraryTokenizer | ByteTokenizer):
        super().__init__(name="tokenizer")
        if isinstance(tokenizer, ByteTokenizer):  # one without merges
            parts = ByteLevelBPE([*range(256)], [], False, False, ({}, {}), [*tokenizer.spelling])
        else:
            parts = ByteLevelBPE.of(tokenizer)
        self.eos_id = tokenizer.require_eos()
        self.words = tf.constant(tokenizer.words)
        self._spelling = tf.constant(parts.spelling)
        self._bytes = tf.constant(parts.byte_ids)
        self._divides = parts.divides
        self._end = END_PATTERNS.get(tokenizer.documents)
        self._added = parts.added
        self._row = len(tokenizer)  # what ends a row
        units = [u for texts in parts.added for u in texts.values() if u is not None]
        self._codes = {unit: ADDED + i for i, unit in enumerate(units)}
        self._marked = tf.constant([parts.byte_ids[0], self._row, self.eos_id, 0, 0, *units])
        starts, classes = character_classes()
        self._class_starts = tf.constant([-1, *starts])
        self._classes = tf.constant([NONE, *classes])
        self.lower = GraphLower() if tokenizer.lowercase else tf.identity
        self._lower_of_file = GraphLower(lower_case()) if parts.lowercases else tf.identity
        merges = parts.merges
        left, right, merged = np.array(merges, "int64").reshape(-1, 3).T
        keys = left * self._row + right
        order = np.argsort(keys)
        self._pairs = tf.constant([*keys[order], np.iinfo("int64").max], tf.int64)
        self._ranks = tf.constant([*order, NO_RANK], tf.int32)
        self._merged = tf.constant(merged, tf.int32)
        # A merge whose unit is part of an earlier merge is made once before that is looked for.
        first = np.full(self._row, len(merges))
        np.minimum.at(first, np.concatenate([left, right]), np.tile(np.arange(len(merges)), 2))
        self._once = first[merged] < np.arange(len(merges))

    def encode(self, texts: Tensor, name: str) -> Tensor:
        """Return the ids of `texts`, string `(batch,)`: ragged int32 `(batch, time)`."""
        replace, rows = tf.strings.regex_replace, tf.size(texts, tf.int64)
        texts = replace(texts, "\0", _mark(NUL))
        if self._end is not None:
            texts = replace(texts, self._end, _mark(END))
        texts = self._mark_added(self.lower(texts), self._added[0])
        texts = self._mark_added(self._lower_of_file(texts), self._added[1])
        text = tf.strings.reduce_join(texts + _mark(ROW))
        ids = self._merge(*self._words(text))
        ends_row = tf.equal(ids, self._row)
        row_of = tf.cumsum(tf.cast(ends_row, tf.int64), exclusive=True)
        ids, row_of = tf.boolean_mask(ids, ~ends_row), tf.boolean_mask(row_of, ~ends_row)
        return tf.RaggedTensor.from_value_rowids(ids, row_of, nrows=rows, validate=False)

    def decode(self, ids: Tensor) -> Tensor:
        """Return the texts of ragged int32 `(batch, time)`: string `(batch,)`, which are UTF-8."""
        spelt = tf.ragged.map_flat_values(lambda flat: tf.gather(self._spelling, flat), ids)
        texts = tf.strings.reduce_join(spelt, axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")

    def _mark_added(self, texts: Tensor, added: dict[str, int | None]) -> Tensor:
        """Replace the texts of `added` by their marks: the leftmost, and of those the longest."""
        if all(unit is None for unit in added.values()):
            return texts
        replace, left, right = tf.strings.regex_replace, _mark(LEFT), _mark(RIGHT)
        longest_first = sorted(map(re.escape, added), key=len, reverse=True)
        texts = replace(texts, f"({'|'.join(longest_first)})", rf"{left}\1{right}")
        for text, unit in added.items():
            if unit is not None:
                texts = replace(texts, left + re.escape(text) + right, _mark(self._codes[unit]))
        return replace(texts, f"{left}|{right}", "")

    def _words(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of the bytes and marks of a text, and the number of the word of each."""
        codes, starts = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        is_mark = tf.equal(tf.pad(codes, [[0, 1]], constant_values=-1)[1:], 0)
        units = tf.where(is_mark, tf.gather(self._marked, tf.where(is_mark, codes - NUL, 0)), -1)
        kept = tf.not_equal(codes, 0)
        is_nul = is_mark & tf.equal(codes, NUL)
        codes = tf.where(is_nul, 0, tf.where(is_mark, -1, codes))
        codes, starts, units = (tf.boolean_mask(x, kept) for x in (codes, starts, units))
        word_of = tf.cumsum(tf.cast(self._begins(codes), tf.int32))
        data = tf.io.decode_raw(text, tf.uint8)
        character = tf.RaggedTensor.from_row_starts(data, starts, validate=False).value_rowids()
        first = tf.equal(tf.gather(starts, character), tf.range(tf.size(data, tf.int64)))
        unit = tf.gather(units, character)
        ids = tf.where(unit < 0, tf.gather(self._bytes, tf.cast(data, tf.int32)), unit)
        kept = first | (unit < 0)
        return tf.boolean_mask(ids, kept), tf.boolean_mask(tf.gather(word_of, character), kept)

    def _begins(self, codes: Tensor) -> Tensor:
        """Return True at each of `codes` that begins a word; -1 among them is no character."""
        codes = tf.pad(codes, [[1, 2]], constant_values=-1)
        places = tf.searchsorted(self._class_starts, codes, side="right") - 1
        classes = tf.gather(self._classes, places)
        before, here, after = classes[:-3], classes[1:-2], classes[2:-1]
        begins = tf.equal(here, NONE) | tf.equal(before, NONE)
        if not self._divides:
            return begins
        joins = tf.equal(codes[:-3], ord(" "))  # what follows, unless that is no character
        begins |= tf.not_equal(before, here) & ~(joins & tf.not_equal(here, SPACE))
        # The last of several spaces is apart from them if a character follows.
        begins |= tf.equal(here, SPACE) & tf.not_equal(after, SPACE) & tf.not_equal(after, NONE)
        # What follows an apostrophe that begins a word.
        begins_word = tf.equal(codes[1:-2], ord("'")) & tf.not_equal(before, OTHER) & ~joins
        next_codes = codes[2:-1], codes[3:]

        def follow(letters: str) -> Tensor:
            equal = (tf.equal(c, ord(letter)) for c, letter in zip(next_codes, letters))
            return tf.reduce_all([begins_word, *equal], axis=0)

        one, two = (
            tf.pad(tf.reduce_any([*map(follow, letters)], axis=0), [[3, 0]])
            for letters in ("stmd", ("re", "ve", "ll"))
        )
        return begins & ~(one | two)[2:-1] | one[1:-2] | two[:-3]

    def _merge(self, ids: Tensor, word_of: Tensor) -> Tensor:
        """Return the ids of words after all merges of adjacent ids in each word."""

        def merge(ids, places):
            """Make the merge of the lowest rank in each word, at all places."""
            units, words = tf.gather(ids, places), tf.gather(word_of, places)
            pairs = tf.cast(units[:-1], tf.int64) * self._row + tf.cast(units[1:], tf.int64)
            place = tf.searchsorted(self._pairs, pairs)
            known = tf.equal(tf.gather(self._pairs, place), pairs) & tf.equal(words[:-1], words[1:])
            ranks = tf.where(known, tf.gather(self._ranks, place), NO_RANK)
            ranks = tf.pad(ranks, [[0, 1]], constant_values=NO_RANK)
            best = tf.gather(tf.math.segment_min(ranks, words), words)
            unfinished = best < NO_RANK
            merges = self._selected(ranks, words, unfinished & tf.equal(ranks, best))
            absorbed = tf.roll(merges, 1, 0)
            merged = tf.gather(self._merged, tf.boolean_mask(ranks, merges))
            left, right = tf.boolean_mask(places, merges), tf.boolean_mask(places, absorbed)
            ids = tf.tensor_scatter_nd_update(ids, left[:, None], merged)
            ids = tf.tensor_scatter_nd_update(ids, right[:, None], -tf.ones_like(merged))
            return ids, tf.boolean_mask(places, unfinished & ~absorbed)

        ids, _ = tf.while_loop(
            lambda ids, places: tf.size(places) > 0,
            merge,
            (ids, tf.range(tf.size(ids))),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None])),
        )
        return tf.boolean_mask(ids, ids >= 0)

    def _selected(self, ranks: Tensor, words: Tensor, lowest: Tensor) -> Tensor:
        """Return `lowest` without those that overlap with one before."""
        places = tf.range(tf.size(lowest))
        # In a run of pairs of one rank, such as those of "aaaa", every other one.
        others = tf.concat([[-1], tf.boolean_mask(places, ~lowest)], axis=0)
        last_other = tf.gather(others, tf.cumsum(tf.cast(~lowest, tf.int32)))
        selected = lowest & tf.equal((places - last_other) % 2, 1)
        if not self._once.any():
            return selected
        first = tf.math.segment_min(tf.where(lowest, places, NO_RANK), words)
        once = tf.gather(tf.constant(self._once), tf.where(lowest, ranks, 0))
        return selected & (~once | tf.equal(places, tf.gather(first, words)))
