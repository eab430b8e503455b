"""The matrix products of a model: their number, their cost, and the rates they can have.

The least set of products that a step needs: products with the input of a layer, which do not
wait for its state, are one for all steps; each weight's gradient is one product over the whole
segment; nothing is computed twice.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
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
    tokens = batch * steps

    def over_segment(inner: int, columns: int, rows: int = tokens) -> None:
        found[Product(rows, inner, columns)] += 1
        if backward:
            found[Product(rows, columns, inner)] += 1  # gradient of what enters
            found[Product(inner, rows, columns)] += 1  # of the weight

    def each_step(inner: int, columns: int, steps: int = steps) -> None:
        found[Product(batch, inner, columns)] += steps
        if backward:
            found[Product(batch, columns, inner)] += steps
            found[Product(inner, batch * steps, columns)] += 1

    size = fed = config["embedding_units"]
    if source:
        for units in config["layers"]:
            for _ in range(2):  # directions
                over_segment(size, 4 * units, batch * source)
                each_step(units, 4 * units, source)
            size = units
        over_segment(size, size, batch * source)  # the keys
        size = fed
    levels = [size]
    for number, units in enumerate(config["layers"]):
        if source:  # input feeding: what a layer reads is known step by step, but for the word
            if number == 0:
                over_segment(size, 4 * units)
            each_step((size if number else fed) + units, 4 * units)
        elif config.get("cell", "lstm") == "mogrifier_lstm":
            for turn in range(1, config["rounds"] + 1):
                reads, gates = (units, size) if turn % 2 else (size, units)
                if config.get("rank"):
                    each_step(reads, config["rank"])
                    each_step(config["rank"], gates)
                else:
                    each_step(reads, gates)
            each_step(size + units, 4 * units)  # the gated x is known step by step
        else:
            over_segment(size, 4 * units)
            each_step(units, 4 * units)
        size = units
        levels.append(size)
    if source:
        each_step(2 * size, fed)
        size = fed
    if config["dual_units"]:
        over_segment(config["embedding_units"], config["dual_units"])
        over_segment(size, config["dual_units"])
        size = config["dual_units"]
        levels.append(size)
    if not config.get("experts"):
        over_segment(size, config["vocabulary_size"])
    else:
        experts = config["experts"]
        latent = config.get("latent_units") or config["embedding_units"]
        over_segment(levels[-1], sum(experts))  # the weights of the experts
        for units, count in zip(levels, experts):
            if count:
                over_segment(units, count * latent)
        over_segment(latent, config["vocabulary_size"], tokens * sum(experts))
    return found


def parameters(config: dict[str, Any]) -> int:
    """Return how many weights a model has that is as `config` says."""
    embedding, vocabulary = config["embedding_units"], config["vocabulary_size"]
    total, size = vocabulary * embedding, embedding
    encoder = config.get("encoder")
    if encoder:  # bidirectional, its directions summed; the source's words
        stacks = 0
        for units in config["layers"]:
            stacks += 2 * (size + units + 1) * 4 * units
            size = units
        # With the keys, what reads h and the context, and what the lowest cell is fed.
        total += stacks + vocabulary * embedding + size * size + 2 * size * embedding
        total += embedding * 4 * config["layers"][0]
        size = embedding
    levels = [size]
    for units in config["layers"]:
        total += (size + units + 1) * 4 * units
        if config.get("cell", "lstm") == "mogrifier_lstm":
            for turn in range(1, config["rounds"] + 1):
                reads, gates = (units, size) if turn % 2 else (size, units)
                rank = config.get("rank") or 0
                total += rank * (reads + gates) if rank else reads * gates
                total += gates
        size = units
        levels.append(size)
    if encoder:
        size = embedding
    if config["dual_units"]:
        total += (embedding + size + 1) * config["dual_units"]
        size = config["dual_units"]
        levels.append(size)
    if config.get("experts"):
        latent = config.get("latent_units") or embedding
        total += levels[-1] * sum(config["experts"])
        total += sum((n + 1) * count * latent for n, count in zip(levels, config["experts"]))
        size = latent
    total += 0 if config["tied"] else size * vocabulary
    return total + (vocabulary if config.get("output_bias") else 0)


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
        strict_seconds: The same if all had the best rate of any of the shapes.
        best_rate: That rate, FLOP/s.
        rows: What was measured for each product: `(product, number, rate, by what)`.
    """

    flop: int
    seconds: float
    strict_seconds: float
    best_rate: float
    rows: list[tuple[Product, int, float, str]]


def limit(wanted: dict[Product, int], measured: dict[Product, tuple[float, str]]) -> Limit:
    """Return the limit of a step of `wanted`, products and their number.

    `measured` has the least seconds of each product, and by what.
    """
    rows = [
        (product, number, product.flop / measured[product][0], measured[product][1])
        for product, number in wanted.items()
    ]
    flop = sum(product.flop * number for product, number, _, _ in rows)
    best = max(rate for _, _, rate, _ in rows)
    return Limit(
        flop=flop,
        seconds=sum(product.flop * number / rate for product, number, rate, _ in rows),
        strict_seconds=flop / best,
        best_rate=best,
        rows=rows,
    )
