"""The matrix products of a model: their number, their cost, and the rates they can have.

The least set of products that a step needs: products with the input of a layer, which do not
wait for its state, are one for all steps; each weight's gradient is one product over the whole
segment; nothing is computed twice.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

FORMS = ("plain", "second transposed", "first transposed")  # A B, A B', A' B


class Product(NamedTuple):
    """A product `(rows, inner) @ (inner, columns)`."""

    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.inner * self.columns


class Matrix(NamedTuple):
    """A weight matrix of a model, and where a step multiplies by it.

    Attributes:
        inner, columns: Its shape.
        place: "target" or "source", all tokens of a segment at once; "target step" or "source
            step", since what it multiplies waits for the state; "experts", all tokens of each.
        bias: Number of biases that are added to the product.
        words: Whether its columns are the words, so that a tied output has it already.
    """

    inner: int
    columns: int
    place: str = "target"
    bias: int = 0
    words: bool = False


def matrices(config: dict[str, Any]) -> Iterator[Matrix]:
    """Yield the matrices of a model that is as `config`, of `cases.described`, says."""
    size = fed = config["embedding_units"]
    translates = config.get("encoder")
    if translates:
        for units in config["layers"]:
            for _ in range(2):  # directions, which are summed
                yield Matrix(size, 4 * units, "source")
                yield Matrix(units, 4 * units, "source step", bias=4 * units)
            size = units
        yield Matrix(size, size, "source")  # the keys
        size = fed
    levels = [size]
    for number, units in enumerate(config["layers"]):
        if translates:  # input feeding: what a layer reads is known step by step, but for the word
            if number == 0:
                yield Matrix(size, 4 * units)
            yield Matrix((size if number else fed) + units, 4 * units, "target step", 4 * units)
        elif config.get("cell", "lstm") in ("mogrifier_lstm", "rewired_lstm"):
            for turn in range(1, config["rounds"] + 1):
                reads, gates = (units, size) if turn % 2 else (size, units)
                if rank := config.get("rank"):
                    yield Matrix(reads, rank, "target step")
                yield Matrix(rank or reads, gates, "target step", bias=gates)
            # The gated x is known step by step.
            if config["cell"] == "mogrifier_lstm":
                yield Matrix(size + units, 4 * units, "target step", bias=4 * units)
            else:
                yield Matrix(size + units, 2 * units, "target step", bias=2 * units)
                yield Matrix(2 * units, units, "target step", bias=units)
                yield Matrix(units, units, "target step", bias=units)
        else:
            yield Matrix(size, 4 * units)
            yield Matrix(units, 4 * units, "target step", bias=4 * units)
        size = units
        levels.append(size)
    if translates:
        yield Matrix(2 * size, fed, "target step")
        size = fed
    if config["dual_units"]:
        yield Matrix(config["embedding_units"], config["dual_units"])
        yield Matrix(size, config["dual_units"], bias=config["dual_units"])
        size = config["dual_units"]
        levels.append(size)
    place = "target"
    if experts := config.get("experts"):
        latent = config.get("latent_units") or config["embedding_units"]
        yield Matrix(levels[-1], sum(experts))  # the weights of the experts
        for units, count in zip(levels, experts):
            if count:
                yield Matrix(units, count * latent, bias=count * latent)
        size, place = latent, "experts"
    words = config["vocabulary_size"]
    yield Matrix(size, words, place, bias=words if config.get("output_bias") else 0, words=True)


def products(
    config: dict[str, Any], batch: int, steps: int, backward: bool, source: int = 0
) -> collections.Counter[Product]:
    """Return the products of a step over `(batch, steps)` tokens, each with its number.

    Args:
        config: of `cases.described`.
        backward: bool. With the gradients of all that the products read.
        source: int. Tokens of each source of a translation, else 0. Scores and contexts, about
            one in a hundred of all, are left out: each row has factors of its own.
    """
    found: collections.Counter[Product] = collections.Counter()
    for inner, columns, place, *_ in matrices(config):
        tokens = batch * (source if "source" in place else steps)
        tokens *= sum(config["experts"]) if place == "experts" else 1
        rows, times = (batch, tokens // batch) if "step" in place else (tokens, 1)
        found[Product(rows, inner, columns)] += times
        if backward:
            found[Product(rows, columns, inner)] += times  # gradient of what enters
            found[Product(inner, tokens, columns)] += 1  # of the weight
    return found


def parameters(config: dict[str, Any]) -> int:
    """Return how many weights a model has that is as `config` says."""
    embeddings = config["vocabulary_size"] * config["embedding_units"]
    return embeddings * (2 if config.get("encoder") else 1) + sum(
        matrix.bias + matrix.inner * matrix.columns * (not (matrix.words and config["tied"]))
        for matrix in matrices(config)
    )


def quickest(run: Callable[[], Any], seconds: float = 0.08, least: int = 3) -> float:
    """Return the least seconds of `run`, called for about `seconds`, at least `least` times."""
    run()
    found = []
    end = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def shapes_of(form: str, product: Product) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of both factors as they lie in memory."""
    rows, inner, columns = product
    first = (inner, rows) if form == FORMS[2] else (rows, inner)
    second = (columns, inner) if form == FORMS[1] else (inner, columns)
    return first, second


def product_maker(library: str) -> Callable[[Product, str, str], float]:
    """Return what finds the least seconds of a product in `library`: its own best routine."""
    return {"torch": _torch_seconds, "tensorflow": _tensorflow_seconds, "jax": _jax_seconds}[
        library
    ]


def _torch_seconds(product: Product, precision: str, form: str) -> float:
    import torch

    kind = getattr(torch, precision)
    first, second = (torch.randn(shape).to(kind) for shape in shapes_of(form, product))
    first = first.t() if form == FORMS[2] else first
    second = second.t() if form == FORMS[1] else second
    with torch.inference_mode():
        return quickest(lambda: torch.mm(first, second))


def _tensorflow_seconds(product: Product, precision: str, form: str) -> float:
    import tensorflow as tf

    first, second = (
        tf.cast(tf.random.normal(shape), precision) for shape in shapes_of(form, product)
    )
    flags = {"transpose_a": form == FORMS[2], "transpose_b": form == FORMS[1]}
    # Eager: the result is there when the call returns. The dispatch of about 20 us counts.
    return quickest(lambda: tf.linalg.matmul(first, second, **flags))


def _jax_seconds(product: Product, precision: str, form: str) -> float:
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    first, second = (
        jnp.asarray(rng.standard_normal(shape, "float32"), precision)
        for shape in shapes_of(form, product)
    )

    def multiplied(a: Any, b: Any) -> Any:
        return (a.T if form == FORMS[2] else a) @ (b.T if form == FORMS[1] else b)

    run = jax.jit(multiplied)
    return quickest(lambda: run(first, second).block_until_ready())


class Limit(NamedTuple):
    """The machine's own limit for a step, in one precision.

    Attributes:
        flop: Of all products of the step.
        seconds: Least time of these: each at the best rate measured for its own shape.
        rows: What was measured for each product: `(product, number, rate, by what)`.
    """

    flop: int
    seconds: float
    rows: list[tuple[Product, int, float, str]]


def limit(wanted: dict[Product, int], measured: dict[Product, tuple[float, str]]) -> Limit:
    """Return the limit of a step of `wanted`, products and their number.

    `measured` has the least seconds of each product, and by what.
    """
    rows = [
        (product, number, product.flop / measured[product][0], measured[product][1])
        for product, number in wanted.items()
    ]
    return Limit(
        flop=sum(product.flop * number for product, number, _, _ in rows),
        seconds=sum(product.flop * number / rate for product, number, rate, _ in rows),
        rows=rows,
    )
