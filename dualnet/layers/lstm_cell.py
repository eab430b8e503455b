import keras
from keras import ops

from dualnet._checks import check_count, check_penalty, check_rate
from dualnet.layers._masks import MaskSpec, cell_masks, check_locked


@keras.saving.register_keras_serializable("dualnet")
class LSTMCell(keras.layers.Layer):
    """One step of the long short-term memory.

    i, f, o = sigmoid(x W + h U + b),  j = tanh(x W + h U + b)
    c' = f * c + i * j,  h' = o * tanh(c')

    The same numbers as `keras.layers.LSTMCell`, in the same layout: gates in
    the order i, f, j (Keras: c), o; one bias, of which the forget part starts
    at 1. What differs is the dropout: the cell draws nothing itself but is
    handed its masks, so that it is a pure function of its arguments.

    Args:
        units: int, at least 1. Size of h and c.
        recurrent_dropout: float, at least 0 and below 1, on the incoming h.
        input_l2: float, at least 0. Adds `input_l2 * sum(kernel ** 2)` to the loss.
        recurrent_l2: float, at least 0. The same for `recurrent_kernel`.
        locked: the dropouts whose mask is kept for a segment: `["recurrent"]` or `[]`.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    Call arguments:
        inputs: `(batch, features)`.
        states: `[h, c]`, each `(batch, units)`.
        training: bool.
        masks: dict from the names of `mask_specs()` to `(batch, size)`, or None.

    Returns:
        `(h, [h, c])`, each `(batch, units)`.

    Weights: `kernel` (features, 4 units), `recurrent_kernel` (units, 4 units),
    `bias` (4 units).

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.

    Reference: Hochreiter and Schmidhuber, 1997; Gers et al., 2000.
    """

    dropouts: tuple[str, ...] = ("recurrent",)

    def __init__(
        self,
        units,
        *,
        recurrent_dropout=0.0,
        input_l2=0.0,
        recurrent_l2=0.0,
        locked=("recurrent",),
        **kwargs,
    ):
        units = check_count("units", units, least=1)
        recurrent_dropout = check_rate("recurrent_dropout", recurrent_dropout)
        input_l2 = check_penalty("input_l2", input_l2)
        recurrent_l2 = check_penalty("recurrent_l2", recurrent_l2)
        super().__init__(**kwargs)
        self.units = units
        self.recurrent_dropout = recurrent_dropout
        self.input_l2 = input_l2
        self.recurrent_l2 = recurrent_l2
        self.locked = check_locked(locked, self.dropouts)
        self.state_size = [units, units]
        self.output_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], 4 * self.units),
            initializer="glorot_uniform",
            regularizer=keras.regularizers.L2(self.input_l2),
        )
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel",
            shape=(self.units, 4 * self.units),
            initializer="orthogonal",
            regularizer=keras.regularizers.L2(self.recurrent_l2),
        )
        self.bias = self.add_weight(
            name="bias", shape=(4 * self.units,), initializer=self._initial_bias
        )

    def mask_specs(self):
        """Return the masks that a training step needs, a list of `MaskSpec`."""
        if self.recurrent_dropout == 0:
            return []
        locked = "recurrent" in self.locked
        return [MaskSpec("recurrent", self.recurrent_dropout, self.units, locked)]

    def call(self, inputs, states, training=False, masks=None):
        masks = cell_masks(self, masks, training)
        h, c = states
        if "recurrent" in masks:
            h = h * masks["recurrent"]
        return self.step(inputs, h, c)

    def step(self, x, h, c):
        """Return `(h', [h', c'])` from the gated or plain `x` and `h`."""
        z = ops.matmul(x, self.kernel) + ops.matmul(h, self.recurrent_kernel) + self.bias
        i, f, j, o = ops.split(z, 4, axis=-1)  # Keras's gate order; (batch, units) each
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(j)
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, [h, c]

    def _initial_bias(self, shape, dtype=None):
        # Forget part 1: a fresh cell remembers (Gers et al., 2000; Keras's default).
        zeros, ones = ops.zeros((self.units,), dtype), ops.ones((self.units,), dtype)
        return ops.concatenate([zeros, ones, zeros, zeros])

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "recurrent_dropout": self.recurrent_dropout,
            "input_l2": self.input_l2,
            "recurrent_l2": self.recurrent_l2,
            "locked": list(self.locked),
        }
