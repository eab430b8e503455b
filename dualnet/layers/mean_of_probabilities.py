import math

import keras
from keras import ops

from dualnet.layers._configured import ConfiguredLayer


@keras.saving.register_keras_serializable("dualnet")
class MeanOfProbabilities(ConfiguredLayer):
    """Ensemble: the log of the arithmetic mean of the members' probabilities.

    log(1/M sum_m softmax(s^(m))), which is Eq. 9 of the paper if the logits s^(m) are gated.
    Everything runs in float32.

    Call arguments:
        inputs: list of the members' logits, each `(batch, time, vocabulary)`.

    Returns:
        float32 log-probabilities, `(batch, time, vocabulary)`.

    Masking: passes on the mask of the first member.
    Reference: Takase, Suzuki and Nagata, 2017, https://arxiv.org/abs/1709.08907

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import MeanOfProbabilities
    >>> first, second = np.log([[[0.5, 0.5]]]), np.log([[[0.1, 0.9]]])
    >>> print(np.exp(np.array(MeanOfProbabilities()([first, second]))).round(3))
    [[[0.3 0.7]]]
    """

    masked_input = 0

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)  # logits stay float32 under every policy

    def call(self, inputs):
        members = [ops.log_softmax(ops.cast(logits, "float32")) for logits in inputs]
        return ops.logsumexp(ops.stack(members), axis=0) - math.log(len(members))
