"""The engine: the loop over the time steps of one segment, and its backward pass.

How the states pass through a segment:

1. `Segment.__init__` calls `cell.input_projection` for all steps at once: whatever depends
   on the input alone stays out of the loop.
2. `Segment.run` receives the initial states. The first segment traces one step, to find
   which matrices a step multiplies by. `_kernels` casts and stacks them once for all steps.
3. `_forward` scans over time. Each step maps its states to the next ones (`cell.step`). For
   the backward pass it saves the states that each step started from and its products.
4. `_backward` scans over time in reverse. It replays each step from the saved states with
   the saved products, and turns the gradient at a step's new states into the gradient at
   the states before it. For each product it collects the left operand and the gradient at
   the result.
5. `matrix_gradient` forms the gradient of each kernel from these: one large product for the
   whole segment, where a plain loop adds up a small one per step. A constant that has a
   matrix for each row, such as the memory that a cell attends to, is such a kernel, too.

`scan`, `vjp` and `custom_gradient` are in `dualnet._backend`.
"""

import contextvars
import functools
import itertools
import operator
from typing import Any, NamedTuple

import keras
from keras import ops, tree

from dualnet import _backend
from dualnet._contexts import override
from dualnet.layers._attention_cell import dropped_weights
from dualnet.layers._products import intercept_products, matmul_per_row, select_columns

_without_gradients = contextvars.ContextVar("without_gradients", default=False)


def without_gradients():
    """Return a context in which a `Recurrence` saves nothing for a backward pass.

    Use it for inference: a graph that is traced inside the `with` block needs less memory.
    The outputs are the same, but no gradient flows through the recurrence.

    On TensorFlow, `export` of a Keras model of your own, as a SavedModel or for LiteRT, needs it:
    `with without_gradients(): model.export(path)`. Else TensorFlow raises a KeyError, since such a
    file cannot hold the backward pass. A `LanguageModel` and `dualnet.export` see to it themselves.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LSTMCell, Recurrence, without_gradients
    >>> recurrence = Recurrence(LSTMCell(4))
    >>> with without_gradients():
    ...     outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape)
    (2, 5, 4)
    """
    return override(_without_gradients, True)


class Product(NamedTuple):
    """A product that every step makes, with a matrix or with several stacked ones.

    Those of a constant hold a matrix for each row.
    """

    factors: tuple[int, ...]  # indices in `Segment.factors`
    columns: tuple[int, int] | None  # those that are used, as in `_products.matmul`
    transposed: bool  # as in `_products.matmul_per_row`


class Segment:
    """The steps of one segment.

    All tensors here have time first; those of a single step have no time axis.

    Args:
        recurrence: the `Recurrence` that runs the segment.
        sequence: `(time, batch, features)`.
        locked: dict. Masks that hold for all steps, and dropped-out copies of weights.
        fresh: dict. Masks of each step, `(time, batch, size)`.
        mask: bool `(time, batch, 1)`, False where a step is padding, or None.
        constants: list of tensors that every step reads whole.
        adaptation: list of such tensors, the factors of an adaptation matrix for each row.
        training: bool.
    """

    def __init__(self, recurrence, sequence, locked, fresh, mask, constants, adaptation, training):
        self.cell = recurrence.cell
        self.compute_dtype = recurrence.dtype_policy.compute_dtype  # of products with matrices
        self.dtype = recurrence.variable_dtype  # of everything else
        self.plans = recurrence.step_plans.by_mode
        self.training = training
        self.locked = locked
        self.fresh_names = list(fresh)
        self.is_masked = mask is not None
        # What a step reads besides its states: `inputs`, with gradients, and `fixed`, without.
        self.fixed = [*fresh.values(), *([mask] if self.is_masked else [])]
        self.num_factors = len(adaptation)
        self.variables = list(self.cell.weights)
        # A dropped-out copy of a weight replaces the weight itself.
        dropped = dropped_weights(self.cell) if locked else {}
        copies = {id(weight): locked[name] for name, weight in dropped.items()}
        weights = [copies.get(id(variable), variable) for variable in self.variables]
        # What every step reads whole.
        self.factors = [*weights, *constants, *adaptation]
        pairs = [*enumerate(self.variables), *enumerate(self.factors)]
        self.index_of = {id(factor): i for i, factor in pairs}
        self.traced_products: list[Product] = []
        projection = sequence
        if hasattr(self.cell, "input_projection"):
            with intercept_products(self._traced_product):
                projection = self.cell.input_projection(sequence, locked | fresh)
        self.input_structure = projection
        self.inputs = tree.flatten(projection)

    def run(self, states):
        """Return the outputs `(time, batch, size)` and the final states."""
        if self.inputs[0].shape[0] == 1:
            output, states = self._first_step(states)
            outputs = output[None]
        else:
            outputs, states = self._run(states)
        return ops.where(self.fixed[-1], outputs, 0) if self.is_masked else outputs, states

    def _run(self, states):
        """Return the same by a loop; the outputs of padding may be anything."""
        products, self.elementwise = self._plan(states)
        matrices = self._kernels(products)
        vectors = [ops.convert_to_tensor(self.factors[i]) for i in self.elementwise]
        arguments = [*self.inputs, *states, *matrices, *vectors]
        counts = len(self.inputs), len(states), len(matrices), len(vectors)
        save = not _without_gradients.get()

        def function(*arguments):
            inputs, states, matrices, vectors = _split(arguments, counts)
            kernels = [(matrix, _transposed(matrix)) for matrix in matrices]
            outputs, final_states, saved = self._forward(inputs, states, kernels, vectors, save)

            def gradient(*cotangents):
                d_inputs, d_states, d_vectors, operands, d_products = self._backward(
                    inputs, saved, kernels, vectors, cotangents
                )
                d_matrices = map(matrix_gradient, matrices, operands, d_products)
                return [*d_inputs, *d_states, *d_matrices, *d_vectors]

            return [outputs, *final_states], gradient

        if save:
            outputs, *states = _backend.custom_gradient(function, arguments)
        else:
            (outputs, *states), _ = function(*arguments)
        return outputs, states

    # --- one step

    def _step(self, states, inputs, fixed, constants):
        """Return the output and the new states of one step."""
        masks = self.locked | dict(zip(self.fresh_names, fixed))
        counts = len(constants) - self.num_factors, self.num_factors
        constants, factors = _split(constants, counts)
        constants = {"constants": constants} if constants else {}
        projection = tree.pack_sequence_as(self.input_structure, inputs)
        if hasattr(self.cell, "step"):
            output, new_states = self.cell.step(projection, states, masks, **constants)
        else:
            output, new_states = self.cell.call(
                projection, states, training=self.training, masks=masks, **constants
            )
        if factors:
            adapted = output + functools.reduce(matmul_per_row, factors, output)
            new_states = [adapted if state is output else state for state in new_states]
            output = adapted
        output = ops.cast(output, self.dtype)
        new_states = [ops.cast(state, self.dtype) for state in new_states]
        if self.is_masked:
            new_states = [ops.where(fixed[-1], *pair) for pair in zip(new_states, states)]
        return output, new_states

    def _first_step(self, states):
        inputs, fixed = ([x[0] for x in xs] for xs in (self.inputs, self.fixed))
        with intercept_products(self._traced_product):
            return self._step(states, inputs, fixed, self.factors[len(self.variables) :])

    def _traced_product(self, vectors, kernels, columns, transposed=False):
        """Return the product outside of the loop, and note it in `traced_products`."""
        indices = tuple(self.index_of[id(kernel)] for kernel in kernels)
        self.traced_products.append(Product(indices, columns, transposed))
        if len(kernels[0].shape) == 3:
            return _matmul(vectors[0], _transposed(kernels[0]) if transposed else kernels[0], None)
        parts = [self._cast(select_columns(kernel, columns)) for kernel in kernels]
        pairs = zip(map(self._cast, vectors), parts)
        return sum(ops.cast(ops.matmul(*pair), self.dtype) for pair in pairs)

    def _cast(self, tensor):
        return ops.cast(tensor, self.compute_dtype)

    def _plan(self, states):
        """Return the products of a step, and the indices of what acts elementwise in it.

        Tracing a step finds them; later segments look them up.
        """
        # Two constants may be one tensor in one segment, and not in the next.
        indices = (self.index_of[id(factor)] for factor in self.factors)
        mode = self.training, *self.locked, *self.fresh_names, *indices
        if mode not in self.plans:
            in_projection, self.traced_products = self.traced_products, []
            self._first_step(states)  # for its products alone
            multiplied = {i for p in (*in_projection, *self.traced_products) for i in p.factors}
            floats = [i for i, factor in enumerate(self.factors) if is_float(factor)]
            self.plans[mode] = self.traced_products, [i for i in floats if i not in multiplied]
        return self.plans[mode]

    # --- the loop

    def _kernels(self, products):
        """Return the kernel of each product, cast once for all steps."""

        @functools.cache
        def parts(i, count):  # split once, so that the gradient joins those of all parts
            matrix = self._cast(ops.convert_to_tensor(self.factors[i]))
            return ops.split(matrix, count, axis=-1) if count > 1 else [matrix]

        def kernel(product):
            if len(self.factors[product.factors[0]].shape) == 3:
                constant = self.factors[product.factors[0]]
                return _transposed(constant) if product.transposed else constant
            k, count = product.columns or (0, 1)
            return _concatenate([parts(i, count)[k] for i in product.factors], 0)

        return list(map(kernel, products))

    def _forward(self, inputs, states, kernels, vectors, save):
        """Return the outputs, the final states and what the backward pass needs.

        The latter are lists of tensors `(time, ...)`, empty unless `save`: the states that
        each step started from, and its products.
        """

        def step(states, elements):
            inputs, fixed = _split(elements, [len(self.inputs), len(self.fixed)])
            products: list[Any] = []

            def product(vectors, *_):
                kernel = kernels[len(products)]
                products.append(_matmul(_operand(vectors, kernel[0]), *kernel))
                return ops.cast(products[-1], self.dtype)

            output, new_states = self._step_with(product, vectors, states, inputs, fixed)
            return new_states, [output, *states, *products] if save else [output]

        batch = states[0].shape[0]
        like = [keras.KerasTensor((batch, self.cell.output_size), self.dtype)]
        if save:
            like += [keras.KerasTensor((batch, s.shape[-1]), self.dtype) for s in states]
            like += [keras.KerasTensor((batch, k.shape[-1]), k.dtype) for k, _ in kernels]
        sequences = [*inputs, *self.fixed]
        final_states, (outputs, *saved) = _backend.scan(
            step, states, sequences, like, length=ops.shape(self.inputs[0])[0], stacked=1
        )
        return outputs, final_states, saved

    def _backward(self, inputs, saved, kernels, vectors, cotangents):
        """Return all gradients but those of the matrices, and what these are made of.

        These are the gradients at the inputs, the initial states and the vectors; then for
        each product its left operands and the gradients at its results, `(time, batch, size)`.
        """
        d_outputs, *d_states = cotangents
        counts = len(inputs), len(d_states), len(kernels), len(vectors)

        def step(carry, elements):
            d_states, d_vectors = _split(carry, [counts[1], counts[3]])
            (d_output,), arguments, fixed = _split(elements, [1, sum(counts[:3]), len(self.fixed)])

            def replay(*arguments):
                inputs, states, products, vectors = _split(arguments, counts)
                operands: list[Any] = []

                def product(vectors, *_):
                    i = len(operands)
                    operands.append(_operand(vectors, kernels[i][0]))
                    return ops.cast(_replayed(operands[i], products[i], *kernels[i]), self.dtype)

                output, new_states = self._step_with(product, vectors, states, inputs, fixed)
                return [output, *new_states], operands

            cotangents = [d_output, *d_states]
            gradients, operands = _backend.vjp(replay, [*arguments, *vectors], cotangents)
            d_inputs, d_states, d_products, increments = _split(gradients, counts)
            d_vectors = map(operator.add, d_vectors, increments)
            return [*d_states, *d_vectors], [*d_inputs, *d_products, *operands]

        sequences = [ops.convert_to_tensor(d_outputs), *inputs, *saved, *self.fixed]
        carry = [*d_states, *[ops.zeros_like(vector) for vector in vectors]]
        batch = d_states[0].shape[0]
        like = [keras.KerasTensor(x.shape[1:], x.dtype) for x in inputs]
        like += [keras.KerasTensor((batch, k.shape[-1]), k.dtype) for k, _ in kernels]
        like += [keras.KerasTensor((batch, k.shape[-2]), k.dtype) for k, _ in kernels]
        carry, results = _backend.scan(
            step, carry, sequences, like, length=ops.shape(self.inputs[0])[0], reverse=True
        )
        d_states, d_vectors = _split(carry, [counts[1], counts[3]])
        d_inputs, d_products, operands = _split(results, [counts[0], counts[2], counts[2]])
        return d_inputs, d_states, d_vectors, operands, d_products

    def _step_with(self, product, vectors, states, inputs, fixed):
        """Return `_step` with `product` for products, and `vectors` for what acts elementwise."""
        count = len(self.variables)
        factors = dict(enumerate(self.factors)) | dict(zip(self.elementwise, vectors))
        scope = [(self.variables[i], factors[i]) for i in self.elementwise if i < count]
        with intercept_products(product), keras.StatelessScope(scope):
            return self._step(states, inputs, fixed, list(factors.values())[count:])


def is_float(tensor):
    return "float" in keras.backend.standardize_dtype(tensor.dtype)


def matrix_gradient(matrix, operands, d_products):
    """Return the gradient of a matrix, or of one for each row: one product for all steps."""
    if len(matrix.shape) == 3:
        return ops.matmul(ops.transpose(operands, (1, 2, 0)), ops.transpose(d_products, (1, 0, 2)))
    rows, units = matrix.shape
    operands = ops.transpose(ops.reshape(operands, (-1, rows)))
    return ops.matmul(operands, ops.reshape(d_products, (-1, units)))


def _replayed(operand, product, kernel, transposed):
    """Return `product`, the saved `operand @ kernel`, with gradients at both."""

    def function(operand, product):
        if len(kernel.shape) == 3:
            return [product], lambda d: [_matmul(d, transposed, kernel), d]
        return [product], lambda d: [_backend.matmul_transposed(d, kernel, transposed), d]

    return _backend.custom_gradient(function, [operand, product])[0]


def _matmul(operand, kernel, transposed):
    """Return `operand @ kernel`; `kernel` may hold a matrix for each row."""
    if len(kernel.shape) == 3:
        return ops.matmul(operand[:, None], kernel)[:, 0]
    return _backend.matmul(operand, kernel, transposed)


def _transposed(kernel):
    return ops.transpose(kernel, (0, 2, 1) if len(kernel.shape) == 3 else None)


def _operand(vectors, kernel):
    """Return `vectors` side by side, in the dtype of `kernel`, which multiplies them."""
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    return _concatenate([ops.cast(vector, dtype) for vector in vectors], -1)


def _concatenate(tensors, axis):
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis)


def _split(values, counts):
    """Return `values` as consecutive lists of the lengths `counts`."""
    values = iter(values)
    return [list(itertools.islice(values, count)) for count in counts]
