"""Reads a text segment by segment and yields what a model computes; finds its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dualnet._checks import check_count
from dualnet.builders import LanguageModel

SEGMENT = 256  # tokens per call, each of which yields a row as wide as the vocabulary


def find_layer(model: LanguageModel, name: str) -> Any:
    """Return the layer `name` of the graph of `model`, or None."""
    return next((layer for layer in model.core.layers if layer.name == name), None)


def read_outputs(
    graph: Any, model: LanguageModel, tokens: np.ndarray, sequence_length: int | None
) -> Iterator[np.ndarray]:
    """Read `tokens` with carried state; yield the first output of `graph`, float64 `(segment, n)`.

    `graph` maps `[tokens, *states]` to `[(batch, time, n), *states]`.
    """
    steps = SEGMENT if sequence_length is None else sequence_length
    steps = min(check_count("sequence_length", steps, least=1), len(tokens))
    states = [np.zeros((1, size), np.float32) for size in model.state_size]
    for start in range(0, len(tokens), steps):
        segment = tokens[start : start + steps]
        padded = np.zeros((1, steps), np.int32)  # one shape: JAX compiles each
        padded[0, : len(segment)] = segment
        outputs, *states = graph.predict_on_batch([padded, *states])
        yield outputs[0, : len(segment)].astype(np.float64)
