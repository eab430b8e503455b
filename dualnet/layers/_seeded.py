"""Layers that draw random numbers."""

import random

import keras

from dualnet._checks import check_count, check_rate
from dualnet.layers._configured import ConfiguredLayer

STATE = "seed_generator_state"


class SeededLayer(ConfiguredLayer):
    """A layer that owns a random generator and saves its state with the weights.

    Keras does not save the state of a `SeedGenerator`, so a resumed run would repeat its
    masks.

    Args:
        seed: int or None. With None, `keras.utils.set_random_seed` determines the seed.
    """

    def __init__(self, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.seed = None if seed is None else check_count("seed", seed, least=0)
        # Always seeded: on torch Keras ignores an unseeded generator and draws from the global one.
        drawn = random.randint(1, 2**31 - 1) if seed is None else seed
        self.seed_generator = keras.random.SeedGenerator(drawn)

    def drop(self, tensor, rate, noise_shape=None):
        """Return `tensor` with dropout, by a mask of the shape `noise_shape` if given."""
        return keras.random.dropout(tensor, rate, noise_shape, seed=self.seed_generator)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store[STATE] = self.seed_generator.state.numpy()

    def load_own_variables(self, store):
        if STATE in store:  # absent from files of layers that drew nothing when they were saved
            self.seed_generator.state.assign(store[STATE][...])
        super().load_own_variables({name: store[name] for name in set(store.keys()) - {STATE}})


class SeededDropout(SeededLayer):
    """Dropout with one mask of the shape `noise_shape(inputs)` per call.

    Args:
        rate: float, at least 0 and below 1. Fraction to drop.
        seed: int or None.
    """

    def __init__(self, rate, *, seed=None, **kwargs):
        super().__init__(seed=seed, **kwargs)
        self.rate = check_rate("rate", rate)

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        return self.drop(inputs, self.rate, self.noise_shape(inputs))

    def noise_shape(self, inputs):
        """Return the shape of the mask; None for that of the inputs."""
        return None
