from keras import ops, saving

from dualnet.layers._recurrent_cell import FusedCell


@saving.register_keras_serializable("dualnet")
class ElmanCell(FusedCell):
    """One step of the simple recurrent network.

    h' = tanh(x W + h U + b)

    Computes the same function as `keras.layers.SimpleRNNCell`, with the same weight layout.

    Differs from the paper: tanh instead of the logistic function, as is usual today.

    Args:
        units: int, at least 1. Size of h.
        **kwargs: Passed to `RecurrentCell`, as by `LSTMCell`.

    Call arguments, returns: as `RecurrentCell`.
    States: `[h]`; the output is h.

    Weights: `kernel` (features, units), `recurrent_kernel` (units, units), `bias`
    (units) if used.

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
