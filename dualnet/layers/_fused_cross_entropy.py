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
SAVED_BYTES = 2**30
# Size of the float32 logits of one chunk of rows: of saved ones, and of those that are recomputed.
# Two or three such tensors exist at a time. With a large vocabulary a chunk has more rows.
SAVED_CHUNK_BYTES = 64 * 2**20
CHUNK_BYTES = 16 * 2**20


def target_log_probabilities(rows, matrix, bias, targets, *, words_first=False, temperature=None):
    """Return log softmax((row W + b) / temperature) at each row's target, float32 `(rows,)`.

    The products run in the dtype of `rows`, everything else in float32.

    Args:
        rows: `(rows, units)`.
        matrix: W, `(units, words)`, or its transpose.
        bias: float32 `(words,)` or None.
        targets: int `(rows,)`, all at least 0.
        words_first: bool. Whether `matrix` is `(words, units)`, as an embedding is.
        temperature: float or scalar tensor, which gets no gradient, or None for 1.
    """
    words = matrix.shape[0 if words_first else 1]
    num_rows = ops.shape(rows)[0]
    minimum = min if isinstance(num_rows, int) else ops.minimum
    num_saved = minimum(num_rows, SAVED_BYTES // (words * 4))
    targets = ops.cast(targets, "int32")
    least = rows.shape[1] // 2
    saved = Chunks(num_saved, words * 4, least=least, most=SAVED_CHUNK_BYTES)
    others = Chunks(num_rows - num_saved, words * 4, least=least)
    log_p = functools.partial(_log_p, words_first=words_first, temperature=temperature)
    gradients = functools.partial(_gradients, words_first=words_first, temperature=temperature)

    def function(rows, *weights):
        factors = [ops.cast(weights[0], rows.dtype), *weights[1:]]
        first = [rows[:num_saved], targets[:num_saved]]
        rest = [rows[num_saved:], targets[num_saved:]]
        like = [saved.like("float32"), saved.like(rows.dtype, words)]
        log_p_saved, differences = saved.map(
            lambda *chunk: log_p(*chunk, *factors), first, like, joined=1
        )

        def log_p_of_others():
            like = [others.like("float32")]
            return others.map(lambda *chunk: log_p(*chunk, *factors)[:1], rest, like)

        def gradient(upstream):
            def from_saved(rows, upstream, differences):
                return gradients(rows, differences, upstream, *factors)

            def from_logits(rows, targets, upstream):
                _, differences = log_p(rows, targets, *factors)
                return gradients(rows, differences, upstream, *factors)

            def gradients_of_others():
                return others.gradients(from_logits, rest[:1], [*rest, upstream[num_saved:]], sums)

            sums = [ops.zeros(weight.shape, dtype="float32") for weight in weights]
            sequences = [first[0], upstream[:num_saved]]
            d_saved, *sums = saved.gradients(
                from_saved, first[:1], sequences, sums, chunked=[differences]
            )
            none = ops.zeros((0, rows.shape[1]), rows.dtype)
            d_others, *sums = _if_any(others.rows, gradients_of_others, [none, *sums])
            return [_joined(d_saved, d_others), *cast_like(sums, weights)]

        (log_p_others,) = _if_any(others.rows, log_p_of_others, [ops.zeros((0,), "float32")])
        return [_joined(log_p_saved, log_p_others)], gradient

    return custom_gradient(function, [rows, matrix, *([] if bias is None else [bias])])[0]


def _log_p(rows, targets, matrix, bias=None, *, words_first, temperature):
    """Return log p of the targets, float32 `(rows,)`, and q - 1[v = target], `(rows, words)`."""
    # Transposed here, not once for all chunks: TensorFlow folds a transpose into the product
    # if both are in one graph, but not if a loop captures it.
    s = logits(rows, ops.transpose(matrix) if words_first else matrix, bias)
    if temperature is not None:
        s = s / temperature
    return _differences(s, targets, rows.dtype)


def _gradients(rows, differences, upstream, matrix, bias=None, *, words_first, temperature):
    """Return the gradients at rows, matrix and bias, if there is one, from those at log p."""
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


class Chunks:
    """Cuts rows into `count` chunks of `length` each; the last one is padded with zeros.

    `rows` is a tensor if the number is unknown until the graph runs. A chunk has `least` rows
    whatever their size: each adds to the gradient of the whole matrix, which dominates if a
    chunk has few rows. With half as many rows as units, its logits are half as large. Rows that
    are one chunk need no loop.
    """

    def __init__(self, rows, bytes_per_row, *, least=1, most=None):
        length = max(1, least, (most or CHUNK_BYTES) // bytes_per_row)
        self.rows = rows
        self.count = rows // length + 1  # at least 1, even without rows
        self.length = (rows + self.count - 1) // self.count
        self.is_one = isinstance(self.count, int) and self.count == 1

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

    def map(self, function, sequences, like, *, joined=None):
        """Return the results of `function` for all rows, by a loop that has no gradient.

        Args:
            function: from a chunk of each of `sequences` to a list of tensors `(length, ...)`.
            sequences: list of `(rows, ...)`.
            like: list of symbolic tensors, one per result, as `like` returns them.
            joined: int. How many results, from the first, to return as `(rows, ...)`; all by
                default. The others can only be `chunked` in `gradients`.
        """
        if self.is_one:
            return function(*sequences)
        sequences = list(map(self.split, sequences))
        joined = len(like) if joined is None else joined
        _, results = scan(
            lambda _, chunk: ([], function(*chunk)),
            [],
            sequences,
            like,
            length=self.count,
            stacked=joined,
        )
        return [*map(self.join, results[:joined]), *results[joined:]]

    def gradients(self, function, rows, sequences, sums, *, chunked=()):
        """Return the gradients at `rows`, and `sums` plus those at what all chunks share.

        Args:
            function: from a chunk of each of `sequences`, then of `chunked`, to the gradients at
                that of `rows`, then at what all chunks share.
            rows: list of `(rows, ...)`.
            sequences: list of `(rows, ...)`.
            sums: list of float32 tensors.
            chunked: list of results of `map` that are not joined.
        """

        def step(sums, chunk):
            gradients = function(*chunk)
            increments = [ops.cast(d, "float32") for d in gradients[len(rows) :]]
            return list(map(operator.add, sums, increments)), gradients[: len(rows)]

        if self.is_one:
            sums, results = step(sums, [*sequences, *chunked])
            return [*results, *sums]
        like = [self.like(tensor.dtype, *tensor.shape[1:]) for tensor in rows]
        sequences = [*map(self.split, sequences), *chunked]
        sums, results = scan(step, sums, sequences, like, length=self.count)
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
    if isinstance(rows, int):
        return function() if rows else otherwise
    return ops.cond(rows > 0, function, lambda: otherwise)


def cast_like(tensors, others):
    """Return each of `tensors` in the dtype of its counterpart in `others`."""
    return [ops.cast(tensor, other.dtype) for tensor, other in zip(tensors, others)]


def _max_over_words(values):
    return ops.max(values, axis=-1, initial=-float("inf"))  # without `initial` Keras needs a row


def _joined(first, rest):
    return first if rest.shape[0] == 0 else ops.concatenate([first, rest], axis=0)
