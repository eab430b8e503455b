"""Mixture of softmaxes without a tensor of size tokens x experts x vocabulary.

    log p(v) = log sum_j pi_j softmax(k_j W + b)_v = log sum_j exp(log pi_j + log q_j(v))
    log q_j(v) = s_jv - log Z_j,  d log q_j(v) / d s_jw = 1[w = v] - q_j(w)

Both forms, for all words and for given ones, work in chunks, and the backward pass
recomputes the logits s_j.
"""

import contextvars

from keras import ops

from dualnet._backend import custom_gradient, scan
from dualnet._contexts import override
from dualnet.layers._fused_cross_entropy import Chunks, logits, target_log_probabilities

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
    # Nothing is saved: there is a row for each expert of each token.
    log_q = target_log_probabilities(
        rows, matrix, bias, row_targets, words_first=words_first, save=False
    )
    return ops.logsumexp(log_priors + ops.reshape(log_q, (-1, experts)), axis=-1)


def _of_all_words(latents, log_priors, kernel, bias):
    """Return log p of all words, float32 `(tokens, vocabulary)`.

    With r_jv, the share of expert j in p(v):
    d log p(v) / d log pi_j = r_jv,  d log p(v) / d s_jw = r_jv (1[w = v] - q_j(w)).
    """
    tokens, experts, units = ops.shape(latents)
    words = ops.shape(kernel)[1]
    if _in_one_piece.get():
        s = logits(ops.reshape(latents, (-1, units)), kernel, bias)
        s = ops.reshape(s, (-1, experts, words))
        return ops.logsumexp(ops.log_softmax(s) + log_priors[..., None], axis=1)
    chunks = Chunks(tokens, experts * words * 4, least=units // (2 * experts))

    def logits_of(k, kernel, bias):
        s = logits(ops.reshape(k, (-1, units)), kernel, bias[0] if bias else None)
        return ops.reshape(s, (-1, experts, words))

    def function(latents, log_priors, kernel, *bias):
        chunked = [chunks.split(latents), chunks.split(log_priors)]

        def forward(_, chunk):
            k, log_pi = chunk
            s = logits_of(k, kernel, bias)
            log_z = ops.logsumexp(s, axis=-1)
            log_p = ops.logsumexp(s + (log_pi - log_z)[..., None], axis=1)
            return [], [log_p, log_z]

        like = [chunks.like("float32", words), chunks.like("float32", experts)]
        _, results = scan(forward, [], chunked, like, length=chunks.count)

        def gradient(upstream):
            upstreams = chunks.split(ops.cast(upstream, "float32"))
            transposed = ops.transpose(kernel)

            def backward(sums, chunk):
                d_kernel, *d_bias = sums
                k, log_pi, log_p, log_z, upstream = chunk
                s = logits_of(k, kernel, bias)
                r = ops.exp(s + (log_pi - log_z)[..., None] - log_p[:, None])
                r = upstream[:, None] * r
                d_log_pi = ops.sum(r, axis=-1)
                q = ops.exp(s - log_z[..., None])
                d_s = ops.reshape(r - d_log_pi[..., None] * q, (-1, words))
                d_bias = [total + ops.sum(d_s, axis=0) for total in d_bias]
                d_s = ops.cast(d_s, kernel.dtype)
                d_k = ops.reshape(ops.matmul(d_s, transposed), (-1, experts, units))
                product = ops.matmul(ops.transpose(ops.reshape(k, (-1, units))), d_s)
                return [d_kernel + ops.cast(product, "float32"), *d_bias], [d_k, d_log_pi]

            sums = [ops.zeros(ops.shape(weight), dtype="float32") for weight in (kernel, *bias)]
            like = [chunks.like(latents.dtype, experts, units), chunks.like("float32", experts)]
            sequences = [*chunked, *results, upstreams]
            sums, (d_ks, d_log_pis) = scan(backward, sums, sequences, like, length=chunks.count)
            sums = [ops.cast(total, w.dtype) for total, w in zip(sums, (kernel, *bias))]
            return [chunks.join(d_ks), chunks.join(d_log_pis), *sums]

        return [chunks.join(results[0])], gradient

    arguments = [latents, log_priors, kernel, *([] if bias is None else [bias])]
    return custom_gradient(function, arguments)[0]
