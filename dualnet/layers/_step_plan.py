"""Which products a step of a segment makes, and the gradients of all of them over the segment."""

import itertools
from typing import Any, NamedTuple

from keras import ops


class WeightProduct(NamedTuple):
    """A product that every step makes with a weight matrix, or with several stacked ones."""

    weights: tuple[int, ...]  # indices of the matrices in `cell.weights`
    columns: tuple[int, int] | None  # those that are used, as in `_products.matmul`
    input_sizes: tuple[int, ...]  # of the vectors that the matrices multiply
    units: int  # of the result


class ConstantProduct(NamedTuple):
    """A product that every step makes with a constant, in which each row has its own matrix."""

    constant: int  # its index
    transposed: bool  # as in `_products.matmul_per_row`


class StepPlan(NamedTuple):
    """How a step uses the weights of its cell, and the constants."""

    products: list[WeightProduct | ConstantProduct]  # in the order of the step
    matrices: list[int]  # indices in `cell.weights` of the matrices in these products
    vectors: list[int]  # indices of the weights that act elementwise: biases, gains
    constants: list[int]  # indices of the constants in these products


def weights_of(products):
    """Return the sorted indices of all weights in `products`."""
    return sorted({i for p in products if isinstance(p, WeightProduct) for i in p.weights})


def matrix_gradients(plan, operands, d_products):
    """Return the gradient of each matrix: one product per use of it in a step."""
    by_columns: dict[int, dict[Any, Any]] = {i: {} for i in plan.matrices}
    for product, a, d in zip(plan.products, operands, d_products):
        if isinstance(product, ConstantProduct):
            continue
        a = ops.reshape(a, (-1, sum(product.input_sizes)))
        stacked = ops.matmul(ops.transpose(a), ops.reshape(d, (-1, product.units)))
        ends = list(itertools.accumulate(product.input_sizes))[:-1]
        for i, part in zip(product.weights, ops.split(stacked, ends) if ends else [stacked]):
            total = by_columns[i].get(product.columns)
            by_columns[i][product.columns] = part if total is None else total + part
    gradients = []
    for columns in by_columns.values():
        gradient = columns.pop(None, None)
        if columns:
            parts = ops.concatenate([columns[i] for i in sorted(columns)], axis=-1)
            gradient = parts if gradient is None else gradient + parts
        gradients.append(gradient)
    return gradients


def constant_gradients(plan, operands, d_products):
    """Return the gradient of each constant in the products: for each row, as for a matrix."""
    gradients: dict[int, Any] = dict.fromkeys(plan.constants, 0.0)
    for product, a, d in zip(plan.products, operands, d_products):
        if isinstance(product, ConstantProduct):
            rows, columns = (d, a) if product.transposed else (a, d)
            rows, columns = ops.transpose(rows, (1, 2, 0)), ops.transpose(columns, (1, 0, 2))
            gradients[product.constant] = gradients[product.constant] + ops.matmul(rows, columns)
    return list(gradients.values())
