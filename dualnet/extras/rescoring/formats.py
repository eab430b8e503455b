"""Reads and writes n-best lists: of Moses, of Kaldi, JSON lines, and of trees."""

import collections
import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet._files import write_whole, written_beside
from dualnet.extras.rescoring.lists import SPACES, Hypothesis, NBest, words_of
from dualnet.extras.rescoring.trees import (
    clean,
    linearize,
    parse_tree,
    read_tree_nbest,
    read_trees,
)
from dualnet.text.files import lines

FORMATS = ("jsonl", "kaldi", "moses", "trees")
Value = TypeVar("Value")
Row = tuple[str | int, Hypothesis]  # the id of the list, and a hypothesis of it
FEATURES_AND_SCORE = re.compile(r"[^\s=]+=.*\|\|\|[^\s=]+", re.ASCII | re.DOTALL)  # of Moses
CONTROLS = re.compile("[\x7f-\x9f]")


def read_nbest(
    path: StrPath, *, format: str = "moses", scores: Sequence[StrPath] = ()
) -> Iterator[NBest]:
    """Read n-best lists one by one, without holding them all.

    - "moses": `id ||| words ||| name= number … name= … ||| score`; the last two may be missing.
      Other fields are kept and written last, such as the alignments and scores of words that
      Marian writes before the features.
    - "kaldi": `utterance-n words …`, with files of `utterance-n number …`, one feature each,
      which is named after its file: `lm_cost`, or `dual` for `NBEST.dual`.
    - "jsonl": one object in each line, with `id`, `text` and, if there are some, `score` and
      `features`, an object of numbers or lists of numbers. Other keys are kept.
    - "trees": bracketed trees, as `read_tree_nbest` reads them. The text of a tree is its linear
      form, which a language model learns; lists are numbered from 0.

    The hypotheses of an id stand together, in any order; the first one is the one that the list
    recommends.

    Args:
        path: the file, in UTF-8.
        format: "moses", "kaldi", "jsonl" or "trees".
        scores: paths, for "kaldi" alone.

    Yields:
        `NBest`.

    Raises:
        ValueError: if a line is malformed; the message names the file and the line.
        OSError: if a file cannot be read.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import read_nbest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "list.txt")
    ...     _ = path.write_text("0 ||| a cat ||| tm= -1 -2 ||| -3\\n0 ||| the cat ||| tm= -2 -2\\n")
    ...     [nbest] = read_nbest(path)
    >>> nbest.hypotheses[0]
    Hypothesis(text='a cat', features={'tm': (-1.0, -2.0)}, score=-3.0, rest=None)
    """
    check_choice("format", format, FORMATS)
    if scores and format != "kaldi":
        raise ArgumentError("scores", f"are files of Kaldi lists. Received: format={format!r}.")
    rows: Iterator[Row]
    if format == "kaldi":
        rows = _kaldi(path, scores)
    elif format == "trees":
        rows = _trees(path)
    else:
        rows = _parsed(path, _moses if format == "moses" else _json)
    finished = set()
    for key, group in itertools.groupby(rows, key=operator.itemgetter(0)):
        if key in finished:
            raise _malformed(os.fspath(path), f"the hypotheses of {key!r} must stand together.")
        finished.add(key)
        yield NBest(key, tuple(hypothesis for _, hypothesis in group))


def _parsed(path: StrPath, parse: Callable[[str], Value]) -> Iterator[Value]:
    """Yield what `parse` returns for each line that is not empty.

    An error of `parse` becomes one that names the file and the line.
    """
    for line in lines(path):
        if text := line.text.removesuffix("\n"):
            try:
                value = parse(text)
            except (ValueError, TypeError, AttributeError) as error:
                raise _malformed(line.place, str(error)) from None
            yield value


def _malformed(place: str, reason: str) -> ArgumentError:
    return ArgumentError("nbest", f"must hold n-best lists. {place}: {reason}")


def _moses(line: str) -> Row:
    fields = [field.strip(SPACES) for field in line.split("|||")]
    if len(fields) < 2 or not fields[0].isdecimal():
        raise ValueError(
            "a line must be 'id ||| words ||| features ||| score'; of other lists, give the "
            "format, as --format kaldi."
        )
    key, text, *fields = fields
    # Marian writes alignments and the scores of words, if any, before the features.
    pairs = enumerate(map("|||".join, itertools.pairwise(fields)))
    start = next((i for i, pair in pairs if FEATURES_AND_SCORE.fullmatch(pair)), 0)
    before, fields = fields[:start], fields[start:]
    features, score, *after = [*fields, *[""] * (2 - len(fields))]
    values: dict[str, list[str]] = {}
    name = "features"
    for word in words_of(features):
        head, separator, number = word.rpartition("=")
        if word.endswith(":"):
            head, separator, number = word[:-1], ":", ""
        if separator:
            name = head
        values.setdefault(name, []).extend(number.split())
    numbers = {name: _numbers(column) for name, column in values.items()}
    return key, Hypothesis(
        text, numbers, float(score) if score else None, (*after, *before) or None
    )


def _json(line: str) -> Row:
    record = json.loads(line)
    valid = isinstance(record, dict) and isinstance(record.get("text"), str) and "id" in record
    if not valid:
        raise ValueError("a line must be an object with `id` and `text`.")
    features = record.pop("features", None) or {}
    numbers = {
        name: tuple(map(float, value)) if isinstance(value, list) else float(value)
        for name, value in features.items()
    }
    score = record.pop("score", None)
    score = None if score is None else float(score)
    return record.pop("id"), Hypothesis(record.pop("text"), numbers, score, record or None)


def _kaldi(path: StrPath, scores: Sequence[StrPath]) -> Iterator[Row]:
    columns = {_feature_of(file, path): dict(_parsed(file, _keyed)) for file in scores}
    for key, text in _parsed(path, _keyed):
        utterance, _, number = key.rpartition("-")
        lacking = [name for name, column in columns.items() if not column.get(key)]
        if not utterance or not number.isdecimal() or lacking:
            where = f" {lacking[0]}" if lacking else ""
            reason = "a line must be 'utterance-n words', with numbers in the files of scores."
            raise _malformed(os.fspath(path), f"{reason} Received: {key!r}{where}.")
        numbers = {name: _numbers(words_of(column[key])) for name, column in columns.items()}
        score = float(columns["score"][key]) if "score" in columns else None
        numbers.pop("score", None)
        yield utterance, Hypothesis(text, numbers, score, int(number))


def _keyed(line: str) -> tuple[str, str]:
    """Return the key that a line begins with, and the rest."""
    key, *rest = re.split(f"[{SPACES}]+", line.strip(SPACES), maxsplit=1)
    return key, "".join(rest)


def _feature_of(scores: StrPath, nbest: StrPath) -> str:
    """Return the name of the feature in a file: `NAME` of `NBEST.NAME`, `NAME` of `NAME.txt`."""
    name, prefix = os.path.basename(scores), f"{os.path.basename(nbest)}."
    return name.removeprefix(prefix) if name.startswith(prefix) else Path(name).stem


def _trees(path: StrPath) -> Iterator[Row]:
    for number, candidates in enumerate(read_tree_nbest(path)):
        if not candidates:
            raise _malformed(
                os.fspath(path),
                f"list {number} has no tree. Write () for a sentence without a parse.",
            )
        for tree, score in candidates:
            yield number, Hypothesis(linearize(clean(tree)), {}, score, str(tree))


def write_nbest(path: StrPath, lists: Iterable[NBest], *, format: str = "moses") -> None:
    """Write n-best lists, whole or not at all, in the order in which they are given.

    Lists of Kaldi are several files: the words at `path`, and each feature and the score beside
    it, at `path.NAME` and `path.score`. Trees have a score, but no features.

    Args:
        path: the file to write.
        lists: `NBest`, any iterable of them.
        format: "moses", "kaldi", "jsonl" or "trees".

    Raises:
        ValueError: if a text or a name has no place in the format.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import Hypothesis, NBest, write_nbest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "list.txt")
    ...     write_nbest(path, [NBest(0, (Hypothesis("a cat", {"lm": -2.5}, -1.0),))])
    ...     print(path.read_text(), end="")
    0 ||| a cat ||| lm= -2.5 ||| -1.0
    """
    check_choice("format", format, FORMATS)
    if format == "kaldi":
        _write_kaldi(path, lists)
        return
    with (
        written_beside(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        for nbest in lists:
            file.writelines(f"{line}\n" for line in lines_of(nbest, format))


def lines_of(nbest: NBest, format: str) -> Iterator[str]:
    """Yield the lines of a list in a format that is one file."""
    for item in nbest.hypotheses:
        if format == "jsonl":
            yield _json_line(nbest.id, item)
        elif format == "moses":
            yield _moses_line(nbest.id, item)
        else:
            if item.score is not None:
                yield _spelt(item.score)
            yield item.rest if isinstance(item.rest, str) else str(parse_tree(item.text))
    if format == "trees":
        yield ""


def _json_line(key: str | int, item: Hypothesis) -> str:
    record = {"id": key, "text": item.text, "score": item.score, "features": dict(item.features)}
    record = {name: value for name, value in record.items() if value not in (None, {})}
    if isinstance(item.rest, dict):
        record |= item.rest
    text = json.dumps(record, ensure_ascii=False, default=float)  # of NumPy
    # Escaped, too: control characters that a terminal must not get.
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _moses_line(key: str | int, item: Hypothesis) -> str:
    rest = item.rest if isinstance(item.rest, tuple) else ()
    features = " ".join(f"{name}= {_spelt(value)}" for name, value in item.features.items())
    score = "" if item.score is None else _spelt(item.score)
    fields = [str(key), item.text, features, score, *rest]
    while not rest and len(fields) > 2 and not fields[-1]:
        fields.pop()
    names = "".join(item.features)
    if re.search(r"\|\|\||\n", "\t".join(fields)) or re.search(f"[{SPACES}]", names):
        raise ArgumentError("lists", f"must fit the format of Moses. Received: {fields}.")
    return " ||| ".join(fields).rstrip(" ")


def _write_kaldi(path: StrPath, lists: Iterable[NBest]) -> None:
    files = collections.defaultdict(list)  # lines by the suffix of the file
    for nbest in lists:
        for number, item in enumerate(nbest.hypotheses, start=1):
            key = f"{nbest.id}-{item.rest if isinstance(item.rest, int) else number}"
            score = {} if item.score is None else {"score": item.score}
            columns = {f".{name}": _spelt(v) for name, v in {**item.features, **score}.items()}
            for suffix, text in {"": item.text, **columns}.items():
                files[suffix].append(f"{key} {text}".rstrip(" ") + "\n")
    for suffix, rows in files.items():
        if len(rows) < len(files[""]) or re.search(r"[\s/]", suffix):
            required = "must have the same features throughout, without spaces and '/' in a name."
            raise ArgumentError("lists", f"{required} Received: {suffix[1:]!r}.")
    for suffix, rows in files.items():
        write_whole(f"{os.fspath(path)}{suffix}", "".join(rows))


def keyed_lines(path: StrPath, ids: Sequence[str | int], *, format: str, name: str) -> list[str]:
    """Return the line of each id of lists, from a file of sources or references.

    That is line `id`, counted from 0, for Moses; the line that begins with `id` for Kaldi; for
    JSON lines the lines in the order of the ids; and for trees likewise the trees.

    Args:
        path: a text file in UTF-8.
        ids: those of the lists, in order.
        format: of the lists.
        name: str. What errors call the file.

    Raises:
        ValueError: if there is no line for an id.
    """
    if format == "trees":
        texts = [str(tree) for tree in read_trees(path)]
    else:
        texts = [line.text.removesuffix("\n") for line in lines(path)]
    by_id: dict[str | int, str] = dict(enumerate(texts))
    if format == "kaldi":
        by_id = dict(map(_keyed, texts))
    elif format == "moses":
        ids = [int(key) for key in ids]
    elif len(texts) != len(ids):
        received = f"Received: {len(texts)} in {os.fspath(path)!r} for {len(ids)} lists."
        raise ArgumentError(name, f"must have one for each list. {received}")
    else:
        ids = range(len(ids))
    if missing := [key for key in ids if key not in by_id]:
        received = f"Received: {os.fspath(path)!r} without one for '{missing[0]}'."
        begins = ", which begins with it" * (format == "kaldi")
        raise ArgumentError(name, f"must have a line for each id of the lists{begins}. {received}")
    return [by_id[key] for key in ids]


def _numbers(words: Sequence[str]) -> float | tuple[float, ...]:
    """Return the number that is spelt, or several."""
    numbers = tuple(map(float, words))
    return numbers[0] if len(numbers) == 1 else numbers


def _spelt(value: float | tuple[float, ...]) -> str:
    numbers = value if isinstance(value, tuple) else (value,)
    return " ".join(repr(float(number)) for number in numbers)
