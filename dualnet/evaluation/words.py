"""The words of a text, and the tokens that belong to each."""

import re
import unicodedata
from typing import NamedTuple

import numpy as np

from dualnet.text import EOS, Tokenizer
from dualnet.text.plain_text import documents_of


class Words(NamedTuple):
    """The words of a text, whatever the tokens.

    Attributes:
        ids: int32 `(num_tokens,)`.
        words: The words as the text has them, without white space; `<eos>` where a document ends.
        starts: int64 `(num_words,)`, the index of the first token of each word.
    """

    ids: np.ndarray
    words: tuple[str, ...]
    starts: np.ndarray

    def ended(self, eos_id: int) -> "Words":
        """Return the words and `<eos>`."""
        starts = np.append(self.starts, len(self.ids))
        return Words(np.append(self.ids, eos_id), (*self.words, EOS), starts)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of the `values` of each word's tokens, float64 `(num_words,)`."""
        return np.add.reduceat(values.astype("float64"), self.starts) if self.words else np.zeros(0)


def words_of(tokenizer: Tokenizer, text: str, *, split_punctuation: bool = False) -> Words:
    """Return the words of `text`, which white space separates, and their tokens.

    With `split_punctuation`, the marks before and after a word are words of their own.

    A token belongs to the word of its first character that is no white space; one of white
    space alone to the word after it, which may be `<eos>`, or at the end of the text to the
    last word. A word without a token, since one that began in the word before covers it, is
    joined to that word.

    Example:

    >>> from dualnet.evaluation.words import words_of
    >>> from dualnet.text import ByteTokenizer
    >>> words = words_of(ByteTokenizer(), "a cat\\n")
    >>> words.words, words.starts.tolist()
    (('a', 'cat', '<eos>'), [0, 1, 5])
    """
    ids, offsets = tokenizer.encode_with_offsets(text)
    if not len(ids):
        return Words(ids, (), np.zeros(0, "int64"))
    spans, names = [], []  # of the words, `<eos>` among them
    for begin, first, last in documents_of(text, tokenizer.documents):
        for match in re.finditer(r"\S+", text[begin:first]):
            start = begin + match.start()
            for i, part in enumerate(_parts(match[0]) if split_punctuation else [match[0]]):
                spans.append((start, start + len(part)))
                names.append(part if i else f" {part}")
                start += len(part)
        if last > first:
            spans.append((first, last))
            names.append(f" {EOS}")
    if not spans:  # white space alone
        return Words(ids, (text,), np.zeros(1, "int64"))
    ends = np.array([end for _, end in spans])
    owners = np.searchsorted(ends, offsets[:, 0], side="right").clip(max=len(spans) - 1)
    owned, starts = np.unique(np.maximum.accumulate(owners), return_index=True)
    joined = ["".join(names[i:j]).strip(" ") for i, j in zip(owned, [*owned[1:], len(names)])]
    return Words(ids, tuple(joined), starts)


def _parts(word: str) -> list[str]:
    """Return the punctuation before a word, the word, and the punctuation after it."""
    marks = [unicodedata.category(character)[0] == "P" for character in word]
    if all(marks):
        return [word]
    first, after = marks.index(False), len(word) - marks[::-1].index(False)
    return [part for part in (word[:first], word[first:after], word[after:]) if part]
