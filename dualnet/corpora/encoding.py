"""Encoding: a text becomes ids."""

import hashlib
import io
import re
import warnings
from collections import Counter
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
from dualnet.text.files import blocks, decoded
from dualnet.text.learning import KINDS as SIZED
from dualnet.text.learning import check_size
from dualnet.text.plain_text import END, EOS, UNK, words_of

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

    def read(self, split: str) -> Iterator[str]:
        """Yield the marked text of a split in blocks that split no document."""
        settings: dict[str, Any] = {"documents": self.documents, "lowercase": self.lowercase}
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


# Fields of a `Corpus`: the ids of each split, int32 `(num_tokens,)`, their `vocabulary`, and
# `sha256`, a hash of the words.
Encoded = dict[str, Any]


def encode(text: Text, settings: Settings, folder: Path | None = None) -> Encoded:
    """Return the ids of `text`; in a `folder`, as memory maps of the files of its splits."""
    tokenizer = settings.vocabulary or learnt(text.read("train"), settings)
    digest = hashlib.sha256()
    fields: Encoded = {"vocabulary": tokenizer}
    for split in SPLITS:
        ids = _ids(text, split, tokenizer, digest)
        fields[split] = _array(ids) if folder is None else _file(ids, folder / f"{split}.npy")
        digest.update(b"\n")  # marks the end of the split
    return {**fields, "sha256": digest.hexdigest()}


def _array(ids: Iterator[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, "int32"), *ids])


def _file(ids: Iterator[np.ndarray], path: Path) -> np.ndarray:
    """Write ids as the file `path`, and return a memory map of it."""
    header: dict[str, Any] = {"descr": "<i4", "fortran_order": False, "shape": (0,)}
    size = 0
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for numbers in ids:
            file.write(numbers.data)
            size += len(numbers)
        file.seek(0)  # NumPy leaves room in the header for any size
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (size,)})
    return mapped(path)


def mapped(path: Path) -> np.ndarray:
    """Return the array in the file `path` as a read-only memory map."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise ValueError(f"A file of ids must be intact. Received: {str(path)!r}.") from None
    return np.asarray(array)  # a plain array: slices of np.memmap are slow


def _ids(text: Text, split: str, tokenizer: Tokenizer, digest: Any) -> Iterator[np.ndarray]:
    """Yield the ids of a split, and add its text to `digest`; of words, without white space."""
    line, warned = 1, False
    for block in text.read(split):
        if not isinstance(tokenizer, Vocabulary):
            digest.update(block.encode(errors="surrogatepass"))
            yield tokenizer.encode_marked(block)
            continue
        if not warned and EOS in block and _SPELT_END.search(block):
            warned = True
            message = f"The split {split!r} of {text.name!r} spells {EOS} at the end of a line, "
            way_out = "where one is added anyway. Remove those of the text."
            warnings.warn(message + way_out, stacklevel=2)
        if tokenizer.unk_id is None:
            line = _check_known(text, split, block, line, tokenizer)
        words = words_of(block)
        digest.update(" ".join([*words, ""]).encode())
        yield tokenizer.encode_words(words)


def _check_known(text: Text, split: str, block: str, first: int, vocabulary: Vocabulary) -> int:
    """Raise `ArgumentError` for a word not in `vocabulary`; return the line after the block."""
    for line, row in enumerate(block.replace(END, f"{END}\n").split("\n"), first):
        unknown = next((word for word in words_of(row) if word not in vocabulary), None)
        if unknown is not None:
            source = ", ".join(map(str, text.files.get(split, [text.name])))
            place = f"line {line} of {source!r}{' (a line end)' * (unknown == EOS)}"
            message = f"must contain every word of the text, since it has no {UNK}. "
            message += f"Received: {unknown!r} in {place}. Give a vocabulary that contains "
            raise ArgumentError("vocabulary", f"{message}it or {UNK}.")
    return line  # the last row continues in the next block


def learnt(texts: Iterable[str], settings: Settings) -> Tokenizer:
    """Return the tokeniser that `settings` ask for, learnt from marked `texts`.

    One of words has `<unk>`.
    """
    kind, size = check_tokenizer(settings.tokenizer)
    if kind == Vocabulary.kind:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words_of(text.lower() if settings.lowercase else text))
        return _learnt_words(counts, settings)
    if kind == ByteTokenizer.kind:
        if settings.lowercase:
            raise ArgumentError("lowercase", "must be False for bytes.", lowercase=True)
        return ByteTokenizer(settings.documents)
    return train_tokenizer(texts, kind, size=size, **settings.given(["documents", "lowercase"]))


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


def _learnt_words(counts: Counter[str], settings: Settings) -> Vocabulary:
    """Return the words of train, with an `<unk>` that train has unless `min_count` is 1."""
    min_count = settings.min_count or (1 if has_unknown(counts[UNK], counts.total()) else 2)
    how = settings.given(["documents", "lowercase"]) | {"min_count": min_count, "needs_unk": True}
    vocabulary = Vocabulary.from_counts(counts, size=settings.vocabulary_size, **how)
    is_seen = UNK in counts or len(vocabulary) <= len(counts)
    if is_seen or min_count == 1 or len(vocabulary) < 3:
        return vocabulary
    fewer = Vocabulary.from_counts(counts, size=len(vocabulary) - 1, **how)
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
