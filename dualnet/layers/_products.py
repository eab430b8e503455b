"""Products with matrices: cells make all of them here, so that the engine can intercept."""

import contextvars

from keras import ops

from dualnet._contexts import override

_product = contextvars.ContextVar("product", default=None)


def matmul(vector, kernel, columns=None):
    """Return `vector @ kernel`.

    Args:
        vector: `(..., features)`.
        kernel: `(features, units)`, a variable or a tensor.
        columns: None for the whole kernel, or `(i, n)` for the i-th of n equal parts of its
            columns.
    """
    if (product := _product.get()) is not None:
        return product([vector], [kernel], columns)
    return ops.matmul(vector, select_columns(kernel, columns))


def sum_of_products(vectors, kernels):
    """Return the sum of `vector @ kernel` over all pairs.

    The engine turns it into one product: the vectors side by side times the stacked kernels.
    """
    if (product := _product.get()) is not None:
        return product(vectors, kernels, None)
    return sum(map(ops.matmul, vectors, kernels))


def matmul_per_row(vector, matrices, transposed=False):
    """Return `vector @ matrix`, where each row of a batch has a matrix of its own.

    Args:
        vector: `(batch, features)`, or `(batch, time, features)` outside of a segment.
        matrices: `(batch, features, units)`, one of the `constants` of a segment.
        transposed: bool. Whether the matrices are `(batch, units, features)`.
    """
    if (product := _product.get()) is not None:
        return product([vector], [matrices], None, transposed)
    matrices = ops.transpose(matrices, (0, 2, 1)) if transposed else matrices
    if len(vector.shape) == 3:
        return ops.matmul(vector, matrices)
    return ops.matmul(vector[:, None], matrices)[:, 0]


def select_columns(kernel, columns):
    """Return the `columns` of `kernel`, as described in `matmul`."""
    if columns is None:
        return kernel
    i, n = columns
    return ops.split(kernel, n, axis=-1)[i]


def intercept_products(product):
    """Let `product` compute all products inside the `with` block.

    It is called with vectors, kernels, columns and, for `matmul_per_row`, whether these matrices
    are transposed.
    """
    return override(_product, product)
