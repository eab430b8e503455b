import keras
from keras import ops

from dualnet._checks import ArgumentError, check_count
from dualnet.layers._given_words import log_probabilities
from dualnet.layers._given_words import logits as logits_of
from dualnet.layers._tied import with_embedding


@keras.saving.register_keras_serializable("dualnet")
class OutputProjection(keras.layers.Layer):
    """Logits of all words: `h W + b`, where W may be the transposed embedding.

    Where words are given, -log p of these: one function with a gradient of its own, which
    takes less memory and fewer passes over the logits.

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
        targets: int `(batch, time)` or None.
        temperature: float or scalar tensor by which the logits are divided, or None for 1.
            Nothing is learnt of it.

    Returns:
        float32 logits, `(batch, time, vocabulary)`. With targets -log p of these,
        `(batch, time)`, in nats; where a target is negative, that of word 0.

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
            raise ArgumentError(
                "vocabulary_size", "or `tied_to` must be given. Received: None for both."
            )
        if vocabulary_size is not None:
            check_count("vocabulary_size", vocabulary_size, least=1)
        if tied_to is not None and vocabulary_size not in (None, tied_to.input_dim):
            raise ArgumentError(
                "vocabulary_size",
                f"must equal the {tied_to.input_dim} rows of the embedding "
                f"that the output is tied to. Received: vocabulary_size={vocabulary_size!r}.",
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
                raise ArgumentError(
                    "inputs",
                    f"must be as wide as the embedding that the output is tied to, "
                    f"{self.tied_to.output_dim} units. Received: {units} units.",
                )
            if not self.tied_to.built:
                self.tied_to.build()
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.vocabulary_size,), initializer="zeros"
            )

    def call(self, inputs, targets=None, temperature=None):
        matrix = self.kernel if self.tied_to is None else self.tied_to.embeddings
        matrix = ops.cast(matrix, self.compute_dtype)
        bias = ops.cast(self.bias, "float32") if self.use_bias else None
        words_first = self.tied_to is not None
        if targets is not None:
            found = log_probabilities(
                ops.reshape(inputs, (-1, inputs.shape[-1])),
                matrix,
                bias,
                ops.reshape(ops.maximum(targets, 0), (-1,)),
                words_first=words_first,
                temperature=temperature,
            )
            return -ops.reshape(found, ops.shape(targets))
        kernel = ops.transpose(matrix) if words_first else matrix
        logits = logits_of(inputs, kernel, bias)
        return logits if temperature is None else logits / temperature

    def compute_output_spec(self, inputs, targets=None, temperature=None):
        words = (self.vocabulary_size,) if targets is None else ()
        return keras.KerasTensor((*inputs.shape[:-1], *words), "float32")

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
