import keras

from dualnet.layers._gate import Gate


@keras.saving.register_keras_serializable("dualnet")
class FeatureGate(Gate):
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

    def build(self, input_shape):
        self.check_inputs(input_shape)
        self.add_gate(input_shape[0][-1])

    def call(self, inputs):
        features, *logits = inputs
        return self.apply_gates(self.gates(features), logits)

    gates = Gate.compute_gates
