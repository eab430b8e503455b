from keras import ops, saving

from dualnet.layers._seeded import SeededDropout


@saving.register_keras_serializable("dualnet")
class LockedDropout(SeededDropout):
    """Drops the same features at every time step of a segment ("variational" dropout).

    Each call draws one mask `(batch, 1, features)`, which all time steps share.

    Args:
        rate: float, at least 0 and below 1. Fraction to drop. The rest is divided by
            `1 - rate`.
        seed: int or None. The state of the generator is saved with the weights.

    Call arguments:
        inputs: `(batch, time, features)`.
        training: bool. Outside training the inputs are returned unchanged.

    Reference: Gal and Ghahramani, 2016, https://arxiv.org/abs/1512.05287

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LockedDropout
    >>> outputs = np.array(LockedDropout(0.5)(np.ones((2, 5, 3), "float32"), training=True))
    >>> bool(np.all(outputs[:, 0] == outputs[:, 4]))
    True
    """

    def noise_shape(self, inputs):
        batch, _, features = ops.shape(inputs)
        return (batch, 1, features)
