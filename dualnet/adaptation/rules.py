"""The update rules of dynamic evaluation, as optimizers."""

import keras
import numpy as np
from keras import ops

from dualnet._optimizers import CompiledUpdates


class Rule(CompiledUpdates):
    """An update whose gradients are not finite changes nothing, but is counted in `skipped`."""

    def add_slots(self, variables):
        self.skipped = self.add_variable((), dtype="int", name="skipped")

    def update_all(self, grads, trainable_variables):
        self.applies = ops.all(ops.stack([ops.all(ops.isfinite(gradient)) for gradient in grads]))
        super().update_all(grads, trainable_variables)
        passed_over = ops.cast(ops.logical_not(self.applies), "int32")
        self.skipped.assign_add(passed_over)
        self.iterations.assign_sub(ops.cast(passed_over, self.iterations.dtype))

    def assign(self, variable, value):
        super().assign(variable, ops.where(self.applies, value, ops.convert_to_tensor(variable)))

    def assign_add(self, variable, value):
        super().assign_add(variable, ops.where(self.applies, value, 0))

    def assign_sub(self, variable, value):
        super().assign_sub(variable, ops.where(self.applies, value, 0))


class Nadam(Rule, keras.optimizers.Nadam):
    """`keras.optimizers.Nadam`."""


class NadamWithoutMomentum(Rule):
    """`keras.optimizers.Nadam` with `beta_1=0`, whose momentum is the gradient and not stored."""

    def __init__(self, learning_rate, *, beta_1, epsilon=1e-7, beta_2=0.999, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def add_slots(self, variables):
        super().add_slots(variables)
        self.squares = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        square = self.squares[self._get_variable_index(variable)]
        dtype = variable.dtype
        gradient, rate = ops.cast(gradient, dtype), ops.cast(learning_rate, dtype)
        power = ops.power(ops.cast(self.beta_2, dtype), ops.cast(self.iterations + 1, dtype))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        self.assign_sub(variable, rate * gradient / (ops.sqrt(square / (1 - power)) + self.epsilon))


class DecayToPrior(Rule):
    """Krause et al.'s update with decay to the initial weights; "rms" with statistics."""

    def __init__(self, learning_rate, *, decay, epsilon=None, statistics=None, **kwargs):
        super().__init__(learning_rate=learning_rate, name="dynamic_rule", **kwargs)
        self.decay = decay
        self.epsilon = epsilon
        self.statistics = statistics

    def add_slots(self, variables):
        super().add_slots(variables)
        self.priors = self._constants(variables, "prior", [ops.copy(v) for v in variables])
        self.steps, self.pulls = [1.0] * len(variables), [self.decay] * len(variables)
        if self.statistics is not None:
            roots = self.statistics.roots
            mean = np.mean([root.mean(dtype=np.float64) for root in roots])
            steps = [1.0 / (root + self.epsilon) for root in roots]
            pulls = [np.minimum(self.decay * (root / mean), 1.0) for root in roots]
            self.steps = self._constants(variables, "step", steps)
            self.pulls = self._constants(variables, "pull", pulls)

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        gradient = ops.cast(gradient, variable.dtype)
        learning_rate = ops.cast(learning_rate, variable.dtype)
        pull = self.pulls[i] * (self.priors[i] - variable)
        self.assign_add(variable, pull - learning_rate * gradient * self.steps[i])

    def _constants(self, variables, name, values):
        constants = self.add_optimizer_variables(variables, name)
        for constant, value in zip(constants, values):
            constant.assign(value)
        return constants


class SquaredGradients(CompiledUpdates):
    """Sums the squares of the gradients, and leaves the weights untouched."""

    def __init__(self):
        super().__init__(learning_rate=0.0, name="squared_gradients")

    def add_slots(self, variables):
        self.totals = self.add_optimizer_variables(variables, "total")

    def update_step(self, gradient, variable, learning_rate):
        total = self.totals[self._get_variable_index(variable)]
        self.assign_add(total, ops.square(ops.cast(gradient, total.dtype)))
