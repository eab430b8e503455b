import keras
from keras import ops

from dualnet.layers._recurrent_cell import product
from dualnet.layers.lstm_cell import LSTMCell

GATES = ("i", "f", "j", "o")


@keras.saving.register_keras_serializable("dualnet")
class PerGateLSTMCell(LSTMCell):
    """One step of the long short-term memory, with a product of its own for each gate.

    i = sigmoid(x W_i + h U_i + b_i),  f = sigmoid(x W_f + h U_f + b_f)
    j = tanh(x W_j + h U_j + b_j),     o = sigmoid(x W_o + h U_o + b_o)
    c' = f * c + i * j,  h' = o * tanh(c')

    The same function as `LSTMCell`, which computes all gates in one product: the
    "naive" form, there to be compared with the "fused" one (benchmarks/fused.py).
    Its weights are those of `LSTMCell`, cut in four. Both have the same number of
    parameters and share none, so that a difference in speed comes from the number
    of products alone.

    Fresh weights have the law of `LSTMCell`'s, and are the same numbers if drawn
    with the same seed: each matrix is cut out of the one of all four gates. Taken
    alone, a (features, units) matrix would start wider, within
    sqrt(6 / (features + units)) in place of sqrt(6 / (features + 4 units)), and each
    orthogonal recurrent matrix would have four times the sum of squares.

    Args:
        units: int, at least 1. Size of h and c.
        **kwargs: Passed to `LSTMCell`. `weight_dropout` is on all four recurrent
            matrices.

    Call arguments, returns, raises: as `LSTMCell`.

    Weights, for each gate g of i, f, j, o in turn: `kernel_g` (features, units),
    `recurrent_kernel_g` (units, units), `bias_g` (units) if used, of which
    `bias_f` starts at `forget_bias`.

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000.
    """

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        # Unseeded initializers draw a seed when they are made, and then return the same numbers
        # at each call: here the matrix of all gates, out of which each gate takes its part.
        inputs, states = keras.initializers.GlorotUniform(), keras.initializers.Orthogonal()
        for k, gate in enumerate(GATES):
            kernel = self.add_input_kernel(
                f"kernel_{gate}", (self.input_size, self.units), _part(inputs, k)
            )
            recurrent_kernel = self.add_recurrent_kernel(
                f"recurrent_kernel_{gate}", (self.units, self.units), _part(states, k)
            )
            start = keras.initializers.Constant(self.forget_bias if gate == "f" else 0.0)
            bias = self.add_bias(f"bias_{gate}", self.units, start)
            setattr(self, f"kernel_{gate}", kernel)
            setattr(self, f"recurrent_kernel_{gate}", recurrent_kernel)
            setattr(self, f"bias_{gate}", bias)

    def recurrent_kernels(self):
        return [f"recurrent_kernel_{gate}" for gate in GATES]

    def input_part(self, inputs, masks):
        parts = []
        for gate, mask in zip(GATES, _of_gates(masks.get("input"), self.input_size)):
            z = product(inputs, getattr(self, f"kernel_{gate}"), mask)
            parts.append(z + getattr(self, f"bias_{gate}") if self.use_bias else z)
        return parts

    def gate_sums(self, part, h, masks):
        of_states = _of_gates(masks.get("recurrent"), self.units)
        names = [f"recurrent_kernel_{gate}" for gate in GATES]
        return [
            z + product(h, masks.get(name, getattr(self, name)), mask)
            for z, name, mask in zip(part, names, of_states)
        ]


def _part(initializer, k):
    """Return an initializer of gate `k`'s part of the matrix of all gates."""

    def initial(shape, dtype=None):
        rows, units = shape
        whole = initializer((rows, len(GATES) * units), dtype)
        return whole[:, k * units : (k + 1) * units]

    return initial


def _of_gates(mask, size):
    """Return the mask of each gate, given one for all of `size`, four side by side, or None."""
    if mask is None or mask.shape[-1] == size:
        return [mask] * len(GATES)
    return ops.split(mask, len(GATES), axis=-1)
