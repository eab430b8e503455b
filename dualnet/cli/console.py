"""Settings in, tables out, and nothing else on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import tomllib
import unicodedata
from collections.abc import Iterator
from typing import Any


def quietly(module: str, *, seeds: bool = False) -> Any:
    """Import `module` and start the backend without the start-up lines that it prints."""
    import importlib

    with silence():
        found = importlib.import_module(module)
        import keras

        if "KERAS_DISTRIBUTION_NUM_PROCESSES" not in os.environ:  # else JAX joins the others first
            keras.ops.ones(1)  # some lines come with the first operation
        if seeds:
            keras.utils.set_random_seed(0)  # loads TensorFlow on every backend, if it is there
    return found


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep standard error, of C++ code too, to ourselves; let it out if something fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 2)
        try:
            yield
        except Exception:
            noise.seek(0)
            os.write(kept, noise.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def print_table(head: list[str], rows: list[list[str]], columns: int | None = None) -> None:
    """Print `rows`; the last cell of each is cut where the row would pass `columns`."""
    widths = [max(map(len, cells)) for cells in zip(head, *rows)][:-1]
    for *cells, last in [head, *rows]:
        if columns is not None:
            last = cut(last, columns - sum(widths) - 2 * len(widths))
        padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths)]
        print("  ".join([*padded, last]).rstrip())


def cut(text: str, columns: int) -> str:
    """Return `text`, or the beginning of it and `...` where it takes more than `columns`."""
    used = fits = 0
    for i, character in enumerate(text):
        used += 1 + (unicodedata.east_asian_width(character) in "WF")
        if used > columns:
            return text[:fits].rstrip() + "..."
        fits = i + 1 if used <= columns - 3 else fits
    return text


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """Return the settings of `--set`; values are TOML, or else text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"`--set` takes KEY=VALUE, e.g. units=200. Received: {pair!r}.")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings
