"""The layer that runs a cell over the time steps of a segment."""

import types
from typing import Any

import keras
from keras import ops, tree

from dualnet._checks import ArgumentError
from dualnet.layers._attention_cell import dropped_weights
from dualnet.layers._recurrent_cell import build_cell
from dualnet.layers._seeded import SeededLayer
from dualnet.layers._segment import Segment, is_float


@keras.saving.register_keras_serializable("dualnet")
class Recurrence(SeededLayer):
    """Runs `cell` over the time steps of a segment: a pure function of inputs and states.

    It computes the same function as `keras.layers.RNN`, faster, and takes its place in a
    `keras.Sequential` (with `return_state=False`) and in `keras.layers.Bidirectional`. The masks
    of the cell's dropouts are drawn before the loop: a locked one once, the others for all steps.
    So are dropped-out weights. If the time is known to be 1 when the graph is built, there is no
    loop. `dualnet.layers._segment` explains the loop and its backward pass. On TensorFlow, a model
    of your own is exported within `without_gradients`.

    Products with matrices run in the compute dtype. Everything else, gates and states
    included, runs in the variable dtype: float32 under "mixed_bfloat16".

    Args:
        cell: a cell with `state_size` (a list), `output_size` and `mask_specs()`,
            such as `dualnet.layers.LSTMCell`. A cell may split its `call` in two methods, which
            makes it faster: `input_projection(inputs, masks)`, which is called once for all
            steps, and `step(projection, states, masks)`. Without them, `call` runs at each step.
        return_sequences: bool. Whether to return the outputs of all steps, or the last one.
        return_state: bool. Whether to return the states after the last step, too. The default
            is True here and False in `keras.layers.RNN`.
        go_backwards: bool. Whether to read the sequence from its end. The outputs are in the
            order of reading, so the last time step comes first.
        seed: int or None. Seed of the masks. The state of the generator is saved with the
            weights.

    Call arguments:
        sequence: `(batch, time, features)`.
        initial_state: list of `(batch, size)`, one per entry of `cell.state_size`, or None
            for zeros. For a cell with one state, the tensor alone will do.
        mask: bool `(batch, time)`, or None. Where it is False the step is padding: it
            leaves the states unchanged, and its output is 0, as with `zero_output_for_mask` of
            `keras.layers.RNN`. The last output is that of the last step that is not padding.
        training: bool. Whether dropout is active.
        constants: list of tensors that every step reads whole, such as what a cell with
            attention attends to; for cells whose `step` takes `constants`. Gradients flow
            through those of floating point.
        adaptation: list of the factors of an adaptation matrix M for each row, `(batch,
            output_size, output_size)`, or `(batch, output_size, rank)` and its counterpart. The
            output h of a step becomes `h + h M`, and so does the state that is equal to it.

    Returns:
        `(outputs, *states)`: `(batch, time, output_size)` in the compute dtype,
        and the states after the last step in float32. Without `return_sequences`, the first is
        `(batch, output_size)`. Without `return_state`, it is returned alone.

    Masking: uses the mask of `sequence`, which may be padded on either side, and passes it on
    with the outputs of all steps, in their order.

    Raises:
        ValueError: if `cell` has no `mask_specs`, `mask` is not bool `(batch, time)`, or
            `initial_state` has another number of states than the cell.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LSTMCell, Recurrence
    >>> recurrence = Recurrence(LSTMCell(4, recurrent_dropout=0.2))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), tuple(h.shape), tuple(c.shape)
    ((2, 5, 4), (2, 4), (2, 4))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"), initial_state=[h, c])

    As a layer that reads a series in both directions:

    >>> import keras
    >>> last = Recurrence(LSTMCell(4), return_sequences=False, return_state=False)
    >>> model = keras.Sequential([keras.layers.Bidirectional(last), keras.layers.Dense(1)])
    >>> tuple(model(np.ones((2, 5, 3), "float32")).shape)
    (2, 1)
    """

    # What `keras.layers.Bidirectional` reads of its layer. State is explicit here.
    stateful = False
    states = None

    def __init__(
        self,
        cell,
        *,
        return_sequences=True,
        return_state=True,
        go_backwards=False,
        seed=None,
        **kwargs,
    ):
        if not hasattr(cell, "mask_specs"):
            raise ArgumentError(
                "cell",
                "must have `mask_specs()`, as the cells of `dualnet.layers` do: its masks are "
                "drawn before the loop.",
                " Run other cells with `keras.layers.RNN`.",
                cell=cell,
            )
        super().__init__(seed=seed, autocast=False, **kwargs)
        self.cell = cell
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.input_spec = keras.layers.InputSpec(ndim=3)
        # The plan of a step by training mode and masks. Keras would track and save a dict.
        self.step_plans = types.SimpleNamespace(by_mode={})

    @property
    def compute_dtype(self):
        # Keras casts every weight that a layer reads to this dtype. Here only products run in
        # the compute dtype of the policy, and their matrices are cast once.
        return self.variable_dtype

    def build(self, sequence_shape, initial_state_shape=None, constants_shape=None):
        shapes = [] if constants_shape is None else [constants_shape]
        build_cell(self.cell, (sequence_shape[0], sequence_shape[-1]), *shapes)

    def call(
        self,
        sequence,
        initial_state=None,
        mask=None,
        training=False,
        constants=None,
        adaptation=None,
    ):
        if mask is None:  # with an initial state, Keras does not pass it
            mask = getattr(sequence, "_keras_mask", None)
        _check_mask(mask)
        sequence = ops.cast(sequence, self.variable_dtype)
        batch, time, _ = ops.shape(sequence)
        locked, fresh = self._draw_masks(batch, time) if training else ({}, {})
        if initial_state is None:
            initial_state = self.get_initial_state(batch)
        elif not tree.is_nested(initial_state):
            initial_state = [initial_state]
        if len(initial_state) != len(sizes := self.cell.state_size):
            raise ArgumentError(
                "initial_state",
                f"must be a list of {len(sizes)} tensors (batch, size), with the sizes "
                f"{list(sizes)}. Received: {len(initial_state)} tensors.",
            )
        states = [ops.cast(state, self.variable_dtype) for state in initial_state]
        # Time first from here on.
        sequence = ops.transpose(sequence, (1, 0, 2))
        mask = None if mask is None else ops.transpose(mask)[..., None]
        if self.go_backwards:
            sequence = ops.flip(sequence, axis=0)
            mask = None if mask is None else ops.flip(mask, axis=0)
        constants, adaptation = map(self._as_constants, (constants, adaptation))
        segment = Segment(self, sequence, locked, fresh, mask, constants, adaptation, training)
        outputs, states = segment.run(states)
        if self.return_sequences:
            outputs = ops.transpose(outputs, (1, 0, 2))
        else:
            outputs = _last(outputs, mask)
        outputs = ops.cast(outputs, self.dtype_policy.compute_dtype)
        if not self.return_state:
            return outputs
        return outputs, *[ops.cast(state, "float32") for state in states]

    def _as_constants(self, tensors):
        tensors = map(ops.convert_to_tensor, tensors or [])
        return [ops.cast(x, self.variable_dtype) if is_float(x) else x for x in tensors]

    def get_initial_state(self, batch_size):
        """Return the state that the cell starts from, zeros by default: `(batch, size)` each."""
        if own := getattr(self.cell, "get_initial_state", None):
            return tree.flatten(own(batch_size=batch_size))
        return [ops.zeros((batch_size, n), self.variable_dtype) for n in self.cell.state_size]

    def compute_output_shape(self, sequence_shape, initial_state_shape=None, constants_shape=None):
        batch, time, _ = sequence_shape
        shape = (batch, *([time] if self.return_sequences else []), self.cell.output_size)
        if not self.return_state:
            return shape
        return shape, *((batch, size) for size in self.cell.state_size)

    def compute_output_spec(self, sequence, initial_state=None, mask=None, *_, **__):
        # Spares Keras a call to find the shapes: tracing the loop is half the time of a build.
        _check_mask(mask)
        dtype = self.dtype_policy.compute_dtype
        shapes = self.compute_output_shape(sequence.shape)
        if not self.return_state:
            return keras.KerasTensor(shapes, dtype)
        outputs, *states = shapes
        return keras.KerasTensor(outputs, dtype), *[keras.KerasTensor(s, "float32") for s in states]

    def compute_mask(self, sequence, mask=None):
        if mask is not None and self.go_backwards:
            mask = ops.flip(mask, axis=1)
        mask = mask if self.return_sequences else None
        return [mask, *[None] * len(self.cell.state_size)] if self.return_state else mask

    def _draw_masks(self, batch, time):
        """Return the locked masks `(batch, size)`, dropped-out weights among them, and the
        fresh masks `(time, batch, size)`.
        """
        locked: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        weights = dropped_weights(self.cell)
        for spec in self.cell.mask_specs():
            if spec.name in weights:
                undropped = ops.convert_to_tensor(weights[spec.name])
            else:
                shape = (*([] if spec.locked else [time]), batch, spec.size)
                undropped = ops.ones(shape, self.variable_dtype)
            (locked if spec.locked else fresh)[spec.name] = self.drop(undropped, spec.rate)
        return locked, fresh


def _check_mask(mask):
    if mask is None:
        return
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if len(mask.shape) != 2 or dtype != "bool":
        required = "must be bool of shape (batch, time), False at padding."
        raise ArgumentError("mask", f"{required} Received: {dtype} of shape {tuple(mask.shape)}.")


def _last(outputs, mask):
    """Return the output of each row's last step that is not padding, else 0. Time is first."""
    if mask is None:
        return outputs[-1]
    steps_read = ops.cumsum(ops.cast(mask, "int32"), axis=0)
    last = ops.argmax(steps_read, axis=0)[None]  # the first step of the highest count
    return ops.take_along_axis(outputs, last, axis=0)[0]
