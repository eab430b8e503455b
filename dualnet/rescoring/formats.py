"""Reads and writes n-best lists: of Moses, of Kaldi, JSON lines, and of trees."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError, check_choice, checked
from dualnet._files import written_beside
from dualnet.corpora.pair_files import read_lines
from dualnet.rescoring.lists import Hypothesis, NBest
from dualnet.rescoring.trees import (
    clean,
    linearize,
    numbered_lines,
    parse_tree,
    read_tree_nbest,
    read_trees,
)
from dualnet.text.plain_text import SURROGATE

FORMATS = ("jsonl", "kaldi", "moses", "trees")
Path_ = str | os.PathLike[str]


@checked
def read_nbest(
    path: Path_, *, format: str = "moses", scores: Sequence[Path_] = ()
) -> Iterator[NBest]:
    """Read n-best lists one by one, without holding them all.

    - "moses": `id ||| words ||| name= number … name= … ||| score`; the last two may be missing,
      and fields after them are kept.
    - "kaldi": `utterance-n words …`, with files of `utterance-n number …` in the same order, one
      feature each, which is named after its file: `lm_cost`, or `dual` for `NBEST.dual`.
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
    for file in (path, *scores):
        if not os.path.isfile(file):
            raise FileNotFoundError(f"There is no file {os.fspath(file)!r}.")
    return _lists(path, format, scores)


@checked
def write_nbest(path: Path_, lists: Iterable[NBest], *, format: str = "moses") -> None:
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
    with contextlib.ExitStack() as stack:

        def opened(path: Path_) -> Any:
            temporary = stack.enter_context(written_beside(path))
            return stack.enter_context(open(temporary, "w", encoding="utf-8", newline="\n"))

        main = opened(path)
        columns: dict[str, Any] | None = None
        for nbest in lists:
            main.writelines(line + "\n" for line in lines_of(nbest, format))
            for key, hypothesis in zip(_keys(nbest), nbest.hypotheses) if format == "kaldi" else ():
                features = {**hypothesis.features}
                if hypothesis.score is not None:
                    features["score"] = hypothesis.score
                if columns is None:
                    columns = {
                        name: opened(f"{os.fspath(path)}.{check_name(name)}") for name in features
                    }
                if columns.keys() != features.keys():
                    raise ArgumentError(
                        "lists",
                        f"must have the same features throughout. Received: {sorted(features)} at "
                        f"{key}, after {sorted(columns)}.",
                    )
                for name, value in features.items():
                    columns[name].write(f"{key} {_numbers(value)}\n")


def lines_of(nbest: NBest, format: str) -> Iterator[str]:
    """Yield the lines of a list; those of Kaldi are the words alone."""
    if format == "kaldi":
        for key, item in zip(_keys(nbest), nbest.hypotheses):
            yield f"{key} {_one_line(item.text)}".rstrip(" ")
    elif format == "trees":
        for item in nbest.hypotheses:
            if item.score is not None:
                yield _numbers(item.score)
            yield item.rest if isinstance(item.rest, str) else str(parse_tree(item.text))
        yield ""
    else:
        line_of = _json_line if format == "jsonl" else _moses_line
        yield from (line_of(nbest.id, item) for item in nbest.hypotheses)


def _json_line(key: str | int, item: Hypothesis) -> str:
    record = {"id": key, "text": item.text, "score": item.score, "features": dict(item.features)}
    record = {name: value for name, value in record.items() if value not in (None, {})}
    record |= item.rest if isinstance(item.rest, dict) else {}
    text = json.dumps(record, ensure_ascii=False)
    # Escaped, too: control characters that a terminal must not get.
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _moses_line(key: str | int, item: Hypothesis) -> str:
    rest = item.rest if isinstance(item.rest, tuple) else ()
    score = "" if item.score is None else _numbers(item.score)
    features = (f"{check_name(name)}= {_numbers(v)}" for name, v in item.features.items())
    fields = [str(key), _one_line(item.text), " ".join(features), score, *rest]
    if any("|||" in field for field in fields):
        raise ArgumentError("lists", f"must not hold '|||' in a text. Received: {item.text!r}.")
    while not rest and len(fields) > 2 and not fields[-1]:
        fields.pop()
    return " ||| ".join(fields).rstrip(" ")


def keyed_lines(path: Path_, ids: Sequence[str | int], *, format: str, name: str) -> list[str]:
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
        lines = [str(tree) for tree in read_trees(path)]
    else:
        lines = read_lines(Path(path))
    if format in ("jsonl", "trees"):
        if len(lines) != len(ids):
            raise ArgumentError(
                name,
                f"must have one for each list. Received: {len(lines)} in {os.fspath(path)!r} for "
                f"{len(ids)} lists.",
            )
        return lines
    if format == "kaldi":
        words = (line.split(maxsplit=1) for line in lines if line.strip())
        by_key = {key: "".join(text) for key, *text in words}
    else:
        by_key = {str(number): line for number, line in enumerate(lines)}
    keys = [str(key) if format == "kaldi" else str(int(key)) for key in ids]
    if missing := [key for key in keys if key not in by_key]:
        raise ArgumentError(
            name,
            f"must have a line for each id of the lists. Received: {os.fspath(path)!r} "
            f"without one for {missing[0]!r}.",
        )
    return [by_key[key] for key in keys]


def _lists(path: Path_, format: str, scores: Sequence[Path_]) -> Iterator[NBest]:
    if format == "trees":
        for number, candidates in enumerate(read_tree_nbest(path)):
            if not candidates:
                raise ArgumentError(
                    "nbest",
                    f"must hold a tree in each list. Received: {os.fspath(path)!r}, whose list "
                    f"{number} has none. Write () for a sentence without a parse.",
                )
            yield NBest(
                number,
                tuple(
                    Hypothesis(linearize(clean(tree)), score=score, rest=str(tree))
                    for tree, score in candidates
                ),
            )
        return
    parsed: Iterator[tuple[int, str | int, Hypothesis]]
    if format == "kaldi":
        parsed = _kaldi(path, scores)
    else:
        parse = _moses if format == "moses" else _json
        parsed = ((number, *parse(line, path, number)) for number, line in _lines(path) if line)
    seen = set()
    for key, group in itertools.groupby(parsed, key=lambda each: each[1]):
        members = list(group)
        if key in seen:
            reason = f"the hypotheses of {key!r} must stand together, and some came before"
            raise _malformed(path, members[0][0], reason)
        seen.add(key)
        yield NBest(key, tuple(hypothesis for *_, hypothesis in members))


def _moses(line: str, path: Path_, number: int) -> tuple[str, Hypothesis]:
    fields = [field.strip() for field in line.split("|||")]
    if len(fields) < 2 or not re.fullmatch("[0-9]{1,18}", fields[0]):
        raise _malformed(path, number, "a line must be 'id ||| words ||| features ||| score'")
    values_of: dict[str, list[float]] = {}
    name = None
    for token in re.findall(r"[^\s=]+=|[^\s=]+", fields[2]) if len(fields) > 2 else []:
        if token[-1] in "=:":
            name = token[:-1]
            if name in values_of:
                raise _malformed(path, number, f"the feature {name!r} is there twice")
            values_of[name] = []
        else:
            name = name or "features"
            values_of.setdefault(name, []).append(_number(token, path, number))
    for name, values in values_of.items():
        if not values:
            raise _malformed(path, number, f"the feature {name!r} has no number")
    score = _number(fields[3], path, number) if len(fields) > 3 and fields[3] else None
    features = {name: values[0] if len(values) == 1 else tuple(values)
                for name, values in values_of.items()}  # fmt: skip
    return fields[0], Hypothesis(fields[1], features, score, tuple(fields[4:]) or None)


def _json(line: str, path: Path_, number: int) -> tuple[str | int, Hypothesis]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, number, f"no JSON ({error})") from None
    valid = isinstance(record, dict) and isinstance(record.get("text"), str)
    if not valid or type(record.get("id")) not in (str, int):
        raise _malformed(path, number, "a line must be an object with `id` and `text`")
    if SURROGATE.search(json.dumps(record, ensure_ascii=False)):
        raise _malformed(path, number, "the text is not UTF-8")
    features = record.pop("features", None)
    if not isinstance(features, dict | None):
        raise _malformed(path, number, "`features` must be an object of numbers")
    values = {
        name: tuple(_number(each, path, number) for each in value)
        if isinstance(value, list) and value
        else _number(value, path, number)
        for name, value in (features or {}).items()
    }
    score = record.pop("score", None)
    score = None if score is None else _number(score, path, number)
    key, text = record.pop("id"), record.pop("text")
    return key, Hypothesis(text, values, score, record or None)


def _kaldi(path: Path_, scores: Sequence[Path_]) -> Iterator[tuple[int, str | int, Hypothesis]]:
    names = [_feature_of(file, path) for file in scores]
    if len({*names}) < len(names):
        raise ArgumentError("scores", f"must be of different names. Received: {names}.")
    columns = [_lines(file) for file in scores]
    for (number, line), *others in itertools.zip_longest(_lines(path), *columns, fillvalue=(0, "")):
        key, text = (*line.split(maxsplit=1), "", "")[:2]
        match = re.fullmatch(r"(.+)-(\d+)", key)
        if match is None and number:
            raise _malformed(path, number, "a line must be 'utterance-n words …'")
        values: dict[str, Any] = {}
        for name, file, (at, other) in zip(names, scores, others):
            other_key, *rest = other.split() or [""]
            if other_key != key or not rest:
                raise _malformed(
                    file,
                    at or number,
                    f"{key!r} and a number must stand here, as in {os.fspath(path)!r}"
                    if number
                    else f"there are more lines than in {os.fspath(path)!r}",
                )
            numbers = tuple(_number(each, file, at) for each in rest)
            values[name] = numbers[0] if len(numbers) == 1 else numbers
        assert match is not None
        score = values.pop("score", None)
        yield number, match[1], Hypothesis(text.strip(), values, score, int(match[2]))


def _feature_of(scores: Path_, nbest: Path_) -> str:
    """Return the name of the feature in a file: `NAME` of `NBEST.NAME`, `NAME` of `NAME.txt`."""
    name, own = os.path.basename(scores), f"{os.path.basename(nbest)}."
    return name.removeprefix(own) if name.startswith(own) and name != own else Path(name).stem


def _keys(nbest: NBest) -> list[str]:
    """Return the keys of a list of Kaldi, numbered from 1 unless the list came from there."""
    numbers = [each.rest for each in nbest.hypotheses]
    if any(not isinstance(number, int) for number in numbers):
        numbers = list(range(1, len(numbers) + 1))
    return [f"{nbest.id}-{number}" for number in numbers]


def _lines(path: Path_) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a file, without what ends them."""
    for number, line in numbered_lines(path, _malformed):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _number(value: Any, path: Path_, line: int) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _malformed(path, line, f"{value!r} must be a finite number")
    return number


def _numbers(value: float | tuple[float, ...]) -> str:
    return " ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def _one_line(text: str) -> str:
    if "\n" in text or text.endswith("\r"):
        raise ArgumentError("lists", f"must hold texts of one line. Received: {text!r}.")
    return text


def check_name(name: str, argument: str = "lists") -> str:
    """Return the name of a feature if every format can hold it."""
    if not re.fullmatch(r"[^\s=|/]+", name):
        raise ArgumentError(
            argument, f"must name features without spaces, '=', '|' and '/'. Received: {name!r}."
        )
    return name


def _malformed(path: Path_, line: int, reason: str) -> ArgumentError:
    return ArgumentError(
        "nbest", f"must hold n-best lists. {os.fspath(path)}, line {line}: {reason}."
    )
