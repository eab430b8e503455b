"""ONNX and LiteRT files that learn: a step with a memory, and a graph that updates the memory."""

from collections.abc import Collection

import keras
import tensorflow as tf

from dualnet._checks import ArgumentError
from dualnet._contexts import dtype_policy
from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.layers import DualConnection, OutputProjection
from dualnet.layers._mixture import in_one_piece
from dualnet.requests import Exporting
from dualnet.serving.learning import REQUESTED, Learning


class FileLearning(Learning):
    """A core that is read with a memory, and the graph that learns from what it read.

    The step returns what the layers that learn have read, `read_1` and so on. `learn` computes the
    logits, and their gradients, from these alone: there is no recurrence in it.

    Attributes:
        core: `keras.Model` of ids and states, whose last outputs are what was read.
        variables: list, those of `core`.
        tail: `keras.Model` of what was read to the logits.
        names: list of str, the names of what was read.
    """

    def __init__(self, model: LanguageModel, request: Exporting) -> None:
        with dtype_policy("float32"):
            super().__init__(model, request)
        if self.lesson.through_time:
            raise ArgumentError(
                "learn",
                "must name weights above the recurrence, for a file: its graph has no loop.",
                learn=request.learn,
            )
        which = self.lesson.which
        read: dict[int, Tensor] = {}
        _depends(which.graph.word_logits, {id(weight) for weight in which.weights.values()}, read)
        inputs, outputs = which.graph.core.inputs, which.graph.core.outputs
        self.core = keras.Model(inputs, [*outputs, *read.values()])
        self.variables = self.core.variables
        tail = keras.Model([*read.values()], which.graph.word_logits)
        self.tail = keras.models.clone_model(tail, clone_function=_portable)
        self.names = [f"read_{i}" for i in range(1, len(read) + 1)]

    def __call__(self, inputs: list[Tensor], training: bool) -> list[Tensor]:
        *inputs, memory = inputs
        with self.lesson.differing(self.lesson.values(), memory):
            return self.core(inputs, training=training)

    def specs(self, batch: int | None, time: int | None) -> list[tf.TensorSpec]:
        """Return the specs of the arguments of `learn`."""
        shapes = {"weights": [batch, time], "memory": [batch, self.lesson.size]}
        shapes |= {name: [batch] for name in REQUESTED}
        for name, tensor in zip(self.names, self.tail.inputs):
            shapes[name] = [batch, time, *tensor.shape[2:]]
        specs = [tf.TensorSpec(shape, tf.float32, name=name) for name, shape in shapes.items()]
        return [tf.TensorSpec((batch, time), tf.int32, name="targets"), *specs]

    def learn(self, targets: Tensor, weights: Tensor, memory: Tensor, *others: Tensor) -> Tensors:
        """Return the losses of the targets, the new memory, and whether it was applied."""
        requested, read = others[: len(REQUESTED)], others[len(REQUESTED) :]
        segment = {
            "tokens": [*read], "states": [], "targets": targets, "weights": weights,
            "memory": memory, "moments": [],
            "settings": self.settings_of(dict(zip(REQUESTED, requested))),
        }  # fmt: skip
        with in_one_piece():
            answer = self.lesson.learn(self, segment)  # type: ignore[arg-type]
        return {name: answer[name] for name in ("losses", "memory", "applied")}

    def losses(
        self, read: list[Tensor], states: list[Tensor], targets: Tensor, **_: object
    ) -> tuple[Tensor, list[Tensor]]:
        """Return -log p of `targets`, as `Graph.losses`, with a gradient that files can hold."""
        words = tf.one_hot(targets, self.tail.output_shape[-1])

        @tf.custom_gradient
        def losses(logits: Tensor) -> tuple[Tensor, object]:
            log_p = tf.nn.log_softmax(logits)
            loss = -tf.reduce_sum(words * log_p, axis=-1)
            return loss, lambda upstream: upstream[..., None] * (tf.exp(log_p) - words)

        return losses(self.tail(read, training=False)), states


class _Portable(keras.layers.Layer):
    """A layer that computes what `layer` does, by operations whose gradients files can hold."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__(dtype="float32")
        self.layer = layer

    def call(self, inputs: Tensor) -> Tensor:
        if isinstance(self.layer, DualConnection):
            d = self.layer.sums(inputs)
            return d * tf.cast(d > 0, d.dtype)  # LiteRT has no gradient of relu
        matrix, bias = self.layer.output_weights()
        # A product of two dimensions would store the matrix a second time, turned.
        logits = tf.matmul(inputs, matrix[None], transpose_b=self.layer.tied_to is not None)
        return logits if bias is None else logits + bias


def _portable(layer: keras.layers.Layer) -> keras.layers.Layer:
    return _Portable(layer) if isinstance(layer, DualConnection | OutputProjection) else layer


def _depends(tensor: Tensor, weights: Collection[int], read: dict[int, Tensor]) -> bool:
    """Say if `tensor` depends on `weights`.

    The tensors that it is computed from, and that do not depend on them, are added to `read`.
    """
    operation, node, _ = tensor._keras_history
    inputs = operation._inbound_nodes[node].input_tensors
    depends = [_depends(below, weights, read) for below in inputs]
    learns = any(id(weight) in weights for weight in getattr(operation, "weights", []))
    if learns or any(depends):
        read |= {id(below): below for below, known in zip(inputs, depends) if not known}
    return learns or any(depends)
