"""Encoding: a text becomes ids."""

import functools
import hashlib
import io
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualnet import _fields
from dualnet._checks import ArgumentError, did_you_mean
from dualnet._fields import count
from dualnet.corpora import python_reference
from dualnet.corpora.sources import SPLITS, Files
from dualnet.text import ByteTokenizer, Tokenizer, Vocabulary, train_tokenizer
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
        if not self.files:
            return len(python_reference.split_texts()[split].encode())
        parts = self.files[split]
        ends = (part.path.stat().st_size if part.end is None else part.end for part in parts)
        return sum(ends) - sum(part.start for part in parts)

    def read(self, split: str) -> Iterator[str]:
        """Yield the marked text of a split in blocks that split no document."""
        if self.files:
            of_parts = (
                blocks(part.path, part.start, part.end, documents=self.documents)
                for part in self.files[split]
            )
            texts: Iterator[str] = itertools.chain.from_iterable(of_parts)
        else:
            embedded = io.BytesIO(python_reference.split_texts()[split].encode())
            texts = decoded(embedded.read, self.name, documents=self.documents)
        return (text.lower() for text in texts) if self.lowercase else texts


class Settings(_fields.Settings):
    """The tokeniser of a corpus, see `corpora.load`."""

    vocabulary_size: int | None = count(None, least=2)
    min_count: int | None = count(None)
    vocabulary: Tokenizer | None = None
    tokenizer: str = "words"  # or "characters", "bytes", "bpe:8000"; unused with a vocabulary


@dataclass(frozen=True)
class Encoded:
    """What encoding gives a `Corpus`: the ids of each split, and a hash of the text."""

    splits: dict[str, np.ndarray]
    vocabulary: Tokenizer
    sha256: str


def encode(text: Text, settings: Settings, folder: Path | None = None) -> Encoded:
    """Return the ids of `text`; in a `folder`, as memory maps of the files of its splits."""
    tokenizer = settings.vocabulary or learnt(
        text.read("train"), settings, documents=text.documents, lowercase=text.lowercase
    )
    digest = hashlib.sha256()
    splits = {}
    for split in SPLITS:
        ids = _ids(text, split, tokenizer, digest)
        if folder is None:
            splits[split] = np.concatenate([np.empty(0, "int32"), *ids])
        else:
            splits[split] = _file(ids, folder / f"{split}.npy")
        digest.update(b"\n")  # marks the end of the split
    return Encoded(splits, tokenizer, digest.hexdigest())


def _file(ids: Iterator[np.ndarray], path: Path) -> np.ndarray:
    """Write ids as the file `path`, and return a memory map of it."""
    header = {"descr": "<i4", "fortran_order": False, "shape": (0,)}
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
    # A plain array: slices of np.memmap are slow.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _ids(
    text: Text, split: str, tokenizer: Tokenizer, digest: "hashlib._Hash"
) -> Iterator[np.ndarray]:
    """Yield the ids of a split, and add its text to `digest`; of words, without white space."""
    for block in text.read(split):
        if not isinstance(tokenizer, Vocabulary):
            digest.update(block.encode(errors="surrogatepass"))
            yield tokenizer.encode_marked(block)
            continue
        if EOS in block and _SPELT_END.search(block):
            message = f"The split {split!r} of {text.name!r} spells {EOS} at the end of a line, "
            way_out = "where one is added anyway. Remove those of the text."
            warnings.warn(message + way_out, stacklevel=2)
        words = words_of(block)
        digest.update(" ".join([*words, ""]).encode())
        try:
            yield tokenizer.encode_words(words)
        except ArgumentError as error:
            raise ValueError(f"{error} It is in {split!r} of {text.source!r}.") from None


def learnt(
    texts: Iterable[str], settings: Settings, *, documents: str = "line", lowercase: bool = False
) -> Tokenizer:
    """Return the tokeniser that `settings` ask for, learnt from marked `texts`.

    One of words has `<unk>`.
    """
    kind, size = check_tokenizer(settings.tokenizer)
    if kind == Vocabulary.kind:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words_of(text.lower() if lowercase else text))
        return _learnt_words(counts, settings, documents, lowercase)
    if kind == ByteTokenizer.kind:
        if lowercase:
            raise ArgumentError("lowercase", "must be False for bytes.", lowercase=True)
        return ByteTokenizer(documents)
    return train_tokenizer(texts, kind, size=size, documents=documents, lowercase=lowercase)


def check_tokenizer(tokenizer: str) -> tuple[str, int | None]:
    """Return the kind and size that the name of a tokeniser gives, e.g. "bpe" and 8000."""
    kind, _, size = tokenizer.partition(":")
    if tokenizer in UNSIZED:
        return tokenizer, None
    if kind not in SIZED or not size.isdecimal():
        names = [*UNSIZED, *(f"{name}:8000" for name in SIZED)]
        required = f"must be one of {', '.join(names)}, with any number, or the path of a "
        files = "tokenizer.json or of a .model of SentencePiece."
        hint = did_you_mean(tokenizer, names)
        raise ArgumentError("tokenizer", required + files, hint, tokenizer=tokenizer)
    check_size(kind, int(size))
    return kind, int(size)


def _learnt_words(
    counts: Counter[str], settings: Settings, documents: str, lowercase: bool
) -> Vocabulary:
    """Return the words of train, with an `<unk>` that train has unless `min_count` is 1."""
    min_count = settings.min_count or (1 if has_unknown(counts[UNK], counts.total()) else 2)
    learn = functools.partial(
        Vocabulary.from_counts,
        counts,
        min_count=min_count,
        needs_unk=True,
        documents=documents,
        lowercase=lowercase,
    )
    vocabulary = learn(size=settings.vocabulary_size)
    is_seen = UNK in counts or len(vocabulary) <= len(counts)
    if is_seen or min_count == 1 or len(vocabulary) < 3:
        return vocabulary
    fewer = learn(size=len(vocabulary) - 1)
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
