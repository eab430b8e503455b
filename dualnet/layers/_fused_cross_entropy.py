"""Fused cross-entropy: log p of given words straight from the rows that enter the output matrix.

For a row h with the target y, and the logits s = (h W + b) / temperature:

    log p(y) = s_y - log Z,  d log p(y) / d s_v = 1[v = y] - q_v,  q = softmax(s)

The logits of all words are the largest tensors of a model, so this module makes few of them
and passes over each only a few times. The backward pass needs q - 1[v = y], in the dtype of the
products. It is saved for as many rows as `SAVED_BYTES` allow. For all other rows the logits
are recomputed, one chunk of rows at a time.
"""

import functools

from keras import KerasTensor, backend, ops

from dualnet import _backend
from dualnet._backend import custom_gradient, scan

# Size of the float32 logits of the rows for which the backward pass recomputes nothing.
SAVED_BYTES = 128 * 2**20
# Size of the float32 logits of one chunk of rows; two or three such tensors exist at a time. With
# a large vocabulary a chunk has more rows, see `Chunks`.
CHUNK_BYTES = 16 * 2**20
# With fewer logits in training, compiling what follows them takes longer than it saves.
LEAST_COMPILED = 2**21


def target_log_probabilities(
    rows, matrix, bias, targets, *, words_first=False, temperature=None, save=True
):
    """Return log softmax((row W + b) / temperature) at each row's target, float32 `(rows,)`.

    The products run in the dtype of `rows`, everything else in float32.

    Args:
        rows: `(rows, units)`.
        matrix: W, `(units, words)`, or its transpose.
        bias: float32 `(words,)` or None.
        targets: int `(rows,)`, all at least 0.
        words_first: bool. Whether `matrix` is `(words, units)`, as an embedding is.
        temperature: float or scalar tensor, which gets no gradient, or None for 1.
        save: bool. Whether to save up to `SAVED_BYTES` for the backward pass, or nothing.
    """
    words = matrix.shape[0 if words_first else 1]
    num_rows = ops.shape(rows)[0]
    num_saved = _minimum(num_rows, SAVED_BYTES // (words * 4)) if save else 0
    saves_all = isinstance(num_rows, int) and num_saved == num_rows
    # A number that is unknown until the graph runs may be above 0.
    saves_any = saves_all or not isinstance(num_saved, int) or num_saved > 0
    is_large = isinstance(num_rows, int) and num_rows * words >= LEAST_COMPILED
    targets = ops.cast(targets, "int32")
    chunks = Chunks(num_rows - num_saved, words * 4, least=rows.shape[1] // 2)

    def function(rows, matrix, *bias):
        matrix = ops.cast(matrix, rows.dtype)
        # Without saving, it may be the forward pass of an evaluation, whose lengths vary.
        softmax = _Softmax(matrix, bias, words_first, temperature, is_compiled=is_large and save)
        log_ps = []
        if saves_any:
            log_p, differences = softmax.at_targets(rows[:num_saved], targets[:num_saved])
            log_ps.append(log_p)

        def log_p_of_chunks():
            def forward(_, chunk):
                return [], [softmax.at_targets(*chunk)[0]]

            values = [rows[num_saved:], targets[num_saved:]]
            _, [log_p] = chunks.scan(forward, [], values, [chunks.like("float32")])
            return log_p

        if not saves_all:
            none = ops.zeros((0,), "float32")
            log_ps.append(_if_any(chunks.rows, log_p_of_chunks, none))

        def gradient(upstream):
            softmax.is_compiled = is_large
            scale = -ops.cast(upstream, "float32")[:, None]
            if temperature is not None:
                scale = scale / temperature
            scaled = ops.cast(ops.cast(rows, "float32") * scale, rows.dtype)
            d_rows = []
            sums = [ops.zeros(weight.shape, dtype="float32") for weight in (matrix, *bias)]
            if saves_any:
                scales = scaled[:num_saved], scale[:num_saved]
                d_saved, *sums = softmax.gradients(differences, *scales)
                d_rows.append(d_saved)
            sums = [ops.cast(total, "float32") for total in sums]

            def gradients_of_chunks():
                def backward(sums, chunk):
                    rows, targets, *scales = chunk
                    _, differences = softmax.at_targets(rows, targets)
                    d_chunk, *increments = softmax.gradients(differences, *scales)
                    return [t + ops.cast(i, "float32") for t, i in zip(sums, increments)], [d_chunk]

                values = [each[num_saved:] for each in (rows, targets, scaled, scale)]
                like = [chunks.like(rows.dtype, rows.shape[1])]
                new_sums, [d_chunks] = chunks.scan(backward, sums, values, like)
                return [d_chunks, *new_sums]

            if not saves_all:
                none = ops.zeros((0, rows.shape[1]), rows.dtype)
                d_chunked, *sums = _if_any(chunks.rows, gradients_of_chunks, [none, *sums])
                d_rows.append(d_chunked)
            sums = [ops.cast(total, weight.dtype) for total, weight in zip(sums, (matrix, *bias))]
            return [_concatenate(d_rows), *sums]

        return [_concatenate(log_ps)], gradient

    return custom_gradient(function, [rows, matrix, *([] if bias is None else [bias])])[0]


class _Softmax:
    """softmax((row W + b) / temperature) of given rows, and the gradients through it."""

    def __init__(self, matrix, bias, words_first, temperature, *, is_compiled):
        self.matrix = matrix
        self.bias = bias[0] if bias else None
        self.words_first = words_first
        self.temperature = temperature
        self.is_compiled = is_compiled

    def at_targets(self, rows, targets):
        """Return log p of the targets, float32 `(rows,)`, and q - 1[v = target]."""
        # Transposed here, not once for all chunks: TensorFlow folds a transpose into the product
        # if both are in one graph, but not if a loop captures it.
        to_words = ops.transpose(self.matrix) if self.words_first else self.matrix
        s = logits(rows, to_words, self.bias)
        if self.temperature is not None:
            s = s / self.temperature
        differences = functools.partial(_differences, dtype=rows.dtype)
        return (_backend.compiled(differences) if self.is_compiled else differences)(s, targets)

    def gradients(self, differences, scaled, scale):
        """Return the gradients of rows, matrix and, if there is one, bias.

        `scale` is minus the gradient of log p, float32 `(rows, 1)`; `scaled` the rows times it.
        """
        to_units = self.matrix if self.words_first else ops.transpose(self.matrix)
        d_rows = ops.matmul(differences, to_units)
        d_rows = ops.cast(ops.cast(d_rows, "float32") * scale, scaled.dtype)
        if self.words_first:
            d_matrix = ops.matmul(ops.transpose(differences), scaled)
        else:
            d_matrix = ops.matmul(ops.transpose(scaled), differences)
        if self.bias is None:
            return d_rows, d_matrix
        scale = ops.cast(scale, differences.dtype)
        return d_rows, d_matrix, ops.matmul(ops.transpose(scale), differences)[0]


class Chunks:
    """Cuts rows into `count` chunks of `length` each; the last one is padded with zeros.

    `rows` is a tensor if the number is unknown until the graph runs. A chunk has `least` rows
    whatever their size: each adds to the gradient of the whole matrix, which dominates if a
    chunk has few rows. With half as many rows as units, its logits are half as large.
    """

    def __init__(self, rows, bytes_per_row, *, least=1):
        most = max(1, least, CHUNK_BYTES // bytes_per_row)
        self.rows = rows
        self.count = rows // most + 1  # at least 1, even without rows
        self.length = (rows + self.count - 1) // self.count

    def split(self, values):
        """Return `(rows, ...)` as `(count, length, ...)`."""
        rest = ops.shape(values)[1:]
        padding = ops.zeros((self.count * self.length - self.rows, *rest), dtype=values.dtype)
        padded = ops.concatenate([values, padding], axis=0)
        return ops.reshape(padded, (self.count, self.length, *rest))

    def like(self, dtype, *rest):
        """Return the symbolic tensor of a chunk of values, `(length, *rest)`."""
        length = self.length if isinstance(self.length, int) else None
        return KerasTensor((length, *rest), backend.standardize_dtype(dtype))

    def scan(self, function, carry, values, like):
        """Scan `function` over the chunks of `values`; return the carry, and the results joined."""
        sequences = [self.split(value) for value in values]
        carry, results = scan(function, carry, sequences, like, length=self.count)
        return carry, [self.join(result) for result in results]

    def join(self, values):
        """Return `(count, length, ...)` as `(rows, ...)`."""
        rest = ops.shape(values)[2:]
        return ops.reshape(values, (self.count * self.length, *rest))[: self.rows]


def logits(rows, kernel, bias):
    """Return row W + b in float32; `bias` is `(words,)` or None."""
    s = ops.cast(ops.matmul(rows, kernel), "float32")
    return s if bias is None else s + bias


def _differences(s, targets, dtype):
    """Return log p of the targets of logits `s`, and q - 1[v = target] in `dtype`."""
    indices = ops.stack([ops.arange(ops.shape(s)[0], dtype="int32"), targets], axis=1)
    q = ops.softmax(s, axis=-1)
    # log Z by way of the most likely word, whose q never underflows: one pass, where a
    # logsumexp takes several on TensorFlow.
    log_z = _max_over_words(s) - ops.log(_max_over_words(q))
    log_p = _take(s, indices) - log_z
    at_targets = ops.cast(ops.expm1(log_p), dtype)
    return log_p, ops.scatter_update(ops.cast(q, dtype), indices, at_targets)


def _if_any(rows, function, otherwise):
    """Return `function()`, or `otherwise` if there are 0 `rows`, a number that may be a tensor."""
    return function() if isinstance(rows, int) else ops.cond(rows > 0, function, lambda: otherwise)


def _max_over_words(values):
    return ops.max(values, axis=-1, initial=-float("inf"))  # without `initial` Keras needs a row


def _take(values, indices):
    flat = indices[:, 0] * ops.shape(values)[1] + indices[:, 1]
    return ops.take(ops.reshape(values, (-1,)), flat)


def _concatenate(tensors):
    return ops.concatenate(tensors, axis=0) if len(tensors) > 1 else tensors[0]


def _minimum(number, most):
    return min(number, most) if isinstance(number, int) else ops.minimum(number, most)
