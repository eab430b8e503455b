import keras
from keras import ops

from dualnet._checks import check_finite, check_flag
from dualnet.layers._recurrent_cell import RecurrentCell, product


@keras.saving.register_keras_serializable("dualnet")
class LSTMCell(RecurrentCell):
    """One step of the long short-term memory.

    i, f, o = sigmoid(x W + h U + b),  j = tanh(x W + h U + b)
    c' = f * c + i * j,  h' = o * tanh(c')

    The same numbers as `keras.layers.LSTMCell`, in the same layout: gates in
    the order i, f, j (Keras: c), o; one bias, of which the forget part starts
    at `forget_bias`. What differs is the dropout: the cell draws nothing itself but is
    handed its masks, so that it is a pure function of its arguments.

    Args:
        units: int, at least 1. Size of h and c.
        forget_bias: float. What the forget gate's bias starts at: 1, as in Keras, or
            0, as in the models of Zaremba et al., AWD-LSTM and what stands on it.
        capped_input_gate: bool. The input gate is min(i, 1 - f), as in the reference
            code of Melis et al., 2020.
        **kwargs: Passed to `RecurrentCell`: `use_bias`, `input_dropout`,
            `recurrent_dropout`, `weight_dropout`, `mask_per_gate`, `input_l2`,
            `recurrent_l2`, `locked`; and to `keras.layers.Layer`, e.g. `name`.

    Call arguments:
        inputs: `(batch, features)`.
        states: `[h, c]`, each `(batch, units)`.
        training: bool.
        masks: dict from the names of `mask_specs()` to what was drawn, or None.

    Returns:
        `(h, [h, c])`, each `(batch, units)`.

    Weights: `kernel` (features, 4 units), `recurrent_kernel` (units, 4 units),
    `bias` (4 units) if used.

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000.
    """

    gates = 4

    def __init__(self, units, *, forget_bias=1.0, capped_input_gate=False, **kwargs):
        forget_bias = check_finite("forget_bias", forget_bias)
        capped_input_gate = check_flag("capped_input_gate", capped_input_gate)
        super().__init__(units, **kwargs)
        self.forget_bias = forget_bias
        self.capped_input_gate = capped_input_gate
        self.state_size = [self.units, self.units]

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        self.kernel = self.add_input_kernel("kernel", (self.input_size, 4 * self.units))
        self.recurrent_kernel = self.add_recurrent_kernel(
            "recurrent_kernel", (self.units, 4 * self.units)
        )
        self.bias = self.add_bias("bias", 4 * self.units, self._initial_bias)

    def input_part(self, inputs, masks):
        z = product(inputs, self.kernel, masks.get("input"))
        return z + self.bias if self.use_bias else z

    def step(self, part, states, masks):
        h, c = states
        i, f, j, o = self.gate_sums(part, h, masks)
        i, f = ops.sigmoid(i), ops.sigmoid(f)
        if self.capped_input_gate:
            i = ops.minimum(i, 1.0 - f)
        c = f * c + i * ops.tanh(j)
        h = ops.sigmoid(o) * ops.tanh(self.exposed(c))
        return h, [h, c]

    def gate_sums(self, part, h, masks):
        """Return what enters the sigmoid or tanh of i, f, j and o, `(batch, units)` each."""
        z = part + self.recurrent_product(h, masks)
        return ops.split(z, 4, axis=-1)  # Keras's gate order

    def exposed(self, c):
        """Return what of the new c enters h'; the state itself is carried as it is."""
        return c

    def _initial_bias(self, shape, dtype=None):
        # Forget part 1 by default: a fresh cell remembers (Gers et al., 2000).
        zeros = ops.zeros((self.units,), dtype)
        return ops.concatenate([zeros, zeros + self.forget_bias, zeros, zeros])

    def get_config(self):
        return {
            **super().get_config(),
            "forget_bias": self.forget_bias,
            "capped_input_gate": self.capped_input_gate,
        }
