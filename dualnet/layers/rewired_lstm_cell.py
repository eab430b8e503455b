import keras
from keras import ops

from dualnet.layers._products import sum_of_products
from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import product
from dualnet.layers.mogrifier_lstm_cell import MogrifierLSTMCell


@keras.saving.register_keras_serializable("dualnet")
class RewiredLSTMCell(MogrifierLSTMCell):
    """One step of the rewired LSTM: the input enters the gates f and o through i, j and c alone.

    i = sigmoid(x W_i + h U_i + b_i),  j = tanh(x W_j + h U_j + b_j)
    f = sigmoid((i * j) V + h U_f + b_f),  c' = f * c + min(i, 1 - f) * j
    o = sigmoid((m * c') P + b_o),  h' = o * tanh(c')

    x and h are what the rounds of the Mogrifier make of the input and of the incoming h, as in
    `MogrifierLSTMCell`; without rounds, the two themselves. m is the mask that `recurrent_dropout`
    draws for h; the c' that is carried on is not dropped out.

    Differs from the paper: there, x and h have one size; here the input may have any, since no
    equation needs them equal.

    Args:
        units: int, at least 1. Size of h and c.
        rounds: int, at least 0. 0, the default, gives the plain cell.
        capped_input_gate: bool. Whether the new memory takes min(i, 1 - f), or i itself.
        **kwargs: Passed to `MogrifierLSTMCell`: `rank`, `mogrifier_dropout` and others.
            `weight_dropout` acts on all U, `input_l2` on W, `recurrent_l2` on U, V and P.

    Call arguments, returns: as `LSTMCell`.
    States: `[h, c]`; the output is h.

    Weights: `kernel` (features, 2 units), W of i and j side by side; `recurrent_kernel` (units, 2
    units), U of i and j; `bias` (4 units) of i, f, j and o, if used; `forget_kernel` (units,
    units), U of f; `update_kernel` (units, units), V; `output_kernel` (units, units), P; and
    those of the rounds, as in `MogrifierLSTMCell`.

    Reference: Melis, 2022, https://arxiv.org/abs/2211.01848

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import Recurrence, RewiredLSTMCell
    >>> recurrence = Recurrence(RewiredLSTMCell(4, rounds=2))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), tuple(c.shape)
    ((2, 5, 4), (2, 4))
    """

    def __init__(self, units, *, rounds=0, capped_input_gate=True, **kwargs):
        super().__init__(units, rounds=rounds, capped_input_gate=capped_input_gate, **kwargs)

    def build_gates(self, gates=2):
        super().build_gates(gates)  # i and j; the bias is that of all four
        for name in ("forget", "update", "output"):
            self.add_recurrent_kernel(f"{name}_kernel", (self.units, self.units))

    def recurrent_kernels(self):
        return ["recurrent_kernel", "forget_kernel"]

    def gated_step(self, x, h, c, masks):
        zeros = ops.zeros(4 * self.units, h.dtype)
        b_i, b_f, b_j, b_o = ops.split(self.bias if self.use_bias else zeros, 4)
        recurrent, forget = (masks.get(n, getattr(self, n)) for n in self.recurrent_kernels())
        i, j = ops.split(sum_of_products([x, h], [self.kernel, recurrent]), 2, axis=-1)
        i, j = ops.sigmoid(i + b_i), ops.tanh(j + b_j)
        f = ops.sigmoid(sum_of_products([i * j, h], [self.update_kernel, forget]) + b_f)
        if self.capped_input_gate:
            i = ops.minimum(i, 1.0 - f)
        c = f * c + i * j
        o = ops.sigmoid(product(c, self.output_kernel, masks.get("recurrent")) + b_o)
        h = o * ops.tanh(c)
        record(self, i=i, f=f, j=j, o=o, c=c)
        return h, [h, c]
