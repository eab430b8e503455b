import math

import keras
from keras import ops

from dualnet._checks import check_choice, check_count, check_fraction, check_penalty
from dualnet.layers._configured import ConfiguredLayer

STARTS = ("at_once", "when_full")
WEIGHT, SCALE = 0.2, 0.3  # the defaults, those in the code of Takase et al.
SMALLEST = 2.0**-126  # the smallest normal float32, whose inverse is finite


def by_word(values, words, vocabulary):
    """Return the sums of `values` by word, float32 `(batch, time, vocabulary)`.

    Args:
        values: float32 `(batch, places, time)`.
        words: int32 `(batch, places)`, the word at each place.
        vocabulary: int. Number of words.
    """
    batch, places, time = ops.shape(values)
    # Each row sums into its own words.
    first = ops.expand_dims(ops.arange(batch, dtype="int32") * vocabulary, -1)
    sums = ops.segment_sum(
        ops.reshape(values, (batch * places, time)),
        ops.reshape(words + first, (batch * places,)),
        num_segments=batch * vocabulary,
    )
    return ops.transpose(ops.reshape(sums, (batch, vocabulary, time)), (0, 2, 1))


def mixed(log_p, added):
    """Return `log(exp(log_p) + added)`; `added` may be 0."""
    is_added = added >= SMALLEST
    # `where` twice: the log of 0 has no valid gradient, not even one that is discarded.
    log_added = ops.log(ops.where(is_added, added, 1.0))
    # Not `logaddexp`, whose gradient TensorFlow gets wrong if both are equal.
    highest = ops.stop_gradient(ops.maximum(log_p, log_added))
    mixture = highest + ops.log(ops.exp(log_p - highest) + ops.exp(log_added - highest))
    return ops.where(is_added, mixture, log_p)


@keras.saving.register_keras_serializable("dualnet")
class NeuralCache(ConfiguredLayer):
    """Continuous cache: makes words likelier that followed similar hidden vectors before.

    After token x_t the cache holds the last `size` pairs (h_j, x_(j+1)), j < t:

    p_cache(w) = sum over j with x_(j+1) = w of softmax_j(scale * h_j . h_t)
    p = weight * p_cache + (1 - weight) * softmax(logits)

    It has no weights and is not trained. The result does not depend on how the text is cut
    into segments. Everything runs in float32.

    Args:
        size: int, at least 1. Number of pairs.
        weight: float, at least 0 and below 1. The papers' lambda. With 0 the result is
            the log-softmax of the logits.
        scale: float, at least 0. The papers' theta. With 0 the cache is a unigram model
            of the last `size` words.
        start: when the cache starts to contribute. "at_once": as soon as there is one pair,
            from the second token of the text on (Takase et al.). "when_full": when more
            than `size` tokens precede the current one (Merity et al.). Before that, p is
            the softmax alone.

    Call arguments:
        inputs: `[tokens, hidden, logits]`, int `(batch, time)`, `(batch, time, units)`
            and `(batch, time, vocabulary)`; `hidden` and `logits` at t include the
            token at t. There is no padding: every token counts.
        initial_state: list of three float32 tensors `(batch, size)`, with the sizes from
            `state_sizes`: the last `size` hidden vectors; the ids of their tokens, exact
            below 2**24; the number of tokens read, at most `size + 1`. None for zeros.

    Returns:
        `[log_probabilities, *states]`: float32 `(batch, time, vocabulary)` and the states
        after the last token.

    Raises:
        ValueError: if an argument is out of range.

    Memory: `time * (size + time)` scores per row, besides the result.

    Masking: passes on the mask of `logits`.

    Differs from the papers: AWD-LSTM's pointer code evaluates the text in chunks of 5000 or
    2000 tokens and skips the first token of each later chunk; here none is skipped. The IOG
    code subtracts no maximum before exp, and can overflow.

    Reference: Grave, Joulin and Usunier, 2017, https://arxiv.org/abs/1612.04426; Merity
    et al., 2018, https://arxiv.org/abs/1708.02182; Takase, Suzuki and Nagata, 2017,
    https://arxiv.org/abs/1709.08907

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import NeuralCache
    >>> tokens = np.array([[1, 2, 1]], "int32")
    >>> hidden, logits = np.ones((1, 3, 4), "float32"), np.zeros((1, 3, 10), "float32")
    >>> log_p, *states = NeuralCache(size=2)([tokens, hidden, logits])
    >>> int(np.argmax(log_p[0, 1]))  # after 1, 2: the cache has seen 2 follow 1
    2
    """

    def __init__(self, size, *, weight=WEIGHT, scale=SCALE, start=STARTS[0], **kwargs):
        super().__init__(autocast=False, **kwargs)  # bfloat16 would change the ids
        self.size = check_count("size", size)
        self.weight = check_fraction("weight", weight)
        self.scale = check_penalty("scale", scale)
        self.start = check_choice("start", start, STARTS)

    def state_sizes(self, units):
        """Return the sizes of the three states for hidden vectors of size `units`."""
        return [self.size * units, self.size, 1]

    def call(self, inputs, initial_state=None):
        tokens, hidden, logits = inputs
        hidden = ops.cast(hidden, "float32")
        log_p = ops.log_softmax(ops.cast(logits, "float32"))
        batch, time, units = ops.shape(hidden)
        if initial_state is None:
            initial_state = [ops.zeros((batch, size)) for size in self.state_sizes(units)]
        keys, words, count = initial_state
        keys = ops.reshape(keys, (-1, self.size, units))
        keys = ops.concatenate([keys, hidden], axis=1)  # (batch, size + time, units)
        words = ops.concatenate([words, ops.cast(tokens, "float32")], axis=1)
        before = ops.cast(count, "int32") + ops.arange(time, dtype="int32")  # (batch, time)
        if self.weight:
            attention = self._attention(keys, hidden, before)
            p_cache = by_word(attention, ops.cast(words[:, 1:], "int32"), log_p.shape[-1])
            kept = ops.where(self._mixes(before), math.log1p(-self.weight), 0.0)
            log_p = mixed(log_p + ops.expand_dims(kept, -1), self.weight * p_cache)
        count = ops.minimum(before[:, -1:] + 1, self.size + 1)
        states = keys[:, -self.size :], words[:, -self.size :], ops.cast(count, "float32")
        # Reshaped, since the size of a slice of unknown length is unknown.
        sizes = self.state_sizes(units)
        return [log_p, *[ops.reshape(state, (-1, n)) for state, n in zip(states, sizes)]]

    def _mixes(self, count):
        """Return a mask of the steps at which the cache contributes, after `count` tokens each."""
        return count >= (1 if self.start == "at_once" else self.size + 1)

    def _attention(self, keys, hidden, before):
        """Return the weight of pair k at step t, `(batch, size + time - 1, time)`.

        Pair k is `keys[:, k]` and the word after it. The weight is 0 outside of the window of
        step t, which starts at k = t.
        """
        time = ops.shape(hidden)[1]
        pair = ops.expand_dims(ops.arange(self.size + time - 1, dtype="int32"), -1)
        step = ops.expand_dims(ops.arange(time, dtype="int32"), 0)
        window = (pair >= step) & (pair < step + self.size)  # (pairs, time)
        # If fewer than `size` tokens were read, only the last keys of the state hold any.
        read = pair >= self.size - ops.expand_dims(before[:, :1], 1)  # (batch, pairs, 1)
        used = read & ops.expand_dims(self._mixes(before), 1) & window

        scores = self.scale * ops.matmul(keys[:, :-1], ops.transpose(hidden, (0, 2, 1)))
        scores = ops.where(used, scores, -1e30)
        highest = ops.stop_gradient(ops.max(scores, axis=1, keepdims=True))
        powers = ops.where(used, ops.exp(scores - highest), 0.0)
        total = ops.sum(powers, axis=1, keepdims=True)
        return powers / ops.where(total > 0, total, 1.0)  # 0 if no pair is used

    def compute_output_spec(self, inputs, initial_state=None):
        # Without it torch would run the layer to learn the shapes, on a large made-up batch.
        _, hidden, logits = inputs
        shapes = [(logits.shape[0], size) for size in self.state_sizes(hidden.shape[-1])]
        return [keras.KerasTensor(shape, "float32") for shape in (logits.shape, *shapes)]

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else [mask[2], None, None, None]
