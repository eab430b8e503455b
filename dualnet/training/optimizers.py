"""Keras's optimizers with exact clipping of embedding gradients and averaging of the weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from dualnet._backend import assign_all, descend, restoring, sum_of_squares, values_of
from dualnet._optimizers import CompiledUpdates, in_kernel

Weights = list[keras.Variable] | None  # None stands for those of the model
AVERAGES = ("none", "asgd", "mean", "two_tailed")


class Averaging(CompiledUpdates):
    """Adds averaging and coupled weight decay to the Keras optimizer of the same name.

    While `averages_on`, each step also updates the average of every weight. After step k
    it is

        "mean":  the mean of the weights after steps 1 to k;
        "asgd":  the mean after steps 2 to k, and after step 1 the weights themselves,
                 as in torch.optim.ASGD with `lambd=0, t0=0`;
        "two_tailed": as "mean". A second, short average is also kept, and `shorten` and
                 `empty` give the two other beginnings (see `two_tailed`).

    The averages are variables of the optimizer, created by `build` unless `average` is
    "none".

    Args:
        average: "none", "asgd", "mean" or "two_tailed".
        coupled_decay: float. `coupled_decay * w` is added to the gradient of every weight
            w after clipping, and so goes through the moments of Adam and Nadam. Keras's
            `weight_decay` bypasses them; for SGD without momentum the two are equal.
        **kwargs: Passed to the Keras optimizer.

    Attributes:
        averages_on: bool, initially False. A compiled step holds its value: set the
            model's `train_function` to None after a change.
        averages: list of the averages, in the order of the trainable weights.
        averaged_steps: number of steps that they cover.
        short_averages, short_steps: the same of the short average; [] and None without one.

    References: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 4 ("asgd");
    Melis, 2022, https://arxiv.org/abs/2209.12581, Algorithm 1 ("two_tailed")
    """

    def __init__(self, *args, average="none", coupled_decay=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.average = average
        self.coupled_decay = coupled_decay
        self.averages_on = False
        self.averages = []
        self.averaged_steps: Any = None
        self.short_averages = []
        self.short_steps: Any = None

    def add_slots(self, variables):
        if self.average != "none":
            self.averages = self.add_optimizer_variables(variables, "average")
            self.averaged_steps = self.add_variable((), dtype="int", name="averaged_steps")
        if self.average == "two_tailed":
            self.short_averages = self.add_optimizer_variables(variables, "short_average")
            self.short_steps = self.add_variable((), dtype="int", name="short_steps")

    def update_all(self, grads, trainable_variables):
        super().update_all(grads, trainable_variables)
        if self.averages_on:
            update = self._update_averages
            (in_kernel(update, self._trainable_variables) if self.in_place else update)()

    def _update_averages(self):
        # "asgd" drops the first step.
        self._update(self.averages, self.averaged_steps, dropped=int(self.average == "asgd"))
        if self.average == "two_tailed":
            self._update(self.short_averages, self.short_steps)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Keras calls this after clipping.
        if self.coupled_decay:
            grads = [
                gradient + ops.cast(self.coupled_decay, weight.dtype) * weight
                for gradient, weight in zip(grads, trainable_variables)
            ]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update(self, averages, count, *, dropped=0):
        count.assign_add(1)
        steps = ops.maximum(count - dropped, 1)
        for average, weight in zip(averages, self._trainable_variables):
            weight = ops.convert_to_tensor(weight)
            rate = 1 / ops.cast(steps, average.dtype)
            # After one step exactly the weight, whatever the average held.
            moved = average + (weight - average) * rate
            average.assign(ops.where(steps == 1, weight, moved))

    def shorten(self):
        """Make the short average the long one, and begin a new short one."""
        long = [*self.averages, self.averaged_steps]
        for average, short in zip(long, [*self.short_averages, self.short_steps]):
            average.assign(ops.copy(short))  # on JAX, a step donates the memory of each
        self.short_steps.assign(0)

    def empty(self, *, short_only):
        """Begin the short average anew; unless `short_only`, the long one, too."""
        self.short_steps.assign(0)
        if not short_only:
            self.averaged_steps.assign(0)

    def begin_anew(self):
        """Reset moments, averages and counts to those of a new optimizer; keep the rate."""
        product = getattr(self, "_u_product", None)  # of Nadam's momenta
        for variable in state_of(self):
            if variable is not self._learning_rate:
                start = ops.ones if variable is product else ops.zeros
                variable.assign(start(variable.shape, variable.dtype))

    def plain(self):
        """Return a fresh optimizer of Keras itself with the same settings, if it has this one."""
        settings = self.get_config()
        del settings["average"], settings["coupled_decay"]
        kind = getattr(keras.optimizers, type(self).__name__, type(self))
        return kind.from_config(settings)

    def get_config(self):
        ours = {"average": self.average, "coupled_decay": self.coupled_decay}
        return super().get_config() | ours


def state_of(optimizer):
    """Return all variables of a built optimizer.

    Those that Keras lists lack the product of Nadam's momenta under a loss scale.
    """
    product = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_u_product", None)
    listed = optimizer.variables
    missing = product is not None and all(variable is not product for variable in listed)
    return [*listed, product] if missing else listed


def optimizer_of(model):
    """Return the `Averaging` of a compiled model, which Keras wraps for float16."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@contextlib.contextmanager
def weights_in(model: keras.Model, values: Weights) -> Iterator[None]:
    """Replace the weights of `model` by `values`, if any; restore them bit for bit afterwards."""
    weights = [] if values is None else model.trainable_variables
    with restoring(weights):
        assign_all(weights, values_of(values or ()))
        yield


def _fastest(optimizer):
    """Return the class that Keras creates for `optimizer`: on torch, a fused one."""
    return type(optimizer()) if keras.config.backend() == "torch" else optimizer


@keras.saving.register_keras_serializable("dualnet")
class SGD(Averaging, _fastest(keras.optimizers.SGD)):  # type: ignore[misc]
    """`keras.optimizers.SGD`; see `Averaging`.

    Without momentum, and on TensorFlow, each weight is updated in place, on all cores; gradients
    clipped to a global norm are not written, but a smaller rate is taken.
    """

    @property
    def in_place(self):
        changed = self.momentum or self.coupled_decay or self.gradient_accumulation_steps
        return keras.config.backend() == "tensorflow" and not changed

    def _clip_gradients(self, grads):
        if not (self.in_place and self.global_clipnorm) or self.clipnorm:
            self._share = 1.0
            return super()._clip_gradients(grads)
        norm = ops.sqrt(sum(sum_of_squares(gradient) for gradient in grads))
        self._share = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
        return grads

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate * self._share)

    def update_step(self, gradient, variable, learning_rate):
        if not self.in_place:
            super().update_step(gradient, variable, learning_rate)
            return
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        descend(variable, gradient, rate)


@keras.saving.register_keras_serializable("dualnet")
class Adam(Averaging, _fastest(keras.optimizers.Adam)):  # type: ignore[misc]
    """`keras.optimizers.Adam`; see `Averaging`."""


@keras.saving.register_keras_serializable("dualnet")
class Nadam(Averaging, _fastest(keras.optimizers.Nadam)):  # type: ignore[misc]
    """`keras.optimizers.Nadam`; see `Averaging`."""


@keras.saving.register_keras_serializable("dualnet")
class AdamW(Averaging, _fastest(keras.optimizers.AdamW)):  # type: ignore[misc]
    """`keras.optimizers.AdamW`; see `Averaging`."""


@keras.saving.register_keras_serializable("dualnet")
class RectifiedAdam(Averaging, keras.optimizers.Adam):
    """Adam whose step size is rectified while few gradients have been seen; see `Averaging`.

    With m and v the running means of the gradient and of its square, as in Adam, after step t:

    l = L - 2 t beta_2^t / (1 - beta_2^t),  L = 2 / (1 - beta_2) - 1
    w' = w - rate * m / (1 - beta_1^t) * r * sqrt(1 - beta_2^t) / (sqrt(v) + epsilon)
    r = sqrt((l - 4) (l - 2) L / ((L - 4) (L - 2) l))

    While l is at most 5, w' = w - rate * m / (1 - beta_1^t). `epsilon` is where
    `torch.optim.RAdam` has it.

    Args:
        *args, **kwargs: Passed to `keras.optimizers.Adam`, and to `Averaging`.

    Reference: Liu et al., 2020, https://arxiv.org/abs/1908.03265, Algorithm 2
    """

    def update_step(self, gradient, variable, learning_rate):
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        mean.assign_add((1 - self.beta_1) * (gradient - mean))
        square.assign_add((1 - self.beta_2) * (ops.square(gradient) - square))

        t = ops.cast(self.iterations + 1, variable.dtype)
        decay = -math.log(self.beta_2)  # beta_2^t = exp(-y)
        y, most = t * decay, 2 / (1 - self.beta_2) - 1
        # The difference of two large numbers, and while y is small the series of its terms.
        series = ops.square(y) / 12 - ops.power(y, 4) / 720 + ops.power(y, 6) / 30240
        series = most - 2 / decay + t - 2 / decay * series
        length = ops.where(y < 1, series, most - 2 * t / ops.expm1(y))
        safe, unit = ops.maximum(length, 5.0), (most - 4) * (most - 2) or 1.0
        square_root = ops.sqrt((safe - 4) * (safe - 2) * (most / unit) / safe * -ops.expm1(-y))
        scale = ops.where(length > 5, square_root / (ops.sqrt(square) + self.epsilon), 1.0)
        variable.assign_sub(rate * mean / (1 - ops.power(self.beta_1, t)) * scale)
