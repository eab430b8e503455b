"""The vocabulary: words and their ids."""

import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._files import write_whole
from dualnet.text.files import blocks
from dualnet.text.plain_text import END, ENDS, EOS, UNK, check_text, words_of
from dualnet.text.tokenizer import Span, Tokenizer


@dataclass(frozen=True, repr=False)
class Vocabulary(Tokenizer):
    """An immutable list of words; the id of a word is its index.

    `<eos>` ends a line and is a word like any other. A word that is not in the list is
    read as `<unk>`, or is an error if `<unk>` is not in the list either.

    Args:
        words: The words in the order of their ids, all different and without white space.
        lowercase: bool. Whether `encode` lower-cases text first, as was done with the text
            that the words come from.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.

    Example:

    >>> from dualnet.corpora import Vocabulary
    >>> vocabulary = Vocabulary(("the", "cat", "<eos>", "<unk>"))
    >>> vocabulary.encode("the dog\\n").tolist()
    [0, 3, 2]
    >>> vocabulary.decode([0, 1])
    'the cat'
    """

    words: tuple[str, ...]
    lowercase: bool = False
    documents: str = "line"
    kind: ClassVar[str] = "words"
    file_name: ClassVar[str] = "vocabulary.txt"
    loses: ClassVar[str] = "the white space between words is lost"

    def __post_init__(self) -> None:
        super().__post_init__()
        words = () if isinstance(self.words, str) else tuple(self.words)
        object.__setattr__(self, "words", words)
        spaced = [word for word in words if check_text("words", word).split() != [word]]
        repeated = [word for word, count in Counter(words).items() if count > 1]
        if not words or spaced or repeated:
            required = "must be different words without white space, at least one."
            raise ArgumentError("words", f"{required} Received: {(spaced or repeated)[:3]}.")

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of the words, one per line: that of the file that `save` writes."""
        return hashlib.sha256(self._as_bytes()).hexdigest()

    def encode_marked(self, text: str) -> np.ndarray:
        return self.encode_words(words_of(text))

    def _spans(self, text: str) -> Iterable[Span]:
        return ((self.id(word[0]), word.span()) for word in re.finditer(r"\S+", text))

    def encode_words(self, words: list[str]) -> np.ndarray:
        """Return the ids of `words`, `<eos>` among them: int32 `(num_tokens,)`."""
        get, unk = self._ids.get, self.unk_id
        if unk is None:
            ids: Iterable[int] = (self.id(word) for word in words)
        else:
            ids = map(get, words, itertools.repeat(unk))  # which runs in C
        return np.fromiter(ids, dtype="int32", count=len(words))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`: spaces between words, a newline for each `<eos>`.

        With `documents="blank-line"`, an empty line for each `<eos>`.
        `encode` turns the text back into the same ids, unless `documents` is "file".
        """
        words = (self.words[i] for i in self._checked(ids))
        text = " ".join(END if word == EOS else word for word in words)
        return re.sub(f" ?{END} ?", ENDS[self.documents], text)

    def save(self, path: StrPath) -> None:
        """Write the words to the file `path` in UTF-8, one per line; all or nothing."""
        write_whole(path, self._as_bytes())

    @classmethod
    def load(cls, path: StrPath, *, lowercase: bool = False, documents: str = "line") -> Self:
        """Return the vocabulary that `save` wrote to the file `path`."""
        text = "".join(blocks(path))
        return cls(tuple(text.split(END)[:-1]), lowercase=lowercase, documents=documents)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "words": [*self.words]}

    @classmethod
    def from_counts(
        cls,
        counts: Counter[str],
        *,
        size: int | None = None,
        min_count: int = 1,
        needs_unk: bool = False,
        lowercase: bool = False,
        documents: str = "line",
    ) -> Self:
        """Return the words of `counts` by descending count, then first appearance.

        `<unk>` is included if it is counted, if `needs_unk`, or if words are cut. Its rank
        is that of the total count of all words that it replaces.

        Args:
            counts: The count of each word, in order of appearance.
            size: int, at least 2, or None. Maximum number of words, `<eos>` and `<unk>`
                included; the rarest are cut.
            min_count: int. Rarer words are cut, but never `<eos>`.
        """
        special = {EOS, UNK}
        ranked = counts.most_common()  # those of equal counts as they appear
        kept = [word for word, count in ranked if word not in special and count >= min_count]
        num_special = 1 + (UNK in counts or needs_unk or len(kept) < len(counts.keys() - special))
        if size is not None and len(kept) + num_special > size:
            kept = kept[: size - 2]
        known = special.union(kept)
        merged: Counter[str] = Counter()
        for word, count in counts.items():
            merged[word if word in known else UNK] += count
        if needs_unk:
            merged[UNK] += 0
        words = tuple(word for word, _ in merged.most_common())
        return cls(words, lowercase=lowercase, documents=documents)

    def _as_bytes(self) -> bytes:
        return "".join(word + "\n" for word in self.words).encode()
