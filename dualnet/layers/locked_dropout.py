import keras
from keras import ops

from dualnet._checks import check_rate
from dualnet.layers._seeded import SeededLayer


@keras.saving.register_keras_serializable("dualnet")
class LockedDropout(SeededLayer):
    """Drops the same features at every step of a segment ("variational" dropout).

    One mask `(batch, 1, features)` is drawn per call and shared by all time
    steps; what is kept is divided by `1 - rate`.

    Args:
        rate: float, at least 0 and below 1. The fraction that is dropped.
        seed: int or None. The state of the generator is saved with the weights.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(batch, time, features)`.
        training: bool. Outside training the inputs are returned as they are.

    Raises:
        ValueError: if `rate` is out of range.

    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287
    """

    def __init__(self, rate, *, seed=None, **kwargs):
        rate = check_rate("rate", rate)
        super().__init__(seed=seed, **kwargs)
        self.rate = rate
        self.supports_masking = True

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        batch, _, features = ops.shape(inputs)
        return keras.random.dropout(
            inputs, self.rate, noise_shape=(batch, 1, features), seed=self.seed_generator
        )

    def get_config(self):
        return {**super().get_config(), "rate": self.rate}
