from keras import saving

from dualnet.layers._seeded import SeededDropout


@saving.register_keras_serializable("dualnet")
class StepDropout(SeededDropout):
    """Drops each element independently, with a fresh mask at every time step.

    The same distribution as `keras.layers.Dropout`. Unlike it, this layer saves the state of
    its random generator with the weights, so that a resumed run continues exactly.

    Args:
        rate: float, at least 0 and below 1. Fraction to drop. The rest is divided by
            `1 - rate`.
        seed: int or None.

    Call arguments:
        inputs: a tensor of any shape.
        training: bool. Outside training the inputs are returned unchanged.

    Reference: Zaremba et al., 2014, https://arxiv.org/abs/1409.2329

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import StepDropout
    >>> outputs = StepDropout(0.5)(np.ones((2, 5, 3), "float32"), training=True)
    >>> sorted(set(np.ravel(outputs).tolist()))
    [0.0, 2.0]
    """
