import keras
from keras import ops

from dualnet._checks import check_penalty
from dualnet.layers._tied import with_embedding


@keras.saving.register_keras_serializable("dualnet")
class PastDecode(keras.layers.Layer):
    """Past-decode regularisation: the predicted distribution must tell the current word.

    p_t = softmax(logits_t),  r_t = softmax(E f(p_t E) + b'),  f(v) = tanh(v W + b)

    and `factor` times the mean of -log r_t(current word) joins the loss, in training
    alone. E is the embedding (vocabulary, units), which is also the output matrix.

    Args:
        factor: float, at least 0. The paper's lambda, about 0.001.
        tied_to: `keras.layers.Embedding`, whose matrix E is.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `[tokens, logits]`, int `(batch, time)`, negative where padding is,
            and float32 `(batch, time, vocabulary)`.
        training: bool.

    Returns:
        `logits`, as they are.

    Weights: `kernel` (units, units), `bias` (units), `output_bias` (vocabulary), all
    used in training alone.

    Raises:
        ValueError: if `factor` is out of range.

    Reference: Brahma, 2019, https://arxiv.org/abs/1808.05908
    """

    def __init__(self, factor, *, tied_to, **kwargs):
        factor = check_penalty("factor", factor)
        super().__init__(autocast=False, **kwargs)  # the logits go through as they are
        self.factor = factor
        self.tied_to = tied_to
        self.supports_masking = True

    def build(self, input_shape):
        if not self.tied_to.built:
            self.tied_to.build()
        words, units = self.tied_to.input_dim, self.tied_to.output_dim
        self.kernel = self.add_weight(
            name="kernel", shape=(units, units), initializer="glorot_uniform"
        )
        self.bias = self.add_weight(name="bias", shape=(units,), initializer="zeros")
        self.output_bias = self.add_weight(name="output_bias", shape=(words,), initializer="zeros")

    def call(self, inputs, training=False):
        tokens, logits = inputs
        if training and self.factor:
            self.add_loss(self.factor * self.past_loss(tokens, logits))
        return logits

    def past_loss(self, tokens, logits):
        """Return the mean of -log r_t(current word) over all tokens, in nats, a scalar."""
        embeddings = ops.cast(self.tied_to.embeddings, self.compute_dtype)
        p = ops.cast(ops.softmax(logits), self.compute_dtype)
        kernel, bias = (ops.cast(each, self.compute_dtype) for each in (self.kernel, self.bias))
        v = ops.tanh(ops.matmul(ops.matmul(p, embeddings), kernel) + bias)
        past = ops.cast(ops.matmul(v, ops.transpose(embeddings)), "float32")
        past = past + ops.cast(self.output_bias, "float32")
        losses = ops.sparse_categorical_crossentropy(ops.maximum(tokens, 0), past, from_logits=True)
        counted = ops.cast(tokens >= 0, "float32")
        return ops.sum(losses * counted) / ops.maximum(ops.sum(counted), 1.0)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[1]

    def get_config(self):
        return {
            **super().get_config(),
            "factor": self.factor,
            "tied_to": keras.saving.serialize_keras_object(self.tied_to),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_embedding(config))
