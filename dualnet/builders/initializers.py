"""The initial weights of the papers."""

import math

import keras
import numpy as np
from keras import ops

from dualnet.layers import Recurrence
from dualnet.layers._configured import Role

# The rules; the argument `initializer` of `language_model` documents them.
INITIALIZERS = ("keras", "uniform", "uniform_matrices", "by_units", "by_shape", "by_fan_in")
NEEDS_RANGE = ("uniform", "uniform_matrices", "by_units")


def initialise(core: keras.Model, rule: str, initializer_range: float) -> None:
    """Draw new weights for `core` by `rule`; the gains of norms stay at 1.

    A weight of your own that has no role keeps its initial values, and so does the bias of a
    forget gate that starts by "chrono:T".
    """
    if rule == "keras":
        return
    done = set()  # a tied matrix belongs to two layers; the embedding comes first
    for layer in core.layers:
        for weight in layer.trainable_variables:
            role = _role_of(weight, layer)
            if id(weight) in done or role is None or Role.SCALE in role:
                continue
            done.add(id(weight))
            cell = _cell_of(weight, layer.cell) if isinstance(layer, Recurrence) else None
            initializer = _initializer(rule, initializer_range, weight, role, layer, cell)
            if initializer is not None:
                value = initializer(weight.shape, weight.dtype)
                if rule == "by_fan_in" and Role.BIAS in role:
                    value = value + weight  # the forget bias
                if any(fixed := getattr(weight, "fixed_gates", [])):
                    mask = np.repeat(fixed, weight.shape[-1] // len(fixed))
                    value = ops.where(mask, ops.convert_to_tensor(weight), value)
                weight.assign(value)


def _role_of(weight: keras.Variable, layer: keras.layers.Layer) -> Role | None:
    of_keras = isinstance(layer, keras.layers.Embedding | keras.layers.Dense)
    return getattr(weight, "role", Role.MATRIX if of_keras and len(weight.shape) == 2 else None)


def _cell_of(weight: keras.Variable, cell: keras.layers.Layer) -> keras.layers.Layer:
    """Return `cell`, or the one of its cells that `weight` belongs to; None for attention."""
    if not hasattr(cell, "cells"):
        return cell
    owners = (own for own in cell.cells if any(weight is other for other in own.weights))
    return next(owners, None)


def _initializer(
    rule: str,
    scale: float,
    weight: keras.Variable,
    role: Role,
    layer: keras.layers.Layer,
    cell: keras.layers.Layer,
) -> keras.initializers.Initializer | None:
    """Return a fresh initializer for one weight: a used one would repeat its values."""
    bias = Role.BIAS in role
    embedding = isinstance(layer, keras.layers.Embedding)
    if rule == "by_units" and cell is not None:
        return _uniform(1 / math.sqrt(cell.units_of(weight)))
    if rule == "by_units" and Role.EXPERT in role:
        return _uniform(1 / math.sqrt(weight.shape[0]))
    if rule == "uniform" or (rule in ("uniform_matrices", "by_units") and not bias):
        return _uniform(scale)
    if rule == "by_shape":
        *sizes, last = weight.shape
        if embedding:
            sizes = []
        elif cell is not None and Role.ROUND not in role:
            last = cell.units_of(weight)  # the gates lie side by side
        return _uniform(math.sqrt(6 / sum([*sizes, last])))
    if rule == "by_fan_in" and (cell is not None or not bias) and Role.ROUND not in role:
        size_in = cell.units_of(weight) if bias else weight.shape[1 if embedding else 0]
        # A normal truncated at two standard deviations keeps 0.88 of its own.
        return keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(size_in) / 0.87962566)
    return None


def _uniform(scale: float) -> keras.initializers.Initializer:
    return keras.initializers.RandomUniform(-scale, scale)
