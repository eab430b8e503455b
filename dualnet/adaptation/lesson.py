"""`Lesson`: one step of learners, a pure function: it scores a segment, then learns from it."""

import contextlib
import itertools
import math

import keras
import numpy as np
from keras import ops

from dualnet import _backend
from dualnet._types import Tensor, Tensors
from dualnet.adaptation.weights import Adapted, OutputBias, OutputMatrix, RecurrentMatrix
from dualnet.builders import Graph, Reader, questions
from dualnet.builders.model import LanguageModel
from dualnet.layers import AdaptationMatrix, DualConnection, without_gradients

# Layers that accept weights with an axis for the rows of a batch in front.
BY_ROW = (AdaptationMatrix, RecurrentMatrix, DualConnection, OutputBias, OutputMatrix)
Learnt = tuple[Tensor, list[Tensor]]  # a memory after a step, and its moments
BETA_2 = 0.999  # of Nadam, as in Keras
# Of all rules, with the values for a rule that has no such setting.
SETTINGS = {"learning_rate": 0.0, "decay": 0.0, "epsilon": 1e-7, "beta_1": 0.0, "clipnorm": 0.0}


class Lesson(Reader):
    """Reads one segment for each of several learners, and lets each learn from its own.

    A learner's `memory` is the difference of its weights from the model's, all in one vector. The
    model itself never changes: row b of a batch is read with W + D_b, and its gradient is its own,
    since that of the sum of the rows' mean losses is.

    A segment has, beside what a `Reader` takes, `weights`, float32 `(batch, time)`, 0 for padding
    at the end, `memory`, float32 `(batch, size)`, `moments`, a list of such arrays, and
    `settings`, `(batch, 5)`, in the order of `SETTINGS`. The answer has the `losses`, and `states`,
    `memory` and `moments` after the segment. An update that is not finite changes nothing, and
    `applied` of its row is False.

    Args:
        model: `LanguageModel`. If it knows padding, rows may be padded with -1.
        which: `Adapted`, what learns of it.
        rule: Name of the rule; for "nadam", with momentum if `has_momentum`.

    Attributes:
        size: int. Length of a memory.
        by_row: bool. Whether a batch may have several rows.
        through_time: bool. Whether the gradient flows through a recurrence.
    """

    def __init__(
        self, model: LanguageModel, which: Adapted, rule: str, *, has_momentum: bool = False
    ) -> None:
        graph = which.graph
        graph = graph.with_masks() if model.can_mask and not graph.padded else graph
        super().__init__(graph, self.learn)
        self.masked, self.rule = graph.padded, rule
        self.which = which
        self.sizes = [math.prod(weight.shape) for weight in which.weights.values()]
        self.size = sum(self.sizes)
        by_row = [
            id(w) for layer in graph.core.layers if type(layer) in BY_ROW for w in layer.weights
        ]
        self.by_row = all(id(weight) in by_row for weight in which.weights.values())
        in_time = any(isinstance(layer, RecurrentMatrix) for layer in graph.core.layers)
        self.through_time = in_time or not self.by_row
        # What the rule keeps beside the memory.
        self.num_moments = {"sgd": 0, "rms": 1, "nadam": 2 + has_momentum}[rule]

    def fresh_moments(self) -> list[np.ndarray]:
        """Return the moments before the first step; those of "rms" are the roots it divides by."""
        moments = [np.zeros(self.size, np.float32) for _ in range(self.num_moments)]
        if self.rule == "nadam":
            moments[0] = np.array([0, 1], np.float32)  # steps, and the product of momenta
        return moments

    def learn(self, graph: Graph, segment: Tensors) -> Tensors:
        """Answer the question that a step asks."""
        memory, weights, settings = (segment[k] for k in ("memory", "weights", "settings"))
        settings = dict(zip(SETTINGS, ops.split(settings, len(SETTINGS), axis=1)))
        values = self.values()

        def losses_with(memory):
            # Nothing below what learns by row needs a gradient.
            saved = contextlib.nullcontext() if self.through_time else without_gradients()
            with self.differing(values, memory), saved:
                answer = questions.losses(graph, self.begun(segment))
            return [answer["losses"]], [answer["losses"], *answer["states"]]

        # The gradient of the sum of the rows' mean losses.
        count = ops.sum(weights, axis=1, keepdims=True)
        means = weights / ops.maximum(count, 1.0)
        settings["decay"] = settings["decay"] * ops.minimum(count, 1.0)  # of no tokens, not even it
        [gradient], [losses, *states] = _backend.vjp(losses_with, [memory], [means])
        gradient = self._clipped(gradient, settings["clipnorm"])
        update = {"sgd": self._sgd, "rms": self._rms, "nadam": self._nadam}[self.rule]
        learnt, moments = update(gradient, memory, segment["moments"], settings)
        new, old = [learnt, *moments], [memory, *segment["moments"]]
        applied = ops.all(ops.stack([ops.all(ops.isfinite(part), axis=1) for part in new]), axis=0)
        memory, *moments = [ops.where(applied[:, None], *pair) for pair in zip(new, old)]
        return {
            "losses": losses,
            "states": states,
            "memory": memory,
            "moments": moments,
            "applied": applied,
        }

    def call(self, inputs: Tensors) -> Tensors:
        return self.learn(self.graph, inputs)  # the encoder may share weights that learn

    def predict_step(self, *args: object) -> Tensors:
        # Not a reader's, which is without gradients: `learn` says what needs none.
        return super(Reader, self).predict_step(*args)

    def values(self) -> list[tuple[keras.Variable, Tensor]]:
        """Return all weights and their values."""
        # All: on JAX, the scope of a step has the present values, and another hides it.
        own = self.core.variables + (self.encoder.variables if self.encoder is not None else [])
        return [(variable, ops.stop_gradient(variable.value)) for variable in own]

    def differing(
        self, values: list[tuple[keras.Variable, Tensor]], memory: Tensor
    ) -> keras.StatelessScope:
        """Return the scope in which each row is read with weights that differ by its memory."""
        differences = dict(zip(map(id, self.which.weights.values()), self._split(memory)))
        scope = keras.StatelessScope()
        for variable, value in values:
            if id(variable) in differences:
                shape = tuple(variable.shape)
                if self.by_row:
                    shape = (-1, *((1,) if len(shape) == 1 else ()), *shape)
                value = value + ops.reshape(differences[id(variable)], shape)
            scope.add_update((variable, value))
        return scope

    def _split(self, vector: Tensor) -> list[Tensor]:
        """Return the part of each weight of a `(batch, size)`."""
        if len(self.sizes) == 1:
            return [vector]
        return ops.split(vector, list(itertools.accumulate(self.sizes))[:-1], axis=1)

    def _clipped(self, gradient: Tensor, clipnorm: Tensor) -> Tensor:
        """Return each weight's gradient clipped to a norm, or unchanged where that is 0."""
        clipped = []
        for part in self._split(gradient):
            norm = ops.sqrt(ops.sum(ops.square(part), axis=1, keepdims=True))
            scale = clipnorm / ops.maximum(ops.maximum(norm, clipnorm), 1e-30)
            clipped.append(part * ops.where(clipnorm > 0, scale, 1.0))
        return ops.concatenate(clipped, axis=1)

    # --- the rules, as in `rules`; the memory decays to zero, the model's weights

    def _sgd(
        self, gradient: Tensor, memory: Tensor, moments: list[Tensor], settings: Tensors
    ) -> Learnt:
        return (1.0 - settings["decay"]) * memory - settings["learning_rate"] * gradient, moments

    def _rms(
        self, gradient: Tensor, memory: Tensor, moments: list[Tensor], settings: Tensors
    ) -> Learnt:
        [root] = moments
        means = [ops.mean(part, axis=1, keepdims=True) for part in self._split(root)]
        pull = ops.minimum(settings["decay"] * root * len(means) / sum(means), 1.0)
        step = settings["learning_rate"] / (root + settings["epsilon"])
        return memory - pull * memory - step * gradient, moments

    def _nadam(
        self, gradient: Tensor, memory: Tensor, moments: list[Tensor], settings: Tensors
    ) -> Learnt:
        counts, square, *mean = moments
        steps, product, beta_1 = counts[:, :1] + 1.0, counts[:, 1:], settings["beta_1"]
        now, following = (beta_1 * (1.0 - 0.5 * 0.96 ** (steps + i)) for i in (0.0, 1.0))
        product = product * now
        square = square + (ops.square(gradient) - square) * (1.0 - BETA_2)
        mean = [m + (gradient - m) * (1.0 - beta_1) for m in mean]
        momentum = mean[0] if mean else gradient
        ahead = following * momentum / (1.0 - product * following)
        ahead = ahead + (1.0 - now) * gradient / (1.0 - product)
        root = ops.sqrt(square / (1.0 - BETA_2**steps)) + settings["epsilon"]
        counts = ops.concatenate([steps, product], axis=1)
        return memory - settings["learning_rate"] * ahead / root, [counts, square, *mean]
