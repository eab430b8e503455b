"""log sum_j pi_j softmax(k_j W + b), without a tensor of size tokens x experts x vocabulary.

The tokens are taken in chunks. Of each chunk the forward pass keeps log Z_j alone, the
logarithm of the sum in the softmax of expert j; the backward pass computes the logits of the
chunk again. With s_jv the logits, q_j their softmax and r_jv the share of expert j in p(v),

    log p(v) = log sum_j exp(log pi_j + s_jv - log Z_j)
    d log p(v) / d log pi_j = r_jv
    d log p(v) / d s_jw = r_jv (1[w = v] - q_jw)
"""

import contextlib
import contextvars

from keras import ops

# Of one float32 tensor of logits of a chunk; two or three of them exist at a time.
CHUNK_BYTES = 16 * 2**20


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
    tokens, experts, units = ops.shape(latents)
    words = ops.shape(kernel)[1]
    if targets is None and _in_one_piece.get():
        s = ops.cast(ops.matmul(ops.reshape(latents, (-1, units)), kernel), "float32")
        s = ops.reshape(s if bias is None else s + bias, (-1, experts, words))
        return ops.logsumexp(ops.log_softmax(s) + log_priors[..., None], axis=1)
    count, chunk = _chunks(tokens, experts * words * 4)

    def split(values):
        """Return `(count, chunk, ...)`, filled up with zeros."""
        rest = ops.shape(values)[1:]
        missing = ops.zeros((count * chunk - tokens, *rest), dtype=values.dtype)
        return ops.reshape(ops.concatenate([values, missing], axis=0), (count, chunk, *rest))

    def join(values):
        rest = ops.shape(values)[2:]
        return ops.reshape(values, (count * chunk, *rest))[:tokens]

    def logits_of(k, kernel, bias):
        s = ops.cast(ops.matmul(ops.reshape(k, (-1, units)), kernel), "float32")
        return ops.reshape(s + bias[0] if bias else s, (-1, experts, words))

    chosen = None if targets is None else split(ops.cast(targets, "int32"))

    def is_target(y):
        return ops.cast(ops.equal(ops.arange(words, dtype="int32"), y[:, None]), "float32")

    @ops.custom_gradient
    def function(latents, log_priors, kernel, *bias):
        ks, log_pis = split(latents), split(log_priors)

        def forward(_, i):
            log_pi = log_pis[i]
            s = logits_of(ks[i], kernel, bias)
            log_z = ops.logsumexp(s, axis=-1)
            if chosen is not None:
                rows = ops.arange(chunk * experts, dtype="int32") * words
                at = rows + ops.repeat(chosen[i], experts)
                s = ops.reshape(ops.take(ops.reshape(s, (-1,)), at), (-1, experts))
                log_p = ops.logsumexp(log_pi + s - log_z, axis=1)
            else:
                log_p = ops.logsumexp(s + (log_pi - log_z)[..., None], axis=1)
            return (log_p, log_z), (log_p, log_z)

        # TensorFlow wants a carry like what each step returns.
        size = (chunk,) if chosen is not None else (chunk, words)
        nothing = ops.zeros(size, dtype="float32"), ops.zeros((chunk, experts), dtype="float32")
        # Over places alone: Keras takes several arrays of unknown length on some backends only.
        places = ops.arange(count, dtype="int32")
        _, (log_ps, log_zs) = ops.scan(forward, nothing, places)

        def gradient(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            upstreams = split(ops.cast(upstream, "float32"))
            transposed = ops.transpose(kernel)

            def backward(i, carry):
                d_ks, d_log_pis, d_kernel, *d_bias = carry
                # Adds 0, and makes TensorFlow, which runs steps of a loop at once, wait.
                now = i + ops.minimum(ops.cast(ops.isnan(d_kernel[0, 0]), "int32"), 0)
                k, log_pi, log_p, log_z = ks[now], log_pis[now], log_ps[now], log_zs[now]
                upstream = upstreams[now]
                s = logits_of(k, kernel, bias)
                q = ops.exp(s - log_z[..., None])
                if chosen is not None:
                    y = is_target(chosen[now])[:, None]  # (chunk, 1, words)
                    log_q = ops.sum(ops.where(y > 0, s, 0.0), axis=-1) - log_z
                    d_log_pi = upstream[:, None] * ops.exp(log_pi + log_q - log_p[:, None])
                    d_s = d_log_pi[..., None] * (y - q)
                else:
                    r = ops.exp(s + (log_pi - log_z)[..., None] - log_p[:, None])
                    r = upstream[:, None] * r
                    d_log_pi = ops.sum(r, axis=-1)
                    d_s = r - d_log_pi[..., None] * q
                d_s = ops.reshape(d_s, (-1, words))
                d_bias = [each + ops.sum(d_s, axis=0) for each in d_bias]
                d_s = ops.cast(d_s, kernel.dtype)
                d_k = ops.reshape(ops.matmul(d_s, transposed), (1, chunk, experts, units))
                product = ops.matmul(ops.transpose(ops.reshape(k, (-1, units))), d_s)
                return (
                    ops.slice_update(d_ks, (i, 0, 0, 0), ops.cast(d_k, d_ks.dtype)),
                    ops.slice_update(d_log_pis, (i, 0, 0), d_log_pi[None]),
                    d_kernel + ops.cast(product, "float32"),
                    *d_bias,
                )

            # float32: a sum over all chunks
            sums = [ops.zeros(ops.shape(each), dtype="float32") for each in (kernel, *bias)]
            start = (ops.zeros_like(ks), ops.zeros_like(log_pis), *sums)
            d_ks, d_log_pis, *sums = ops.fori_loop(0, count, backward, start)
            sums = [ops.cast(d, each.dtype) for d, each in zip(sums, (kernel, *bias))]
            return join(d_ks), join(d_log_pis), *sums

        return join(log_ps), gradient

    return function(latents, log_priors, kernel, *([] if bias is None else [bias]))


def _chunks(tokens, bytes_per_token):
    """Return the number of chunks and the tokens in each, the last one of which may be short.

    `tokens` may be a tensor, where their number is unknown until the graph runs.
    """
    most = max(1, CHUNK_BYTES // bytes_per_token)
    count = tokens // most + 1  # at least 1, if there are no tokens too
    return count, (tokens + count - 1) // count
