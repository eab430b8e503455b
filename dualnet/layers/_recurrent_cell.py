"""What all recurrent cells have in common."""

import contextlib
import math
from typing import Any, NamedTuple

import keras
from keras import ops

from dualnet import _checks
from dualnet.layers._configured import ConfiguredLayer, Role
from dualnet.layers._products import matmul

CHRONO = "chrono:"


class MaskSpec(NamedTuple):
    """A dropout of a cell. Whoever runs the cell draws its mask before the loop.

    If `size` is a tuple, it is the shape of the cell's weight `name`. The cell then receives
    a dropped-out copy of this weight in place of a mask (DropConnect).
    """

    name: str  # the key under which the cell looks up the mask
    rate: float  # the fraction to drop
    size: int | tuple[int, ...]  # the number of features of a mask `(batch, size)`
    locked: bool  # whether one mask holds for the whole segment, or each step has a fresh one


class RecurrentCell(ConfiguredLayer):
    """One step of a recurrent layer, as a pure function: the masks are arguments.

    A step has two parts: `input_projection`, which depends on the input alone, so that it can
    be computed for all steps at once, and `step`, which depends on the states too. All
    products with matrices go through `product`.

    A subclass defines `build`, `step` and `gates`, and where the defaults do not fit
    `input_projection`, `mask_sizes` and `state_size`. Its equations are in its docstring.

    Args:
        units: int, at least 1. Size of each state and of the output.
        use_bias: bool.
        input_dropout: float, at least 0 and below 1. Dropout of the input.
        recurrent_dropout: float, at least 0 and below 1. Dropout of the incoming h in the
            products. A state that is carried past the products is not dropped out.
        weight_dropout: float, at least 0 and below 1. Drops single weights of the
            recurrent matrices: one draw per segment for all rows and steps
            (DropConnect; Merity et al., 2018).
        mask_per_gate: bool. Whether each gate has its own mask, for the input and for h
            ("untied weights" of Gal and Ghahramani, 2016), instead of one for all gates.
        input_l2: float, at least 0. Adds `input_l2 * sum(w ** 2)` over the input
            matrices to the loss.
        recurrent_l2: float, at least 0. The same for the recurrent matrices.
        locked: list of the dropouts that keep their mask for a whole segment, some of
            "input" and "recurrent"; all by default. The others draw a fresh mask at each step.

    Call arguments:
        inputs: `(batch, features)`.
        states: list of `(batch, units)`.
        training: bool.
        masks: dict from the names in `mask_specs()` to the masks drawn, or None.

    Returns:
        `(output, states)`, the output `(batch, units)` and the new states.

    Raises:
        ValueError: if an argument is out of range, or if a cell with dropout is trained
            without masks.

    Example: a cell with one equation, h' = tanh(x W + u * h).

    >>> import keras
    >>> import numpy as np
    >>> from dualnet.layers import RecurrentCell, Recurrence, product
    >>> @keras.saving.register_keras_serializable("my_package")
    ... class DiagonalCell(RecurrentCell):
    ...     def build(self, input_shape):
    ...         self.kernel = self.add_input_kernel("kernel", (input_shape[-1], self.units))
    ...         self.u = self.add_matrix("u", (self.units,), "ones")
    ...
    ...     def input_projection(self, inputs, masks):
    ...         return product(inputs, self.kernel, masks.get("input"))
    ...
    ...     def step(self, projection, states, masks):
    ...         h = keras.ops.tanh(projection + self.u * states[0])
    ...         return h, [h]
    >>> outputs, h = Recurrence(DiagonalCell(4))(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape)
    (2, 5, 4)
    """

    dropouts: tuple[str, ...] = ("input", "recurrent")
    gates = 1
    output_state = 0  # the index of the state that is also the output

    def __init__(
        self,
        units,
        *,
        use_bias=True,
        input_dropout=0.0,
        recurrent_dropout=0.0,
        weight_dropout=0.0,
        mask_per_gate=False,
        input_l2=0.0,
        recurrent_l2=0.0,
        locked=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = _checks.check_count("units", units)
        self.use_bias = use_bias
        self.input_dropout = _checks.check_rate("input_dropout", input_dropout)
        self.recurrent_dropout = _checks.check_rate("recurrent_dropout", recurrent_dropout)
        self.weight_dropout = _checks.check_rate("weight_dropout", weight_dropout)
        self.mask_per_gate = mask_per_gate
        self.input_l2 = _checks.check_penalty("input_l2", input_l2)
        self.recurrent_l2 = _checks.check_penalty("recurrent_l2", recurrent_l2)
        self.locked = tuple(self.dropouts if locked is None else locked)
        if not {*self.locked} <= {*self.dropouts}:
            raise _checks.ArgumentError(
                "locked", f"must be a list of some of {list(self.dropouts)}.", locked=locked
            )
        self.state_size = [self.units]
        self.output_size = self.units
        self.input_size: Any = None  # set by `build`

    def mask_specs(self):
        """Return the masks that a training step needs, a list of `MaskSpec`."""
        specs = self.specs_of(self.mask_sizes())
        if self.weight_dropout > 0:
            for name in self.recurrent_kernels():
                shape = tuple(getattr(self, name).shape)
                specs.append(MaskSpec(name, self.weight_dropout, shape, True))
        return specs

    def mask_sizes(self):
        """Return the sizes of all masks by name, "recurrent" or "recurrent_1" for example."""
        times = self.gates if self.mask_per_gate else 1
        return {"input": times * self.input_size, "recurrent": times * self.units}

    def specs_of(self, sizes):
        """Return the `MaskSpec` of each mask in `sizes` whose rate is above 0."""
        specs = []
        for name, size in sizes.items():
            dropout = name.split("_")[0]
            if (rate := getattr(self, f"{dropout}_dropout")) > 0:
                specs.append(MaskSpec(name, rate, size, dropout in self.locked))
        return specs

    def recurrent_kernels(self):
        """Return the names of the matrices that `weight_dropout` acts on."""
        return ["recurrent_kernel"]

    def call(self, inputs, states, training=False, masks=None):
        states = states if isinstance(states, list | tuple) else [states]
        if self.input_size is None:  # Keras called `build`, that of a subclass
            self.input_size = inputs.shape[-1]
        if masks is None and training and self.mask_specs():
            raise ValueError(
                f"`{type(self).__name__}` with a dropout rate above 0 cannot train under "
                "`keras.layers.RNN`, which passes no masks to a cell. Wrap it in "
                "`dualnet.layers.Recurrence`, or set its dropout rates to 0."
            )
        masks = masks or {}
        return self.step(self.input_projection(inputs, masks), states, masks)

    def input_projection(self, inputs, masks):
        """Return the part of `step` that depends on the input alone: one tensor or several.

        Args:
            inputs: `(batch, features)`, or `(time, batch, features)` for all steps.
            masks: as in `call`; fresh masks of all steps are `(time, batch, size)`.
        """
        return inputs

    def step(self, projection, states, masks):
        """Return the output and the list of new states.

        Args:
            projection: the result of `input_projection` for one step.
            states: list of `(batch, size)`.
            masks: dict from the names in `mask_specs()` to masks or dropped-out weights.
        """
        raise NotImplementedError

    def recurrent_product(self, h, masks, name="recurrent_kernel", mask="recurrent"):
        """Return the product of h, dropped out, and the matrix `name`, dropped out."""
        return product(h, masks.get(name, getattr(self, name)), masks.get(mask))

    # --- weights

    def units_of(self, weight):
        """Return the size of the layer that `weight` belongs to, for the initializers."""
        return self.units

    def add_input_kernel(self, name, shape, initializer="glorot_uniform"):
        return self.add_matrix(name, shape, initializer, self.input_l2)

    def add_recurrent_kernel(self, name, shape, initializer="orthogonal"):
        return self.add_matrix(name, shape, initializer, self.recurrent_l2)

    def add_bias(self, name, size, initializer="zeros"):
        """Return a bias of `size`, an int or a shape, or None without `use_bias`."""
        if not self.use_bias:
            return None
        shape = size if isinstance(size, tuple) else (size,)
        bias = self.add_matrix(name, shape, initializer, role=Role.BIAS)
        bias.fixed_gates = getattr(initializer, "fixed_gates", [False])  # by gate
        return bias


class FusedCell(RecurrentCell):
    """A cell whose gates share `kernel`, `recurrent_kernel` and `bias`, side by side.

    A subclass defines `gates`, their number, and `step`, whose `projection` is x W + b.

    Example: a cell with one gate, f, and h' = f * h + (1 - f) * tanh(j).

    >>> import keras
    >>> import numpy as np
    >>> from dualnet.layers import FusedCell, Recurrence
    >>> @keras.saving.register_keras_serializable("my_package")
    ... class OneGateCell(FusedCell):
    ...     gates = 2
    ...
    ...     def step(self, projection, states, masks):
    ...         [h] = states
    ...         f, j = keras.ops.split(projection + self.recurrent_product(h, masks), 2, axis=-1)
    ...         f = keras.ops.sigmoid(f)
    ...         h = f * h + (1.0 - f) * keras.ops.tanh(j)
    ...         return h, [h]
    >>> outputs, h = Recurrence(OneGateCell(4))(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape)
    (2, 5, 4)
    """

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        self.build_gates()

    def build_gates(self, gates=None):
        size = (gates or self.gates) * self.units
        self.kernel = self.add_input_kernel("kernel", (self.input_size, size))
        self.recurrent_kernel = self.add_recurrent_kernel("recurrent_kernel", (self.units, size))
        self.bias = self.add_gate_bias()

    def add_gate_bias(self):
        return self.add_bias("bias", self.gates * self.units)

    def input_projection(self, inputs, masks):
        z = product(inputs, self.kernel, masks.get("input"))
        return z + self.bias if self.use_bias else z


def build_cell(cell, input_shape, *others):
    """Build `cell`, unless it is; the `build` of a subclass may leave out `input_size`."""
    if getattr(cell, "input_size", 0) is None:
        cell.input_size = input_shape[-1]
    if not cell.built:
        cell.build(input_shape, *others)
        cell.built = True


def product(vector, kernel, mask=None):
    """Return `vector @ kernel` with `vector` dropped out by one mask, or by one per gate.

    The masks of several gates stand side by side, as the gates' parts of `kernel` do.

    In the `step` and the `input_projection` of a cell, `Recurrence` forms the gradient of such a
    product once for a whole segment. A matrix is either multiplied by this function everywhere in
    the cell, or nowhere; else gradients are lost.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import product
    >>> tuple(product(np.ones((2, 3), "float32"), np.ones((3, 4), "float32")).shape)
    (2, 4)
    """
    if mask is None:
        return matmul(vector, kernel)
    gates = mask.shape[-1] // vector.shape[-1]
    if gates == 1:
        return matmul(vector * mask, kernel)
    masks = enumerate(ops.split(mask, gates, axis=-1))
    return ops.concatenate([matmul(vector * m, kernel, (i, gates)) for i, m in masks], axis=-1)


def gate_biases(*values):
    """Return an initializer of a bias whose gates, side by side, start at `values`.

    A value may be "chrono:T". The rules of `dualnet.builders.initializers` leave it as it is.
    """

    def initialize(shape, dtype=None):
        size = shape[-1] // len(values)
        return ops.concatenate([_bias_start(value, size, dtype) for value in values])

    initialize.fixed_gates = [isinstance(value, str) for value in values]  # type: ignore[attr-defined]
    return initialize


def _bias_start(value, size, dtype):
    if not isinstance(value, str):
        return ops.full((size,), value, dtype)
    longest = float(value.removeprefix(CHRONO))
    return ops.log(keras.initializers.RandomUniform(1.0, longest - 1)((size,), dtype))


def check_forget_bias(value):
    """Return `value`, a number or "chrono:T"."""
    if not isinstance(value, str):
        return _checks.check_finite("forget_bias", value)
    with contextlib.suppress(ValueError):
        if value.startswith(CHRONO) and 2 < float(value.removeprefix(CHRONO)) < math.inf:
            return value
    raise _checks.ArgumentError(
        "forget_bias",
        "must be a number, or 'chrono:T' with a T above 2, such as 'chrono:50'.",
        forget_bias=value,
    )
