import keras
from keras import ops

from dualnet._checks import check_count, check_fraction
from dualnet.layers._configured import ConfiguredLayer
from dualnet.layers.neural_cache import by_word, mixed

WEIGHTS = (0.02, 0.2, 0.4, 0.6)  # of contexts of 0, 1, 2 and 3 tokens


@keras.saving.register_keras_serializable("dualnet")
class NGramCache(ConfiguredLayer):
    """Cache of n-grams: makes words likelier that followed the same tokens before.

    The cache holds the last `size` tokens. Of a context, the last k tokens, it counts how often it
    stands before another token there, n, how many different tokens follow it, d, and how often
    each does, c(y). The contexts are mixed into p = softmax(logits), the shortest first:

    p(y) <- (1 - l) p(y) + l c(y) / n,  l = weights[k] n / (n + 2 d)

    A share grows as its context is seen more often, and shrinks as more tokens follow it (as in
    Witten-Bell smoothing). The cache has no weights and is not trained: the gradient is that of
    log softmax(logits), as if nothing were mixed in. The result does not depend on how the text is
    cut into segments. Everything runs in float32.

    Args:
        size: int, at least 1. Number of tokens.
        weights: floats, at least 0 and below 1, for contexts of 0, 1, 2, ... tokens.

    Call arguments:
        inputs: `[tokens, logits]`, int `(batch, time)` and `(batch, time, vocabulary)`; `logits`
            at t include the token at t. Ids below 0, at the end of a row, are padding.
        initial_state: float32 `(batch, size)`, the last `size` ids plus 1, exact below 2**24; 0 is
            none, and stands before all ids. None for zeros.

    Returns:
        `[log_probabilities, state]`: float32 `(batch, time, vocabulary)` and the state after the
        last token.

    Raises:
        ValueError: if an argument is out of range.

    Memory: `time * (size + time)` numbers per row and context, besides the result.

    Masking: passes on the mask of `logits`.

    Reference: Kuhn and De Mori, 1990, https://doi.org/10.1109/34.56193 (counts of the last words);
    Witten and Bell, 1991, https://doi.org/10.1109/18.87000. The shares are our choice.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import NGramCache
    >>> tokens = np.array([[1, 2, 1]], "int32")
    >>> log_p, state = NGramCache(4)([tokens, np.zeros((1, 3, 10), "float32")])
    >>> int(np.argmax(log_p[0, 2]))  # after 1, 2, 1: the cache has seen 2 follow 1
    2
    """

    def __init__(self, size, *, weights=WEIGHTS, **kwargs):
        super().__init__(autocast=False, **kwargs)  # bfloat16 would change the ids
        self.size = check_count("size", size)
        self.shares = tuple(check_fraction("weights", weight) for weight in weights)

    def get_config(self):
        return {**super().get_config(), "weights": list(self.shares)}

    def call(self, inputs, initial_state=None):
        tokens, logits = inputs
        log_p = ops.log_softmax(ops.cast(logits, "float32"))
        batch, time = ops.shape(tokens)
        if initial_state is None:
            initial_state = ops.zeros((batch, self.size))
        tokens = ops.cast(tokens, "int32")
        ids = ops.concatenate([ops.cast(initial_state, "int32") - 1, ops.maximum(tokens, -1)], 1)
        read = ops.sum(ops.cast(tokens >= 0, "int32"), axis=1, keepdims=True)
        state = ops.take_along_axis(ids, read + ops.arange(self.size, dtype="int32"), axis=1) + 1

        kept, added = 1.0, 0.0
        for weight, follows in zip(self.shares, self._contexts(ids, time)):
            counts = by_word(follows, ops.maximum(ids, 0), log_p.shape[-1])
            number = ops.sum(follows, axis=1)[..., None]  # (batch, time, 1)
            different = ops.sum(ops.cast(counts > 0, "float32"), axis=-1, keepdims=True)
            total = ops.maximum(number + 2.0 * different, 1.0)
            left = 1.0 - weight * number / total
            kept, added = left * kept, left * added + weight * counts / total
        mixture = mixed(log_p + ops.log(kept), added)
        log_p = log_p + ops.stop_gradient(mixture - log_p)
        return [log_p, ops.reshape(ops.cast(state, "float32"), (-1, self.size))]

    def _contexts(self, ids, time):
        """Yield for each context which tokens of the cache follow it at step t.

        These are 1 or 0, float32 `(batch, size + time, time)`.
        """
        place = ops.arange(self.size + time, dtype="int32")[:, None]
        step = ops.arange(time, dtype="int32")
        # At step t, the cache holds the places t + 1 to t + size.
        follows = (ids >= 0)[..., None] & (place <= step + self.size)
        for length in range(min(len(self.shares), self.size)):
            if length:
                before = ops.pad(ids[:, :-length], ((0, 0), (length, 0)), constant_values=-1)
                start = self.size + 1 - length
                last = ids[:, start : start + time]  # the context's first token
                follows = follows & (before[..., None] == last[:, None])
            follows = follows & (place > step + length)
            yield ops.cast(follows, "float32")

    def compute_output_spec(self, inputs, initial_state=None):
        # Without it torch would run the layer to learn the shapes, on a large made-up batch.
        _, logits = inputs
        state = (logits.shape[0], self.size)
        return [keras.KerasTensor(shape, "float32") for shape in (logits.shape, state)]

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else [mask[1], None]
