"""The base class of the layers that gate logits."""

import keras
from keras import ops

from dualnet._checks import ArgumentError, check_count, check_penalty


class Gate(keras.layers.Layer):
    """Multiplies logits by `sigmoid(f W + b)`, one gate per word.

    Args:
        vocabulary_size: int, at least 1.
        initializer_range: float, at least 0. Bound of the uniform initial values of matrices.
    """

    def __init__(self, vocabulary_size, *, initializer_range=0.05, **kwargs):
        super().__init__(autocast=False, **kwargs)  # Keras would cast the logits, too
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size, least=1)
        self.initializer_range = check_penalty("initializer_range", initializer_range)
        self.supports_masking = True

    def check_inputs(self, shapes, *names):
        """Raise `ValueError` unless `shapes` are those of `names`, followed by logits."""
        logits = shapes[len(names) :] if isinstance(shapes, list) else []
        if not logits:
            raise ArgumentError(
                "inputs",
                f"must be a list of {', '.join(names)} and the logits of one or more models. "
                f"Received: shapes {shapes!r}.",
            )
        for shape in logits:
            if len(shape) != 3 or shape[-1] != self.vocabulary_size:
                raise ArgumentError(
                    "inputs",
                    f"must hold logits (batch, time, {self.vocabulary_size}) after "
                    f"{', '.join(names)}, since `vocabulary_size` is {self.vocabulary_size}. "
                    f"Received: logits of shape {tuple(shape)!r}.",
                )

    def add_gate(self, features):
        """Add the weights of a gate that reads vectors of size `features`."""
        self.kernel = self.add_matrix("kernel", (features, self.vocabulary_size))
        self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), initializer="zeros")

    def add_matrix(self, name, shape):
        scale = self.initializer_range
        uniform = keras.initializers.RandomUniform(-scale, scale)
        return self.add_weight(name=name, shape=shape, initializer=uniform)

    def compute_gates(self, features):
        """Return the gates for `features`, float32."""
        kernel = ops.cast(self.kernel, self.compute_dtype)
        product = ops.matmul(ops.cast(features, self.compute_dtype), kernel)
        return ops.sigmoid(ops.cast(product, "float32") + ops.cast(self.bias, "float32"))

    @staticmethod
    def apply_gates(gates, logits):
        """Return `gates` times each of `logits`: a list, or a single tensor for a single one."""
        gated = [gates * ops.cast(member, "float32") for member in logits]
        return gated[0] if len(gated) == 1 else gated

    @staticmethod
    def select_masks(masks):
        """Return the masks of the logits, in the form of `apply_gates`."""
        return masks[0] if len(masks) == 1 else list(masks)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "initializer_range": self.initializer_range,
        }
