import keras
from keras import ops

from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import FusedCell, product


@keras.saving.register_keras_serializable("dualnet")
class GRUCell(FusedCell):
    """One step of the gated recurrent unit, with the reset gate after the recurrent product.

    z = sigmoid(x W_z + b_z + h U_z + b'_z),  r = sigmoid(x W_r + b_r + h U_r + b'_r)
    n = tanh(x W_n + b_n + r * (h U_n + b'_n))
    h' = (1 - z) * n + z * h

    Computes the same function as `keras.layers.GRUCell` with its default `reset_after=True`,
    with the same weight layout: gates in the order z, r, n (Keras: h). PyTorch's `nn.GRU` is
    the same function in the order r, z, n.

    Only the h that enters the products is dropped out, not the h that z carries over.

    Differs from the paper: r acts after the product with U, not before it, so that
    one product serves all gates; and there are biases, of which r gates b'_n.
    As in the paper, z keeps the old state; others (Chung et al., 2014) swap the roles of z
    and 1 - z.

    Args:
        units: int, at least 1. Size of h.
        **kwargs: Passed to `RecurrentCell`, as by `LSTMCell`.

    Call arguments, returns: as `RecurrentCell`.
    States: `[h]`; the output is h.

    Weights: `kernel` (features, 3 units), `recurrent_kernel` (units, 3 units), and if used
    `bias` (2, 3 units), whose rows are b and b'.

    Reference: Cho et al., 2014, https://arxiv.org/abs/1406.1078

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import GRUCell, Recurrence
    >>> outputs, h = Recurrence(GRUCell(4))(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), tuple(h.shape)
    ((2, 5, 4), (2, 4))
    """

    gates = 3

    def add_gate_bias(self):
        return self.add_bias("bias", (2, 3 * self.units))

    def input_projection(self, inputs, masks):
        z = product(inputs, self.kernel, masks.get("input"))
        return z + self.bias[0] if self.use_bias else z

    def step(self, projection, states, masks):
        (h,) = states
        z, n = self.gates_and_candidate(projection, self.recurrent_product(h, masks))
        h = (1.0 - z) * n + z * h
        return h, [h]

    def gates_and_candidate(self, projection, recurrent):
        """Return z and n, given the product of h."""
        if self.use_bias:
            recurrent = recurrent + self.bias[1]
        x_z, x_r, x_n = ops.split(projection, 3, axis=-1)  # (batch, units) each
        h_z, h_r, h_n = ops.split(recurrent, 3, axis=-1)
        z, r = ops.sigmoid(x_z + h_z), ops.sigmoid(x_r + h_r)
        n = ops.tanh(x_n + r * h_n)
        record(self, z=z, r=r, n=n)
        return z, n
