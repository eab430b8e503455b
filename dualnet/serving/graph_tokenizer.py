"""Maps text to the ids of words and back inside a TensorFlow graph, exactly as in Python."""

import functools
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from dualnet._types import Tensor
from dualnet.serving import requests
from dualnet.text import EOS, UNK, Vocabulary
from dualnet.text.byte_level import characters
from dualnet.text.plain_text import BLANK_LINES, ENDS

END_PATTERNS = {"line": "\n", "blank-line": BLANK_LINES.pattern}  # of what `<eos>` stands for
CAPITAL_SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"  # the only letter with two lower-case forms


class GraphTokenizer(tf.Module):
    """The tokeniser and words of a vocabulary with `<eos>`, in tables that a SavedModel stores.

    White space and lower case are those of the exporting Python: TensorFlow knows fewer
    characters.
    """

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(name="tokenizer")
        words = list(vocabulary.words)
        self.eos_id, self.unk_id = vocabulary.id(EOS), vocabulary.unk_id
        self.words = tf.constant(words)
        self.ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words))),
            default_value=-1 if self.unk_id is None else self.unk_id,
        )
        spaces = (c for c in characters() if c.isspace() and c != "\n")
        self._spaces = f"[{_ranges(spaces)}]"
        self._end = END_PATTERNS.get(vocabulary.documents)
        self._written_end = ENDS[vocabulary.documents]
        self.lower = GraphLower() if vocabulary.lowercase else tf.identity

    def encode(self, texts: Tensor, name: str) -> Tensor:
        """Return the ids of `texts`, string `(batch,)`: ragged int32 `(batch, time)`.

        Without `<unk>`, an unknown word fails the request; the message names the input `name`.
        """
        if self._end is not None:
            texts = tf.strings.regex_replace(texts, self._end, f" {EOS} ")
        texts = tf.strings.regex_replace(texts, self._spaces, " ")
        words = tf.ragged.map_flat_values(self.lower, tf.strings.split(texts))
        ids = tf.ragged.map_flat_values(self.ids.lookup, words)
        if self.unk_id is None:
            texts = tf.strings.unicode_transcode(words.flat_values, "UTF-8", "UTF-8")
            required = f"words of the vocabulary, which has no {UNK}"
            check = requests.all_valid(name, texts, ids.flat_values >= 0, required)
            with tf.control_dependencies([check]):
                ids = tf.ragged.map_flat_values(tf.identity, ids)
        return ids

    def decode(self, ids: Tensor) -> Tensor:
        """Return the texts of ragged int32 `(batch, time)`: string `(batch,)`."""
        words = tf.where(tf.equal(tf.range(tf.size(self.words)), self.eos_id), "\n", self.words)
        words = tf.ragged.map_flat_values(lambda flat: tf.gather(words, flat), ids)
        texts = tf.strings.reduce_join(words, axis=-1, separator=" ")
        return tf.strings.regex_replace(texts, " ?\n ?", self._written_end)


class GraphLower(tf.Module):
    """Applies `str.lower` to `words`, string `(words,)`; those that are not UTF-8 are unchanged.

    With `letters`, these alone are replaced, wherever they stand.
    """

    def __init__(self, letters: dict[str, str] | None = None) -> None:
        super().__init__(name="lower")
        self._final_sigma = ""
        if letters is None:
            letters, self._final_sigma = _lower_case()
        self.letters = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([*letters], [*letters.values()]), default_value=""
        )

    def __call__(self, words: Tensor) -> Tensor:
        decoded = tf.strings.unicode_transcode(words, "UTF-8", "UTF-8", errors="ignore")
        is_utf8 = tf.equal(decoded, words)
        if self._final_sigma:
            has_sigma = tf.strings.regex_full_match(words, f"(?s).*{CAPITAL_SIGMA}.*")
            replaced = tf.strings.regex_replace
            decoded = tf.cond(
                tf.reduce_any(has_sigma),
                lambda: replaced(decoded, self._final_sigma, rf"\1{FINAL_SIGMA}\2"),
                lambda: decoded,
            )
        letters = tf.strings.unicode_split(decoded, "UTF-8", errors="ignore")
        lower = self.letters.lookup(letters.flat_values)
        lower = tf.where(tf.equal(lower, ""), letters.flat_values, lower)
        lower = tf.strings.reduce_join(letters.with_flat_values(lower), axis=-1)
        return tf.where(is_utf8, lower, words)


@functools.cache
def _lower_case() -> tuple[dict[str, str], str]:
    """Return the lower case of all letters that have one, and a pattern of the final sigma."""
    letters = {c: c.lower() for c in characters() if c.lower() != c}
    # The final sigma depends on which characters are "cased" and "case-ignorable" (Unicode
    # standard, section 3.13). No Python module lists them, but `str.lower` reveals them.
    cased = {c for c in characters() if f".{c}{CAPITAL_SIGMA}".lower()[-1] == FINAL_SIGMA}
    either = {c for c in characters() if f"A{c}{CAPITAL_SIGMA}".lower()[-1] == FINAL_SIGMA}
    cased_range, ignorable_range = _ranges(sorted(cased)), _ranges(sorted(either - cased))
    before = f"[{cased_range}][{ignorable_range}]*"
    after = f"[{ignorable_range}]*(?:[^{cased_range}{ignorable_range}]|$)"
    return letters, f"({before}){CAPITAL_SIGMA}({after})"


def _ranges(letters: Iterable[str]) -> str:
    """Return sorted `letters` as ranges of a regular expression, to stand in brackets."""
    codes = np.array([*map(ord, letters)])
    ranges = np.split(codes, np.flatnonzero(np.diff(codes) > 1) + 1)
    return "".join(rf"\x{{{run[0]:x}}}-\x{{{run[-1]:x}}}" for run in ranges)
