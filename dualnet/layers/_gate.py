"""The base class of the layers that gate logits."""

import keras
from keras import ops

from dualnet._checks import ArgumentError, check_count, check_penalty
from dualnet.layers._configured import ConfiguredLayer


class Gate(ConfiguredLayer):
    """Multiplies logits by `sigmoid(f W + b)`, one gate per word.

    Args:
        vocabulary_size: int, at least 1.
        initializer_range: float, at least 0. Bound of the uniform initial values of matrices.
    """

    names: tuple[str, ...] = ("features",)  # of the inputs before the logits

    def __init__(self, vocabulary_size, *, initializer_range=0.05, **kwargs):
        super().__init__(autocast=False, **kwargs)  # Keras would cast the logits, too
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size, least=1)
        self.initializer_range = check_penalty("initializer_range", initializer_range)
        self.supports_masking = True

    def check_inputs(self, shapes):
        """Raise `ValueError` unless `shapes` are those of `names`, followed by logits."""
        names = ", ".join(self.names)
        logits = shapes[len(self.names) :] if isinstance(shapes, list) else []
        if not logits:
            raise ArgumentError(
                "inputs",
                f"must be a list of {names} and the logits of one or more models. "
                f"Received: shapes {shapes!r}.",
            )
        for shape in logits:
            if len(shape) != 3 or shape[-1] != self.vocabulary_size:
                raise ArgumentError(
                    "inputs",
                    f"must hold logits (batch, time, {self.vocabulary_size}) after {names}, since "
                    f"`vocabulary_size` is {self.vocabulary_size}. Received: logits of shape "
                    f"{tuple(shape)!r}.",
                )

    def add_gate(self, features):
        """Add the weights of a gate that reads vectors of size `features`."""
        self.kernel = self.add_uniform("kernel", (features, self.vocabulary_size))
        self.bias = self.add_zeros("bias", self.vocabulary_size)

    def add_uniform(self, name, shape):
        scale = self.initializer_range
        return self.add_matrix(name, shape, keras.initializers.RandomUniform(-scale, scale))

    def compute_gates(self, features):
        """Return the gates for `features` `(..., units)`, float32 `(..., vocabulary)`."""
        kernel = ops.cast(self.kernel, self.compute_dtype)
        product = ops.matmul(ops.cast(features, self.compute_dtype), kernel)
        return ops.sigmoid(ops.cast(product, "float32") + ops.cast(self.bias, "float32"))

    @staticmethod
    def apply_gates(gates, logits):
        """Return `gates` times each of `logits`: a list, or a single tensor for a single one."""
        gated = [gates * ops.cast(member, "float32") for member in logits]
        return gated[0] if len(gated) == 1 else gated

    def compute_mask(self, inputs, mask=None):
        if mask is None:
            return None
        masks = list(mask[len(self.names) :])
        return masks[0] if len(masks) == 1 else masks
