"""The one place where recurrent cells multiply by matrices: who runs them can step in."""

import contextvars

from keras import ops

from dualnet._contexts import held

_product = contextvars.ContextVar("product", default=None)


def matmul(vector, kernel, columns=None):
    """Return `vector @ kernel`, or what `made_by` says it is.

    Args:
        vector: `(..., features)`.
        kernel: `(features, units)`, a variable or a tensor.
        columns: None, or `(i, n)`: the i-th of n equal parts of the columns of `kernel` alone.
    """
    product = _product.get()
    if product is not None:
        return product([vector], [kernel], columns)
    return ops.matmul(vector, columns_of(kernel, columns))


def sum_of_products(vectors, kernels):
    """Return the sum of the products of each vector and its kernel, or what `made_by` says it is.

    Who steps in can make one product of it: of the vectors side by side and the kernels one
    below the other.
    """
    product = _product.get()
    if product is not None:
        return product(vectors, kernels, None)
    return sum(map(ops.matmul, vectors, kernels))


def columns_of(kernel, columns):
    """Return the columns of `kernel` that `matmul` was asked for."""
    if columns is None:
        return kernel
    i, n = columns
    return ops.split(kernel, n, axis=-1)[i]


def made_by(product):
    """Let `product(vectors, kernels, columns)` make all products of cells meanwhile."""
    return held(_product, product)
