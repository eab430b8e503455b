"""The compiled step that adapts a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from dualnet._optimizers import LEAST_WEIGHTS, num_weights
from dualnet.builders import LanguageModel
from dualnet.builders.reader import SegmentReader


@contextlib.contextmanager
def unfrozen(model: LanguageModel) -> Iterator[None]:
    """Make the layers that are frozen below a gate trainable for the duration of the context."""
    frozen = _frozen_layers(model.core, model.arguments)
    for layer in frozen:
        layer.trainable = True
    try:
        yield
    finally:
        for layer in frozen:
            layer.trainable = False


def _frozen_layers(graph: keras.Model, arguments: Mapping[str, Any]) -> list[keras.layers.Layer]:
    """Return the layers of `graph` that are frozen below its gate or that of a member."""
    if arguments.get("gate", "none") != "none":
        return [layer for layer in graph.layers if not layer.trainable]
    return [
        layer
        for i, member in enumerate(arguments.get("members", ()), start=1)
        for layer in _frozen_layers(graph.get_layer(f"member_{i}"), member["arguments"])
    ]


def make_learner(
    model: LanguageModel, optimizer: keras.optimizers.Optimizer, *, batch_size: int
) -> SegmentReader:
    """Return a reader of the model, dropouts off, that learns with `optimizer`."""
    reader = SegmentReader(model.graph, batch_size=batch_size, name="learner")
    # Now, and not inside the first compiled step, which would build it anew at every step.
    optimizer.build(reader.trainable_variables)
    # A step of one row is many small operations: on TensorFlow their overhead exceeds the work.
    # Keras by itself compiles no steps on a CPU.
    compiled = keras.config.backend() == "tensorflow" and batch_size == 1
    compiled = compiled and num_weights(reader.trainable_variables) >= LEAST_WEIGHTS
    reader.compile(optimizer=optimizer, jit_compile=compiled or "auto")
    return reader
