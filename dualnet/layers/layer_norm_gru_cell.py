import keras
from keras import ops

from dualnet.layers._layer_norm import NormalisedCell
from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import product
from dualnet.layers.gru_cell import GRUCell


@keras.saving.register_keras_serializable("dualnet")
class LayerNormGRUCell(NormalisedCell, GRUCell):
    """One step of the gated recurrent unit with layer normalisation.

    LN(v) = gain * (v - mean(v)) / sqrt(var(v) + epsilon) + shift

    with the mean and the population variance over the features of v, in at least float32
    under any dtype policy. The placement of the LNs is one of the following, where g stands
    for the gates z and r together (2 units) and n for the candidate (units):

    "separate":  z, r = sigmoid(LN(x W_g) + LN(h U_g) + b_g + b'_g)
                 n = tanh(LN(x W_n) + b_n + r * (LN(h U_n) + b'_n))
    "joint":     z, r = sigmoid(LN(x W_g + h U_g + b_g + b'_g))
                 n = tanh(LN(x W_n + b_n + r * (h U_n + b'_n)))
    "gates":     z = sigmoid(LN(x W_z + h U_z) + b_z + b'_z), and r alike
                 n = tanh(LN(x W_n + r * (h U_n + b'_n)) + b_n)
    "output":    as "none", then h' = LN(h')
    "none":      as `GRUCell`, with its weights

    and always h' = (1 - z) * n + z * h. Every LN has its own gain and shift. In "output",
    the h' that is carried is the normalised one.

    "separate", the default, is the paper's: x and h keep their influence, whatever the scale
    of the other's product. In "joint" and "gates" the candidate's sum has an LN of its own,
    since it contains r.

    Each bias is added to the product that it belongs to. b'_n is inside the reach of r, as
    without normalisation, so that r resets h U_n + b'_n. But like b in the paper's LSTM, the
    biases of "separate" and "gates" stay outside the LN, which would cancel what a bias adds
    to all units alike; only b'_n of "gates" is inside, because r is. With `affine` shifts and
    biases are redundant: in "separate", for instance, only
    recurrent_candidate_shift + b'_n matters.

    Differs from the paper: it has no epsilon, and its GRU has no biases; the paper's z
    lets in the new state, where this one keeps the old.

    Args: as `LayerNormLSTMCell`; `**kwargs` are passed to `GRUCell`.
    Call arguments, returns: as `GRUCell`.

    Weights with `affine`, in addition to those of `GRUCell`; gains start at 1 and shifts at
    0: `input_gates_gain`, `input_gates_shift`, `recurrent_gates_gain`,
    `recurrent_gates_shift` (2 units), `input_candidate_gain`, `input_candidate_shift`,
    `recurrent_candidate_gain`, `recurrent_candidate_shift` (units) for "separate";
    `gates_gain`, `gates_shift` (2 units), `candidate_gain`, `candidate_shift` (units)
    for "joint" and "gates"; `output_gain`, `output_shift` (units) for "output".

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    section 3.1 and supplementary material.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import LayerNormGRUCell, Recurrence
    >>> recurrence = Recurrence(LayerNormGRUCell(4, placement="output"))
    >>> outputs, h = recurrence(np.ones((2, 5, 3), "float32"))
    >>> [weight.name for weight in recurrence.weights[3:]]
    ['output_gain', 'output_shift']
    """

    normalised = {
        "separate": {
            "input_gates": 2,
            "recurrent_gates": 2,
            "input_candidate": 1,
            "recurrent_candidate": 1,
        },
        "joint": {"gates": 2, "candidate": 1},
        "gates": {"gates": 2, "candidate": 1},
        "output": {"output": 1},
        "none": {},
    }

    def input_projection(self, inputs, masks):
        if self.placement in ("output", "none"):
            return super().input_projection(inputs, masks)
        gates, n = self._split(product(inputs, self.kernel, masks.get("input")))
        return [self.normalise("input_gates", gates), self.normalise("input_candidate", n)]

    def step(self, projection, states, masks):
        h, _ = super().step(projection, states, masks)
        h = self.normalise("output", h)
        return h, [h]

    def gates_and_candidate(self, projection, recurrent):
        if self.placement in ("output", "none"):
            return super().gates_and_candidate(projection, recurrent)
        (x_gates, x_n), (h_gates, h_n) = projection, self._split(recurrent)
        h_n = self.normalise("recurrent_candidate", h_n)
        gates_bias = bias_n = None
        if self.use_bias:
            gates_bias, bias_n = self._split(self.bias[0])
            recurrent_gates_bias, recurrent_bias_n = self._split(self.bias[1])
            gates_bias = gates_bias + recurrent_gates_bias
            h_n = h_n + recurrent_bias_n
        gates = x_gates + self.normalise("recurrent_gates", h_gates)
        parts = 2 if self.placement == "gates" else 1
        gates = ops.sigmoid(self.normalise_sum("gates", gates, gates_bias, parts))
        z, r = ops.split(gates, 2, axis=-1)
        n = ops.tanh(self.normalise_sum("candidate", x_n + r * h_n, bias_n))
        record(self, z=z, r=r, n=n)
        return z, n

    def _split(self, vector):
        """Return the parts of the gates z and r, and of the candidate n."""
        return ops.split(vector, [2 * self.units], axis=-1)
