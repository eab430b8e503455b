import keras
from keras import ops

from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import FusedCell, check_forget_bias, gate_biases


@keras.saving.register_keras_serializable("dualnet")
class LSTMCell(FusedCell):
    """One step of the long short-term memory.

    i, f, o = sigmoid(x W + h U + b),  j = tanh(x W + h U + b)
    c' = f * c + i * j,  h' = o * tanh(c')

    Computes the same function as `keras.layers.LSTMCell`, with the same weight layout: gates
    in the order i, f, j (Keras: c), o, and one bias. Only dropout differs: the cell draws no
    masks but receives them as an argument, which makes it a pure function.

    Args:
        units: int, at least 1. Size of h and c.
        forget_bias: float, or "chrono:T" with a number T above 2. Initial value of the forget
            gate's bias: 1, as in Keras, or 0, as in Zaremba et al., in AWD-LSTM and in the models
            built on it. With "chrono:T", ln u for a u drawn between 1 and T - 1 for each unit,
            so that its memory lasts for about u steps (Tallec and Ollivier, 2018).
        capped_input_gate: bool. Whether the input gate is min(i, 1 - f), as in the reference
            code of Melis et al., 2020.
        **kwargs: Passed to `RecurrentCell`: `use_bias`, `input_dropout`,
            `recurrent_dropout`, `weight_dropout`, `mask_per_gate`, `input_l2`,
            `recurrent_l2`, `locked`; and to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments, returns: as `RecurrentCell`.
    States: `[h, c]`; the output is h.

    Weights: `kernel` (features, 4 units), `recurrent_kernel` (units, 4 units),
    `bias` (4 units) if used.

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000; Tallec and Ollivier, 2018,
    https://arxiv.org/abs/1804.11188, section 2 ("chrono:T")

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LSTMCell, Recurrence
    >>> recurrence = Recurrence(LSTMCell(4, weight_dropout=0.5))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"), training=True)
    >>> tuple(outputs.shape), tuple(c.shape)
    ((2, 5, 4), (2, 4))
    """

    gates = 4

    def __init__(self, units, *, forget_bias=1.0, capped_input_gate=False, **kwargs):
        super().__init__(units, **kwargs)
        self.forget_bias = check_forget_bias(forget_bias)
        self.capped_input_gate = capped_input_gate
        self.state_size = [self.units, self.units]

    def add_gate_bias(self):
        # Forget part 1 by default: a fresh cell remembers (Gers et al., 2000).
        return self.add_bias("bias", 4 * self.units, gate_biases(0.0, self.forget_bias, 0.0, 0.0))

    def step(self, projection, states, masks):
        h, c = states
        i, f, j, o = self.gate_sums(projection, h, masks)
        i, f, j = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(j)
        if self.capped_input_gate:
            i = ops.minimum(i, 1.0 - f)
        c = f * c + i * j
        o = ops.sigmoid(o)
        h = o * ops.tanh(self.exposed_memory(c))
        record(self, i=i, f=f, j=j, o=o, c=c)
        return h, [h, c]

    def gate_sums(self, projection, h, masks):
        """Return the arguments of the sigmoid or tanh of i, f, j and o, each `(batch, units)`."""
        z = projection + self.recurrent_product(h, masks)
        return ops.split(z, 4, axis=-1)  # Keras's gate order

    def exposed_memory(self, c):
        """Return the new c as it enters h'. The state that is carried on is c itself."""
        return c
