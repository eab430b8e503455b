"""One segment: the loop over its steps, and the backward pass through them."""

import contextvars
import itertools
from typing import Any, NamedTuple

import keras
from keras import ops, tree

from dualnet import _backend
from dualnet._contexts import held
from dualnet.layers._products import columns_of, made_by

_without_gradients = contextvars.ContextVar("without_gradients", default=False)


def without_gradients():
    """Let recurrences keep nothing for a backward pass meanwhile."""
    return held(_without_gradients, True)


class _Product(NamedTuple):
    """One of the products of a step with a matrix, or with several, one below the other.

    Attributes:
        weights: places of the matrices among the cell's weights.
        columns: None for all of them, or as in `layers._products.matmul`.
        entering: sizes of what is multiplied by each of them.
        units: int. Size of the result.
    """

    weights: tuple[int, ...]
    columns: tuple[int, int] | None
    entering: tuple[int, ...]
    units: int


class Known:
    """What a layer knows of its steps; no dictionary of its own, which Keras would save.

    Attributes:
        products: by what sets the steps apart, their products in order and the places of the
            weights without one.
    """

    def __init__(self):
        self.products: dict[Any, tuple[list[_Product], list[int]]] = {}


class Segment:
    """The steps of one segment, and their backward pass.

    All tensors have time first, those of one step have no time. Lists of them are what a
    step reads beside the states: `parts`, with gradients, and `constants`, without.
    """

    def __init__(self, layer, sequence, locked, fresh, mask, training):
        self.cell = layer.cell
        self.dtype = layer.dtype_policy.compute_dtype
        self.fine_dtype = layer.variable_dtype
        self.known = layer.known
        self.training = training
        self.locked = locked
        self.fresh = list(fresh)
        self.masked = mask is not None
        self.constants = [*fresh.values(), *([mask] if self.masked else [])]
        self.weights = list(self.cell.weights)
        # A dropped-out matrix takes the place of the whole one.
        self.values = [locked.get(weight.name, weight) for weight in self.weights]
        self.places = {id(weight): i for i, weight in enumerate(self.weights)}
        self.places |= {id(value): i for i, value in enumerate(self.values)}
        self.found: list[_Product] = []
        part = sequence
        if hasattr(self.cell, "input_part"):
            with made_by(self._plain_product):
                part = self.cell.input_part(sequence, {**locked, **fresh})
        self.structure = part
        self.parts = tree.flatten(part)

    def run(self, states):
        """Return the outputs, `(time, batch, size)`, and the last states, given the first ones."""
        if self.parts[0].shape[0] == 1:
            output, states = self._first_step(states)
            return output[None], states
        products, others = self._products(states)
        matrices = sorted({place for product in products for place in product.weights})
        values = [ops.convert_to_tensor(self.values[i]) for i in (*matrices, *others)]
        arguments = [*self.parts, *states, *values]
        counts = len(self.parts), len(states), len(matrices), len(others)
        self.vectors = [self.weights[i] for i in others]
        keep = not _without_gradients.get()

        def function(*arguments):
            parts, states, values, vectors = _split(arguments, counts)
            cast = dict(zip(matrices, map(self._cast, values)))  # once for all steps
            kernels = [
                _joined([columns_of(cast[place], product.columns) for place in product.weights], 0)
                for product in products
            ]
            kernels = [(kernel, ops.transpose(kernel)) for kernel in kernels]
            outputs, last, kept = self._forward(parts, states, kernels, vectors, keep)

            def gradient(*cotangents):
                d_parts, d_states, d_vectors, entered, d_products = self._backward(
                    parts, kept, kernels, vectors, cotangents
                )
                d_values = _gradients_of_matrices(matrices, products, entered, d_products)
                d_values = [ops.cast(each, self.fine_dtype) for each in d_values]
                return [*d_parts, *d_states, *d_values, *d_vectors]

            return [outputs, *last], gradient

        if keep:
            outputs, *states = _backend.custom_gradient(function, arguments)
        else:
            (outputs, *states), _ = function(*arguments)
        return outputs, states

    def _step(self, states, parts, constants):
        """Return the output of a step and its new states."""
        masks = {**self.locked, **dict(zip(self.fresh, constants))}
        part = tree.pack_sequence_as(self.structure, parts)
        if hasattr(self.cell, "step"):
            output, new_states = self.cell.step(part, states, masks)
        else:
            output, new_states = self.cell.call(part, states, training=self.training, masks=masks)
        output = ops.cast(output, self.fine_dtype)
        new_states = [ops.cast(state, self.fine_dtype) for state in new_states]
        if self.masked:
            mask = constants[-1]
            output = ops.where(mask, output, 0)
            new_states = [ops.where(mask, *pair) for pair in zip(new_states, states)]
        return output, new_states

    def _first_step(self, states):
        first = [each[0] for each in self.parts], [each[0] for each in self.constants]
        with made_by(self._plain_product):
            return self._step(states, *first)

    def _plain_product(self, vectors, kernels, columns):
        parts = [self._cast(columns_of(kernel, columns)) for kernel in kernels]
        pairs = zip(map(self._cast, vectors), parts)
        product = sum(ops.cast(ops.matmul(*pair), self.fine_dtype) for pair in pairs)
        places = tuple(self.places[id(kernel)] for kernel in kernels)
        entering = tuple(vector.shape[-1] for vector in vectors)
        self.found.append(_Product(places, columns, entering, product.shape[-1]))
        return product

    def _cast(self, tensor):
        return ops.cast(tensor, self.dtype)

    # --- the loop

    def _products(self, states):
        """Return the products of a step in order, and the places of the weights without one.

        A step finds them; they are then known for all segments with the same masks.
        """
        key = self.training, *self.locked, *self.fresh
        if key not in self.known.products:
            of_inputs, self.found = self.found, []
            self._first_step(states)  # what it returns is not used
            used = {place for each in (*of_inputs, *self.found) for place in each.weights}
            others = [i for i in range(len(self.weights)) if i not in used]
            self.known.products[key] = self.found, others
        return self.known.products[key]

    def _forward(self, parts, states, kernels, vectors, keep):
        """Return the outputs, the last states, and of each step the first ones and all products."""

        def step(states, elements):
            parts, constants = _split(elements, [len(self.parts), len(self.constants)])
            made: list[Any] = []

            def product(vectors, *_):
                vector = _joined(list(map(self._cast, vectors)), -1)
                made.append(_backend.matmul(vector, *kernels[len(made)]))
                return ops.cast(made[-1], self.fine_dtype)

            output, new_states = self._step_of(product, vectors, states, parts, constants)
            return new_states, [output, *states, *made] if keep else [output]

        batch = states[0].shape[0]
        like = [keras.KerasTensor((batch, self.cell.output_size), self.fine_dtype)]
        if keep:
            like += [keras.KerasTensor((batch, s.shape[-1]), self.fine_dtype) for s in states]
            like += [keras.KerasTensor((batch, k.shape[-1]), self.dtype) for k, _ in kernels]
        sequences = [*parts, *self.constants]
        last, (outputs, *kept) = _backend.scan(
            step, states, sequences, like, length=self._time(), stacked=1
        )
        return outputs, last, kept

    def _backward(self, parts, kept, kernels, vectors, cotangents):
        """Return gradients: at parts, first states and vectors; then what entered products.

        Last come the gradients at these products.
        """
        d_outputs, *d_states = cotangents
        counts = len(parts), len(d_states), len(kernels), len(vectors)

        def replay_of(constants, entered):
            def replay(*arguments):
                parts, states, products, vectors = _split(arguments, counts)

                def product(vectors, *_):
                    i = len(entered)
                    entered.append(_joined(list(map(self._cast, vectors)), -1))
                    found = _as_before(entered[i], products[i], *kernels[i])
                    return ops.cast(found, self.fine_dtype)

                output, new_states = self._step_of(product, vectors, states, parts, constants)
                return [output, *new_states], entered

            return replay

        def step(carry, elements):
            d_states, d_vectors = _split(carry, [counts[1], counts[3]])
            (d_output,), arguments, constants = _split(
                elements, [1, sum(counts[:3]), len(self.constants)]
            )
            gradients, entered = _backend.vjp(
                replay_of(constants, []), [*arguments, *vectors], [d_output, *d_states]
            )
            d_parts, d_states, d_products, more = _split(gradients, counts)
            d_vectors = [total + each for total, each in zip(d_vectors, more)]
            return [*d_states, *d_vectors], [*d_parts, *d_products, *entered]

        sequences = [ops.convert_to_tensor(d_outputs), *parts, *kept, *self.constants]
        carry = [*d_states, *[ops.zeros_like(vector) for vector in vectors]]
        batch = d_states[0].shape[0]
        like = [keras.KerasTensor(each.shape[1:], each.dtype) for each in parts]
        like += [keras.KerasTensor((batch, k.shape[1]), self.dtype) for k, _ in kernels]
        like += [keras.KerasTensor((batch, k.shape[0]), self.dtype) for k, _ in kernels]
        carry, found = _backend.scan(
            step, carry, sequences, like, length=self._time(), reverse=True
        )
        d_states, d_vectors = _split(carry, [counts[1], counts[3]])
        d_parts, d_products, entered = _split(found, [counts[0], counts[2], counts[2]])
        return d_parts, d_states, d_vectors, entered, d_products

    def _step_of(self, product, vectors, *arguments):
        with made_by(product), keras.StatelessScope(list(zip(self.vectors, vectors))):
            return self._step(*arguments)

    def _time(self):
        return ops.shape(self.parts[0])[0]


def _as_before(vector, product, matrix, transposed):
    """Return `product`, which is `vector` times a matrix, with the gradients at both."""

    def function(vector, product):
        return [product], lambda d: [_backend.matmul_transposed(d, matrix, transposed), d]

    return _backend.custom_gradient(function, [vector, product])[0]


def _gradients_of_matrices(matrices, products, entered, d_products):
    """Return the gradient at each matrix: one product for each time that a step uses it."""
    found: dict[int, dict[Any, Any]] = {place: {} for place in matrices}
    for product, a, d in zip(products, entered, d_products):
        a = ops.reshape(a, (-1, sum(product.entering)))
        whole = ops.matmul(ops.transpose(a), ops.reshape(d, (-1, product.units)))
        ends = list(itertools.accumulate(product.entering))[:-1]
        for place, each in zip(product.weights, ops.split(whole, ends) if ends else [whole]):
            before = found[place].get(product.columns)
            found[place][product.columns] = each if before is None else before + each
    totals = []
    for columns in found.values():
        whole = columns.pop(None, None)
        if columns:
            parts = ops.concatenate([columns[i] for i in sorted(columns)], axis=-1)
            whole = parts if whole is None else whole + parts
        totals.append(whole)
    return totals


def _joined(tensors, axis):
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis)


def _split(values, counts):
    """Return `values` in lists of so many each."""
    values, lists = list(values), []
    for count in counts:
        lists.append(values[:count])
        values = values[count:]
    return lists
