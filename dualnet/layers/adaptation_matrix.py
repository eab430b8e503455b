import functools

import keras
import numpy as np
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._configured import ConfiguredLayer


@keras.saving.register_keras_serializable("dualnet")
class AdaptationMatrix(ConfiguredLayer):
    """Adds a product of its input to it: `h' = h + h M`, with M zero at first.

    The few weights of this layer adapt a trained model to a text (Krause et al.'s sparse dynamic
    evaluation). With a rank, `M = A B`: B is zero at first and A random, the same in every model.

    Args:
        rank: int, at least 1. The rank of M; None for a full matrix.

    Call arguments:
        inputs: `(..., units)`.

    Returns:
        As `inputs`, in the compute dtype.

    Weights: `kernel` (units, units); with a rank `down` (units, rank) and `up` (rank, units).

    Masking: passes on the mask.
    Reference: Krause et al., 2018, https://arxiv.org/abs/1709.07432, section 6

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import AdaptationMatrix
    >>> h = np.ones((2, 5, 4), "float32")
    >>> bool((AdaptationMatrix(2)(h) == h).numpy().all())
    True
    """

    def __init__(self, rank=None, **kwargs):
        super().__init__(**kwargs)
        self.rank = None if rank is None else check_count("rank", rank)

    def build(self, input_shape):
        self.build_factors(input_shape[-1], input_shape[-1])

    def build_factors(self, size_in, size_out):
        if self.rank is None:
            self.factors = [self.add_zeros("kernel", size_in, size_out)]
        else:
            down = self.add_matrix("down", (size_in, self.rank), random_factor)
            self.factors = [down, self.add_zeros("up", self.rank, size_out)]

    def call(self, inputs):
        return inputs + self.product(inputs)

    def product(self, vectors):
        # Values: Keras goes by the shape of a variable, where a learner has one for each row.
        return functools.reduce(ops.matmul, [factor.value for factor in self.factors], vectors)


def random_factor(shape, dtype=None):
    """Return the same normal values on every backend, with variance 1 / units."""
    values = np.random.default_rng(0).normal(scale=shape[0] ** -0.5, size=shape)
    return ops.convert_to_tensor(values, dtype)
