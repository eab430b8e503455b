"""The vocabulary: words and their ids."""

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._files import write_whole
from dualnet.text.plain_text import EOS, UNK, blocks, words_of


@dataclass(frozen=True)
class Vocabulary:
    """An immutable list of words; the id of a word is its index.

    `<eos>` ends a line and is a word like any other. A word that is not in the list is
    read as `<unk>`, or is an error if `<unk>` is not in the list either.

    Args:
        words: The words in the order of their ids, all different and without white space.
        lowercase: bool. Whether `encode` lower-cases text first, as was done with the text
            that the words come from.

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
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = tuple(self.words)
        if not words:
            raise ArgumentError("words", "must hold at least one word. Received: words=().")
        ids: dict[str, int] = {}
        for i, word in enumerate(words):
            if not isinstance(word, str) or word.split() != [word]:
                raise ArgumentError(
                    "words", f"must be strings without white space. Received: words[{i}]={word!r}."
                )
            if not word.isascii() and re.search("[\ud800-\udfff]", word):
                raise ArgumentError(
                    "words", f"must be text that UTF-8 can hold. Received: words[{i}]={word!r}."
                )
            if ids.setdefault(word, i) != i:
                raise ArgumentError(
                    "words", f"must all be different. Received: {word!r} at {ids[word]} and at {i}."
                )
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words, sha256={self.sha256[:12]}…)"

    @property
    def eos_id(self) -> int | None:
        """The id of `<eos>`, or None."""
        return self._ids.get(EOS)

    @property
    def unk_id(self) -> int | None:
        """The id of `<unk>`, or None."""
        return self._ids.get(UNK)

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of the words, one per line: that of the file that `save` writes."""
        return hashlib.sha256(self._as_bytes()).hexdigest()

    def id(self, word: str) -> int:
        """Return the id of `word`, or of `<unk>` for an unknown word, if there is `<unk>`."""
        id = self._ids.get(word, self.unk_id)
        if id is None:
            raise ArgumentError(
                "word", f"must be in the vocabulary, which has no {UNK}. Received: word={word!r}."
            )
        return id

    def word(self, id: int) -> str:
        """Return the word of `id`, from 0 to `len(vocabulary) - 1`."""
        if not 0 <= id < len(self):
            raise ArgumentError("id", f"must be from 0 to {len(self) - 1}. Received: id={id!r}.")
        return self.words[id]

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of `text`: int32 `(num_tokens,)`.

        White space separates words; every newline becomes one `<eos>`.
        """
        return self.encode_words(words_of(text.lower() if self.lowercase else text))

    def encode_words(self, words: list[str]) -> np.ndarray:
        """Return the ids of `words`, `<eos>` among them: int32 `(num_tokens,)`."""
        get, unk = self._ids.get, self.unk_id
        if unk is None:
            ids: Iterable[int] = (self.id(word) for word in words)
        else:
            ids = (get(word, unk) for word in words)
        return np.fromiter(ids, dtype="int32", count=len(words))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`: spaces between words, a newline for each `<eos>`.

        `encode` turns it back into the same ids.
        """
        words = (self.word(int(id)) for id in ids)
        text = " ".join("\n" if word == EOS else word for word in words)
        return re.sub(" ?\n ?", "\n", text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the words to the file `path` in UTF-8, one per line; all or nothing."""
        write_whole(path, self._as_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, lowercase: bool = False) -> "Vocabulary":
        """Return the vocabulary that `save` wrote to the file `path`."""
        text = "".join(blocks(path))
        return cls(tuple(text.split("\n")[:-1]), lowercase=lowercase)

    @classmethod
    def from_counts(
        cls,
        counts: Counter[str],
        *,
        size: int | None = None,
        min_count: int = 1,
        needs_unk: bool = False,
        lowercase: bool = False,
    ) -> "Vocabulary":
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
        ordered = sorted(counts, key=lambda word: -counts[word])  # stable: then by appearance
        kept = [w for w in ordered if w not in special and counts[w] >= min_count]
        num_special = 1 + (UNK in counts or needs_unk or len(kept) < len(counts.keys() - special))
        if size is not None and len(kept) + num_special > size:
            kept = kept[: size - 2]
        known = special.union(kept)
        merged: Counter[str] = Counter()
        for word, count in counts.items():
            merged[word if word in known else UNK] += count
        if needs_unk:
            merged[UNK] += 0
        words = tuple(sorted(merged, key=lambda word: -merged[word]))
        return cls(words, lowercase=lowercase)

    def _as_bytes(self) -> bytes:
        return "".join(word + "\n" for word in self.words).encode()
