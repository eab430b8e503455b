import keras
from keras import ops

from dualnet._checks import check_count, check_rate
from dualnet.layers.feature_gate import FeatureGate, apply_gates
from dualnet.layers.step_dropout import StepDropout


@keras.saving.register_keras_serializable("dualnet")
class IOGate(FeatureGate):
    """Input-to-output gate: the current word gates the logits of the next word.

    g_t = sigmoid(W_g drop(e'_t) + b_g),  P_(t+1) = softmax(g_t * s_t)

    e' is the gate's own embedding and s_t the logits with their bias. The layer returns
    `g_t * s_t`. With `use_hidden` W'_g reads [h_t ; drop(e'_t)] (Eq. 10); that h_t is
    not dropped out is our reading. A bias far above 0 leaves the logits unchanged.

    The product with W_g runs in the compute dtype, everything else in float32.

    Args:
        vocabulary_size: int, at least 1.
        units: int, at least 1. Size of e'.
        dropout: float, at least 0 and below 1. Drops each element of e' independently, with
            a fresh mask at every step.
        use_hidden: bool. Whether the gate also reads the hidden vector.
        initializer_range: float, at least 0. Matrices are drawn uniformly from
            `[-initializer_range, initializer_range]`; the bias starts at 0. The default is
            the released code's (which has 0.01 for AWD-LSTM); the paper gives none.
        seed: int or None. Seed of the dropout. The state of its generator is saved with
            the weights.

    Call arguments:
        inputs: `[tokens, logits]`, int `(batch, time)` and `(batch, time, vocabulary)`;
            or `[tokens, logits_1, ..., logits_M]`. With `use_hidden` the hidden vector
            `(batch, time, hidden_units)` comes second. Tokens below 0 are padding, read
            as token 0.
        training: bool. Whether dropout is active.

    Returns:
        float32 `(batch, time, vocabulary)`, or a list of M, which share one gate and one
        dropout mask.

    Weights: `embeddings` (vocabulary, units), `kernel` (units, vocabulary), or with
    `use_hidden` (hidden_units + units, vocabulary), the rows of h first, `bias`
    (vocabulary).

    Masking: passes on the masks of the logits.
    Differs from the paper: with `use_hidden` the paper prints 0.8M additional weights, while
    its Eq. 10, which this layer follows, has vocabulary_size * hidden_units more. If the
    logits are the log-probabilities of a mixture, the gate multiplies those, which no paper
    does.

    Reference: Takase, Suzuki and Nagata, 2017, https://arxiv.org/abs/1709.08907

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import IOGate
    >>> tokens, logits = np.ones((2, 5), "int32"), np.ones((2, 5, 10), "float32")
    >>> tuple(IOGate(10, units=4)([tokens, logits]).shape)
    (2, 5, 10)
    """

    def __init__(
        self, vocabulary_size, units=300, *, dropout=0.0, use_hidden=False, seed=None, **kwargs
    ):
        super().__init__(vocabulary_size, **kwargs)
        self.units = check_count("units", units)
        self.dropout = check_rate("dropout", dropout)
        self.use_hidden = use_hidden
        self.names = ("tokens", "hidden") if self.use_hidden else ("tokens",)
        self.seed = seed
        self.step_dropout = StepDropout(dropout, seed=seed, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.embeddings = self.add_uniform("embeddings", (self.vocabulary_size, self.units))
        self.add_gate(self.units + (input_shape[1][-1] if self.use_hidden else 0))

    def call(self, inputs, training=False):
        tokens, *logits = inputs
        hidden = logits.pop(0) if self.use_hidden else None
        return apply_gates(self.gates(tokens, hidden, training), logits)

    def gates(self, tokens, hidden=None, training=False):
        """Return the gates, float32 `(..., vocabulary)`.

        Args:
            tokens: int `(...)`.
            hidden: `(..., hidden_units)` with `use_hidden`, else None.
            training: bool. Whether dropout is active.
        """
        embedded = ops.take(self.embeddings, ops.maximum(ops.cast(tokens, "int32"), 0), axis=0)
        features = self.step_dropout(ops.cast(embedded, self.compute_dtype), training=training)
        if hidden is not None:
            features = ops.concatenate([ops.cast(hidden, self.compute_dtype), features], axis=-1)
        return super().gates(features)
