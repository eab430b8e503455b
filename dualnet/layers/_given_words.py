"""log p of given words, fused with the product that makes the logits: `softmax(row W + b)`.

    log p(y) = s_y - log Z,  d log p(y) / d s_v = 1[v = y] - q_v,  q = softmax(s)

The tensors of all words are the largest of a model, so few of them are made, and few
passes over each. What the backward pass needs of a row is q - 1[v = y], in the dtype of the
products. It is kept of as many rows as `KEPT_BYTES` allow; of all others the logits are
computed again, a chunk of rows at a time.
"""

import keras
from keras import ops

from dualnet._backend import custom_gradient, scan

# Of the float32 logits of those rows of which the backward pass computes nothing again.
KEPT_BYTES = 128 * 2**20
# Of the float32 logits of the rows of a chunk, of which two or three exist at a time; of large
# vocabularies a chunk has more, see `Chunks`.
CHUNK_BYTES = 16 * 2**20


def log_probabilities(
    rows, matrix, bias, targets, *, words_first=False, temperature=None, keep=True
):
    """Return log softmax((row W + b) / temperature) at each row's target, float32 `(rows,)`.

    The products run in the dtype of `rows`, all else in float32.

    Args:
        rows: `(rows, units)`.
        matrix: W, `(units, words)`, or its transpose.
        bias: float32 `(words,)` or None.
        targets: int `(rows,)`, none negative.
        words_first: bool. Whether `matrix` is `(words, units)`, as an embedding is.
        temperature: float or scalar tensor, of which nothing is learnt, or None for 1.
        keep: bool. Whether `KEPT_BYTES` may be used, else none.
    """
    words = matrix.shape[0 if words_first else 1]
    number = ops.shape(rows)[0]
    kept = _smaller(number, KEPT_BYTES // (words * 4)) if keep else 0
    all_kept = isinstance(number, int) and kept == number
    keep = all_kept or not isinstance(kept, int) or kept > 0  # where unknown: perhaps
    targets = ops.cast(targets, "int32")
    chunks = Chunks(number - kept, words * 4, least=rows.shape[1] // 2)

    def function(rows, matrix, *bias):
        softmax = _Softmax(ops.cast(matrix, rows.dtype), bias, words_first, temperature)
        found = []
        if keep:
            log_p, differences = softmax.of(rows[:kept], targets[:kept])
            found.append(log_p)
        if not all_kept:
            parts = [chunks.split(rows[kept:]), chunks.split(targets[kept:])]

            def forward(_, part):
                log_p, _ = softmax.of(*part)
                return [], [log_p]

            like = [chunks.like("float32")]
            _, (log_ps,) = scan(forward, [], parts, like, length=chunks.count)
            found.append(chunks.join(log_ps))

        def gradient(upstream):
            scale = -ops.cast(upstream, "float32")[:, None]
            if temperature is not None:
                scale = scale / temperature
            scaled = ops.cast(ops.cast(rows, "float32") * scale, rows.dtype)
            d_rows, sums = [], [ops.zeros(each.shape, dtype="float32") for each in (matrix, *bias)]
            if keep:
                d, *sums = softmax.gradients(differences, scaled[:kept], scale[:kept])
                d_rows.append(d)
            if not all_kept:
                scaled_parts = [chunks.split(scaled[kept:]), chunks.split(scale[kept:])]

                def backward(sums, part):
                    part, targets, *scaled_part = part
                    _, differences = softmax.of(part, targets)
                    d, *more = softmax.gradients(differences, *scaled_part)
                    return [each + ops.cast(own, "float32") for each, own in zip(sums, more)], [d]

                sums = [ops.cast(each, "float32") for each in sums]
                like = [chunks.like(rows.dtype, rows.shape[1])]
                sequences = [*parts, *scaled_parts]
                sums, (d_parts,) = scan(backward, sums, sequences, like, length=chunks.count)
                d_rows.append(chunks.join(d_parts))
            sums = [ops.cast(d, each.dtype) for d, each in zip(sums, (matrix, *bias))]
            return [_joined(d_rows), *sums]

        return [_joined(found)], gradient

    return custom_gradient(function, [rows, matrix, *([] if bias is None else [bias])])[0]


class _Softmax:
    """softmax((row W + b) / temperature) of some rows, and what the backward pass makes of it."""

    def __init__(self, matrix, bias, words_first, temperature):
        transposed = ops.transpose(matrix)
        self.to_words = transposed if words_first else matrix
        self.to_units = matrix if words_first else transposed
        self.bias = bias[0] if bias else None
        self.words_first = words_first
        self.temperature = temperature

    def of(self, rows, targets):
        """Return log p of the targets, float32 `(rows,)`, and q - 1[v = target]."""
        s = logits(rows, self.to_words, self.bias)
        if self.temperature is not None:
            s = s / self.temperature
        places = ops.stack([ops.arange(ops.shape(s)[0], dtype="int32"), targets], axis=1)
        q = ops.softmax(s, axis=-1)
        # log Z of the most likely word, whose q never underflows: one pass, where the sum needs
        # several on TensorFlow.
        log_z = _most(s) - ops.log(_most(q))
        log_p = _at(s, places) - log_z
        at_targets = ops.cast(ops.expm1(log_p), rows.dtype)
        return log_p, ops.scatter_update(ops.cast(q, rows.dtype), places, at_targets)

    def gradients(self, differences, scaled, scale):
        """Return the gradients of rows, matrix and bias.

        Args:
            differences: from `of`.
            scaled: the rows times `scale`, `(rows, units)`.
            scale: minus the gradient of log p, float32 `(rows, 1)`.
        """
        d_rows = ops.matmul(differences, self.to_units)
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
    """Rows in `count` chunks of `length` each, the last one of which is filled up with zeros.

    Args:
        rows: int, or a tensor where their number is unknown until the graph runs.
        bytes_per_row: int. Size of the largest tensor that a row makes.
        least: int. Rows of a chunk, whatever their size: each chunk adds to the gradient of
            the whole matrix, which takes longer than the rest where it has few rows. With
            half as many as there are units, its logits are half as large as the matrix.
    """

    def __init__(self, rows, bytes_per_row, *, least=1):
        most = max(1, least, CHUNK_BYTES // bytes_per_row)
        self.rows = rows
        self.count = rows // most + 1  # at least 1, if there are no rows too
        self.length = (rows + self.count - 1) // self.count

    def split(self, values):
        """Return `(rows, ...)` as `(count, length, ...)`."""
        rest = ops.shape(values)[1:]
        missing = ops.zeros((self.count * self.length - self.rows, *rest), dtype=values.dtype)
        filled = ops.concatenate([values, missing], axis=0)
        return ops.reshape(filled, (self.count, self.length, *rest))

    def like(self, dtype, *rest):
        """Return what stands for a chunk of values, `(length, *rest)`."""
        length = self.length if isinstance(self.length, int) else None
        return keras.KerasTensor((length, *rest), keras.backend.standardize_dtype(dtype))

    def join(self, values):
        """Return `(count, length, ...)` as `(rows, ...)`."""
        rest = ops.shape(values)[2:]
        return ops.reshape(values, (self.count * self.length, *rest))[: self.rows]


def logits(rows, kernel, bias):
    """Return row W + b in float32; `bias` is `(words,)` or None."""
    s = ops.cast(ops.matmul(rows, kernel), "float32")
    return s if bias is None else s + bias


def _most(values):
    return ops.max(values, axis=-1, initial=-float("inf"))  # without, Keras refuses no rows


def _at(values, places):
    flat = places[:, 0] * ops.shape(values)[1] + places[:, 1]
    return ops.take(ops.reshape(values, (-1,)), flat)


def _joined(parts):
    return ops.concatenate(parts, axis=0) if len(parts) > 1 else parts[0]


def _smaller(number, most):
    return min(number, most) if isinstance(number, int) else ops.minimum(number, most)
