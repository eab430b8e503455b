from keras import ops, saving

from dualnet.layers._layer_norm import NormalisedCell
from dualnet.layers._recurrent_cell import product
from dualnet.layers.lstm_cell import LSTMCell


@saving.register_keras_serializable("dualnet")
class LayerNormLSTMCell(NormalisedCell, LSTMCell):
    """One step of the long short-term memory with layer normalisation.

    LN(v) = gain * (v - mean(v)) / sqrt(var(v) + epsilon) + shift

    with the mean and the population variance over the features of v, in at least float32
    under any dtype policy. The placement of the LNs is one of

    "separate":  z = LN(x W) + LN(h U) + b,  h' = o * tanh(LN(c'))
    "joint":     z = LN(x W + h U + b),      h' = o * tanh(LN(c'))
    "gates":     z_g = LN(x W_g + h U_g) + b_g for g = i, f, j, o,  h' = o * tanh(LN(c'))
    "output":    z = x W + h U + b,          h' = LN(o * tanh(c'))
    "none":      z = x W + h U + b,          h' = o * tanh(c')

    and always i, f, o = sigmoid(z), j = tanh(z), c' = f * c + i * j. Every LN has its own
    gain and shift. Except in "gates", an LN of z is over all 4 units at once. The c' that is
    carried is never normalised; in "output", the h' that is carried is the normalised one.

    "separate", the default, is the paper's: x and h keep their influence, whatever the scale
    of the other's product. In "joint" the larger product dominates. "gates" is the placement
    of the widespread TensorFlow cell; its bias comes after the LN, which would otherwise
    cancel a forget bias of 1 in all units. "none" is `LSTMCell`, with its weights.

    With `affine` the shifts and b are redundant, as they are in the paper: only the sums
    input_shift + recurrent_shift + b ("separate") and gates_shift + b ("gates") matter.
    `use_bias=False` avoids this, and drops the forget bias of 1.

    Differs from the paper: it has no epsilon. Differs from the TensorFlow cell ("gates"):
    that has no bias except the forget gate's, and carries the normalised c.

    Args:
        units: int, at least 2, since a single feature would be normalised to 0; at least
            1 for "none". Size of h and c.
        placement: str, one of the five above.
        affine: bool. Whether there are gains and shifts; otherwise they are 1 and 0.
        epsilon: float, above 0. Added to each variance.
        **kwargs: Passed to `LSTMCell`, e.g. `use_bias`, `weight_dropout`.

    Call arguments, returns: as `LSTMCell`.

    Weights with `affine`, in addition to those of `LSTMCell`; gains start at 1 and shifts at
    0: `input_gain`, `input_shift`, `recurrent_gain`, `recurrent_shift`
    (4 units) for "separate"; `gates_gain`, `gates_shift` (4 units) for "joint" and
    "gates"; then for all three `cell_gain`, `cell_shift` (units); `output_gain`,
    `output_shift` (units) for "output".

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    section 3.1 and supplementary material.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LayerNormLSTMCell, Recurrence
    >>> recurrence = Recurrence(LayerNormLSTMCell(4, placement="output"))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> [weight.name for weight in recurrence.weights[3:]]
    ['output_gain', 'output_shift']
    """

    normalised = {
        "separate": {"input": 4, "recurrent": 4, "cell": 1},
        "joint": {"gates": 4, "cell": 1},
        "gates": {"gates": 4, "cell": 1},
        "output": {"output": 1},
        "none": {},
    }

    def input_projection(self, inputs, masks):
        return self.normalise("input", product(inputs, self.kernel, masks.get("input")))

    def step(self, projection, states, masks):
        h, [_, c] = super().step(projection, states, masks)
        h = self.normalise("output", h)
        return h, [h, c]

    def gate_sums(self, projection, h, masks):
        recurrent = self.normalise("recurrent", self.recurrent_product(h, masks))
        parts = 4 if self.placement == "gates" else 1
        z = self.normalise_sum("gates", projection + recurrent, self.bias, parts)
        return ops.split(z, 4, axis=-1)

    def exposed_memory(self, c):
        return self.normalise("cell", c)
