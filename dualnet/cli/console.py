"""Console helpers: results as text or JSON, tables, and silence while a backend starts."""

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dualnet import _contexts
from dualnet._checks import finite


class Table(NamedTuple):
    """Rows of cells under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __str__(self) -> str:
        rows = [[*map(str, row)] for row in [self.head, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(map(printable, lines))


class Result:
    """The result of a command: values for --json, and lines and tables for its text."""

    def __init__(self, values: object, *parts: str | Table) -> None:
        self.values, self.parts = values, parts

    def __str__(self) -> str:
        """Return the parts that are not empty, with an empty line before a table."""
        texts = []
        for part in filter(None, self.parts):
            if isinstance(part, str):
                texts.append(printable(part))
            else:
                texts += ["", str(part)] if texts else [str(part)]
        return "\n".join(texts)


def show(result: Result | None, *, as_json: bool) -> None:
    """Print a result as text or as JSON; a command that has printed its own returns None."""
    if result is not None:
        print(json_of(result.values) if as_json else result)


def json_of(value: object) -> str:
    """Return `value` as JSON to the letter, with None for nan and infinity, which JSON lacks."""
    return json.dumps(_jsonable(value), allow_nan=False, default=str)


def _jsonable(value: object) -> object:
    """Return `value` with lists for arrays, and None for nan and infinity."""
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return finite(value)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, lest a file control the terminal.

    Newlines and tabs stay.
    """
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)


def cell(value: object) -> str:
    """Return a value as a cell of a row: 7 digits; control characters of a text escaped."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")


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


def comparison(result: Mapping[str, Any], prefix: str = "") -> str:
    """Return the line of the figures of `Comparable` in `result`, whose keys have a `prefix`."""
    if reason := result[f"{prefix}not_comparable"]:
        return f"no figures per byte, character or word: {reason}"
    keys = ("bits_per_byte", "bits_per_character", "perplexity_per_word")
    figures = (number(result[prefix + key], digits=3) for key in keys)
    return "{} bits per byte, {} bits per character, perplexity {} per word".format(*figures)


def quietly(module: str, *, seeds: bool = False) -> ModuleType:
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
    return _contexts.hidden_stderr()
