"""What all recurrent cells have in common."""

import keras
from keras import ops

from dualnet._checks import check_count, check_flag, check_penalty, check_rate
from dualnet.layers._masks import MaskSpec, check_locked
from dualnet.layers._products import matmul


class RecurrentCell(keras.layers.Layer):
    """One step of a recurrent layer; a pure function, which is handed its masks.

    A subclass has `build`, `step`, `gates` and, where they are not those of here,
    `input_part` and `state_size`. Its equations are in its own docstring. A step has two
    parts, of which whoever runs the cell over time takes the first for all steps at once:
    what can be said of the input before the state is known, and the rest. All products
    with matrices go through `product`.

    Args:
        units: int, at least 1. Size of each state and of the output.
        use_bias: bool.
        input_dropout: float, at least 0 and below 1, on the input.
        recurrent_dropout: float, at least 0 and below 1, on the incoming h where
            it enters a product. A state that is carried past the products is
            not dropped out.
        weight_dropout: float, at least 0 and below 1. Drops single weights of the
            recurrent matrices, one draw per segment for all rows and steps
            (DropConnect; Merity et al., 2018).
        mask_per_gate: bool. A mask of its own for each gate, for input and h
            ("untied weights" of Gal and Ghahramani, 2016), or one for all gates.
        input_l2: float, at least 0. Adds `input_l2 * sum(w ** 2)` of the input
            matrices to the loss.
        recurrent_l2: float, at least 0. The same for the recurrent matrices.
        locked: the dropouts whose mask is kept for a segment, some of "input" and
            "recurrent". The others are drawn at each step.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.
    """

    dropouts: tuple[str, ...] = ("input", "recurrent")
    gates = 1

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
        locked=("input", "recurrent"),
        **kwargs,
    ):
        units = check_count("units", units, least=1)
        use_bias = check_flag("use_bias", use_bias)
        mask_per_gate = check_flag("mask_per_gate", mask_per_gate)
        input_dropout = check_rate("input_dropout", input_dropout)
        recurrent_dropout = check_rate("recurrent_dropout", recurrent_dropout)
        weight_dropout = check_rate("weight_dropout", weight_dropout)
        input_l2 = check_penalty("input_l2", input_l2)
        recurrent_l2 = check_penalty("recurrent_l2", recurrent_l2)
        super().__init__(**kwargs)
        self.units = units
        self.use_bias = use_bias
        self.input_dropout = input_dropout
        self.recurrent_dropout = recurrent_dropout
        self.weight_dropout = weight_dropout
        self.mask_per_gate = mask_per_gate
        self.input_l2 = input_l2
        self.recurrent_l2 = recurrent_l2
        self.locked = check_locked(locked, self.dropouts)
        self.state_size = [units]
        self.output_size = units
        self.input_size = None  # known once built

    def mask_specs(self):
        """Return what a training step needs drawn, a list of `MaskSpec`."""
        times = self.gates if self.mask_per_gate else 1
        sizes = {"input": self.input_size, "recurrent": self.units}
        rates = {"input": self.input_dropout, "recurrent": self.recurrent_dropout}
        specs = [
            MaskSpec(place, rates[place], times * sizes[place], place in self.locked)
            for place in rates
            if rates[place] > 0
        ]
        return specs + self.weight_specs()

    def weight_specs(self):
        """Return the part of `mask_specs` that `weight_dropout` asks for."""
        if self.weight_dropout == 0:
            return []
        shapes = {name: tuple(getattr(self, name).shape) for name in self.recurrent_kernels()}
        return [MaskSpec(name, self.weight_dropout, shape, True) for name, shape in shapes.items()]

    def recurrent_kernels(self):
        """Return the names of the matrices that `weight_dropout` is on."""
        return ["recurrent_kernel"]

    def call(self, inputs, states, training=False, masks=None):
        masks = self.masks_for(masks, training)
        return self.step(self.input_part(inputs, masks), states, masks)

    def input_part(self, inputs, masks):
        """Return what `step` reads of the input: a tensor, or a list of tensors.

        Args:
            inputs: `(batch, features)`, or `(time, batch, features)` for all steps.
            masks: as for `call`, with those that are fresh at each step `(time, batch, size)`.
        """
        return inputs

    def step(self, part, states, masks):
        """Return the output and the list of new states; `part` is from `input_part`."""
        raise NotImplementedError

    def masks_for(self, masks, training):
        """Return the masks to use in one step; raise `ValueError` if they are missing."""
        if masks is not None:
            return masks
        if training and self.mask_specs():
            raise ValueError(
                f"`{type(self).__name__}` with a dropout rate above 0 cannot train under "
                "`keras.layers.RNN`, which gives a cell no masks. Wrap it in "
                "`dualnet.layers.Recurrence`, or set the cell's dropout rates to 0."
            )
        return {}

    def recurrent_product(self, h, masks, name="recurrent_kernel", mask="recurrent"):
        """Return h, masked by `mask`, times the matrix `name`, which may lack single weights."""
        return product(h, masks.get(name, getattr(self, name)), masks.get(mask))

    # --- weights

    def add_input_kernel(self, name, shape, initializer="glorot_uniform"):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            regularizer=keras.regularizers.L2(self.input_l2),
        )

    def add_recurrent_kernel(self, name, shape, initializer="orthogonal"):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            regularizer=keras.regularizers.L2(self.recurrent_l2),
        )

    def add_bias(self, name, size, initializer="zeros"):
        """Return a bias of `size`, an int or a shape, or None where the cell has none."""
        if not self.use_bias:
            return None
        shape = size if isinstance(size, tuple) else (size,)
        return self.add_weight(name=name, shape=shape, initializer=initializer)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "use_bias": self.use_bias,
            "input_dropout": self.input_dropout,
            "recurrent_dropout": self.recurrent_dropout,
            "weight_dropout": self.weight_dropout,
            "mask_per_gate": self.mask_per_gate,
            "input_l2": self.input_l2,
            "recurrent_l2": self.recurrent_l2,
            "locked": list(self.locked),
        }


def product(vector, kernel, mask=None):
    """Return `vector @ kernel`, with `vector` masked by one mask, or by one for each gate.

    Masks of several gates stand side by side, as the gates' parts of `kernel` do.
    """
    if mask is None:
        return matmul(vector, kernel)
    gates = mask.shape[-1] // vector.shape[-1]
    if gates == 1:
        return matmul(vector * mask, kernel)
    masks = enumerate(ops.split(mask, gates, axis=-1))
    return ops.concatenate([matmul(vector * m, kernel, (i, gates)) for i, m in masks], axis=-1)
