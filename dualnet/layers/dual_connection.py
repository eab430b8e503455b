import keras
from keras import ops

from dualnet._checks import check_count, check_penalty
from dualnet.layers._configured import ConfiguredLayer, Role
from dualnet.layers._records import record


@keras.saving.register_keras_serializable("dualnet")
class DualConnection(ConfiguredLayer):
    """Joins the current word to the recurrent output: `d = relu(e W + h U + b)`.

    The current word thus bypasses the recurrence, which is free to represent the past.

    Args:
        units: int, at least 1. Size of the output.
        use_input: bool. False omits `e W`, as in the paper's ablation mdLSTM+. The call
            arguments stay the same.
        dual_l2: float, at least 0. Adds `dual_l2 * sum(w ** 2)` of both
            matrices to the loss.

    Call arguments:
        inputs: `[embedded, hidden]`, of shapes `(batch, time, embedding_dim)`
            and `(batch, time, hidden_dim)`.

    Returns:
        `(batch, time, units)`, in the compute dtype.

    Weights: `kernel` (embedding_dim, units) unless `use_input` is False,
    `hidden_kernel` (hidden_dim, units), `bias` (units).

    Masking: passes on the mask of `hidden`.
    Reference: Oliva and Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import DualConnection
    >>> embedded, hidden = np.ones((2, 5, 3), "float32"), np.ones((2, 5, 4), "float32")
    >>> tuple(DualConnection(6)([embedded, hidden]).shape)
    (2, 5, 6)
    """

    masked_input = 1

    def __init__(self, units, *, use_input=True, dual_l2=0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.use_input = use_input
        self.dual_l2 = check_penalty("dual_l2", dual_l2)

    def build(self, input_shape):
        embedded_shape, hidden_shape = input_shape
        if self.use_input:
            shape = (embedded_shape[-1], self.units)
            self.kernel = self.add_matrix("kernel", shape, l2=self.dual_l2)
        shape = (hidden_shape[-1], self.units)
        self.hidden_kernel = self.add_matrix("hidden_kernel", shape, l2=self.dual_l2)
        self.bias = self.add_zeros("bias", self.units, role=Role.BIAS)

    def call(self, inputs):
        return ops.relu(self.sums(inputs))  # (batch, time, units)

    def sums(self, inputs):
        """Return `e W + h U + b`."""
        embedded, hidden = inputs
        # Values: Keras goes by the shape of a variable, where a learner has one for each row.
        from_recurrence = ops.matmul(hidden, self.hidden_kernel.value)
        d = from_recurrence + self.bias
        record(self, from_recurrence=from_recurrence)
        if self.use_input:
            from_input = ops.matmul(embedded, self.kernel.value)
            d = d + from_input
            record(self, from_input=from_input)
        return d
