"""The engine: the loop over the time steps of one segment, and its backward pass.

How the states pass through a segment:

1. `Segment.__init__` calls `cell.input_projection` for all steps at once: whatever depends
   on the input alone stays out of the loop.
2. `Segment.run` receives the initial states. The `StepPlan` says which weight matrices a
   step multiplies by; the first segment finds out by tracing one step.
3. `_forward` scans over time. Each step maps its states to the next ones (`cell.step`). For
   the backward pass it saves the states that each step started from and its products.
4. `_backward` scans over time in reverse. It replays each step from the saved states with
   the saved products, and turns the gradient at a step's new states into the gradient at
   the states before it. For each product it collects the left operand and the gradient at
   the result.
5. `matrix_gradients` forms the gradient of each matrix from these: one large product for
   the whole segment, where a plain loop adds up a small one per step. So does
   `constant_gradients` for a constant that has a matrix for each row, such as the memory
   that a cell attends to.

`scan`, `vjp` and `custom_gradient` are in `dualnet._backend`.
"""

import contextvars
import functools
import itertools
from typing import Any, NamedTuple

from keras import KerasTensor, StatelessScope, backend, ops, tree

from dualnet import _backend
from dualnet._contexts import override
from dualnet.layers._attention_cell import dropped_weights
from dualnet.layers._products import intercept_products, matmul_per_row, select_columns

_without_gradients = contextvars.ContextVar("without_gradients", default=False)


def without_gradients():
    """Return a context in which a `Recurrence` saves nothing for a backward pass.

    Use it for inference: a graph that is traced inside the `with` block needs less memory.
    The outputs are the same, but no gradient flows through the recurrence.

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
        self.constants = [*constants, *adaptation]
        self.num_factors = len(adaptation)
        self.variables = list(self.cell.weights)
        # A dropped-out copy of a weight replaces the weight itself.
        dropped = dropped_weights(self.cell) if locked else {}
        copies = {id(weight): locked[name] for name, weight in dropped.items()}
        self.weights = [copies.get(id(variable), variable) for variable in self.variables]
        self.index_of_weight = {id(weight): i for i, weight in enumerate(self.variables)}
        self.index_of_weight |= {id(weight): i for i, weight in enumerate(self.weights)}
        self.traced_products: list[WeightProduct | ConstantProduct] = []
        projection = sequence
        if hasattr(self.cell, "input_projection"):
            with intercept_products(self._traced_product):
                projection = self.cell.input_projection(sequence, {**locked, **fresh})
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
        plan = self._plan(states)
        self.elementwise = [self.variables[i] for i in plan.vectors]
        weights = [ops.convert_to_tensor(self.weights[i]) for i in (*plan.matrices, *plan.vectors)]
        # Like a weight that acts elementwise, such a constant gets a gradient from every step.
        others = {i: x for i, x in enumerate(self.constants) if i not in plan.constants}
        self.elementwise_constants = [i for i, x in others.items() if _has_gradient(x)]
        learned = [self.constants[i] for i in (*self.elementwise_constants, *plan.constants)]
        arguments = [*self.inputs, *states, *weights, *learned]
        vectors = len(plan.vectors) + len(self.elementwise_constants)
        counts = len(self.inputs), len(states), len(plan.matrices), vectors, len(plan.constants)
        save = not _without_gradients.get()

        def function(*arguments):
            inputs, states, matrices, vectors, constants = _split(arguments, counts)
            kernels = self._kernels(plan, matrices, constants)
            outputs, final_states, saved = self._forward(inputs, states, kernels, vectors, save)

            def gradient(*cotangents):
                backward = self._backward(inputs, saved, kernels, vectors, cotangents)
                d_inputs, d_states, d_vectors, operands, d_products = backward
                d_matrices = matrix_gradients(plan, operands, d_products)
                d_matrices = [ops.cast(d_matrix, self.dtype) for d_matrix in d_matrices]
                d_constants = constant_gradients(plan, operands, d_products)
                return [*d_inputs, *d_states, *d_matrices, *d_vectors, *d_constants]

            return [outputs, *final_states], gradient

        if save:
            outputs, *states = _backend.custom_gradient(function, arguments)
        else:
            (outputs, *states), _ = function(*arguments)
        return outputs, states

    # --- one step

    def _step(self, states, inputs, fixed, constants):
        """Return the output and the new states of one step."""
        masks = {**self.locked, **dict(zip(self.fresh_names, fixed))}
        constants, factors = _split(constants, [len(constants) - self.num_factors, None])
        settings = {"constants": constants} if constants else {}
        projection = tree.pack_sequence_as(self.input_structure, inputs)
        if hasattr(self.cell, "step"):
            output, new_states = self.cell.step(projection, states, masks, **settings)
        else:
            settings |= {"training": self.training, "masks": masks}
            output, new_states = self.cell.call(projection, states, **settings)
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
            return self._step(states, inputs, fixed, self.constants)

    def _traced_product(self, vectors, kernels, columns, transposed=False):
        """Return the product outside of the loop, and note it in `traced_products`."""
        if len(kernels[0].shape) == 3:
            index = self._index_of_constant(kernels[0])
            self.traced_products.append(ConstantProduct(index, transposed))
            matrices = ops.transpose(kernels[0], (0, 2, 1)) if transposed else kernels[0]
            return _matmul(vectors[0], matrices, None)
        parts = [self._cast(select_columns(kernel, columns)) for kernel in kernels]
        pairs = zip(map(self._cast, vectors), parts)
        product = sum(ops.cast(ops.matmul(*pair), self.dtype) for pair in pairs)
        indices = tuple(self.index_of_weight[id(kernel)] for kernel in kernels)
        input_sizes = tuple(vector.shape[-1] for vector in vectors)
        self.traced_products.append(WeightProduct(indices, columns, input_sizes, product.shape[-1]))
        return product

    def _index_of_constant(self, tensor):
        return next(i for i, constant in enumerate(self.constants) if constant is tensor)

    def _cast(self, tensor):
        return ops.cast(tensor, self.compute_dtype)

    def _plan(self, states):
        """Return the plan of a step. Tracing a step finds it; later segments look it up."""
        # Two constants may be one tensor in one segment, and not in the next.
        indices = map(self._index_of_constant, self.constants)
        mode = self.training, *self.locked, *self.fresh_names, *indices
        if mode not in self.plans:
            in_projection, self.traced_products = self.traced_products, []
            self._first_step(states)  # for its products alone
            in_step = self.traced_products
            matrices = weights_of(in_step)
            multiplied = {*matrices, *weights_of(in_projection)}
            vectors = [i for i in range(len(self.weights)) if i not in multiplied]
            constants = sorted({p.constant for p in in_step if isinstance(p, ConstantProduct)})
            self.plans[mode] = StepPlan(in_step, matrices, vectors, constants)
        return self.plans[mode]

    # --- the loop

    def _kernels(self, plan, matrices, constants):
        """Return for each product its kernel and the transpose, cast once for all steps."""
        cast = dict(zip(plan.matrices, map(self._cast, matrices)))
        constants = dict(zip(plan.constants, constants))
        kernels = []
        for product in plan.products:
            if isinstance(product, ConstantProduct):
                kernel = constants[product.constant]
                pair = kernel, ops.transpose(kernel, (0, 2, 1))
                kernels.append(pair[::-1] if product.transposed else pair)
            else:
                parts = [select_columns(cast[i], product.columns) for i in product.weights]
                kernel = _concatenate(parts, 0)
                kernels.append((kernel, ops.transpose(kernel)))
        return kernels

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
        like = [KerasTensor((batch, self.cell.output_size), self.dtype)]
        if save:
            like += [KerasTensor((batch, s.shape[-1]), self.dtype) for s in states]
            like += [KerasTensor((batch, k.shape[-1]), k.dtype) for k, _ in kernels]
        sequences, time = [*inputs, *self.fixed], self._time()
        states, results = _backend.scan(step, states, sequences, like, length=time, stacked=1)
        outputs, *saved = results
        return outputs, states, saved

    def _backward(self, inputs, saved, kernels, vectors, cotangents):
        """Return all gradients but those of the matrices, and what these are made of.

        These are the gradients at the inputs, the initial states and the vectors; then for
        each product its left operands and the gradients at its results, `(time, batch, size)`.
        """
        d_outputs, *d_states = cotangents
        counts = len(inputs), len(d_states), len(kernels), len(vectors)

        def replay_with(fixed, operands):
            def replay(*arguments):
                inputs, states, products, vectors = _split(arguments, counts)

                def product(vectors, *_):
                    i = len(operands)
                    operands.append(_operand(vectors, kernels[i][0]))
                    return ops.cast(_replayed(operands[i], products[i], *kernels[i]), self.dtype)

                output, new_states = self._step_with(product, vectors, states, inputs, fixed)
                return [output, *new_states], operands

            return replay

        def step(carry, elements):
            d_states, d_vectors = _split(carry, [counts[1], counts[3]])
            (d_output,), arguments, fixed = _split(elements, [1, sum(counts[:3]), len(self.fixed)])
            replay, upstream = replay_with(fixed, []), [d_output, *d_states]
            gradients, operands = _backend.vjp(replay, [*arguments, *vectors], upstream)
            d_inputs, d_states, d_products, increments = _split(gradients, counts)
            d_vectors = [total + increment for total, increment in zip(d_vectors, increments)]
            return [*d_states, *d_vectors], [*d_inputs, *d_products, *operands]

        sequences = [ops.convert_to_tensor(d_outputs), *inputs, *saved, *self.fixed]
        carry = [*d_states, *[ops.zeros_like(vector) for vector in vectors]]
        batch = d_states[0].shape[0]
        like = [KerasTensor(x.shape[1:], x.dtype) for x in inputs]
        like += [KerasTensor((batch, k.shape[-1]), k.dtype) for k, _ in kernels]
        like += [KerasTensor((batch, k.shape[-2]), k.dtype) for k, _ in kernels]
        time = self._time()
        carry, results = _backend.scan(step, carry, sequences, like, length=time, reverse=True)
        d_states, d_vectors = _split(carry, [counts[1], counts[3]])
        d_inputs, d_products, operands = _split(results, [counts[0], counts[2], counts[2]])
        return d_inputs, d_states, d_vectors, operands, d_products

    def _step_with(self, product, vectors, states, inputs, fixed):
        """Return `_step` with `product` for products, and `vectors` for weights and constants."""
        weights, learned = vectors[: len(self.elementwise)], vectors[len(self.elementwise) :]
        constants = dict(enumerate(self.constants)) | dict(zip(self.elementwise_constants, learned))
        scope = StatelessScope(list(zip(self.elementwise, weights)))
        with intercept_products(product), scope:
            return self._step(states, inputs, fixed, list(constants.values()))

    def _time(self):
        return ops.shape(self.inputs[0])[0]


def _has_gradient(constant):
    return "float" in backend.standardize_dtype(constant.dtype)


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


def _operand(vectors, kernel):
    """Return `vectors` side by side, in the dtype of `kernel`, which multiplies them."""
    dtype = backend.standardize_dtype(kernel.dtype)
    return _concatenate([ops.cast(vector, dtype) for vector in vectors], -1)


def _concatenate(tensors, axis):
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis)


def _split(values, counts):
    """Return `values` as consecutive lists of the lengths `counts`."""
    values = iter(values)
    return [list(itertools.islice(values, count)) for count in counts]


# --- which products a step makes, and the gradients of all of them over the segment


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
