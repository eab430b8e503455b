"""Any Keras cell as one that `Recurrence` runs."""

import keras

from dualnet._checks import ArgumentError
from dualnet.layers._configured import ConfiguredLayer
from dualnet.layers._recurrent_cell import build_cell


@keras.saving.register_keras_serializable("dualnet")
class KerasCell(ConfiguredLayer):
    """Runs a Keras cell, such as `keras.layers.LSTMCell`, in `Recurrence`: whole at each step.

    The states start as zeros. The cell must draw no masks.

    Args:
        cell: layer with `state_size`, an int or a list, and `call(inputs, states)`.

    Call arguments, returns: as `RecurrentCell`.
    """

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        state_size = getattr(cell, "state_size", None)
        sizes = keras.tree.flatten(state_size)
        if not all(isinstance(size, int) for size in sizes):
            raise ArgumentError(
                "cell",
                "must have `state_size`, an int or a list of them, and `call(inputs, states)`. "
                f"Received: {type(cell).__name__} with state_size={state_size!r}.",
            )
        self.cell = cell
        self.state_size = sizes
        self.output_size = getattr(cell, "output_size", None) or sizes[0]

    def build(self, input_shape):
        build_cell(self.cell, input_shape)

    def mask_specs(self):
        return []

    def call(self, inputs, states, training=False, masks=None):
        sizes = self.cell.state_size
        sizes = list(sizes) if isinstance(sizes, list | tuple) else [sizes]
        states = keras.tree.pack_sequence_as(sizes, list(states))
        output, states = self.cell(inputs, states, training=training)
        return output, keras.tree.flatten(states)
