"""Runs a cell over time, with state in and state out."""

from typing import Any

import keras
from keras import ops

from dualnet.layers._masks import MaskSpec
from dualnet.layers._seeded import SeededLayer


@keras.saving.register_keras_serializable("dualnet")
class Recurrence(SeededLayer):
    """Runs `cell` over the time steps of a segment; a pure function of inputs and states.

    Draws the masks of the cell's dropouts before the loop: a locked one once,
    the others for all steps; weights are dropped out before it, too. The loop
    itself is that of `keras.layers.RNN`; where the time is known to be 1 when the
    graph is made, there is none.

    Args:
        cell: a cell with `state_size` (list), `output_size` and `mask_specs()`,
            such as `dualnet.layers.LSTMCell`.
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
            raise ValueError(
                "`cell` must have `mask_specs()`, as the cells of `dualnet.layers` do, so that its "
                f"masks can be drawn before the loop. Received: cell={cell!r}. Other cells run "
                "under `keras.layers.RNN`."
            )
        super().__init__(seed=seed, **kwargs)
        self.cell = cell
        self.supports_masking = True

    def build(self, sequence_shape, initial_state_shape=None):
        if not self.cell.built:
            self.cell.build((sequence_shape[0], sequence_shape[-1]))
            self.cell.built = True

    def call(self, sequence, initial_state=None, mask=None, training=False):
        if mask is None:  # where there is an initial state, Keras does not hand it over
            mask = getattr(sequence, "_keras_mask", None)
        _check_mask(mask)
        locked, fresh = (
            self._draw_masks(ops.shape(sequence), sequence.dtype) if training else ({}, {})
        )
        step = _Step(self.cell, locked, list(fresh), training)
        if fresh:
            sequence = ops.concatenate([sequence, *fresh.values()], axis=-1)
        if sequence.shape[1] == 1:
            outputs, states = self._one_step(step, sequence, initial_state, mask)
        else:
            loop = keras.layers.RNN(
                step,
                return_sequences=True,
                return_state=True,
                zero_output_for_mask=True,
                dtype=self.dtype_policy,
            )
            outputs, *states = loop(sequence, initial_state=initial_state, mask=mask)
        return outputs, *[ops.cast(state, "float32") for state in states]

    def compute_output_spec(self, sequence, initial_state=None, mask=None, training=False):
        # Known beforehand: a trial call would trace the loop, half the time a model takes to build.
        _check_mask(mask)
        batch, time, _ = sequence.shape
        return (
            keras.KerasTensor((batch, time, self.cell.output_size), self.cell.compute_dtype),
            *(keras.KerasTensor((batch, size), "float32") for size in self.cell.state_size),
        )

    def compute_mask(self, sequence, mask=None):
        return [mask, *[None] * len(self.cell.state_size)]

    @staticmethod
    def _one_step(step, sequence, initial_state, mask):
        """Return what the loop returns for one step, without a loop.

        Loops are slow in ONNX and LiteRT, and nothing gains by one of a single turn.
        """
        if initial_state is None:
            batch = ops.shape(sequence)[0]
            states = [ops.zeros((batch, size), step.compute_dtype) for size in step.state_size]
        else:
            states = [ops.cast(state, step.compute_dtype) for state in initial_state]
        output, new_states = step(sequence[:, 0], states)
        if mask is not None:  # (batch, 1)
            output = ops.where(mask, output, 0)
            new_states = [ops.where(mask, *pair) for pair in zip(new_states, states)]
        return output[:, None], new_states

    def _draw_masks(self, shape, dtype):
        """Return what is locked, masks `(batch, size)` and dropped weights, and the fresh masks.

        The latter are `(batch, time, size)`.
        """
        batch, time, _ = shape
        locked: dict[MaskSpec, Any] = {}
        fresh: dict[MaskSpec, Any] = {}
        for spec in self.cell.mask_specs():
            if isinstance(spec.size, tuple):
                whole = ops.cast(getattr(self.cell, spec.name), dtype)
            else:
                whole = ops.ones((batch, *([] if spec.locked else [time]), spec.size), dtype)
            drawn = keras.random.dropout(whole, spec.rate, seed=self.seed_generator)
            (locked if spec.locked else fresh)[spec] = drawn
        return {spec.name: mask for spec, mask in locked.items()}, fresh

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
        raise ValueError(
            "`mask` must be bool of shape (batch, time), False where a step is padding. Received: "
            f"{kind} of shape {tuple(mask.shape)}."
        )


class _Step:
    """What `keras.layers.RNN` calls at each time step: the cell, handed its masks.

    Fresh masks travel with the inputs, behind the features.
    """

    def __init__(self, cell, locked, fresh, training):
        self.cell = cell
        self.locked = locked
        self.fresh = fresh
        self.training = training
        self.state_size = list(cell.state_size)
        self.output_size = cell.output_size
        self.compute_dtype = cell.compute_dtype

    def call(self, inputs, states):
        masks = dict(self.locked)
        if self.fresh:
            sizes = [spec.size for spec in self.fresh]
            features = inputs.shape[-1] - sum(sizes)
            ends = [features + sum(sizes[:i]) for i in range(len(sizes))]
            inputs, *drawn = ops.split(inputs, ends, axis=-1)
            masks.update({spec.name: mask for spec, mask in zip(self.fresh, drawn)})
        return self.cell.call(inputs, states, training=self.training, masks=masks)

    __call__ = call
