"""log sum_j pi_j softmax(k_j W + b), without a tensor of size tokens x experts x vocabulary.

Both forms work in chunks. Of each the forward pass keeps log Z_j alone, the logarithm of
the sum in the softmax of expert j; the backward pass computes the logits s_j again.

    log p(v) = log sum_j exp(log pi_j + log q_j(v)),  log q_j(v) = s_jv - log Z_j
    d log q_j(v) / d s_jw = 1[w = v] - q_j(w)
"""

import contextlib
import contextvars

from keras import ops

from dualnet.layers._given_words import Chunks, after, log_probabilities, logits

_in_one_piece = contextvars.ContextVar("in_one_piece", default=False)


@contextlib.contextmanager
def in_one_piece():
    """Take no chunks meanwhile where all words are asked for: some formats know no loop."""
    before = _in_one_piece.set(True)
    try:
        yield
    finally:
        _in_one_piece.reset(before)


def mixture_log_probabilities(latents, log_priors, kernel, bias=None, targets=None):
    """Return the log-probabilities of all words, or of the targets alone, in float32.

    The products run in the dtype of `latents` and `kernel`, all else in float32.

    Args:
        latents: `(tokens, experts, units)`.
        log_priors: float32 `(tokens, experts)`.
        kernel: `(units, vocabulary)`.
        bias: float32 `(vocabulary,)` or None.
        targets: int `(tokens,)`, none negative, or None.
    Returns:
        `(tokens, vocabulary)`, or `(tokens,)` if targets are given; in nats.
    """
    if targets is None:
        return _of_all_words(latents, log_priors, kernel, bias)
    _, experts, units = ops.shape(latents)
    rows = ops.reshape(latents, (-1, units))
    log_q = _of_targets(rows, kernel, bias, ops.repeat(ops.cast(targets, "int32"), experts))
    return ops.logsumexp(log_priors + ops.reshape(log_q, (-1, experts)), axis=-1)


def _of_all_words(latents, log_priors, kernel, bias):
    """Return log p of all words, float32 `(tokens, vocabulary)`.

    With r_jv the share of expert j in p(v): d log p(v) / d log pi_j = r_jv, and
    d log p(v) / d s_jw = r_jv (1[w = v] - q_j(w)).
    """
    tokens, experts, units = ops.shape(latents)
    words = ops.shape(kernel)[1]
    if _in_one_piece.get():
        s = logits(ops.reshape(latents, (-1, units)), kernel, [] if bias is None else [bias])
        s = ops.reshape(s, (-1, experts, words))
        return ops.logsumexp(ops.log_softmax(s) + log_priors[..., None], axis=1)
    chunks = Chunks(tokens, experts * words * 4)

    def logits_of(k, kernel, bias):
        return ops.reshape(logits(ops.reshape(k, (-1, units)), kernel, bias), (-1, experts, words))

    @ops.custom_gradient
    def function(latents, log_priors, kernel, *bias):
        ks, log_pis = chunks.split(latents), chunks.split(log_priors)

        def forward(_, i):
            s = logits_of(ks[i], kernel, bias)
            log_z = ops.logsumexp(s, axis=-1)
            log_p = ops.logsumexp(s + (log_pis[i] - log_z)[..., None], axis=1)
            return (log_p, log_z), (log_p, log_z)

        sizes = (chunks.length, words), (chunks.length, experts)
        log_ps, log_zs = chunks.scan(forward, [ops.zeros(size, dtype="float32") for size in sizes])

        def gradient(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            upstreams = chunks.split(ops.cast(upstream, "float32"))
            transposed = ops.transpose(kernel)

            def backward(i, carry):
                d_ks, d_log_pis, d_kernel, *d_bias = carry
                now = after(i, d_kernel)
                log_z = log_zs[now][..., None]
                s = logits_of(ks[now], kernel, bias)
                r = ops.exp(s + log_pis[now][..., None] - log_z - log_ps[now][:, None])
                r = upstreams[now][:, None] * r
                d_log_pi = ops.sum(r, axis=-1)
                d_s = ops.reshape(r - d_log_pi[..., None] * ops.exp(s - log_z), (-1, words))
                d_bias = [each + ops.sum(d_s, axis=0) for each in d_bias]
                d_s = ops.cast(d_s, kernel.dtype)
                d_k = ops.reshape(ops.matmul(d_s, transposed), (1, -1, experts, units))
                product = ops.matmul(ops.transpose(ops.reshape(ks[now], (-1, units))), d_s)
                return (
                    ops.slice_update(d_ks, (i, 0, 0, 0), ops.cast(d_k, d_ks.dtype)),
                    ops.slice_update(d_log_pis, (i, 0, 0), d_log_pi[None]),
                    d_kernel + ops.cast(product, "float32"),
                    *d_bias,
                )

            sums = [ops.zeros(ops.shape(each), dtype="float32") for each in (kernel, *bias)]
            start = (ops.zeros_like(ks), ops.zeros_like(log_pis), *sums)
            d_ks, d_log_pis, *sums = ops.fori_loop(0, chunks.count, backward, start)
            sums = [ops.cast(d, each.dtype) for d, each in zip(sums, (kernel, *bias))]
            return chunks.join(d_ks), chunks.join(d_log_pis), *sums

        return chunks.join(log_ps), gradient

    return function(latents, log_priors, kernel, *([] if bias is None else [bias]))
