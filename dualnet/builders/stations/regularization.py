from __future__ import annotations

import keras

from dualnet._fields import choice
from dualnet.builders.initializers import INITIALIZERS, NEEDS_RANGE, initialise
from dualnet.builders.stations.station import Station
from dualnet.layers._configured import l2_regularizer


class Regularization(Station):
    """Penalties on the model as a whole.

    Args:
        weight_l2: Penalty: times the sum of squares of all weights, biases included.
        fraternal_regularization: kappa of Zolna et al., 2018: a step reads the segment twice,
            with different masks, from the same state; the loss is the mean of both, plus
            kappa times the mean squared difference of the logits. The state of one reading is
            carried on, and all other penalties count once, for that reading. (By default, the
            released code leaves out the cross-entropy of the other reading.)
    """

    weight_l2: float = 0.0
    fraternal_regularization: float = 0.0

    def regularize(self, core: keras.Model) -> None:
        """Add the penalty on all weights to the penalties that they have."""
        if self.weight_l2 == 0:
            return
        for weight in core.trainable_variables:
            present = weight.regularizer.l2 if weight.regularizer is not None else 0.0
            weight.regularizer = l2_regularizer(present + self.weight_l2)


class Initialization(Station):
    """The initial weights.

    Args:
        initializer: "keras" (each layer's own; our choice for the embedding, normal with
            standard deviation 1 / sqrt(units)), or one of
            `dualnet.builders.initializers.INITIALIZERS`.
        initializer_range: float, for the initializers that need it.
    """

    initializer: str = choice("keras", INITIALIZERS)
    initializer_range: float = 0.0

    def check(self) -> None:
        needs_range = self.initializer in NEEDS_RANGE
        if (self.initializer_range > 0) != needs_range:
            wanted = "above 0" if needs_range else "0"
            message = f"must be {wanted} for initializer={self.initializer!r}."
            self.refuse("initializer_range", message)

    def initialize(self, core: keras.Model) -> None:
        """Draw new initial weights for `core`."""
        initialise(core, self.initializer, self.initializer_range)
