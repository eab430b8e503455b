"""Encoding: the words of a text become ids, in one pass over the text."""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.corpora.sources import SPLITS
from dualnet.text import Vocabulary
from dualnet.text.plain_text import EOS, UNK, words_of


@dataclass(frozen=True)
class Text:
    """The text of a corpus, not yet read."""

    name: str
    source: str  # the folder it is read from, or "embedded"
    read: Callable[[str], Iterator[str]]  # yields the text of a split in blocks that split no word
    files: dict[str, Path]  # of each split; empty for the embedded corpus


@dataclass(frozen=True)
class Settings:
    """Everything besides the text that the ids depend on, see `corpora.load`."""

    lowercase: bool
    vocabulary_size: int | None
    min_count: int
    vocabulary: Vocabulary | None


@dataclass(frozen=True)
class Encoded:
    """The ids of each split, int32 `(num_tokens,)`, their vocabulary, and a hash of the words."""

    splits: dict[str, np.ndarray]
    vocabulary: Vocabulary
    sha256: str


class Store:
    """Holds the word numbers of each split in memory until the ids are known."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}

    def append(self, split: str, numbers: np.ndarray) -> None:
        """Add numbers, int32 `(count,)`."""
        self._chunks[split].append(numbers)

    def chunks(self, split: str) -> Iterator[np.ndarray]:
        """Yield all numbers, in chunks of bounded size if the store is on disk."""
        return iter(self._chunks[split])

    def finish(self, split: str, ids: np.ndarray) -> np.ndarray:
        """Return `ids[numbers]`, int32 `(num_tokens,)`, and discard the numbers."""
        return ids[np.concatenate(self._chunks.pop(split))]


def encode(text: Text, settings: Settings, store: Store | None = None) -> Encoded:
    """Return the ids of `text`. What grows with its length is kept in `store`.

    The text is read once: words are numbered in order of appearance, the counts of the
    numbers of train give the vocabulary, and the vocabulary gives the id of each number.
    """
    store = store or Store()
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    digest = hashlib.sha256()
    num_train_words = 0
    for split in SPLITS:
        for block in text.read(split):
            # `map` over a bound method runs in C.
            words = words_of(block)
            store.append(split, np.fromiter(map(numbers.__getitem__, words), "int32", len(words)))
            if words:
                digest.update(" ".join(words).encode())
                digest.update(b" ")
        digest.update(b"\n")  # marks the end of the split
        num_train_words = num_train_words or len(numbers)
    vocabulary = settings.vocabulary
    if vocabulary is None:
        chunks = store.chunks("train")
        counts = sum(np.bincount(chunk, minlength=num_train_words) for chunk in chunks)
        vocabulary = Vocabulary.from_counts(
            Counter(dict(zip(numbers, np.asarray(counts).tolist()))),
            size=settings.vocabulary_size,
            min_count=settings.min_count,
            lowercase=settings.lowercase,
            needs_unk=len(numbers) > num_train_words,
        )
    elif vocabulary.unk_id is None:
        _check_known(text, numbers, vocabulary)
    ids = vocabulary.encode_words(list(numbers))
    return Encoded(
        {split: store.finish(split, ids) for split in SPLITS}, vocabulary, digest.hexdigest()
    )


def _check_known(text: Text, words: Iterable[str], vocabulary: Vocabulary) -> None:
    """Raise `ValueError` for the first of `words`, in the order of `text`, not in `vocabulary`."""
    unknown = next((word for word in words if word not in vocabulary), None)
    if unknown is None:
        return
    for split in SPLITS:
        line = 1
        for block in text.read(split):
            for row in block.split("\n"):
                if unknown in words_of(row + "\n"):
                    place = f"line {line} of {str(text.files.get(split, text.name))!r}"
                    raise ArgumentError(
                        "vocabulary",
                        f"must contain every word of the text, since it has no {UNK}. "
                        f"Received: {unknown!r} in {place}{' (a line end)' * (unknown == EOS)}. "
                        f"Give a vocabulary that contains it or {UNK}.",
                    )
                line += 1
            line -= 1  # the last row continues in the next block
