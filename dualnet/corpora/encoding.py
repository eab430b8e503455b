"""Encoding: a text becomes ids, in one pass over it."""

import hashlib
import io
import itertools
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualnet import _fields
from dualnet._checks import ArgumentError, did_you_mean
from dualnet._fields import choice, count
from dualnet.corpora import python_reference
from dualnet.corpora.sources import SPLITS, Files
from dualnet.text import DOCUMENTS, ByteTokenizer, Tokenizer, Vocabulary, train_tokenizer
from dualnet.text.learning import KINDS as SIZED
from dualnet.text.learning import check_size
from dualnet.text.plain_text import END, EOS, UNK, blocks, decoded, words_of

_SPELT_END = re.compile(rf"{EOS}[ \t\r]*{END}")
# A prepared text has more: 1 in 250 in WikiText-103, 1 in 20 in PTB.
WORDS_PER_UNK = 1000
UNSIZED = ("words", "characters", "bytes")


@dataclass(frozen=True)
class Text:
    """The text of a corpus, not yet read."""

    name: str
    source: str  # the folder or file it is read from, or "embedded"
    files: Files  # empty for the embedded corpus
    documents: str
    lowercase: bool
    fractions: tuple[float, ...] | None = None  # of a single file

    def paths(self) -> list[Path]:
        """Return all files."""
        return sorted({part.path for parts in self.files.values() for part in parts})

    def size(self, split: str) -> int:
        """Return the number of bytes of a split."""
        parts = self.files.get(split, ())
        ends = (part.path.stat().st_size if part.end is None else part.end for part in parts)
        return sum(ends) - sum(part.start for part in parts)

    def read(self, split: str, whole: bool) -> Iterator[str]:
        """Yield the marked text of a split in blocks that split no word.

        If `whole`, they split no document either.
        """
        settings: dict[str, Any] = {
            "documents": self.documents,
            "whole": whole,
            "lowercase": self.lowercase,
        }
        if not self.files:
            embedded = python_reference.split_texts()[split].encode()
            yield from decoded(io.BytesIO(embedded).read, self.name, **settings)
        for part in self.files.get(split, ()):
            yield from blocks(part.path, start=part.start, end=part.end, **settings)


class Settings(_fields.Settings):
    """Everything besides the text that the ids depend on, see `corpora.load`."""

    lowercase: bool = False
    vocabulary_size: int | None = count(None, least=2)
    min_count: int | None = count(None, least=1)
    vocabulary: Tokenizer | None = None
    tokenizer: str = "words"  # or "characters", "bytes", "bpe:8000"; unused with a vocabulary
    documents: str = choice("line", DOCUMENTS)

    @property
    def reads_words(self) -> bool:
        """Whether the ids are those of words."""
        if self.vocabulary is None:
            return self.tokenizer == Vocabulary.kind
        return isinstance(self.vocabulary, Vocabulary)


@dataclass(frozen=True)
class Encoded:
    """The ids of each split, int32 `(num_tokens,)`, their vocabulary, and a hash of the words."""

    splits: dict[str, np.ndarray]
    vocabulary: Tokenizer
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

    def finish(self, split: str, ids: np.ndarray | None) -> np.ndarray:
        """Return `ids[numbers]`, or the numbers, int32 `(num_tokens,)`, and discard them."""
        numbers = np.concatenate([np.empty(0, "int32"), *self._chunks.pop(split)])
        return numbers if ids is None else ids[numbers]


def encode(text: Text, settings: Settings, store: Store | None = None) -> Encoded:
    """Return the ids of `text`. What grows with its length is kept in `store`."""
    store = store or Store()
    if settings.reads_words:
        return _encode_words(text, settings, store)
    tokenizer = settings.vocabulary or learnt(text.read("train", True), settings)
    digest = hashlib.sha256()
    for split in SPLITS:
        for block in text.read(split, True):
            store.append(split, tokenizer.encode_marked(block))
            digest.update(block.encode(errors="surrogatepass"))
        digest.update(b"\n")  # marks the end of the split
    splits = {split: store.finish(split, None) for split in SPLITS}
    return Encoded(splits, tokenizer, digest.hexdigest())


def learnt(texts: Iterable[str], settings: Settings) -> Tokenizer:
    """Return the tokeniser that `settings` ask for, learnt from marked `texts`.

    One of words has `<unk>`.
    """
    kind, size = check_tokenizer(settings.tokenizer)
    if kind == Vocabulary.kind:
        lower = str.lower if settings.lowercase else str
        counts = Counter(word for text in texts for word in words_of(lower(text)))
        return Vocabulary.from_counts(counts, needs_unk=True, lowercase=settings.lowercase)
    if kind == ByteTokenizer.kind:
        if settings.lowercase:
            raise ArgumentError("lowercase", "must be False for bytes.", lowercase=True)
        return ByteTokenizer(settings.documents)
    return train_tokenizer(
        texts, kind, size=size, documents=settings.documents, lowercase=settings.lowercase
    )


def check_tokenizer(tokenizer: str) -> tuple[str, int | None]:
    """Return the kind and size that the name of a tokeniser gives, e.g. "bpe" and 8000."""
    if tokenizer in UNSIZED:
        return tokenizer, None
    kind, _, size = tokenizer.partition(":")
    if kind not in SIZED or not size.isdecimal():
        names = [*UNSIZED, *(f"{name}:SIZE" for name in SIZED)]
        files = "the path of a tokenizer.json or of a .model of SentencePiece"
        required = f"must be one of {', '.join(names)}, or {files}."
        hint = did_you_mean(tokenizer, [*UNSIZED, *(f"{name}:8000" for name in SIZED)])
        raise ArgumentError("tokenizer", required, hint, tokenizer=tokenizer)
    check_size(kind, int(size))
    return kind, int(size)


def _encode_words(text: Text, settings: Settings, store: Store) -> Encoded:
    """Return the ids of the words of `text`.

    The text is read once: words are numbered in order of appearance, the counts of the
    numbers of train give the vocabulary, and the vocabulary gives the id of each number.
    """
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    digest = hashlib.sha256()
    num_train_words, warned = 0, False
    for split in SPLITS:
        for block in text.read(split, False):
            # `map` over a bound method runs in C.
            if not warned and EOS in block and _SPELT_END.search(block):
                warned, place = True, f"The split {split!r} of {text.name!r}"
                message = f"{place} spells {EOS} at the end of a line, where one is added anyway."
                warnings.warn(f"{message} Remove those of the text.", stacklevel=2)
            words = words_of(block)
            store.append(split, np.fromiter(map(numbers.__getitem__, words), "int32", len(words)))
            if words:
                digest.update(" ".join(words).encode())
                digest.update(b" ")
        digest.update(b"\n")  # marks the end of the split
        num_train_words = num_train_words or len(numbers)
    vocabulary = settings.vocabulary
    assert vocabulary is None or isinstance(vocabulary, Vocabulary)
    if vocabulary is None:
        counts = np.zeros(num_train_words, "int64")
        for chunk in store.chunks("train"):
            counts += np.bincount(chunk, minlength=num_train_words)
        vocabulary = _learnt_words(Counter(dict(zip(numbers, counts.tolist()))), settings)
    elif vocabulary.unk_id is None:
        _check_known(text, numbers, vocabulary)
    ids = vocabulary.encode_words(list(numbers))
    return Encoded(
        {split: store.finish(split, ids) for split in SPLITS}, vocabulary, digest.hexdigest()
    )


def _learnt_words(counts: Counter[str], settings: Settings) -> Vocabulary:
    """Return the words of train, with an `<unk>` that train has unless `min_count` is 1."""
    is_prepared = has_unknown(counts[UNK], counts.total())
    min_count = settings.min_count or (1 if is_prepared else 2)

    def learnt(size: int | None) -> Vocabulary:
        return Vocabulary.from_counts(
            counts,
            size=size,
            min_count=min_count,
            lowercase=settings.lowercase,
            documents=settings.documents,
            needs_unk=True,
        )

    vocabulary = learnt(settings.vocabulary_size)
    is_seen = UNK in counts or len(vocabulary) <= len(counts)
    if is_seen or min_count == 1 or len(vocabulary) < 3:
        return vocabulary
    fewer = learnt(len(vocabulary) - 1)
    [rarest] = {*vocabulary} - {*fewer}
    warnings.warn(
        f"Each word of train occurs at least {min_count} times. The rarest, {rarest!r}, is read as "
        f"{UNK}, so that a model learns to expect new words. Keep it with a `min_count` of 1.",
        stacklevel=2,
    )
    return fewer


def has_unknown(unknown: int, words: int) -> bool:
    """Return True if enough of the words of a text are `<unk>` to stand for its rare ones."""
    return unknown * WORDS_PER_UNK >= words > 0


def _check_known(text: Text, words: Iterable[str], vocabulary: Vocabulary) -> None:
    """Raise `ValueError` for the first of `words`, in the order of `text`, not in `vocabulary`."""
    unknown = next((word for word in words if word not in vocabulary), None)
    if unknown is None:
        return
    for split in SPLITS:
        line = 1
        for block in text.read(split, False):
            for row in block.replace(END, f"{END}\n").split("\n"):
                if unknown in words_of(row):
                    source = ", ".join(map(str, text.files.get(split, [text.name])))
                    place = f"line {line} of {source!r}{' (a line end)' * (unknown == EOS)}"
                    message = f"must contain every word of the text, since it has no {UNK}. "
                    message += f"Received: {unknown!r} in {place}. Give a vocabulary that contains "
                    raise ArgumentError("vocabulary", f"{message}it or {UNK}.")
                line += 1
            line -= 1  # the last row continues in the next block
