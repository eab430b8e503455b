"""The layer that runs a cell over the time steps of a segment."""

import types
from typing import Any

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.layers._recurrent_cell import warn_about_input_part
from dualnet.layers._seeded import SeededLayer
from dualnet.layers._segment import Segment


@keras.saving.register_keras_serializable("dualnet")
class Recurrence(SeededLayer):
    """Runs `cell` over the time steps of a segment: a pure function of inputs and states.

    It computes the same function as `keras.layers.RNN`, faster. The masks of the cell's
    dropouts are drawn before the loop: a locked one once, the others for all steps. So are
    dropped-out weights. If the time is known to be 1 when the graph is built, there is no
    loop. `dualnet.layers._segment` explains the loop and its backward pass.

    Products with matrices run in the compute dtype. Everything else, gates and states
    included, runs in the variable dtype: float32 under "mixed_bfloat16".

    Args:
        cell: a cell with `state_size` (a list), `output_size` and `mask_specs()`,
            such as `dualnet.layers.LSTMCell`. A cell may split its `call` in two methods, which
            makes it faster: `input_projection(inputs, masks)`, which is called once for all
            steps, and `step(projection, states, masks)`. Without them, `call` runs at each step.
        seed: int or None. Seed of the masks. The state of the generator is saved with the
            weights.

    Call arguments:
        sequence: `(batch, time, features)`.
        initial_state: list of `(batch, size)`, one per entry of `cell.state_size`, or None
            for zeros.
        mask: bool `(batch, time)`, or None. Where it is False the step is padding: it
            leaves the states unchanged, and its output is 0.
        training: bool. Whether dropout is active.

    Returns:
        `(outputs, *states)`: `(batch, time, output_size)` in the compute dtype,
        and the states after the last step in float32.

    Masking: uses the mask of `sequence`, which may be padded on either side, and passes it on
    with the outputs.

    Raises:
        ValueError: if `cell` has no `mask_specs`, or `mask` is not bool `(batch, time)`.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LSTMCell, Recurrence
    >>> recurrence = Recurrence(LSTMCell(4, recurrent_dropout=0.2))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), tuple(h.shape), tuple(c.shape)
    ((2, 5, 4), (2, 4), (2, 4))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"), initial_state=[h, c])
    """

    def __init__(self, cell, *, seed=None, **kwargs):
        if not hasattr(cell, "mask_specs"):
            raise ArgumentError(
                "cell",
                "must have `mask_specs()`, as the cells of `dualnet.layers` do: its masks are "
                f"drawn before the loop. Received: cell={cell!r}. Run other cells with "
                "`keras.layers.RNN`.",
            )
        if hasattr(cell, "input_part") and not hasattr(cell, "input_projection"):
            warn_about_input_part(type(cell))
            cell.input_projection = cell.input_part
        super().__init__(seed=seed, autocast=False, **kwargs)
        self.cell = cell
        # The plan of a step by training mode and masks. Keras would track and save a dict.
        self.step_plans = types.SimpleNamespace(by_mode={})

    @property
    def compute_dtype(self):
        # Keras casts every weight that a layer reads to this dtype. Here only products run in
        # the compute dtype of the policy, and their matrices are cast once.
        return self.variable_dtype

    def build(self, sequence_shape, initial_state_shape=None):
        if not self.cell.built:
            self.cell.build((sequence_shape[0], sequence_shape[-1]))
            self.cell.built = True

    def call(self, sequence, initial_state=None, mask=None, training=False):
        if mask is None:  # with an initial state, Keras does not pass it
            mask = getattr(sequence, "_keras_mask", None)
        _check_mask(mask)
        sequence = ops.cast(sequence, self.variable_dtype)
        batch, time, _ = ops.shape(sequence)
        locked, fresh = self._draw_masks(batch, time) if training else ({}, {})
        if initial_state is None:
            states = [ops.zeros((batch, n), self.variable_dtype) for n in self.cell.state_size]
        else:
            states = [ops.cast(state, self.variable_dtype) for state in initial_state]
        # Time first from here on.
        sequence = ops.transpose(sequence, (1, 0, 2))
        mask = None if mask is None else ops.transpose(mask)[..., None]
        segment = Segment(self, sequence, locked, fresh, mask, training)
        outputs, states = segment.run(states)
        outputs = ops.cast(ops.transpose(outputs, (1, 0, 2)), self.dtype_policy.compute_dtype)
        return outputs, *[ops.cast(state, "float32") for state in states]

    def compute_output_spec(self, sequence, initial_state=None, mask=None, training=False):
        # Spares Keras a call to find the shapes: tracing the loop is half the time of a build.
        _check_mask(mask)
        batch, time, _ = sequence.shape
        dtype = self.dtype_policy.compute_dtype
        return (
            keras.KerasTensor((batch, time, self.cell.output_size), dtype),
            *(keras.KerasTensor((batch, size), "float32") for size in self.cell.state_size),
        )

    def compute_mask(self, sequence, mask=None):
        return [mask, *[None] * len(self.cell.state_size)]

    def _draw_masks(self, batch, time):
        """Return the locked masks `(batch, size)`, dropped-out weights among them, and the
        fresh masks `(time, batch, size)`.
        """
        locked: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for spec in self.cell.mask_specs():
            if isinstance(spec.size, tuple):
                undropped = ops.convert_to_tensor(getattr(self.cell, spec.name))
            else:
                shape = (*([] if spec.locked else [time]), batch, spec.size)
                undropped = ops.ones(shape, self.variable_dtype)
            mask = keras.random.dropout(undropped, spec.rate, seed=self.seed_generator)
            (locked if spec.locked else fresh)[spec.name] = mask
        return locked, fresh


def _check_mask(mask):
    if mask is None:
        return
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if len(mask.shape) != 2 or dtype != "bool":
        raise ArgumentError(
            "mask",
            "must be bool of shape (batch, time), False at padding. Received: "
            f"{dtype} of shape {tuple(mask.shape)}.",
        )
