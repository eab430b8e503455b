import keras

from dualnet._checks import check_count
from dualnet.layers.doc_output import DOCOutput


@keras.saving.register_keras_serializable("dualnet")
class MixtureSoftmax(DOCOutput):
    """Mixture of softmaxes: a `DOCOutput` whose experts all read the same layer.

    k_j = tanh(W_j h + b_j),  pi = softmax(W_pi h),  P = sum_j pi_j softmax(E k_j + b)

    Args:
        vocabulary_size: int, at least 1.
        experts: int, at least 1. The number J of softmaxes.
        latent_units: int, at least 1. Size of each k_j.
        latent_dropout_per_expert: bool. True here, as in the code of the paper.
        **kwargs: Passed to `DOCOutput`, e.g. `tied_to`, `balance`.

    Call arguments:
        inputs: `(batch, time, units)`, one tensor.
        targets, training, temperature: as in `DOCOutput`.
        mask, inputs_mask: as in `DOCOutput`, but one tensor.

    Returns: as `DOCOutput`.

    Weights: `prior_kernel` (units, experts), `latent_kernel_0` (units, experts *
    latent_units), with "tanh" `latent_bias_0` (experts * latent_units); `kernel`
    (latent_units, vocabulary) unless tied; `bias` (vocabulary) if used.

    Masking: passes on the mask of its input.
    Differs from the code of the paper: that adds 1e-8 to P, this layer nothing.
    Reference: Yang et al., 2018, https://arxiv.org/abs/1711.03953

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import MixtureSoftmax
    >>> layer = MixtureSoftmax(vocabulary_size=10, experts=3, latent_units=4)
    >>> log_p = layer(np.ones((2, 5, 6), "float32"))
    >>> tuple(log_p.shape)
    (2, 5, 10)
    """

    masked_input = None

    def __init__(
        self, vocabulary_size, experts, latent_units, *, latent_dropout_per_expert=True, **kwargs
    ):
        experts = [check_count("experts", experts)]
        kwargs["latent_dropout_per_expert"] = latent_dropout_per_expert
        super().__init__(vocabulary_size, experts, latent_units, **kwargs)

    def _listed(self, of_layer):
        return [of_layer]

    def get_config(self):
        return {**super().get_config(), "experts": self.experts[0]}
