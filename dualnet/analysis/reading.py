"""Reads one text piece by piece; finds layers of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, check_count
from dualnet.builders import LanguageModel

SEGMENT = 256  # tokens of one call, each of which gives a row as wide as the vocabulary


def layer_of(model: LanguageModel, name: str) -> Any:
    """Return the layer `name` of the graph of `model`, None without one."""
    return next((layer for layer in model.core.layers if layer.name == name), None)


def read(
    graph: Any, model: LanguageModel, tokens: np.ndarray, sequence_length: int | None
) -> Iterator[np.ndarray]:
    """Read one stream with carried state; yield float64 `(segment, n)`, the first of the outputs.

    Args:
        graph: `keras.Model`, `[tokens, *states] -> [(batch, time, n), *states]`.
    """
    steps = SEGMENT if sequence_length is None else sequence_length
    steps = min(check_count("sequence_length", steps, least=1), len(tokens))
    states = [np.zeros((1, size), np.float32) for size in model.state_size]
    for start in range(0, len(tokens), steps):
        part = tokens[start : start + steps]
        piece = np.zeros((1, steps), np.int32)  # one shape: JAX compiles each
        piece[0, : len(part)] = part
        found, *states = graph.predict_on_batch([piece, *states])
        yield found[0, : len(part)].astype(np.float64)


def check_some(name: str, values: Mapping[str, Any]) -> None:
    if not values:
        raise ArgumentError(name, f"must hold at least one. Received: {name}={{}}.")
