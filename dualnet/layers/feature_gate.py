import keras
from keras import ops

from dualnet._checks import check_count, check_penalty
from dualnet.layers._configured import ConfiguredLayer, Role


@keras.saving.register_keras_serializable("dualnet")
class FeatureGate(ConfiguredLayer):
    """Gates logits by given feature vectors: `sigmoid(f W + b) * s`.

    With the outputs of a separate LSTM as f, it is the LSTM gate g'' of the paper. For a
    gate that reads the words themselves, see `dualnet.layers.IOGate`.

    The product with W runs in the compute dtype, everything else in float32.

    Args:
        vocabulary_size: int, at least 1.
        initializer_range: float, at least 0. The kernel is drawn uniformly from
            `[-initializer_range, initializer_range]`; the bias starts at 0.

    Call arguments:
        inputs: `[features, logits]`, of shapes `(batch, time, units)` and
            `(batch, time, vocabulary)`; or `[features, logits_1, ..., logits_M]`.

    Returns:
        float32 `(batch, time, vocabulary)`, or a list of M, which share one gate.

    Weights: `kernel` (units, vocabulary), `bias` (vocabulary).

    Masking: passes on the masks of the logits.
    Reference: Takase, Suzuki and Nagata, 2017, https://arxiv.org/abs/1709.08907

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import FeatureGate
    >>> features, logits = np.ones((2, 5, 4), "float32"), np.ones((2, 5, 10), "float32")
    >>> tuple(FeatureGate(10)([features, logits]).shape)
    (2, 5, 10)
    """

    names: tuple[str, ...] = ("features",)  # of the inputs before the logits

    def __init__(self, vocabulary_size, *, initializer_range=0.05, **kwargs):
        super().__init__(autocast=False, **kwargs)  # Keras would cast the logits, too
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.initializer_range = check_penalty("initializer_range", initializer_range)

    def build(self, input_shape):
        self.add_gate(input_shape[0][-1])

    def call(self, inputs):
        features, *logits = inputs
        return apply_gates(self.gates(features), logits)

    def gates(self, features):
        """Return the gates for `features` `(..., units)`, float32 `(..., vocabulary)`."""
        kernel = ops.cast(self.kernel, self.compute_dtype)
        product = ops.matmul(ops.cast(features, self.compute_dtype), kernel)
        return ops.sigmoid(ops.cast(product, "float32") + ops.cast(self.bias, "float32"))

    def compute_mask(self, inputs, mask=None):
        if mask is None:
            return None
        masks = list(mask[len(self.names) :])
        return masks[0] if len(masks) == 1 else masks

    def add_gate(self, features):
        """Add the weights of a gate that reads vectors of size `features`."""
        self.kernel = self.add_uniform("kernel", (features, self.vocabulary_size))
        self.bias = self.add_zeros("bias", self.vocabulary_size, role=Role.BIAS)

    def add_uniform(self, name, shape):
        scale = self.initializer_range
        return self.add_matrix(name, shape, keras.initializers.RandomUniform(-scale, scale))


def apply_gates(gates, logits):
    """Return `gates` times each of `logits`: a list, or a single tensor for a single one."""
    gated = [gates * ops.cast(member, "float32") for member in logits]
    return gated[0] if len(gated) == 1 else gated
