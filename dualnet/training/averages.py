"""Averages in the place of the weights, for a while."""

import contextlib
from collections.abc import Iterator

import keras

from dualnet._backend import assign_all, restoring, values_of
from dualnet.builders import LanguageModel
from dualnet.training.optimizers import optimizer_of
from dualnet.training.start import Training

Weights = list[keras.Variable] | None  # None stands for those of the model


def averages_of(training: Training) -> Weights:
    """Return the averages that take the place of the weights in this epoch."""
    if training.is_two_tailed or not training.plan.averaged:
        return None
    return optimizer_of(training.model).averages


@contextlib.contextmanager
def weights_in(model: LanguageModel, values: Weights) -> Iterator[None]:
    """Replace the weights of `model` by `values`, if any; restore them bit for bit afterwards."""
    weights = [] if values is None else model.trainable_variables
    with restoring(weights):
        assign_all(weights, values_of(values or ()))
        yield
