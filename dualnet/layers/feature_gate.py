import keras

from dualnet.layers._gate import Gate


@keras.saving.register_keras_serializable("dualnet")
class FeatureGate(Gate):
    """Gates logits by vectors that are ready: `sigmoid(f W + b) * s`.

    With the outputs of an LSTM of its own as f it is the LSTM gate g'' of the paper. A
    gate that reads the words themselves is `dualnet.layers.IOGate`.

    The product with W runs in the compute dtype, the rest in float32.

    Args:
        vocabulary_size: int, at least 1.
        initializer_range: float, at least 0. The kernel starts uniform within it, the bias
            at 0.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments:
        inputs: `[features, logits]`, of shapes `(batch, time, units)` and
            `(batch, time, vocabulary)`; or `[features, logits_1, ..., logits_M]`.

    Returns:
        float32 `(batch, time, vocabulary)`, or a list of M, all under one gate.

    Weights: `kernel` (units, vocabulary), `bias` (vocabulary).

    Raises:
        ValueError: if `vocabulary_size` is out of range, or the logits are missing or
            of another size.

    Masking: passes on the masks of the logits.
    Reference: Takase, Suzuki and Nagata, 2017, https://arxiv.org/abs/1709.08907
    """

    def build(self, input_shape):
        self.check_inputs(input_shape, "features")
        self.add_gate(input_shape[0][-1])

    def call(self, inputs):
        features, *logits = inputs
        return self.gated(self.gates(features), logits)

    def gates(self, features):
        """Return the gates for `features` `(..., units)`, float32 `(..., vocabulary)`."""
        return self.gates_of(features)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else self.masks_of(mask[1:])
