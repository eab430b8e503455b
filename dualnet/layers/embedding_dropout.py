import keras
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._seeded import SeededDropout


@keras.saving.register_keras_serializable("dualnet")
class EmbeddingDropout(SeededDropout):
    """Drops whole words: the vector of a word is dropped wherever it occurs in the segment.

    Each call draws once per word type. The words that are kept are divided by `1 - rate`.

    Args:
        rate: float, at least 0 and below 1. Fraction of word types to drop.
        vocabulary_size: int, at least 1.
        per_row: bool. Whether each row of the batch has its own draw, as in the variational
            LSTM; otherwise all rows share one, as in AWD-LSTM, which drops rows of the
            embedding matrix.
        seed: int or None. The state of the generator is saved with the weights.

    Call arguments:
        inputs: `[tokens, embedded]`, int `(batch, time)` and `(batch, time, features)`.
        training: bool. Outside training `embedded` is returned unchanged.

    Returns:
        `(batch, time, features)`.

    Masking: passes on the mask of `embedded`.
    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287; Merity et
    al., 2018, https://arxiv.org/abs/1708.02182

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import EmbeddingDropout
    >>> tokens, embedded = np.array([[1, 2, 1]]), np.ones((1, 3, 4), "float32")
    >>> layer = EmbeddingDropout(0.5, vocabulary_size=10)
    >>> outputs = np.array(layer([tokens, embedded], training=True))
    >>> bool(np.all(outputs[:, 0] == outputs[:, 2]))
    True
    """

    masked_input = 1

    def __init__(self, rate, *, vocabulary_size, per_row=False, seed=None, **kwargs):
        super().__init__(rate, seed=seed, autocast=False, **kwargs)  # bfloat16 would change ids
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.per_row = per_row

    def call(self, inputs, training=False):
        tokens, embedded = ops.cast(inputs[0], "int32"), ops.cast(inputs[1], self.compute_dtype)
        if not training or self.rate == 0:
            return embedded
        rows = ops.shape(tokens)[0] if self.per_row else 1
        kept = self.drop(ops.ones((rows, self.vocabulary_size), embedded.dtype), self.rate)
        if self.per_row:
            mask = ops.take_along_axis(kept, tokens, axis=1)
        else:
            mask = ops.take(kept[0], tokens)
        return embedded * ops.expand_dims(mask, -1)
