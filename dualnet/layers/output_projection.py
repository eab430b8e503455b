import keras
from keras import ops

from dualnet._checks import ArgumentError, check_count
from dualnet.layers._fused_cross_entropy import logits as logits_of
from dualnet.layers._fused_cross_entropy import target_log_probabilities
from dualnet.layers._tied import TiedLayer, check_tied_size


@keras.saving.register_keras_serializable("dualnet")
class OutputProjection(TiedLayer):
    """Logits of all words: `h W + b`, where W may be the transposed embedding.

    With targets, it returns their -log p: a fused cross-entropy with its own gradient, which
    takes less memory and fewer passes over the logits.

    The product runs in the compute dtype. The result is float32 under every dtype policy:
    bfloat16 is too coarse for a sum over the vocabulary.

    Args:
        vocabulary_size: int, at least 1. Optional with `tied_to`.
        tied_to: `keras.layers.Embedding` whose matrix (vocabulary, units) is used
            transposed, or None for a separate matrix.
        use_bias: bool.

    Call arguments:
        inputs: `(batch, time, units)`.
        targets: int `(batch, time)` or None.
        temperature: float or scalar tensor that the logits are divided by, or None for 1.
            It gets no gradient.

    Returns:
        float32 logits, `(batch, time, vocabulary)`. With targets their -log p,
        `(batch, time)`, in nats; a negative target gets that of word 0.

    Weights: `kernel` (units, vocabulary) unless tied; `bias` (vocabulary) if used.

    Saving: the tie survives in `.keras` files and in every `LanguageModel`, which is rebuilt
    from its arguments. `keras.models.clone_model` and a functional model's own `from_config`
    create a second embedding, as with any layer that holds another.

    Reference: Inan et al., 2017, https://arxiv.org/abs/1611.01462 (tying)

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from dualnet.layers import OutputProjection
    >>> embedding = keras.layers.Embedding(10, 4)
    >>> output, hidden = OutputProjection(tied_to=embedding), np.ones((2, 5, 4), "float32")
    >>> tuple(output(hidden).shape)
    (2, 5, 10)
    >>> tuple(output(hidden, targets=np.zeros((2, 5), "int32")).shape)
    (2, 5)
    """

    def __init__(self, vocabulary_size=None, *, tied_to=None, use_bias=True, **kwargs):
        super().__init__(tied_to=tied_to, **kwargs)
        if vocabulary_size is None and tied_to is None:
            raise ArgumentError(
                "vocabulary_size", "or `tied_to` must be given. Received: None for both."
            )
        size = tied_to.input_dim if vocabulary_size is None else vocabulary_size
        self.vocabulary_size = check_count("vocabulary_size", size)
        if tied_to is not None:
            check_tied_size("vocabulary_size", size, tied_to.input_dim, "rows")
        self.use_bias = use_bias

    def build(self, input_shape):
        units = input_shape[-1]
        if self.tied_to is not None and self.tied_to.output_dim != units:
            raise ArgumentError(
                "inputs",
                "must have as many features as the embedding that the output is tied to, "
                f"{self.tied_to.output_dim}. Received: {units} features.",
            )
        self.build_output(units)

    def call(self, inputs, targets=None, temperature=None):
        matrix, bias = self.output_weights()
        words_first = self.tied_to is not None
        if targets is not None:
            rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
            words = ops.reshape(ops.maximum(targets, 0), (-1,))
            log_p = target_log_probabilities(
                rows, matrix, bias, words, words_first=words_first, temperature=temperature
            )
            return -ops.reshape(log_p, ops.shape(targets))
        logits = logits_of(inputs, ops.transpose(matrix) if words_first else matrix, bias)
        return logits if temperature is None else logits / temperature

    def compute_output_spec(self, inputs, targets=None, temperature=None):
        words = (self.vocabulary_size,) if targets is None else ()
        return keras.KerasTensor((*inputs.shape[:-1], *words), "float32")
