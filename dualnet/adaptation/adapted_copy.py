"""`AdaptedCopy`: a copy of a model's weights, and the compiled step that adapts it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from dualnet._backend import assign_all
from dualnet._checks import ArgumentError
from dualnet._optimizers import LEAST_WEIGHTS, num_weights
from dualnet._types import Tensor, Tensors
from dualnet.adaptation.weights import Adapted
from dualnet.builders import bucket_length, questions
from dualnet.builders.stream_state import StreamState
from dualnet.builders.weight_copy import WeightCopy


class AdaptedCopy(keras.Model):
    """Adapts a copy of a model's weights to segments of streams; the model never changes.

    `train_on_batch` takes a step, dropouts off, on a dict with `tokens` and `targets`, int
    `(batch, time)`, and, where the logits are to be divided by one, `temperature`, float32
    `(batch, 1)`, the same in all rows. The state is carried from step to step. A step minimises
    the mean loss, without penalties; with `weights`, float32 `(batch, time)`, 0 for padding at
    the end, the weighted mean.

    Args:
        which: `Adapted`, the graph and what of it adapts.
        optimizer: The rule.
        batch_size: int. Number of streams.
    """

    def __init__(
        self, which: Adapted, optimizer: keras.optimizers.Optimizer, batch_size: int
    ) -> None:
        # `temperature` and states stay float32, whatever the global policy.
        super().__init__(dtype="float32", autocast=False, name="adapted_copy")
        self.graph, self.cache = which.graph, which.cache
        self.weight_copy = WeightCopy(which.graph, which.weights)
        self.stream_state = StreamState([int(state.shape[-1]) for state in self.graph.states])
        self.stream_state.resize(batch_size)
        self.restart()
        self.built = True
        # Now, and not inside the first compiled step, which would build it anew at every step.
        optimizer.build(self.trainable_variables)
        # A step of one row is many small operations: on TensorFlow their overhead exceeds the work.
        # Keras by itself compiles no steps on a CPU.
        is_large = num_weights(self.trainable_variables) >= LEAST_WEIGHTS
        compiled = keras.config.backend() == "tensorflow" and batch_size == 1 and is_large
        self.compile(optimizer=optimizer, jit_compile=compiled or "auto")

    def begin(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Begin anew, with the present weights of the model, as with `optimizer`, a new one."""
        self.weight_copy.take()
        self.restart()
        optimizer.build(self.trainable_variables)
        assign_all(self.optimizer.variables, optimizer.variables)

    def restart(self) -> None:
        """Begin the text anew, and forget what its cache remembers."""
        if self.cache:
            self.graph.remembered = None
        self.stream_state.first = tuple(self.graph.begin(1))
        self.stream_state.restart()

    def call(self, inputs: Tensors) -> Tensor:
        states = self.stream_state.read(None)
        with self.weight_copy.scope():
            answer = questions.losses(self.graph, {**inputs, "states": states})
        self.stream_state.write(answer["states"])
        return answer["losses"]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if "weights" not in x:
            return ops.mean(y_pred)
        weights = ops.convert_to_tensor(x["weights"])
        return ops.sum(y_pred * weights) / ops.sum(weights)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "losses": ops.stop_gradient(y_pred)}


@dataclasses.dataclass(eq=False)
class Adaptation:
    """A copy of a model's weights, and how it adapts.

    Attributes:
        copy: `AdaptedCopy`; `reader_of` reads it.
        rule: Name of the rule.
        settings: dict of the values that the rule runs with.
        items: What was asked to adapt; empty for all weights.
        temperature: What the logits are divided by.
        longest: Tokens of the longest segment so far.
    """

    copy: AdaptedCopy
    rule: str
    settings: dict[str, float]
    items: list[str]
    temperature: float
    longest: int = 0

    def used(self) -> dict[str, Any]:
        """Return the settings, and the weights and the cache that were asked for."""
        asked = {"adapt": self.items, "cache": self.copy.cache}
        return self.settings | {name: value for name, value in asked.items() if value}

    def learn(
        self, ids: np.ndarray, *, alone: bool = False, states: list[np.ndarray] | None = None
    ) -> np.ndarray:
        """Score the ids but the first, take one step on their mean loss, and return their losses.

        These are float32 `(ids - 1,)`. State is carried from segment to segment, or if `alone` is
        that of `states`, by default zero; a cache remembers such texts, too. Only the last segment
        may be shorter than one before, unless it is `alone`.
        """
        count = len(ids) - 1
        graph = self.copy.graph
        if alone:
            self.copy.stream_state.write(graph.begin(1) if states is None else states)
        # Each length is compiled. What follows a word has no part in its loss, so that padding
        # may be any word, if it does not count.
        self.longest = bucket_length(count) if alone else max(self.longest, count)
        weights, pads = np.ones((1, count), np.float32), ((0, 0), (0, self.longest - count))
        segment = {"tokens": ids[None, :-1], "targets": ids[None, 1:], "weights": weights}
        segment = {name: np.pad(array, pads) for name, array in segment.items()}
        if self.temperature != 1:
            segment["temperature"] = np.full((1, 1), self.temperature, np.float32)
        logs = self.copy.train_on_batch(segment, return_dict=True)
        if alone and self.copy.cache:
            # The next text begins after `<eos>`, as this one did.
            read = ids[:-1] if ids[-1] == ids[0] else ids
            graph.remember(graph.begin(1)[-1][0], read)
        if not math.isfinite(float(logs["loss"])):
            raise not_finite("losses", self.rule, self.settings)
        return ops.convert_to_numpy(logs["losses"])[0, :count]


def not_finite(quantity: str, rule: str, settings: Mapping[str, float]) -> ArgumentError:
    return ArgumentError(
        "learning_rate",
        f"must keep the {quantity} finite. Received: rule={rule!r}, "
        f"learning_rate={settings['learning_rate']:g}, which does not.",
        " Take a smaller one, or set clipnorm.",
    )
