import keras
from keras import ops

from dualnet._checks import check_penalty


@keras.saving.register_keras_serializable("dualnet")
class ActivationRegularization(keras.layers.Layer):
    """Adds AR and TAR of AWD-LSTM to the loss, in training alone.

    `activation * mean(dropped ** 2) + temporal * mean((raw_t - raw_(t-1)) ** 2)`,
    means over all elements, differences within the segment only. Where steps are
    padding, they are left out of both means.

    Args:
        activation: float, at least 0. The paper's alpha.
        temporal: float, at least 0. The paper's beta.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `[dropped, raw]`, each `(batch, time, units)`: the output of the last
            recurrent layer after and before its dropout.
        training: bool.

    Returns:
        `dropped`, as it is.

    Raises:
        ValueError: if a factor is out of range.

    Reference: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 4.8
    """

    def __init__(self, *, activation=0.0, temporal=0.0, **kwargs):
        activation = check_penalty("activation", activation)
        temporal = check_penalty("temporal", temporal)
        super().__init__(**kwargs)
        self.activation = activation
        self.temporal = temporal
        self.supports_masking = True

    def call(self, inputs, mask=None, training=False):
        dropped, raw = (ops.cast(each, "float32") for each in inputs)
        if training:
            counted = ops.ones_like(raw[..., :1]) if mask is None or mask[1] is None else mask[1]
            counted = ops.cast(ops.reshape(counted, ops.shape(raw[..., :1])), "float32")
            if self.activation:
                self.add_loss(self.activation * _mean_square(dropped, counted))
            if self.temporal:
                change, both = raw[:, 1:] - raw[:, :-1], counted[:, 1:] * counted[:, :-1]
                self.add_loss(self.temporal * _mean_square(change, both))
        return inputs[0]

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[0]

    def get_config(self):
        return {
            **super().get_config(),
            "activation": self.activation,
            "temporal": self.temporal,
        }


def _mean_square(values, counted):
    """Return the mean of `values ** 2` over the steps that are counted; 0 if there are none."""
    steps = ops.maximum(ops.sum(counted), 1.0)
    return ops.sum(ops.square(values) * counted) / (steps * values.shape[-1])
