from keras import ops, saving

from dualnet._checks import check_penalty
from dualnet.layers._configured import Role
from dualnet.layers._tied import TiedLayer


@saving.register_keras_serializable("dualnet")
class PastDecode(TiedLayer):
    """Past-decode regularisation: the predicted distribution must predict the current word.

    p_t = softmax(logits_t),  r_t = softmax(E f(p_t E) + b'),  f(v) = tanh(v W + b)

    In training, `factor` times the mean of -log r_t(current word) is added to the loss. E is
    the embedding (vocabulary, units), which is also the output matrix.

    Args:
        factor: float, at least 0. The paper's lambda, about 0.001.
        tied_to: `keras.layers.Embedding` whose matrix is E.

    Call arguments:
        inputs: `[tokens, logits]`, int `(batch, time)`, negative at padding, and float32
            `(batch, time, vocabulary)`.

    Returns:
        `logits`, unchanged.

    Weights: `kernel` (units, units), `bias` (units), `output_bias` (vocabulary), which only
    training uses.

    Masking: passes on the mask of `logits`.
    Reference: Brahma, 2019, https://arxiv.org/abs/1808.05908

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from dualnet.layers import PastDecode
    >>> layer = PastDecode(0.001, tied_to=keras.layers.Embedding(10, 4))
    >>> tokens, logits = np.ones((2, 5), "int32"), np.ones((2, 5, 10), "float32")
    >>> outputs = layer([tokens, logits], training=True)
    >>> len(layer.losses)
    1
    """

    masked_input = 1

    def __init__(self, factor, *, tied_to, **kwargs):
        super().__init__(tied_to=tied_to, autocast=False, **kwargs)  # the logits stay float32
        self.factor = check_penalty("factor", factor)

    def build(self, input_shape):
        self.build_embedding()
        words, units = self.tied_to.input_dim, self.tied_to.output_dim
        self.kernel = self.add_matrix("kernel", (units, units))
        self.bias = self.add_zeros("bias", units, role=Role.BIAS)
        self.output_bias = self.add_zeros("output_bias", words, role=Role.BIAS)

    def call(self, inputs, training=False):
        tokens, logits = inputs
        if training and self.factor:
            self.add_loss(self.factor * self.past_loss(tokens, logits))
        return logits

    def past_loss(self, tokens, logits):
        """Return the mean of -log r_t(current word) over all tokens, in nats, a scalar."""
        embeddings = ops.cast(self.tied_to.embeddings, self.compute_dtype)
        p = ops.cast(ops.softmax(logits), self.compute_dtype)
        kernel, bias = (ops.cast(weight, self.compute_dtype) for weight in (self.kernel, self.bias))
        v = ops.tanh(ops.matmul(ops.matmul(p, embeddings), kernel) + bias)
        past = ops.cast(ops.matmul(v, ops.transpose(embeddings)), "float32")
        past = past + ops.cast(self.output_bias, "float32")
        losses = ops.sparse_categorical_crossentropy(ops.maximum(tokens, 0), past, from_logits=True)
        counted = ops.cast(tokens >= 0, "float32")
        return ops.sum(losses * counted) / ops.maximum(ops.sum(counted), 1.0)
