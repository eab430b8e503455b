import keras
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._tied import with_embedding


@keras.saving.register_keras_serializable("dualnet")
class OutputProjection(keras.layers.Layer):
    """Logits of all words: `h W + b`, where W may be the transposed embedding.

    The product runs in the compute dtype, the result is float32 under every
    dtype policy: bfloat16 is too coarse for a sum over the vocabulary.

    Args:
        vocabulary_size: int, at least 1. May be left out where `tied_to` is given.
        tied_to: `keras.layers.Embedding` whose matrix (vocabulary, units) is used
            transposed, or None for a matrix of the layer's own.
        use_bias: bool.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments:
        inputs: `(batch, time, units)`.

    Returns:
        float32 logits, `(batch, time, vocabulary)`.

    Weights: `kernel` (units, vocabulary) unless tied; `bias` (vocabulary) if used.

    Raises:
        ValueError: if neither `vocabulary_size` nor `tied_to` is given, if they
            contradict each other, or if the input is not as wide as the tied
            embedding.

    Saving: the tie survives `.keras` files, and every `LanguageModel`, which is
    built anew. `keras.models.clone_model` and a functional model's own
    `from_config` make a second embedding, as with any layer that holds another.

    Reference: Inan et al., 2017, https://arxiv.org/abs/1611.01462 (tying)
    """

    def __init__(self, vocabulary_size=None, *, tied_to=None, use_bias=True, **kwargs):
        if vocabulary_size is None and tied_to is None:
            raise ValueError(
                "`vocabulary_size` or `tied_to` must be given. Received: None for both."
            )
        if vocabulary_size is not None:
            check_count("vocabulary_size", vocabulary_size, least=1)
        if tied_to is not None and vocabulary_size not in (None, tied_to.input_dim):
            raise ValueError(
                f"`vocabulary_size` must equal the {tied_to.input_dim} rows of the embedding "
                f"that the output is tied to. Received: vocabulary_size={vocabulary_size!r}."
            )
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size or tied_to.input_dim
        self.tied_to = tied_to
        self.use_bias = use_bias
        self.supports_masking = True

    def build(self, input_shape):
        units = input_shape[-1]
        if self.tied_to is None:
            self.kernel = self.add_weight(
                name="kernel", shape=(units, self.vocabulary_size), initializer="glorot_uniform"
            )
        else:
            if self.tied_to.output_dim != units:
                raise ValueError(
                    f"`inputs` must be as wide as the embedding that the output is tied to, "
                    f"{self.tied_to.output_dim} units. Received: {units} units."
                )
            if not self.tied_to.built:
                self.tied_to.build()
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.vocabulary_size,), initializer="zeros"
            )

    def call(self, inputs):
        if self.tied_to is None:
            kernel = self.kernel
        else:
            kernel = ops.transpose(ops.cast(self.tied_to.embeddings, self.compute_dtype))
        logits = ops.cast(ops.matmul(inputs, kernel), "float32")
        if self.use_bias:
            logits = logits + ops.cast(self.bias, "float32")
        return logits

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((*inputs.shape[:-1], self.vocabulary_size), "float32")

    def get_config(self):
        tied_to = self.tied_to
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "tied_to": None if tied_to is None else keras.saving.serialize_keras_object(tied_to),
            "use_bias": self.use_bias,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**with_embedding(config))
