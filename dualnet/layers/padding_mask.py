import keras


@keras.saving.register_keras_serializable("dualnet")
class PaddingMask(keras.layers.Layer):
    """Marks the steps whose token is negative as padding, for all layers that follow.

    Call arguments:
        inputs: `[tokens, embedded]`, int `(batch, time)` and `(batch, time, features)`.

    Returns:
        `embedded`, as it is, with the mask `tokens >= 0`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return keras.ops.copy(inputs[1])  # another tensor, which the mask can be put on

    def compute_mask(self, inputs, mask=None):
        return inputs[0] >= 0
