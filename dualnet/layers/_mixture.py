"""log sum_j pi_j softmax(k_j W + b), without a tensor of size tokens x experts x vocabulary.

Both forms work in chunks. Of each the forward pass keeps log Z_j alone, the logarithm of
the sum in the softmax of expert j; the backward pass computes the logits s_j again.

    log p(v) = log sum_j exp(log pi_j + log q_j(v)),  log q_j(v) = s_jv - log Z_j
    d log q_j(v) / d s_jw = 1[w = v] - q_j(w)
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
    if targets is None:
        return _of_all_words(latents, log_priors, kernel, bias)
    _, experts, units = ops.shape(latents)
    rows = ops.reshape(latents, (-1, units))
    log_q = _of_targets(rows, kernel, bias, ops.repeat(ops.cast(targets, "int32"), experts))
    return ops.logsumexp(log_priors + ops.reshape(log_q, (-1, experts)), axis=-1)


def _of_targets(rows, kernel, bias, targets):
    """Return log softmax(row W + b) at each row's target, float32 `(rows,)`.

    The gradient G of a row's result is never multiplied with its q, but with the row:
    q is the largest tensor.
    """
    words = ops.shape(kernel)[1]
    chunks = _Chunks(ops.shape(rows)[0], words * 4)

    @ops.custom_gradient
    def function(rows, kernel, *bias):
        parts = chunks.split(rows)
        targets_of_parts = chunks.split(targets)
        first = ops.arange(chunks.length, dtype="int32") * words

        def forward(_, i):
            s = _logits(parts[i], kernel, bias)
            log_z = ops.logsumexp(s, axis=-1)
            found = ops.take(ops.reshape(s, (-1,)), first + targets_of_parts[i]) - log_z
            return (found, log_z), (found, log_z)

        nothing = ops.zeros((chunks.length,), dtype="float32")
        found, log_zs = chunks.scan(forward, (nothing, nothing))

        def gradient(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            upstream = ops.cast(upstream, "float32")[:, None]
            upstreams = chunks.split(upstream)
            transposed = ops.transpose(kernel)
            scaled = ops.cast(ops.cast(rows, "float32") * upstream, kernel.dtype)
            scaled_parts = chunks.split(scaled)

            def backward(i, carry):
                d_parts, d_kernel, *d_bias = carry
                now = _after(i, d_kernel)
                s = _logits(parts[now], kernel, bias)
                q = ops.exp(s - log_zs[now][:, None])
                g = upstreams[now]
                d_bias = [each - ops.matmul(ops.transpose(g), q)[0] for each in d_bias]
                q = ops.cast(q, kernel.dtype)
                d_part = ops.cast(ops.matmul(q, transposed), "float32") * -g
                product = ops.matmul(ops.transpose(scaled_parts[now]), q)
                return (
                    ops.slice_update(d_parts, (i, 0, 0), d_part[None]),
                    d_kernel - ops.cast(product, "float32"),
                    *d_bias,
                )

            # float32: a sum over all chunks
            sums = [ops.zeros(ops.shape(each), dtype="float32") for each in (kernel, *bias)]
            start = (ops.zeros(ops.shape(parts), dtype="float32"), *sums)
            d_parts, d_kernel, *d_bias = ops.fori_loop(0, chunks.count, backward, start)
            # And what the targets themselves add.
            at_targets = ops.cast(ops.take(transposed, targets, axis=0), "float32") * upstream
            d_rows = chunks.join(d_parts) + at_targets
            of_rows = ops.cast(scaled, "float32")
            d_kernel = d_kernel + ops.transpose(ops.segment_sum(of_rows, targets, words))
            d_bias = [each + ops.segment_sum(upstream[:, 0], targets, words) for each in d_bias]
            return (
                ops.cast(d_rows, rows.dtype),
                ops.cast(d_kernel, kernel.dtype),
                *[ops.cast(d, each.dtype) for d, each in zip(d_bias, bias)],
            )

        return chunks.join(found), gradient

    return function(rows, kernel, *([] if bias is None else [bias]))


def _of_all_words(latents, log_priors, kernel, bias):
    """Return log p of all words, float32 `(tokens, vocabulary)`.

    With r_jv the share of expert j in p(v): d log p(v) / d log pi_j = r_jv, and
    d log p(v) / d s_jw = r_jv (1[w = v] - q_j(w)).
    """
    tokens, experts, units = ops.shape(latents)
    words = ops.shape(kernel)[1]
    if _in_one_piece.get():
        s = _logits(ops.reshape(latents, (-1, units)), kernel, [] if bias is None else [bias])
        s = ops.reshape(s, (-1, experts, words))
        return ops.logsumexp(ops.log_softmax(s) + log_priors[..., None], axis=1)
    chunks = _Chunks(tokens, experts * words * 4)

    def logits_of(k, kernel, bias):
        return ops.reshape(_logits(ops.reshape(k, (-1, units)), kernel, bias), (-1, experts, words))

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
                now = _after(i, d_kernel)
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


class _Chunks:
    """Rows in `count` chunks of `length` each, the last one of which is filled up with zeros.

    Args:
        rows: int, or a tensor where their number is unknown until the graph runs.
        bytes_per_row: int. Size of the largest tensor that a row makes.
    """

    def __init__(self, rows, bytes_per_row):
        most = max(1, CHUNK_BYTES // bytes_per_row)
        self.rows = rows
        self.count = rows // most + 1  # at least 1, if there are no rows too
        self.length = (rows + self.count - 1) // self.count

    def split(self, values):
        """Return `(rows, ...)` as `(count, length, ...)`."""
        rest = ops.shape(values)[1:]
        missing = ops.zeros((self.count * self.length - self.rows, *rest), dtype=values.dtype)
        filled = ops.concatenate([values, missing], axis=0)
        return ops.reshape(filled, (self.count, self.length, *rest))

    def join(self, values):
        """Return `(count, length, ...)` as `(rows, ...)`."""
        rest = ops.shape(values)[2:]
        return ops.reshape(values, (self.count * self.length, *rest))[: self.rows]

    def scan(self, function, like):
        """Return what `function(_, i)` finds in each chunk i, stacked."""
        # TensorFlow wants a carry `like` what each step returns. Over places alone: Keras takes
        # several arrays of unknown length on some backends only.
        _, found = ops.scan(function, tuple(like), ops.arange(self.count, dtype="int32"))
        return found


def _logits(rows, kernel, bias):
    s = ops.cast(ops.matmul(rows, kernel), "float32")
    return s + bias[0] if bias else s


def _after(i, tensor):
    """Return `i`, and make TensorFlow, which runs steps of a loop at once, wait for `tensor`."""
    return i + ops.minimum(ops.cast(ops.isnan(tensor[0, 0]), "int32"), 0)
