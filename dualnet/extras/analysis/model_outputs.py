"""Reads a text segment by segment and yields what a model computes; finds its layers."""

from collections.abc import Iterator

import keras
import numpy as np

from dualnet.builders import LanguageModel, Question, reader_of
from dualnet.evaluation.scoring import segments

SEGMENT = 256  # tokens per call, each of which yields a row as wide as the vocabulary


def find_layer(model: LanguageModel, name: str) -> keras.Layer | None:
    """Return the layer `name` of the graph of `model`, or None."""
    return next((layer for layer in model.core.layers if layer.name == name), None)


def read_outputs(
    model: LanguageModel, question: Question, tokens: np.ndarray, sequence_length: int | None
) -> Iterator[np.ndarray]:
    """Read `tokens` with carried state; yield the answer to `question`, float64 `(segment, n)`.

    `question` asks for one vector, of n numbers, for each token.
    """
    steps = min(SEGMENT if sequence_length is None else sequence_length, len(tokens))
    reader = reader_of(model, question)
    for [(_, _, start)], answer in segments(reader, [tokens], [len(tokens)], 1, steps):
        [vectors] = answer.values()
        yield vectors[0, : len(tokens) - start].astype(np.float64)
