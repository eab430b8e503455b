"""Corpora: text files to streams of ids, with a vocabulary built from train alone."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dualnet.corpora._files import SPLITS, find_file, find_folder, read_text
from dualnet.corpora._reference import reference_text
from dualnet.corpora._streams import streams
from dualnet.corpora.vocabulary import EOS, UNK, Vocabulary, split

if TYPE_CHECKING:
    from dualnet.corpora._batches import Batches

NAMES = ("ptb", "python-reference", "wikitext-103", "wikitext-2")

__all__ = ["EOS", "NAMES", "SPLITS", "UNK", "Corpus", "Vocabulary", "load", "streams"]


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits as ids, and the vocabulary.

    Attributes:
        name: Name of the corpus, or of its folder.
        train, valid, test: int32 `(num_tokens,)`, each split one stream in reading
            order, `<eos>` at the end of every line.
        vocabulary: `Vocabulary`.
        lowercase: Whether the text was lower-cased.
        source: The folder that it was read from, or "embedded".
        sha256: Hash of the three splits' words.
    """

    name: str
    train: np.ndarray = dataclasses.field(repr=False)
    valid: np.ndarray = dataclasses.field(repr=False)
    test: np.ndarray = dataclasses.field(repr=False)
    vocabulary: Vocabulary
    lowercase: bool
    source: str
    sha256: str

    def split(self, name: str) -> np.ndarray:
        """Return the ids of split `name`: "train", "valid" or "test"."""
        if name not in SPLITS:
            raise ValueError(f"`split` must be one of {list(SPLITS)}. Received: split={name!r}.")
        return getattr(self, name)

    def batches(self, split: str, *, batch_size: int, sequence_length: int) -> Batches:
        """Return `split` for `model.fit`, as batches of parallel streams in reading order.

        Args:
            split: "train", "valid" or "test".
            batch_size: int. Number of parallel streams; the remainder of fewer
                than `batch_size` tokens is left out.
            sequence_length: int. Tokens per segment.

        Raises:
            ValueError: if the split holds less than one batch.
        """
        from dualnet.corpora._batches import Batches  # here, because it needs Keras

        return Batches(
            self.split(split),
            batch_size=batch_size,
            sequence_length=sequence_length,
            vocabulary=self.vocabulary,
        )


def load(
    name: str | os.PathLike[str],
    *,
    path: str | os.PathLike[str] | None = None,
    lowercase: bool = False,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
    vocabulary: Vocabulary | None = None,
) -> Corpus:
    """Return a corpus with a vocabulary built from its training text alone.

    Text is UTF-8, split at white space, one `<eos>` per line. A corpus by name
    is looked for in `path`, in `DUALNET_DATA`, and in the cache; "ptb" and
    "wikitext-2" are downloaded if they are in none of these, and checked.

    Args:
        name: "python-reference" (embedded), "ptb", "wikitext-2", "wikitext-103", or
            a folder with train.txt, valid.txt and test.txt.
        path: folder of the named corpus.
        lowercase: bool.
        vocabulary_size: int, at least 2. Largest number of words, `<eos>` and `<unk>` included.
        min_count: int, at least 1. Rarer words become `<unk>`. Default 1, but 2 for
            "python-reference", where no word is `<unk>` by itself and the
            model would never learn to expect one.
        vocabulary: a given vocabulary, such as a trained model's, instead of a new one.

    Raises:
        ValueError: for an unknown name, a value out of range, a file that is empty
            or not UTF-8, or an unknown word where `vocabulary` has no `<unk>`.
        FileNotFoundError: if a folder or a split is missing, or cannot be downloaded.
    """
    for key, value, least in [("vocabulary_size", vocabulary_size, 2), ("min_count", min_count, 1)]:
        if value is not None and (not isinstance(value, int) or value < least):
            raise ValueError(
                f"`{key}` must be an integer of at least {least}. Received: {key}={value!r}."
            )
    texts, name, source = _read(name, path)
    if lowercase:
        texts = {key: text.lower() for key, text in texts.items()}
    # Splits are one stream each: a last line without a newline ends all the same.
    tokens = {key: split(text if text.endswith("\n") else text + "\n") for key, text in texts.items()}
    if vocabulary is None:
        known = set(tokens["train"])
        vocabulary = Vocabulary.from_tokens(
            tokens["train"],
            vocabulary_size=vocabulary_size,
            min_count=min_count or (2 if name == "python-reference" else 1),
            unknown=not known.issuperset(tokens["valid"]) or not known.issuperset(tokens["test"]),
        )
    elif vocabulary_size is not None or min_count is not None:
        raise ValueError("`vocabulary` stands alone: leave vocabulary_size and min_count out.")
    digest = hashlib.sha256()
    for key in SPLITS:
        digest.update("\x00".join(tokens[key]).encode() + b"\x01")
    return Corpus(
        name=name,
        vocabulary=vocabulary,
        lowercase=lowercase,
        source=source,
        sha256=digest.hexdigest(),
        **{key: vocabulary.ids(tokens[key]) for key in SPLITS},
    )


def _read(
    name: str | os.PathLike[str], path: str | os.PathLike[str] | None
) -> tuple[dict[str, str], str, str]:
    """Return the text of each split, the name of the corpus, and where it came from."""
    if name == "python-reference":
        return _reference_text(), "python-reference", "embedded"
    if isinstance(name, str) and name in NAMES:
        folder = find_folder(name, path)
    elif Path(name).is_dir():
        folder = Path(name)
        name = folder.resolve().name
    elif isinstance(name, str) and not set(name) & {"/", os.sep, "."}:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"Unknown corpus. Received: name={name!r}.{hint} Known are {', '.join(NAMES)}, or "
            "give a folder with train.txt, valid.txt and test.txt."
        )
    else:
        raise FileNotFoundError(
            f"`name` must be an existing folder or one of {', '.join(NAMES)}. "
            f"Received: {os.fspath(name)!r}."
        )
    return (
        {key: read_text(find_file(folder, key)) for key in SPLITS},
        str(name),
        str(folder.resolve()),
    )


@functools.cache
def _reference_text() -> dict[str, str]:
    return reference_text()
