"""Fused cross-entropy: log p of given words straight from the rows that enter the output matrix.

For a row h with the target y, and the logits s = (h W + b) / temperature:

    log p(y) = s_y - log Z,  d log p(y) / d s_v = 1[v = y] - q_v,  q = softmax(s)

The logits of all words are the largest tensors of a model, so this module makes few of them
and passes over each only a few times. The backward pass needs q - 1[v = y], in the dtype of the
products. It is saved for as many rows as `SAVED_BYTES` allow. For all other rows the logits
are recomputed, one chunk of rows at a time.
"""

import functools
import operator

import keras
from keras import ops

from dualnet._backend import custom_gradient, scan

# Size of the float32 logits of the rows for which the backward pass recomputes nothing.
SAVED_BYTES = 128 * 2**20
# Size of the float32 logits of one chunk of rows; two or three such tensors exist at a time. With
# a large vocabulary a chunk has more rows, see `Chunks`.
CHUNK_BYTES = 16 * 2**20


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
    minimum = min if isinstance(num_rows, int) else ops.minimum
    num_saved = minimum(num_rows, SAVED_BYTES // (words * 4)) if save else 0
    saves_all = isinstance(num_rows, int) and num_saved == num_rows
    # A number that is unknown until the graph runs may be above 0.
    saves_any = saves_all or not isinstance(num_saved, int) or num_saved > 0
    targets = ops.cast(targets, "int32")
    chunks = Chunks(num_rows - num_saved, words * 4, least=rows.shape[1] // 2)
    log_p = functools.partial(_log_p, words_first=words_first, temperature=temperature)

    def function(rows, *weights):
        factors = [ops.cast(weights[0], rows.dtype), *weights[1:]]
        others = [rows[num_saved:], targets[num_saved:]]
        log_ps = []
        if saves_any:
            log_p_saved, gradients_saved = log_p(rows[:num_saved], targets[:num_saved], *factors)
            log_ps.append(log_p_saved)

        def log_p_of_chunks():
            like = [chunks.like("float32")]
            return chunks.map(lambda *chunk: [log_p(*chunk, *factors)[0]], others, like)

        if not saves_all:
            log_ps += _if_any(chunks.rows, log_p_of_chunks, [ops.zeros((0,), "float32")])

        def gradient(upstream):
            d_rows = []
            sums = [ops.zeros(weight.shape, dtype="float32") for weight in weights]
            if saves_any:
                d_saved, *sums = gradients_saved(upstream[:num_saved])
                d_rows.append(d_saved)
            sums = [ops.cast(total, "float32") for total in sums]

            def gradients_of_chunk(rows, targets, upstream):
                _, gradients = log_p(rows, targets, *factors)
                return gradients(upstream)

            def gradients_of_chunks():
                sequences = [*others, upstream[num_saved:]]
                return chunks.gradients(gradients_of_chunk, others[:1], sequences, sums)

            if not saves_all:
                none = ops.zeros((0, rows.shape[1]), rows.dtype)
                d_chunked, *sums = _if_any(chunks.rows, gradients_of_chunks, [none, *sums])
                d_rows.append(d_chunked)
            return [_concatenate(d_rows), *cast_like(sums, weights)]

        return [_concatenate(log_ps)], gradient

    return custom_gradient(function, [rows, matrix, *([] if bias is None else [bias])])[0]


def _log_p(rows, targets, matrix, bias=None, *, words_first, temperature):
    """Return log p of the targets, float32 `(rows,)`, and the function of the gradients.

    From the gradient at log p it returns those at the rows, the matrix and, if there is one, the
    bias.
    """
    # Transposed here, not once for all chunks: TensorFlow folds a transpose into the product
    # if both are in one graph, but not if a loop captures it.
    s = logits(rows, ops.transpose(matrix) if words_first else matrix, bias)
    if temperature is not None:
        s = s / temperature
    log_p, differences = _differences(s, targets, rows.dtype)

    def gradients(upstream):
        scale = -ops.cast(upstream, "float32")[:, None]
        if temperature is not None:
            scale = scale / temperature
        scaled = ops.cast(ops.cast(rows, "float32") * scale, rows.dtype)
        d_rows = ops.matmul(differences, matrix if words_first else ops.transpose(matrix))
        d_rows = ops.cast(ops.cast(d_rows, "float32") * scale, rows.dtype)
        left, right = (differences, scaled) if words_first else (scaled, differences)
        d_matrix = ops.matmul(ops.transpose(left), right)
        if bias is None:
            return [d_rows, d_matrix]
        d_bias = ops.matmul(ops.transpose(ops.cast(scale, rows.dtype)), differences)[0]
        return [d_rows, d_matrix, d_bias]

    return log_p, gradients


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
        return keras.KerasTensor((length, *rest), keras.backend.standardize_dtype(dtype))

    def join(self, values):
        """Return `(count, length, ...)` as `(rows, ...)`."""
        return ops.reshape(values, (self.count * self.length, *ops.shape(values)[2:]))[: self.rows]

    def map(self, function, sequences, like):
        """Return the results of `function` for all rows, by a loop that has no gradient.

        Args:
            function: from a chunk of each of `sequences` to a list of tensors `(length, ...)`.
            sequences: list of `(rows, ...)`.
            like: list of symbolic tensors, one per result, as `like` returns them.
        """
        sequences = list(map(self.split, sequences))
        _, results = scan(
            lambda _, chunk: ([], function(*chunk)), [], sequences, like, length=self.count
        )
        return list(map(self.join, results))

    def gradients(self, function, rows, sequences, sums):
        """Return the gradients at `rows`, and `sums` plus those at what all chunks share.

        Args:
            function: from a chunk of each of `sequences` to the gradients at that of `rows`, then
                at what all chunks share.
            rows: list of `(rows, ...)`.
            sequences: list of `(rows, ...)`.
            sums: list of float32 tensors.
        """

        def step(sums, chunk):
            gradients = function(*chunk)
            increments = [ops.cast(d, "float32") for d in gradients[len(rows) :]]
            return list(map(operator.add, sums, increments)), gradients[: len(rows)]

        like = [self.like(tensor.dtype, *tensor.shape[1:]) for tensor in rows]
        sums, results = scan(step, sums, list(map(self.split, sequences)), like, length=self.count)
        return [*map(self.join, results), *sums]


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
    flat = indices[:, 0] * ops.shape(s)[1] + indices[:, 1]
    log_p = ops.take(ops.reshape(s, (-1,)), flat) - log_z
    return log_p, ops.scatter_update(ops.cast(q, dtype), indices, ops.cast(ops.expm1(log_p), dtype))


def _if_any(rows, function, otherwise):
    """Return `function()`, or `otherwise` if there are 0 `rows`, a number that may be a tensor."""
    return function() if isinstance(rows, int) else ops.cond(rows > 0, function, lambda: otherwise)


def cast_like(tensors, others):
    """Return each of `tensors` in the dtype of its counterpart in `others`."""
    return [ops.cast(tensor, other.dtype) for tensor, other in zip(tensors, others)]


def _max_over_words(values):
    return ops.max(values, axis=-1, initial=-float("inf"))  # without `initial` Keras needs a row


def _concatenate(tensors):
    return ops.concatenate(tensors, axis=0) if len(tensors) > 1 else tensors[0]
