from keras import ops, saving

from dualnet._checks import check_penalty
from dualnet.layers._configured import ConfiguredLayer


@saving.register_keras_serializable("dualnet")
class ActivationRegularization(ConfiguredLayer):
    """Adds the penalties AR and TAR of AWD-LSTM to the training loss.

    `activation * mean(dropped ** 2) + temporal * mean((raw_t - raw_(t-1)) ** 2)`

    The means are over all elements except padding, the differences within the segment.

    Args:
        activation: float, at least 0. The paper's alpha.
        temporal: float, at least 0. The paper's beta.

    Call arguments:
        inputs: `[dropped, raw]`, each `(batch, time, units)`: the output of the last
            recurrent layer after and before its dropout.

    Returns:
        `dropped`, unchanged.

    Masking: uses the mask of `raw`, and passes on that of `dropped`.
    Reference: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 4.8

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import ActivationRegularization
    >>> layer = ActivationRegularization(activation=2.0, temporal=1.0)
    >>> hidden = np.ones((2, 5, 3), "float32")
    >>> outputs = layer([hidden, hidden], training=True)
    >>> [float(loss) for loss in layer.losses]
    [2.0, 0.0]
    """

    masked_input = 0

    def __init__(self, *, activation=0.0, temporal=0.0, **kwargs):
        super().__init__(**kwargs)
        self.activation = check_penalty("activation", activation)
        self.temporal = check_penalty("temporal", temporal)

    def call(self, inputs, mask=None, training=False):
        dropped, raw = (ops.cast(hidden, "float32") for hidden in inputs)
        if training:
            counted = ops.ones_like(raw[..., :1]) if mask is None or mask[1] is None else mask[1]
            counted = ops.cast(ops.reshape(counted, ops.shape(raw[..., :1])), "float32")
            if self.activation:
                self.add_loss(self.activation * _mean_square(dropped, counted))
            if self.temporal:
                change, pairs = raw[:, 1:] - raw[:, :-1], counted[:, 1:] * counted[:, :-1]
                self.add_loss(self.temporal * _mean_square(change, pairs))
        return inputs[0]


def _mean_square(values, counted):
    """Return the mean of `values ** 2` over the counted steps; 0 if there are none."""
    steps = ops.maximum(ops.sum(counted), 1.0)
    return ops.sum(ops.square(values) * counted) / (steps * values.shape[-1])
