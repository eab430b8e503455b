import keras
from keras import ops

from dualnet.layers._recurrent_cell import RecurrentCell, product


@keras.saving.register_keras_serializable("dualnet")
class GRUCell(RecurrentCell):
    """One step of the gated recurrent unit, its reset gate after the recurrent product.

    z = sigmoid(x W_z + b_z + h U_z + b'_z),  r = sigmoid(x W_r + b_r + h U_r + b'_r)
    n = tanh(x W_n + b_n + r * (h U_n + b'_n))
    h' = (1 - z) * n + z * h

    The same numbers as `keras.layers.GRUCell` with its default `reset_after=True`,
    in the same layout: gates in the order z, r, n (Keras: h); PyTorch's `nn.GRU` is
    the same function in the order r, z, n.

    Differs from the paper: r acts after the product with U, not before it, so that
    one product serves all gates; and there are biases, of which r reaches b'_n.
    As in the paper z keeps the old state; others (Chung et al., 2014) turn z round.

    The h that is carried by z is not dropped out, only that of the products.

    Args:
        units: int, at least 1. Size of h.
        **kwargs: Passed to `RecurrentCell`: `use_bias`, `input_dropout`,
            `recurrent_dropout`, `weight_dropout`, `mask_per_gate`, `input_l2`,
            `recurrent_l2`, `locked`; and to `keras.layers.Layer`, e.g. `name`.

    Call arguments:
        inputs: `(batch, features)`.
        states: `[h]`, `(batch, units)`.
        training: bool.
        masks: dict from the names of `mask_specs()` to what was drawn, or None.

    Returns:
        `(h, [h])`, `(batch, units)`.

    Weights: `kernel` (features, 3 units), `recurrent_kernel` (units, 3 units),
    `bias` (2, 3 units), of which the rows are b and b', if used.

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.

    Reference: Cho et al., 2014, https://arxiv.org/abs/1406.1078
    """

    gates = 3

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        self.kernel = self.add_input_kernel("kernel", (self.input_size, 3 * self.units))
        self.recurrent_kernel = self.add_recurrent_kernel(
            "recurrent_kernel", (self.units, 3 * self.units)
        )
        self.bias = self.add_bias("bias", (2, 3 * self.units))

    def input_part(self, inputs, masks):
        z = product(inputs, self.kernel, masks.get("input"))
        return z + self.bias[0] if self.use_bias else z

    def step(self, part, states, masks):
        (h,) = states
        of_h = self.recurrent_product(h, masks)
        if self.use_bias:
            of_h = of_h + self.bias[1]
        x_z, x_r, x_n = ops.split(part, 3, axis=-1)  # Keras's gate order; (batch, units) each
        h_z, h_r, h_n = ops.split(of_h, 3, axis=-1)
        z, r = ops.sigmoid(x_z + h_z), ops.sigmoid(x_r + h_r)
        n = ops.tanh(x_n + r * h_n)
        h = (1.0 - z) * n + z * h
        return h, [h]
