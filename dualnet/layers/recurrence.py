"""The layer that runs a cell over the time steps of a segment."""

from typing import Any

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.layers._seeded import SeededLayer
from dualnet.layers._segment import Known, Segment


@keras.saving.register_keras_serializable("dualnet")
class Recurrence(SeededLayer):
    """Runs `cell` over the time steps of a segment; a pure function of inputs and states.

    The same function as `keras.layers.RNN`, and a faster one. Draws the masks of the
    cell's dropouts before the loop: a locked one once, the others for all steps; weights
    are dropped out before it, too. Where the time is known to be 1 when the graph is made,
    there is no loop.

    What does not depend on the state is computed for all steps at once. In the loop the
    matrices are constants, cast once for a segment; each product of a step is kept, and
    the backward pass goes through the steps with these in place of the products. The
    gradient of a matrix is then one product for the whole segment, of all that entered it
    and all gradients of what came out, where a plain loop adds up one for each step.

    Products with matrices run in the compute dtype, all else, gates and states among them,
    in the variable dtype: float32 under "mixed_bfloat16".

    Args:
        cell: a cell with `state_size` (list), `output_size` and `mask_specs()`,
            such as `dualnet.layers.LSTMCell`. One without `input_part` and `step` (see
            `RecurrentCell`) has its `call` run at each step.
        seed: int or None, of the masks.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments:
        sequence: `(batch, time, features)`.
        initial_state: list of `(batch, size)`, one for each entry of
            `cell.state_size`; zeros if left out.
        mask: bool `(batch, time)`, or None. A step where it is False is padding: it
            leaves the states as they are, and its output is 0.
        training: bool. Whether dropouts are active.

    Returns:
        `(outputs, *states)`: `(batch, time, output_size)` in the compute dtype,
        and the states after the last step, float32.

    Masking: takes the mask of `sequence`, on any side of it, and passes it on with
    the outputs.

    Raises:
        ValueError: if `cell` has no `mask_specs`, or `mask` is not bool `(batch, time)`.
    """

    def __init__(self, cell, *, seed=None, **kwargs):
        if not hasattr(cell, "mask_specs"):
            raise ArgumentError(
                "cell",
                "must have `mask_specs()`, as the cells of `dualnet.layers` do, so that its "
                f"masks can be drawn before the loop. Received: cell={cell!r}. Other cells run "
                "under `keras.layers.RNN`.",
            )
        super().__init__(seed=seed, autocast=False, **kwargs)
        self.cell = cell
        self.supports_masking = True
        self.known = Known()

    @property
    def compute_dtype(self):
        # Keras casts each weight that is read in a layer to this one. Here products alone run in
        # the compute dtype of the policy, and their matrices are cast once.
        return self.variable_dtype

    def build(self, sequence_shape, initial_state_shape=None):
        if not self.cell.built:
            self.cell.build((sequence_shape[0], sequence_shape[-1]))
            self.cell.built = True

    def call(self, sequence, initial_state=None, mask=None, training=False):
        if mask is None:  # where there is an initial state, Keras does not hand it over
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
        # Known beforehand: a trial call would trace the loop, half the time a model takes to build.
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
        """Return what is locked, masks `(batch, size)` and dropped weights, and the fresh masks.

        The latter are `(time, batch, size)`.
        """
        locked: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for spec in self.cell.mask_specs():
            if isinstance(spec.size, tuple):
                whole = ops.convert_to_tensor(getattr(self.cell, spec.name))
            else:
                shape = (*([] if spec.locked else [time]), batch, spec.size)
                whole = ops.ones(shape, self.variable_dtype)
            drawn = keras.random.dropout(whole, spec.rate, seed=self.seed_generator)
            (locked if spec.locked else fresh)[spec.name] = drawn
        return locked, fresh

    def get_config(self):
        return {**super().get_config(), "cell": keras.saving.serialize_keras_object(self.cell)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "cell": keras.saving.deserialize_keras_object(config["cell"])})


def _check_mask(mask):
    if mask is None:
        return
    kind = keras.backend.standardize_dtype(mask.dtype)
    if len(mask.shape) != 2 or kind != "bool":
        raise ArgumentError(
            "mask",
            "must be bool of shape (batch, time), False where a step is padding. Received: "
            f"{kind} of shape {tuple(mask.shape)}.",
        )
