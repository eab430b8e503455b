"""What the layers that gate logits have in common."""

import keras
from keras import ops

from dualnet._checks import check_count


class Gate(keras.layers.Layer):
    """Multiplies logits by `sigmoid(f W + b)`, a gate for each word.

    Args:
        vocabulary_size: int, at least 1.
    """

    def __init__(self, vocabulary_size, **kwargs):
        vocabulary_size = check_count("vocabulary_size", vocabulary_size, least=1)
        # Float inputs are cast here: Keras would cast the logits, too.
        super().__init__(autocast=False, **kwargs)
        self.vocabulary_size = vocabulary_size
        self.supports_masking = True

    def check_inputs(self, shapes, *names):
        """Raise `ValueError` unless `shapes` are those of `names` and then of logits."""
        logits = shapes[len(names) :] if isinstance(shapes, list) else []
        if not logits:
            raise ValueError(
                f"`inputs` must be a list of {', '.join(names)} and the logits of one model or "
                f"more. Received: shapes {shapes!r}."
            )
        for shape in logits:
            if len(shape) != 3 or shape[-1] != self.vocabulary_size:
                raise ValueError(
                    f"`inputs` must hold logits (batch, time, {self.vocabulary_size}) behind "
                    f"{', '.join(names)}, as `vocabulary_size` is {self.vocabulary_size}. "
                    f"Received: logits of shape {tuple(shape)!r}."
                )

    def add_gate(self, features, initializer):
        """Make the weights of a gate that reads vectors of the size `features`."""
        shape = (features, self.vocabulary_size)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=initializer)
        self.bias = self.add_weight(name="bias", shape=shape[1:], initializer="zeros")

    def gates_of(self, features):
        """Return the gates for `features`, float32."""
        kernel = ops.cast(self.kernel, self.compute_dtype)
        product = ops.matmul(ops.cast(features, self.compute_dtype), kernel)
        return ops.sigmoid(ops.cast(product, "float32") + ops.cast(self.bias, "float32"))

    @staticmethod
    def gated(gates, logits):
        """Return the list `logits` times `gates`; one alone comes without a list."""
        products = [gates * ops.cast(one, "float32") for one in logits]
        return products[0] if len(products) == 1 else products

    @staticmethod
    def masks_of(masks):
        """Return the masks of the logits, in the form of `gated`."""
        return masks[0] if len(masks) == 1 else list(masks)

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}
