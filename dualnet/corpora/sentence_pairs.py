"""Minimal pairs of sentences, read from BLiMP's files."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._columns import Column, column_of, columns_of
from dualnet.corpora.records import Records
from dualnet.text.files import Line
from dualnet.text.plain_text import SURROGATE

SENTENCES = ("sentence_good", "sentence_bad")
KEYS = (*SENTENCES, "UID", "field")  # of a record, in the order of the attributes of its pair


@dataclasses.dataclass(frozen=True)
class SentencePair:
    """An acceptable sentence and an unacceptable one that differs from it as little as possible.

    Attributes:
        good: The acceptable sentence.
        bad: The unacceptable one.
        uid: What the two differ in, e.g. "adjunct_island"; in BLiMP, one for each file.
        field: The field of grammar, e.g. "syntax".
        place: Where the pair stands, for errors: its file and line.
    """

    good: str
    bad: str
    uid: str
    field: str
    place: str


def read_pairs(pairs: Any, column: Sequence[Column] | None = None) -> list[SentencePair]:
    """Return the minimal pairs of files, or of records.

    Args:
        pairs: The path of a file with one JSON object per line, or a sequence of such paths, of
            such objects, or of tuples of the two sentences. An object has the keys
            `sentence_good` and `sentence_bad`, and may have `UID` and `field`, which default to
            the name of the file (of a record: "pairs"). Other keys and blank lines are ignored.
            Or a table, a DataFrame or a dict of columns, with these names. What was read already
            is taken as it is.
        column: The names of the two columns of a table that have the sentences.

    Raises:
        ValueError: if a file cannot be read or has no pairs, or if a pair lacks a sentence; with
            the file and the line.

    Example:

    >>> from dualnet.corpora.sentence_pairs import read_pairs
    >>> record = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps."}
    >>> read_pairs([record])[0].good
    'The cats sleep.'
    """
    names = columns_of(pairs)
    if names is not None:
        pairs = _rows(pairs, names, column or SENTENCES)
    elif column is not None:
        raise ArgumentError("column", "is for a table, such as a DataFrame.", column=column)
    elif isinstance(pairs, str | os.PathLike):
        pairs = [pairs]
    sentence_pairs: list[SentencePair] = []
    for number, item in enumerate(pairs, 1):
        if isinstance(item, str | os.PathLike):
            sentence_pairs += map(pair_of, files_of_pairs([item]).read())
        elif isinstance(item, SentencePair):
            sentence_pairs.append(item)
        else:
            if isinstance(item, tuple | list | np.ndarray) and len(item) == 2:
                item = dict(zip(SENTENCES, item))
            sentence_pairs.append(_pair(item, default="pairs", place=f"pair {number} of `pairs`"))
    if not sentence_pairs:
        raise ArgumentError("pairs", "must hold at least one pair. Received: none.")
    return sentence_pairs


def _rows(table: Any, names: list[Any], sentences: Sequence[Column]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as objects of the keys above."""
    sources = dict(zip(SENTENCES, sentences)) | {key: key for key in KEYS[2:] if key in names}
    columns = [column_of(table, names, source) for source in sources.values()]
    if isinstance(columns[0], str):
        raise ArgumentError(
            "pairs",
            f"must be a sequence of pairs, or a table. Received: {table!r}.",
            " Give one pair as [pair].",
        )
    return (dict(zip(sources, values)) for values in zip(*columns, strict=True))


def files_of_pairs(paths: Sequence[StrPath]) -> Records:
    """Return the files of minimal pairs at `paths`, one in each line that is not blank."""
    hint = " In Python, one pair of sentences is [(good, bad)]."
    return Records.of_files(paths, hint=hint, blank=False)


def pair_of(line: Line) -> SentencePair:
    """Return the minimal pair of a line of a file."""
    try:
        record = json.loads(line.text)
    except (ValueError, RecursionError):
        raise ValueError(f"Each line must be a JSON object. Received: {line.place}.") from None
    return _pair(record, default=Path(line.source.removesuffix(".gz")).stem, place=line.place)


def _pair(record: Any, *, default: str, place: str) -> SentencePair:
    if not isinstance(record, Mapping):
        raise ValueError(f"Each pair must be a JSON object or a tuple of two. Received: {place}.")
    record = {"UID": default, "field": default, **record}
    for key in KEYS:
        text = record.get(key)
        # JSON can escape half of a surrogate pair, which UTF-8 cannot hold.
        if not isinstance(text, str) or not text.strip() or SURROGATE.search(text):
            raise ValueError(f"Each pair must have text as {key!r}. Received: {text!a} in {place}.")
    good, bad, uid, field = (record[key] for key in KEYS)
    return SentencePair(good, bad, uid, field, place)
