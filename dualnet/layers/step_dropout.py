import keras

from dualnet._checks import check_rate
from dualnet.layers._seeded import SeededLayer


@keras.saving.register_keras_serializable("dualnet")
class StepDropout(SeededLayer):
    """Drops every element on its own, afresh at every time step.

    The same law as `keras.layers.Dropout`; unlike it, the state of the random
    generator is saved with the weights, so that a resumed run goes on exactly.

    Args:
        rate: float, at least 0 and below 1. The fraction that is dropped.
        seed: int or None.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: a tensor of any shape.
        training: bool. Outside training the inputs are returned as they are.

    Raises:
        ValueError: if `rate` is out of range.

    Reference: Zaremba et al., 2014, https://arxiv.org/abs/1409.2329
    """

    def __init__(self, rate, *, seed=None, **kwargs):
        rate = check_rate("rate", rate)
        super().__init__(seed=seed, **kwargs)
        self.rate = rate
        self.supports_masking = True

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def get_config(self):
        return {**super().get_config(), "rate": self.rate}
