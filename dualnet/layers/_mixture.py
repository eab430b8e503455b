"""Mixture of softmaxes in chunks of tokens.

    log p(v) = log sum_j pi_j softmax(k_j W + b)_v = log sum_j exp(log pi_j + log q_j(v))

For given words, the backward pass needs each softmax: it is saved as far as `SAVED_BYTES` allow.
For all words, it recomputes the logits k_j W + b, so that no tensor is of size
tokens x experts x vocabulary.
"""

import contextvars

from keras import ops

from dualnet._backend import custom_gradient, vjp
from dualnet._contexts import override
from dualnet.layers._fused_cross_entropy import Chunks, cast_like, logits, target_log_probabilities

_in_one_piece = contextvars.ContextVar("in_one_piece", default=False)


def in_one_piece():
    """Return a context without chunks in the form for all words: some formats have no loops."""
    return override(_in_one_piece, True)


def mixture_log_probabilities(
    latents, log_priors, matrix, bias=None, targets=None, *, words_first=False
):
    """Return log p of all words, `(tokens, vocabulary)`, or of the targets, `(tokens,)`.

    The products run in the dtype of `latents` and `matrix`, everything else in float32.

    Args:
        latents: `(tokens, experts, units)`.
        log_priors: float32 `(tokens, experts)`.
        matrix, bias, targets, words_first: as in `target_log_probabilities`.
    """
    if targets is None:
        kernel = ops.transpose(matrix) if words_first else matrix
        return _of_all_words(latents, log_priors, kernel, bias)
    _, experts, units = ops.shape(latents)
    rows = ops.reshape(latents, (-1, units))
    row_targets = ops.repeat(ops.cast(targets, "int32"), experts)
    log_q = target_log_probabilities(rows, matrix, bias, row_targets, words_first=words_first)
    return ops.logsumexp(log_priors + ops.reshape(log_q, (-1, experts)), axis=-1)


def _of_all_words(latents, log_priors, kernel, bias):
    """Return log p of all words, float32 `(tokens, vocabulary)`."""
    tokens, experts, units = ops.shape(latents)
    words = ops.shape(kernel)[1]
    arguments = [latents, log_priors, kernel, *([] if bias is None else [bias])]

    def log_p(latents, log_priors, kernel, bias=None):
        s = logits(ops.reshape(latents, (-1, units)), kernel, bias)
        log_q = ops.log_softmax(ops.reshape(s, (-1, experts, words)))
        return [ops.logsumexp(log_q + ops.expand_dims(log_priors, -1), axis=1)]

    if _in_one_piece.get():
        return log_p(*arguments)[0]
    chunks = Chunks(tokens, experts * words * 4, least=units // (2 * experts))

    def function(latents, log_priors, *weights):
        rows = [latents, log_priors]

        def gradient(upstream):
            def gradients_of_chunk(k, log_pi, upstream):
                chunk = [k, log_pi, *weights]
                return vjp(lambda *arguments: (log_p(*arguments), []), chunk, [upstream])[0]

            sums = [ops.zeros(ops.shape(weight), dtype="float32") for weight in weights]
            gradients = chunks.gradients(gradients_of_chunk, rows, [*rows, upstream], sums)
            return cast_like(gradients, [*rows, *weights])

        like = [chunks.like("float32", words)]
        return chunks.map(lambda *chunk: log_p(*chunk, *weights), rows, like), gradient

    return custom_gradient(function, arguments)[0]
