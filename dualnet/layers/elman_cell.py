import keras
from keras import ops

from dualnet.layers._recurrent_cell import RecurrentCell, product


@keras.saving.register_keras_serializable("dualnet")
class ElmanCell(RecurrentCell):
    """One step of the simple recurrent network.

    h' = tanh(x W + h U + b)

    The same numbers as `keras.layers.SimpleRNNCell`, in the same layout.

    Differs from the paper: tanh in place of the logistic function, as has become
    usual.

    Args:
        units: int, at least 1. Size of h.
        **kwargs: Passed to `RecurrentCell`: `use_bias`, `input_dropout`,
            `recurrent_dropout`, `weight_dropout`, `mask_per_gate` (without effect on
            a single gate), `input_l2`, `recurrent_l2`, `locked`; and to
            `keras.layers.Layer`, e.g. `name`.

    Call arguments:
        inputs: `(batch, features)`.
        states: `[h]`, `(batch, units)`.
        training: bool.
        masks: dict from the names of `mask_specs()` to what was drawn, or None.

    Returns:
        `(h, [h])`, `(batch, units)`.

    Weights: `kernel` (features, units), `recurrent_kernel` (units, units), `bias`
    (units) if used.

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.

    Reference: Elman, 1990, https://doi.org/10.1207/s15516709cog1402_1
    """

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        self.kernel = self.add_input_kernel("kernel", (self.input_size, self.units))
        self.recurrent_kernel = self.add_recurrent_kernel(
            "recurrent_kernel", (self.units, self.units)
        )
        self.bias = self.add_bias("bias", self.units)

    def input_part(self, inputs, masks):
        z = product(inputs, self.kernel, masks.get("input"))
        return z + self.bias if self.use_bias else z

    def step(self, part, states, masks):
        h = ops.tanh(part + self.recurrent_product(states[0], masks))
        return h, [h]
