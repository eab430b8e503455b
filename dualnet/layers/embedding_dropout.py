import keras
from keras import ops

from dualnet._checks import check_count, check_rate
from dualnet.layers._seeded import SeededLayer


@keras.saving.register_keras_serializable("dualnet")
class EmbeddingDropout(SeededLayer):
    """Drops whole words: all of a word's vector, wherever the word stands in the segment.

    One draw per word type and call; what is kept is divided by `1 - rate`.

    Args:
        rate: float, at least 0 and below 1. The fraction of word types dropped.
        vocabulary_size: int, at least 1.
        per_row: bool. Each row draws for itself, as in the variational LSTM; or
            one draw is shared by all rows, as in AWD-LSTM, where it drops rows of
            the embedding matrix.
        seed: int or None. The state of the generator is saved with the weights.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `[tokens, embedded]`, int `(batch, time)` and `(batch, time, features)`.
        training: bool. Outside training `embedded` is returned as it is.

    Returns:
        `(batch, time, features)`.

    Raises:
        ValueError: if `rate` or `vocabulary_size` is out of range.

    Masking: passes on the mask of `embedded`.
    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287; Merity et
    al., 2018, https://arxiv.org/abs/1708.02182
    """

    def __init__(self, rate, *, vocabulary_size, per_row=False, seed=None, **kwargs):
        rate = check_rate("rate", rate)
        vocabulary_size = check_count("vocabulary_size", vocabulary_size, least=1)
        super().__init__(seed=seed, **kwargs)
        self.rate = rate
        self.vocabulary_size = vocabulary_size
        self.per_row = per_row
        self.supports_masking = True

    def call(self, inputs, training=False):
        tokens, embedded = inputs
        if not training or self.rate == 0:
            return embedded
        rows = ops.shape(tokens)[0] if self.per_row else 1
        kept = keras.random.dropout(
            ops.ones((rows, self.vocabulary_size), embedded.dtype),
            self.rate,
            seed=self.seed_generator,
        )
        if self.per_row:
            mask = ops.take_along_axis(kept, tokens, axis=1)
        else:
            mask = ops.take(kept[0], tokens)
        return embedded * ops.expand_dims(mask, -1)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[1]

    def get_config(self):
        return {
            **super().get_config(),
            "rate": self.rate,
            "vocabulary_size": self.vocabulary_size,
            "per_row": self.per_row,
        }
