import keras
from keras import ops

from dualnet.layers._recurrent_cell import FusedCell


@keras.saving.register_keras_serializable("dualnet")
class ElmanCell(FusedCell):
    """One step of the simple recurrent network.

    h' = tanh(x W + h U + b)

    Computes the same function as `keras.layers.SimpleRNNCell`, with the same weight layout.

    Differs from the paper: tanh instead of the logistic function, as is usual today.

    Args:
        units: int, at least 1. Size of h.
        **kwargs: Passed to `RecurrentCell`: `use_bias`, `input_dropout`,
            `recurrent_dropout`, `weight_dropout`, `mask_per_gate` (without effect on
            a single gate), `input_l2`, `recurrent_l2`, `locked`; and to
            `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments:
        inputs: `(batch, features)`.
        states: `[h]`, `(batch, units)`.
        training: bool.
        masks: dict from the names in `mask_specs()` to the masks drawn, or None.

    Returns:
        `(h, [h])`, each `(batch, units)`.

    Weights: `kernel` (features, units), `recurrent_kernel` (units, units), `bias`
    (units) if used.

    Raises:
        ValueError: if an argument is out of range, or if a cell with dropout is trained
            without masks.

    Reference: Elman, 1990, https://doi.org/10.1207/s15516709cog1402_1

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import ElmanCell
    >>> h, states = ElmanCell(4)(np.ones((2, 3)), [np.zeros((2, 4))])
    >>> tuple(h.shape)
    (2, 4)
    """

    def step(self, projection, states, masks):
        h = ops.tanh(projection + self.recurrent_product(states[0], masks))
        return h, [h]
