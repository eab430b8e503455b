"""The base class of all optimizers: dense gradients, and one kernel for all weights."""

import math

import keras
from keras import ops

from dualnet import _backend

# With fewer weights a step takes less time than its compilation.
LEAST_WEIGHTS = 10**6


class CompiledUpdates(keras.optimizers.Optimizer):
    """Updates all weights in one compiled kernel, which reads and writes each number once.

    TensorFlow runs a kernel on one core. What is `in_place` is left to its own operations instead.

    Gradients are made dense first. TensorFlow represents the gradient of an embedding as rows,
    with several rows for a word that occurs several times. Keras would take the norm of these
    rows, and for Adam their squares, instead of those of their sum.
    """

    @property
    def in_place(self):
        return False

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.add_slots(variables)

    def add_slots(self, variables):
        """Make the state that a subclass keeps for `variables`."""

    def apply(self, grads, trainable_variables=None):
        weights = self._trainable_variables if trainable_variables is None else trainable_variables
        weights = list(weights)
        grads = [_dense(gradient, weight) for gradient, weight in zip(grads, weights)]

        def update(*grads):
            self.update_all(list(grads), trainable_variables)

        if self.in_place:
            update(*grads)
        else:
            self.build(weights)  # a kernel cannot create variables; does nothing the second time
            in_kernel(update, weights)(*grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # TensorFlow registers a gradient of this sum for the life of the process, and with it
        # keeps the graph: the weights and moments of every model that was ever trained.
        if self._distribution_strategy.num_replicas_in_sync == 1:
            return grads_and_vars
        return super()._all_reduce_sum_gradients(grads_and_vars)

    def update_all(self, grads, trainable_variables):
        """Update the weights, from dense gradients."""
        super().apply(grads, trainable_variables)


def in_kernel(function, variables):
    """Return `function` as one compiled kernel, if that saves time with so many weights."""
    return _backend.compiled(function) if num_weights(variables) >= LEAST_WEIGHTS else function


def num_weights(variables):
    """Return the total number of elements in `variables`."""
    return sum(math.prod(variable.shape) for variable in variables)


def _dense(gradient, weight):
    if type(gradient).__name__ != "IndexedSlices":  # TensorFlow only
        return gradient
    return ops.segment_sum(gradient.values, gradient.indices, num_segments=weight.shape[0])
