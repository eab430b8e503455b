"""Refuses models that this machine cannot hold or Keras not build, before anything is built."""

import collections
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from dualnet._checks import ArgumentError

FLOAT = 4  # bytes
# Floats: what Keras and the graph take for each round or level; measured: 85 to 220 KB.
PART = 16 * 1024
CALLS = 4  # of Keras, one within another, for each layer: also its dropout, skip connection


def check_memory(floats: Iterable[tuple[str, int]], arguments: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` if a model needs more memory than this machine has.

    Args:
        floats: The least numbers of floats that the weights, the state of one row and the graph
            take, each with the name of the argument that it grows with.
        arguments: The arguments of the builder.
    """
    counts: collections.Counter[str] = collections.Counter()
    for name, count in floats:
        counts[name] += count
    needed, available = FLOAT * counts.total(), physical_memory()
    if available is not None and needed > available:
        [(name, _)] = counts.most_common(1)
        room = f"the {available / 1e9:,.1f} GB of memory that this machine has"
        least = f"the weights and the state of one row take at least {needed / 1e9:,.1f} GB"
        received = f"Received: {name}={arguments[name]!r}, with which {least}."
        required = f"must leave room for the model in {room}."
        raise ArgumentError(name, f"{required} {received} Choose a smaller value.")


def check_depth(layers: int) -> None:
    """Raise `ArgumentError` for more layers than Keras can build, which follows them recursively.

    Beyond, it would end with a `RecursionError`, after minutes.
    """
    most = sys.getrecursionlimit() // CALLS
    if layers > most:
        required = f"must be at most {most}, since Keras follows the layers of a model recursively."
        way_out = " Choose a smaller value."
        raise ArgumentError("recurrent_layers", required, way_out, recurrent_layers=layers)


def physical_memory() -> int | None:
    """Return the bytes of memory of this machine, or None where Python cannot tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None
