import keras
from keras import ops

from dualnet.layers._recurrent_cell import gate_biases, product
from dualnet.layers.lstm_cell import LSTMCell

GATES = ("i", "f", "j", "o")


@keras.saving.register_keras_serializable("dualnet")
class PerGateLSTMCell(LSTMCell):
    """One step of the long short-term memory, with separate products for each gate.

    i = sigmoid(x W_i + h U_i + b_i),  f = sigmoid(x W_f + h U_f + b_f)
    j = tanh(x W_j + h U_j + b_j),     o = sigmoid(x W_o + h U_o + b_o)
    c' = f * c + i * j,  h' = o * tanh(c')

    The same function as `LSTMCell`, which computes all gates in one product. This is the
    "naive" form, for comparison with the "fused" one. The weights are
    those of `LSTMCell` cut in four, so the number of parameters is the same, and any
    difference in speed comes from the number of products alone.

    The initial weights have the distribution of `LSTMCell`'s, and the same values if drawn
    with the same seed: each matrix is cut out of the matrix of all four gates. On its own, a
    (features, units) matrix would have the wider range sqrt(6 / (features + units)) instead of
    sqrt(6 / (features + 4 units)), and each orthogonal recurrent matrix would have four times
    the sum of squares.

    Args:
        units: int, at least 1. Size of h and c.
        **kwargs: Passed to `LSTMCell`. `weight_dropout` acts on all four recurrent
            matrices.

    Call arguments, returns, raises: as `LSTMCell`.

    Weights, for each gate g of i, f, j, o in turn: `kernel_g` (features, units),
    `recurrent_kernel_g` (units, units), `bias_g` (units) if used; `bias_f` starts at
    `forget_bias`.

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import PerGateLSTMCell, Recurrence
    >>> recurrence = Recurrence(PerGateLSTMCell(4))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> [weight.name for weight in recurrence.weights[:3]]
    ['kernel_i', 'recurrent_kernel_i', 'bias_i']
    """

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        # An unseeded initializer draws its seed when it is created, and then returns the same
        # values at each call: here the matrix of all gates, of which each gate takes its part.
        glorot, orthogonal = keras.initializers.GlorotUniform(), keras.initializers.Orthogonal()
        for k, gate in enumerate(GATES):
            shape = (self.input_size, self.units)
            self.add_input_kernel(f"kernel_{gate}", shape, _part(glorot, k))
            shape = (self.units, self.units)
            self.add_recurrent_kernel(f"recurrent_kernel_{gate}", shape, _part(orthogonal, k))
            start = gate_biases(self.forget_bias if gate == "f" else 0.0)
            self.add_bias(f"bias_{gate}", self.units, start)

    def recurrent_kernels(self):
        return [f"recurrent_kernel_{gate}" for gate in GATES]

    def input_projection(self, inputs, masks):
        projections = []
        for gate, mask in zip(GATES, _mask_of_each_gate(masks.get("input"), self.input_size)):
            z = product(inputs, getattr(self, f"kernel_{gate}"), mask)
            projections.append(z + getattr(self, f"bias_{gate}") if self.use_bias else z)
        return projections

    def gate_sums(self, projections, h, masks):
        gate_masks = _mask_of_each_gate(masks.get("recurrent"), self.units)
        return [
            z + product(h, masks.get(name, getattr(self, name)), mask)
            for z, name, mask in zip(projections, self.recurrent_kernels(), gate_masks)
        ]


def _part(initializer, k):
    """Return an initializer of gate `k`'s part of the matrix of all gates."""

    def initialize(shape, dtype=None):
        rows, units = shape
        return initializer((rows, len(GATES) * units), dtype)[:, k * units : (k + 1) * units]

    return initialize


def _mask_of_each_gate(mask, size):
    """Return the mask of each gate, given one of `size` for all, four side by side, or None."""
    if mask is None or mask.shape[-1] == size:
        return [mask] * len(GATES)
    return ops.split(mask, len(GATES), axis=-1)
