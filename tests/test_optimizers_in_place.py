"""SGD without momentum, which TensorFlow applies in place, gives the weights of Keras's own."""

import keras
import numpy as np
import pytest

from dualnet.training.optimizers import SGD
from tests.checks import array

SETTINGS = [
    {},
    {"global_clipnorm": 0.5},
    {"clipnorm": 0.5},
    {"clipvalue": 0.1, "weight_decay": 0.01},
    {"global_clipnorm": 0.5, "weight_decay": 0.01, "use_ema": True},
    {"global_clipnorm": 0.5, "momentum": 0.9},
]


def after_training(optimizer):
    keras.utils.set_random_seed(1)
    # No embedding, of whose gradient Keras clips the rows, not their sums: see `CompiledUpdates`.
    model = keras.Sequential([keras.Input((7, 9)), keras.layers.LSTM(5), keras.layers.Dense(3)])
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(0)
    for _ in range(4):
        model.train_on_batch(rng.normal(size=(8, 7, 9)), 9 * rng.normal(size=(8, 3)))
    return [array(weight) for weight in model.trainable_variables]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_weights_are_those_of_the_optimizer_of_keras(settings):
    ours = SGD(0.3, average="asgd", **settings)
    theirs = keras.optimizers.SGD(0.3, **settings)
    found, expected = map(after_training, (ours, theirs))
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
