"""What every layer that draws random numbers has in common."""

import random

import keras


class SeededLayer(keras.layers.Layer):
    """A layer without weights of its own that owns a random generator and saves its state.

    Keras stores the state of no `SeedGenerator`, so that a resumed run would
    repeat its masks; this layer writes it beside the weights.

    Args:
        seed: int or None. None draws one from `keras.utils.set_random_seed`.
    """

    def __init__(self, *, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed
        # Always seeded: on torch Keras ignores an unseeded generator and draws from the global one.
        drawn = random.randint(1, 2**31 - 1) if seed is None else seed
        self.seed_generator = keras.random.SeedGenerator(drawn)

    def save_own_variables(self, store):
        store["seed_generator_state"] = self.seed_generator.state.numpy()

    def load_own_variables(self, store):
        if "seed_generator_state" in store:  # absent: saved before the layer drew numbers
            self.seed_generator.state.assign(store["seed_generator_state"][...])

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}
