"""Products with weight matrices: cells make all of them here, so that the engine can intercept."""

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
    product = _product.get()
    if product is not None:
        return product([vector], [kernel], columns)
    return ops.matmul(vector, select_columns(kernel, columns))


def sum_of_products(vectors, kernels):
    """Return the sum of `vector @ kernel` over all pairs.

    The engine turns it into one product: the vectors side by side times the stacked kernels.
    """
    product = _product.get()
    if product is not None:
        return product(vectors, kernels, None)
    return sum(map(ops.matmul, vectors, kernels))


def select_columns(kernel, columns):
    """Return the `columns` of `kernel`, as described in `matmul`."""
    if columns is None:
        return kernel
    i, n = columns
    return ops.split(kernel, n, axis=-1)[i]


def intercept_products(product):
    """Let `product(vectors, kernels, columns)` compute all products inside the `with` block."""
    return override(_product, product)
