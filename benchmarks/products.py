"""When is it faster to take the matrix for the left operand of a product with few rows?

Usage: python benchmarks/products.py [--rows 1 12 20 32 64] [--units 200 600 850 1150] [--repeats 9]
Prints GFLOP/s of `rows @ matrix` on TensorFlow, with a matrix of `(units, 4 units)`, as it is and
as `transposed(transposed matrix @ transposed rows)`, float32 and bfloat16: medians, the two forms
in turns. `dualnet._backend.matmul` chooses by what was found so.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

from dualnet._backend import _transpose

TURNS = 20  # products in one call, each waiting for the one before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 12, 20, 32, 64])
    parser.add_argument("--units", type=int, nargs="+", default=[200, 600, 850, 1150])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(f"TensorFlow {tf.__version__}; GFLOP/s, medians of {options.repeats}")
    print(f"{'precision':10}{'rows':>5}{'units':>6}{'as it is':>10}{'turned':>8}{'ratio':>7}")
    for dtype in (tf.float32, tf.bfloat16):
        for rows in options.rows:
            for units in options.units:
                plain, turned = rates(rows, units, dtype, options.repeats)
                print(
                    f"{dtype.name:10}{rows:>5}{units:>6}{plain:>10.0f}{turned:>8.0f}"
                    f"{turned / plain:>7.2f}",
                    flush=True,
                )


def rates(count, units, dtype, repeats):
    """Return the rate of both forms."""
    rows = tf.cast(tf.random.normal((count, units)), dtype)
    matrix = tf.cast(tf.random.normal((units, 4 * units)), dtype)
    forms = [
        (in_a_loop(tf.matmul), matrix),
        (
            in_a_loop(lambda rows, left: _transpose(tf.matmul(left, _transpose(rows)))),
            tf.transpose(matrix),
        ),
    ]
    seconds = [[], []]
    for turn in range(repeats + 2):
        for (function, matrix), own in zip(forms, seconds):
            began = time.perf_counter()
            function(rows, matrix).numpy()
            if turn > 1:
                own.append(time.perf_counter() - began)
    return [8 * count * units**2 * TURNS / np.median(own) / 1e9 for own in seconds]


def in_a_loop(product):
    @tf.function
    def function(rows, matrix):
        def step(i, before):
            return i + 1, tf.reduce_sum(product(rows + 0 * before, matrix)[:1, :1])

        start = 0, tf.zeros((), rows.dtype)
        return tf.while_loop(lambda i, _: i < TURNS, step, start, parallel_iterations=1)[1]

    return function


if __name__ == "__main__":
    main()
