"""Reads and writes n-best lists: of Moses, of Kaldi, JSON lines, and of trees."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet._files import written_beside
from dualnet.corpora.pair_files import read_lines
from dualnet.extras.rescoring.lines import SPACES, finite_number, numbered_lines, words_of
from dualnet.extras.rescoring.lists import Hypothesis, NBest
from dualnet.extras.rescoring.trees import clean, linearize, numbered_nbest, parse_tree, read_trees
from dualnet.text.plain_text import SURROGATE

FORMATS = ("jsonl", "kaldi", "moses", "trees")
Row = TypeVar("Row")
Rows = Iterator[tuple[int, tuple[str | int, Hypothesis]]]  # line, key of the list, hypothesis
FEATURES_AND_SCORE = re.compile(r"[^\s=]+=.*\|\|\|[^\s=]+", re.ASCII | re.DOTALL)  # of Moses
KALDI, MOSES = r"(?!score$)[^\s/]+", r"\S+"  # names of features, those of Kaldi being of files


def read_nbest(
    path: StrPath, *, format: str = "moses", scores: Sequence[StrPath] = ()
) -> Iterator[NBest]:
    """Read n-best lists one by one, without holding them all.

    - "moses": `id ||| words ||| name= number … name= … ||| score`; the last two may be missing.
      Other fields are kept and written last, such as the alignments and scores of words that
      Marian writes before the features.
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
    scores = tuple(scores)
    if scores and format != "kaldi":
        raise ArgumentError("scores", f"are files of Kaldi lists. Received: format={format!r}.")
    for file in (path, *scores):
        if not os.path.isfile(file):
            raise FileNotFoundError(f"There is no file {os.fspath(file)!r}.")
    return _lists(path, format, scores)


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
    with contextlib.ExitStack() as stack:

        def opened(path: StrPath) -> Any:
            temporary = stack.enter_context(written_beside(path))
            return stack.enter_context(open(temporary, "w", encoding="utf-8", newline="\n"))

        main = opened(path)
        columns: dict[str, Any] | None = None
        for nbest in lists:
            main.writelines(line + "\n" for line in lines_of(nbest, format))
            for key, hypothesis in zip(_keys(nbest), nbest.hypotheses) if format == "kaldi" else ():
                numbers = _columns(hypothesis)
                if columns is None:
                    columns = {name: opened(f"{os.fspath(path)}.{name}") for name in numbers}
                if columns.keys() != numbers.keys():
                    required = "must have the same features throughout."
                    received = f"Received: {sorted(numbers)} at {key}, after {sorted(columns)}."
                    raise ArgumentError("lists", f"{required} {received}")
                for name, value in numbers.items():
                    columns[name].write(f"{key} {value}\n")


def lines_of(nbest: NBest, format: str) -> Iterator[str]:
    """Yield the lines of a list; those of Kaldi are the words alone."""
    if format == "kaldi":
        for key, item in zip(_keys(nbest), nbest.hypotheses):
            _columns(item)  # tells of names that no file can have
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
    text = json.dumps(record, ensure_ascii=False, default=float)  # of NumPy
    # Escaped, too: control characters that a terminal must not get.
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _moses_line(key: str | int, item: Hypothesis) -> str:
    rest = item.rest if isinstance(item.rest, tuple) else ()
    score = "" if item.score is None else _numbers(item.score)
    features = (f"{check_name(name, MOSES)}= {_numbers(v)}" for name, v in item.features.items())
    _check_id(key, "[0-9]{1,18}", "that are whole numbers, as Moses has them")
    fields = [str(key), _one_line(item.text), " ".join(features), score, *rest]
    if any("|||" in field for field in fields):
        raise ArgumentError("lists", f"must not hold '|||' in a text. Received: {item.text!r}.")
    while not rest and len(fields) > 2 and not fields[-1]:
        fields.pop()
    return " ||| ".join(fields).rstrip(" ")


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
        ValueError: if the file cannot be read, or there is no line for an id.
    """
    try:
        if format == "trees":
            lines = [str(tree) for tree in read_trees(path)]
        else:
            lines = read_lines(Path(path))
    except OSError as error:
        received = f"Received: {os.fspath(path)!r}: {error.strerror or error}."
        raise ArgumentError(name, f"must be a text file. {received}") from None
    if format in ("jsonl", "trees"):
        if len(lines) != len(ids):
            received = f"Received: {len(lines)} in {os.fspath(path)!r} for {len(ids)} lists."
            raise ArgumentError(name, f"must have one for each list. {received}")
        return lines
    if format == "kaldi":
        try:
            by_key = _without_repetition(_keyed(line) for line in lines if line.strip(SPACES))
        except ValueError as error:
            received = f"Received: {os.fspath(path)!r}: {error}."
            raise ArgumentError(name, f"must have one line for each key. {received}") from None
    else:
        by_key = {str(number): line for number, line in enumerate(lines)}
    keys = [str(key) if format == "kaldi" else str(int(key)) for key in ids]
    if missing := [key for key in keys if key not in by_key]:
        received = f"Received: {os.fspath(path)!r} without one for {missing[0]!r}."
        raise ArgumentError(name, f"must have a line for each id of the lists. {received}")
    return [by_key[key] for key in keys]


def _lists(path: StrPath, format: str, scores: Sequence[StrPath]) -> Iterator[NBest]:
    rows: Rows
    if format == "trees":
        rows = _trees(path)
    elif format == "kaldi":
        rows = _kaldi(path, scores)
    else:
        rows = _rows(path, _moses if format == "moses" else _json)
    seen = set()
    for key, group in itertools.groupby(rows, key=lambda row: row[1][0]):
        members = [dataclasses.replace(item, line=number) for number, (_, item) in group]
        numbers = {item.rest for item in members} if format == "kaldi" else members
        if key in seen or len(numbers) < len(members):
            reason = f"the hypotheses of {key!r} must stand together, each with its own number"
            raise _malformed(path, members[0].line or 0, reason)
        seen.add(key)
        yield NBest(key, tuple(members))


def _trees(path: StrPath) -> Rows:
    for number, candidates in enumerate(numbered_nbest(path)):
        if not candidates:
            received = f"Received: {os.fspath(path)!r}, whose list {number} has none."
            way_out = "Write () for a sentence without a parse."
            raise ArgumentError("nbest", f"must hold a tree in each list. {received} {way_out}")
        for line, (tree, score) in candidates:
            yield line, (number, Hypothesis(linearize(clean(tree)), score=score, rest=str(tree)))


def _rows(path: StrPath, parse: Callable[[str], Row]) -> Iterator[tuple[int, Row]]:
    """Yield what `parse` returns for each line that is not empty, after the number of the line.

    A `ValueError` of `parse` becomes one that names the file and the line.
    """
    for number, line in numbered_lines(path, _malformed):
        if line := line.removesuffix("\n").removesuffix("\r"):
            try:
                row = parse(line)
            except ValueError as error:
                raise _malformed(path, number, str(error).removesuffix(".")) from None
            yield number, row


def _moses(line: str) -> tuple[str, Hypothesis]:
    fields = [field.strip(SPACES) for field in line.split("|||")]
    if len(fields) < 2 or not re.fullmatch("[0-9]{1,18}", fields[0]):
        raise ValueError("a line must be 'id ||| words ||| features ||| score'")
    key, text, *others = fields
    # Marian writes alignments and the scores of words, if any, before the features.
    pairs = enumerate(map("|||".join, itertools.pairwise(others)))
    place = next((i for i, pair in pairs if FEATURES_AND_SCORE.fullmatch(pair)), 0)
    others, before = others[place:], others[:place]
    features, score, *rest = [*others, *[""] * (2 - len(others))]
    values: dict[str, list[float]] = {}
    name = "features"
    for token in words_of(features):
        head, equals, number = token.rpartition("=")
        if token.endswith(":"):
            head, equals, number = token[:-1], ":", ""
        if equals:
            name = head
            if not name or name in values:
                raise ValueError(f"the feature {name!r} is there twice or has no name")
            values[name] = []
        if number:
            values.setdefault(name, []).append(finite_number(number))
    if empty := [name for name, numbers in values.items() if not numbers]:
        raise ValueError(f"the feature {empty[0]!r} has no number")
    numbers = {name: _value(several) for name, several in values.items()}
    total = finite_number(score) if score else None
    return key, Hypothesis(text, numbers, total, (*rest, *before) or None)


def _json(line: str) -> tuple[str | int, Hypothesis]:
    try:
        record = json.loads(line, object_pairs_hook=_without_repetition)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"no JSON ({error})") from None
    valid = isinstance(record, dict) and isinstance(record.get("text"), str)
    if not valid or type(record.get("id")) not in (str, int):
        raise ValueError("a line must be an object with `id` and `text`")
    if SURROGATE.search(json.dumps(record, ensure_ascii=False)):
        raise ValueError("the text is not UTF-8")
    features = record.pop("features", None)
    if not isinstance(features, dict | None):
        raise ValueError("`features` must be an object of numbers")
    values: dict[str, Any] = {}
    for name, value in (features or {}).items():
        several = isinstance(value, list) and value
        values[name] = tuple(map(finite_number, value)) if several else finite_number(value)
    score = record.pop("score", None)
    score = None if score is None else finite_number(score)
    return record.pop("id"), Hypothesis(record.pop("text"), values, score, record or None)


def _kaldi(path: StrPath, scores: Sequence[StrPath]) -> Rows:
    names = [check_name(_feature_of(file, path), r"[^\s/]+", "scores") for file in scores]
    if len({*names}) < len(names):
        raise ArgumentError("scores", f"must be of different names. Received: {names}.")
    columns = [_rows(file, _numbers_of_key) for file in scores]
    rows: Iterator[Any] = itertools.zip_longest(_rows(path, _keyed), *columns)
    for row, *others in rows:
        number, (key, text) = row or (0, ("", ""))
        values: dict[str, Any] = {}
        for name, file, other in zip(names, scores, others):
            at, (other_key, numbers) = other or (number, ("", ()))
            if (row or other) and (other_key != key or not numbers):
                here = f"{key!r} and a number must stand here, as in {os.fspath(path)!r}"
                more = f"there are more lines than in {os.fspath(path)!r}"
                raise _malformed(file, at, here if row else more)
            values[name] = _value(numbers)
        match = re.fullmatch(r"(.+)-([0-9]{1,18})", key)
        if match is None:
            raise _malformed(path, number, "a line must be 'utterance-n words …'")
        score = values.pop("score", None)
        yield number, (match[1], Hypothesis(text, values, score, int(match[2])))


def _keyed(line: str) -> tuple[str, str]:
    """Return the key that a line begins with, and the rest."""
    key, *rest = re.split(f"[{SPACES}]+", line.strip(SPACES), maxsplit=1)
    return key, "".join(rest)


def _numbers_of_key(line: str) -> tuple[str, tuple[float, ...]]:
    key, rest = _keyed(line)
    return key, tuple(map(finite_number, words_of(rest)))


def _without_repetition(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key!r} is there twice")
        values[key] = value
    return values


def _feature_of(scores: StrPath, nbest: StrPath) -> str:
    """Return the name of the feature in a file: `NAME` of `NBEST.NAME`, `NAME` of `NAME.txt`."""
    name, own = os.path.basename(scores), f"{os.path.basename(nbest)}."
    return name.removeprefix(own) if name.startswith(own) and name != own else Path(name).stem


def _keys(nbest: NBest) -> list[str]:
    """Return the keys of a list of Kaldi, numbered from 1 unless the list came from there."""
    numbers = [each.rest for each in nbest.hypotheses]
    if any(not isinstance(number, int) for number in numbers):
        numbers = list(range(1, len(numbers) + 1))
    _check_id(nbest.id, f"[^{SPACES}]+", "without white space")
    return [f"{nbest.id}-{number}" for number in numbers]


def _check_id(key: str | int, pattern: str, required: str) -> None:
    """Raise `ArgumentError` for an id of a list that could not be read from a file again."""
    if not re.fullmatch(pattern, str(key)):
        raise ArgumentError("lists", f"must have ids {required}.", id=key)


def _columns(item: Hypothesis) -> dict[str, str]:
    """Return the numbers for which Kaldi lists have a file each, by the name of the file."""
    columns = {check_name(name, KALDI): _numbers(v) for name, v in item.features.items()}
    return columns if item.score is None else {**columns, "score": _numbers(item.score)}


def _value(numbers: Sequence[float]) -> float | tuple[float, ...]:
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _numbers(value: float | tuple[float, ...]) -> str:
    return " ".join(repr(float(each)) for each in (value if isinstance(value, tuple) else [value]))


def _one_line(text: str) -> str:
    if "\n" in text or text.endswith("\r"):
        raise ArgumentError("lists", f"must hold texts of one line. Received: {text!r}.")
    return text


def check_name(name: str, pattern: str = r"[^\s=|/]+", argument: str = "lists") -> str:
    """Return the name of a feature if it fits `pattern`; every format can hold it by default."""
    if not re.fullmatch(pattern, name, re.ASCII):
        required = "must name features without spaces, '=', '|' and '/', and none 'score'."
        raise ArgumentError(argument, f"{required} Received: {name!r}.")
    return name


def _malformed(path: StrPath, line: int, reason: str) -> ArgumentError:
    place = f"{os.fspath(path)}, line {line}"
    return ArgumentError("nbest", f"must hold n-best lists. {place}: {reason}.")
