"""Console helpers: parse settings, print results, silence start-up messages."""

import contextlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from dualnet import _contexts
from dualnet._checks import ArgumentError, did_you_mean, finite
from dualnet.corpora.records import Files, Records, Texts


def quietly(module: str, *, seeds: bool = False) -> Any:
    """Import `module` and start the backend, hiding its start-up messages; return the module."""
    import importlib

    with silence():
        imported = importlib.import_module(module)
        import keras

        if "KERAS_DISTRIBUTION_NUM_PROCESSES" not in os.environ:  # else JAX must join hosts first
            keras.ops.ones(1)  # some messages come with the first operation
        if seeds:
            keras.utils.set_random_seed(0)  # imports TensorFlow, if installed, on every backend
    return imported


def silence() -> AbstractContextManager[None]:
    """Hide standard error; show it if an exception is raised."""
    sys.stderr.flush()
    return _contexts.hidden_stderr(lambda error: isinstance(error, Exception))


class Table(NamedTuple):
    """Rows of cells under a head.

    The last cell is truncated if a row would exceed `columns`. On a terminal, rich draws the table.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    columns: int | None = None

    def print(self, *, head: bool = True) -> None:
        """Print the table, or without its head the rows of one that go on."""
        if is_terminal():
            _draw_table(self.head, self.rows, head=head)
            return
        widths = [max(map(len, cells)) for cells in zip(self.head, *self.rows)][:-1]
        for *cells, last in [*[self.head] * head, *self.rows]:
            if self.columns is not None:
                last = truncate(last, self.columns - sum(widths) - 2 * len(widths))
            padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths)]
            print(printable("  ".join([*padded, last]).rstrip()))


def report(options: Any, result: Any, *parts: str | Table) -> None:
    """Print `result` as JSON with --json, else its `parts`: tables, and lines that are not empty.

    An empty line stands before a table, unless that is the first part.
    """
    if options.json:
        print(as_json(result))
        return
    for number, part in enumerate(parts):
        if isinstance(part, Table):
            print("\n" * (number > 0), end="")
            part.print()
        elif part:
            print(printable(part))


def as_json(value: Any) -> str:
    """Return `value` as JSON to the letter, with None for nan and infinity, which JSON lacks."""
    try:  # most have neither, and are not walked through here
        return json.dumps(value, allow_nan=False, default=_jsonable)
    except ValueError:
        return json.dumps(_jsonable(value), allow_nan=False, default=str)


def report_list(rows: Iterable[Any], around: Callable[[], tuple[str, str]]) -> None:
    """Print `rows` as a list of JSON when all are known, without keeping them in memory.

    `around` returns, after the last row, what stands before and after the list.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            file.write(", " * (number > 0) + as_json(row))
        file.seek(0)
        before, after = around()
        sys.stdout.write(before)
        shutil.copyfileobj(file, sys.stdout)
        print(after)


def _jsonable(value: Any) -> Any:
    """Return `value` with lists for arrays, and None for nan and infinity."""
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and np.isfinite(value).all():
            return value.tolist()
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return finite(value)


def is_terminal() -> bool:
    """Return True if standard output is a terminal that shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _draw_table(names: Sequence[str], rows: Sequence[Sequence[str]], *, head: bool = True) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0),
                  show_header=head)  # fmt: skip
    for i, name in enumerate(names):
        figures = all(re.fullmatch(r"[-\d.,%/ ]*", row[i]) for row in rows)
        last = i == len(names) - 1
        table.add_column(
            name, justify="right" if figures else "left", no_wrap=True, overflow="ellipsis",
            style="" if i else "cyan", ratio=1 if last and not figures else None,
            min_width=len(name),
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, lest a file control the terminal.

    Newlines and tabs stay.
    """
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)


def cell(value: Any) -> str:
    """Return a value as a cell of a row: 7 digits; control characters of a text escaped."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")


@contextlib.contextmanager
def progress_bar(total: int | None, *, show: bool) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that says how much of `total` is done, and figures, on standard error.

    Nothing is shown unless `show` and standard error is a terminal.
    """
    show = show and sys.stderr is not None and sys.stderr.isatty()
    with _contexts.progress_bar(show=show) as bar:
        task = bar.add_task("", total=total, figures="")
        yield lambda done, figures: bar.update(task, completed=done, figures=figures)


def open_streams() -> None:
    """Open closed standard streams as the null device: a library may write to any of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def comparison(result: Mapping[str, Any], prefix: str = "") -> str:
    """Return the line of the figures of `Comparable` in `result`, whose keys have a `prefix`."""
    if reason := result[f"{prefix}not_comparable"]:
        return f"no figures per byte, character or word: {reason}"
    keys = ("bits_per_byte", "bits_per_character", "perplexity_per_word")
    figures = (number(result[prefix + key], digits=3) for key in keys)
    return "{} bits per byte, {} bits per character, perplexity {} per word".format(*figures)


def truncate(text: str, columns: int) -> str:
    """Return `text`, shortened and ended by `...` if it is wider than `columns`."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, max(columns - 3, 0)).rstrip() + "..."


def number(value: float | None, *, digits: int = 2) -> str:
    if value is None or math.isnan(value):
        return "-"
    if value < 1e4:
        return f"{value:.{digits}f}"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


def records_of(options: Any, *, may_be_empty: bool = False, again: bool = False) -> Records:
    """Return the texts given by an option, or the lines of FILE or standard input with newlines.

    With `again`, they can be read more than once.
    """
    option = options.flag("texts")
    if options.texts is not None:
        if options.file is not None:
            message = f"and FILE cannot be combined. Received: FILE={options.file}."
            raise ArgumentError(option, message)
        for text in options.texts:
            if re.search("[\ud800-\udfff]", text):
                raise ArgumentError(option, f"must be UTF-8. Received: {text!a}.")
        return Texts(options.texts, option)
    if options.file in (None, "-") and sys.stdin.isatty():
        print("Type one text per line; Ctrl-D ends the input.", file=sys.stderr)
    empty = "" if may_be_empty else "FILE must hold text. Received: {}, which is empty."
    told: Any = {"what": "a text file", "way_out": f" For a text itself, use {option}."}
    return Files([options.file or "-"], **told, empty=empty, again=again)


def texts_of(options: Any, *, may_be_empty: bool = False) -> list[str]:
    """Return the texts of `records_of` in a list."""
    return [record.text for record in records_of(options, may_be_empty=may_be_empty).read()]


def settings_of(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of `--set`; a value that is not TOML is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ArgumentError("--set", f"takes KEY=VALUE, e.g. units=200. Received: {pair!r}.")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):  # no TOML, or thousands of digits or brackets
            short = re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", value, re.IGNORECASE)
            settings[key] = float(value) if short else value  # .01 and 1. are no TOML
    return settings


def check_overrides(settings: Mapping[str, Any], what: str, function: Any, command: str) -> None:
    """Raise `ValueError` if `--set` names an argument of `function` that has an option."""
    for key in inspect.signature(function).parameters:
        if key in settings:
            required = f"takes an argument of {what}."
            way_out = f"`dualnet {command} --help` shows the options."
            raise ArgumentError("--set", f"{required} Received: {key}={settings[key]}. {way_out}")


def check_known(option: str, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ValueError` for a setting that is not in `known`."""
    for key, value in settings.items():
        if key not in known:
            required = f"must be one of {', '.join(known)}.{did_you_mean(key, known)}"
            raise ArgumentError(key, f"{required} Received: {option} {key}={value}.")
