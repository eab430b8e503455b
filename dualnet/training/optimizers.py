"""Keras's optimizers, which clip what an embedding gets exactly and can average the weights."""

from typing import Any

import keras
from keras import ops

from dualnet._optimizers import CompiledUpdates

AVERAGES = ("none", "asgd", "mean")


class Averaging(CompiledUpdates):
    """What each optimizer here adds to that of Keras whose name it bears.

    While `averages_on`, each step ends with an update of the average of every
    weight. After step k it is

        "mean":  the mean of the weights after steps 1 to k;
        "asgd":  that after steps 2 to k, and after step 1 the weights themselves,
                 as torch.optim.ASGD has it with `lambd=0, t0=0`.

    The averages are variables of the optimizer, made by `build` if `average` is
    not "none".

    Args:
        average: "none", "asgd" or "mean".
        coupled_decay: float. `coupled_decay * w` is added to the gradient of every
            weight w after clipping, so that it goes through the moments of Adam and
            Nadam. Keras's `weight_decay` goes beside them; for SGD without momentum
            the two are the same.
        **kwargs: Passed to the optimizer of Keras.

    Attributes:
        averages_on: bool, False at first. A compiled step holds its value: set the
            model's `train_function` to None after a change.
        averages: list of the averages, in the order of the trainable weights.
        averaged_steps: the number of steps that they are made of.

    Reference: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 4
    """

    def __init__(self, *args, average="none", coupled_decay=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.average = average
        self.coupled_decay = coupled_decay
        self.averages_on = False
        self.averages = []
        self.averaged_steps: Any = None

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        if self.average != "none":
            self.averages = self.add_optimizer_variables(variables, "average")
            self.averaged_steps = self.add_variable((), dtype="int", name="averaged_steps")

    def update_all(self, grads, trainable_variables):
        super().update_all(grads, trainable_variables)
        if self.averages_on:
            self._update_averages()

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # What Keras calls once it has clipped.
        if self.coupled_decay:
            grads = [
                gradient + ops.cast(self.coupled_decay, weight.dtype) * weight
                for gradient, weight in zip(grads, trainable_variables)
            ]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update_averages(self):
        self.averaged_steps.assign_add(1)
        # "asgd" forgets the first step.
        steps = ops.maximum(self.averaged_steps - int(self.average == "asgd"), 1)
        for average, weight in zip(self.averages, self._trainable_variables):
            weight = ops.convert_to_tensor(weight)
            rate = 1 / ops.cast(steps, average.dtype)
            # Of one step exactly the weight, whatever the average was before.
            moved = average + (weight - average) * rate
            average.assign(ops.where(steps == 1, weight, moved))

    def begin_anew(self):
        """Set all that was learnt from the steps so far back to zero; the rate stays."""
        for variable in self.variables:
            if variable is not self._learning_rate:
                variable.assign(ops.zeros(variable.shape, variable.dtype))

    def plain(self):
        """Return a fresh optimizer of Keras's own: the same but what is added here."""
        settings = self.get_config()
        del settings["average"], settings["coupled_decay"]
        return getattr(keras.optimizers, type(self).__name__).from_config(settings)

    def get_config(self):
        ours = {"average": self.average, "coupled_decay": self.coupled_decay}
        return {**super().get_config(), **ours}


def optimizer_of(model):
    """Return the `Averaging` of a compiled model: for float16 Keras wraps it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def _fastest(optimizer):
    """Return the class that Keras makes for `optimizer`: on torch one that updates all at once."""
    return type(optimizer()) if keras.config.backend() == "torch" else optimizer


@keras.saving.register_keras_serializable("dualnet")
class SGD(Averaging, _fastest(keras.optimizers.SGD)):  # type: ignore[misc]
    """`keras.optimizers.SGD`; see `Averaging`."""


@keras.saving.register_keras_serializable("dualnet")
class Adam(Averaging, _fastest(keras.optimizers.Adam)):  # type: ignore[misc]
    """`keras.optimizers.Adam`; see `Averaging`."""


@keras.saving.register_keras_serializable("dualnet")
class Nadam(Averaging, _fastest(keras.optimizers.Nadam)):  # type: ignore[misc]
    """`keras.optimizers.Nadam`; see `Averaging`."""
