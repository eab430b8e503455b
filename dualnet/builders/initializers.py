"""The initial weights of the papers."""

import math
import re
from typing import Any

import keras

from dualnet.layers import Recurrence

INITIALIZERS = {
    "keras": "Each layer's own.",
    "uniform": "All weights, biases included, uniform within initializer_range (Zaremba et al.).",
    "uniform_matrices": "Matrices uniform within initializer_range; biases each layer's own (the "
    "Chainer models of Takase et al., recurrent highway networks).",
    "by_units": "All weights of a cell uniform within 1 / sqrt(units), as in PyTorch (which has "
    "two biases where there is one here); those of the experts within 1 / sqrt(size in), other "
    "matrices within initializer_range (AWD-LSTM).",
    "by_shape": "All weights uniform within sqrt(6 / sum of their dimensions), where each gate's "
    "part of a matrix or bias and each vector of the embedding counts separately (depth-gated "
    "LSTM).",
    "by_fan_in": "Matrices truncated normal with standard deviation 1 / sqrt(size in); a cell's "
    "biases likewise by its units, added to the forget bias; the embedding by its units; the "
    "rounds of a Mogrifier the layer's own (Melis et al.).",
}
NEEDS_RANGE = ("uniform", "uniform_matrices", "by_units")


def initialise(core: keras.Model, rule: str, initializer_range: float) -> None:
    """Draw new weights for `core` by `rule`; the gains of norms stay at 1."""
    if rule == "keras":
        return
    done = set()  # a tied matrix belongs to two layers; the embedding comes first
    for layer in core.layers:
        for weight in layer.trainable_variables:
            if id(weight) in done or re.search(r"gain|shift|stabiliser", weight.name):
                continue
            done.add(id(weight))
            cell = _cell_of(weight, layer.cell) if isinstance(layer, Recurrence) else None
            initializer = _initializer(rule, initializer_range, weight, layer, cell)
            if initializer is not None:
                value = initializer(weight.shape, weight.dtype)
                if rule == "by_fan_in" and "bias" in weight.name:
                    value = value + weight  # the forget bias
                weight.assign(value)


def _cell_of(weight: Any, cell: Any) -> Any:
    """Return `cell`, or the one of its cells that `weight` belongs to; None for attention."""
    if not hasattr(cell, "cells"):
        return cell
    owners = (own for own in cell.cells if any(weight is other for other in own.weights))
    return next(owners, None)


def _initializer(
    rule: str, scale: float, weight: Any, layer: Any, cell: Any
) -> keras.initializers.Initializer | None:
    """Return a fresh initializer for one weight: a used one would repeat its values."""
    bias = "bias" in weight.name
    embedding = isinstance(layer, keras.layers.Embedding)
    if rule == "by_units" and cell is not None:
        return _uniform(1 / math.sqrt(cell.units))
    if rule == "by_units" and re.match("latent_kernel|prior_kernel", weight.name):
        return _uniform(1 / math.sqrt(weight.shape[0]))
    if rule == "uniform" or (rule in ("uniform_matrices", "by_units") and not bias):
        return _uniform(scale)
    if rule == "by_shape":
        return _uniform(math.sqrt(6 / sum(_part_shape(weight, embedding, cell))))
    if rule == "by_fan_in" and (cell is not None or not bias) and "mogrifier" not in weight.name:
        size_in = cell.units if bias else weight.shape[1 if embedding else 0]
        # A normal truncated at two standard deviations keeps 0.88 of its own.
        return keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(size_in) / 0.87962566)
    return None


def _part_shape(weight: Any, embedding: bool, cell: Any) -> tuple[int, ...]:
    """Return the shape of `weight`, of one gate's part of it, or of one vector of an embedding."""
    *before, last = weight.shape
    if embedding:
        return (last,)
    if cell is not None and re.match(r"(recurrent_)?(kernel|bias)", weight.name):
        last = cell.units  # the gates lie side by side
    return (*before, last)


def _uniform(scale: float) -> keras.initializers.Initializer:
    return keras.initializers.RandomUniform(-scale, scale)
