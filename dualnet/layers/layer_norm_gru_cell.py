import keras
from keras import ops

from dualnet.layers._layer_norm import NormalisedCell
from dualnet.layers._recurrent_cell import product
from dualnet.layers.gru_cell import GRUCell


@keras.saving.register_keras_serializable("dualnet")
class LayerNormGRUCell(NormalisedCell, GRUCell):
    """One step of the gated recurrent unit with layer normalisation.

    LN(v) = gain * (v - mean(v)) / sqrt(var(v) + epsilon) + shift

    with the mean and the population variance over the features of v, in float32 (or
    finer) under any dtype policy. A cell has one placement; the index g stands for the
    two gates z and r at once, 2 units, n for the candidate, units:

    "separate":  z, r = sigmoid(LN(x W_g) + LN(h U_g) + b_g + b'_g)
                 n = tanh(LN(x W_n) + b_n + r * (LN(h U_n) + b'_n))
    "joint":     z, r = sigmoid(LN(x W_g + h U_g + b_g + b'_g))
                 n = tanh(LN(x W_n + b_n + r * (h U_n + b'_n)))
    "gates":     z = sigmoid(LN(x W_z + h U_z) + b_z + b'_z), and r alike
                 n = tanh(LN(x W_n + r * (h U_n + b'_n)) + b_n)
    "output":    as "none", then h' = LN(h')
    "none":      as `GRUCell`, with its weights

    and in all of them h' = (1 - z) * n + z * h. Every LN has a gain and a shift of its
    own. The h' of "output" is carried as it is put out.

    "separate" is the default because it is the paper's: x and h keep their say
    whatever the scale of the other's product. Where the sum is normalised, the
    candidate's cannot be so together with the gates': it has r inside.

    The recurrent biases stand where the products stand that they belong to: b'_n
    within the reach of r, as without normalisation, so that h U_n + b'_n is what is
    reset; but, as b in the paper's LSTM, outside the LN of "separate" and "gates",
    which would take away what a bias adds to all units alike. Only b'_n of "gates" is
    inside, r being so. With `affine` the shifts and the biases overlap: in "separate"
    only recurrent_candidate_shift + b'_n matters, for instance.

    Differs from the paper: it has no epsilon, and its GRU has no biases; the paper's z
    lets in the new state, where this one keeps the old.

    Args:
        units: int, at least 2, since a single feature would be normalised to 0; at least
            1 for "none". Size of h.
        placement: str, one of the five above.
        affine: bool. Whether there are gains and shifts; without, they are 1 and 0.
        epsilon: float, above 0. Added to each variance.
        **kwargs: Passed to `GRUCell`, e.g. `use_bias`, `weight_dropout`.

    Call arguments, returns: as `GRUCell`.

    Weights, beside those of `GRUCell`, with `affine`; each gain starts at 1, each
    shift at 0: `input_gates_gain`, `input_gates_shift`, `recurrent_gates_gain`,
    `recurrent_gates_shift` (2 units), `input_candidate_gain`, `input_candidate_shift`,
    `recurrent_candidate_gain`, `recurrent_candidate_shift` (units) for "separate";
    `gates_gain`, `gates_shift` (2 units), `candidate_gain`, `candidate_shift` (units)
    for "joint" and "gates"; `output_gain`, `output_shift` (units) for "output".

    Raises:
        ValueError: if an argument is out of range, or in training without masks
            where a dropout rate is above 0.

    Reference: Ba, Kiros and Hinton, 2016, https://arxiv.org/abs/1607.06450,
    section 3.1 and supplementary material.
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

    def input_part(self, inputs, masks):
        if self.placement in ("output", "none"):
            return super().input_part(inputs, masks)
        gates, candidate = self._parted(product(inputs, self.kernel, masks.get("input")))
        return [
            self.normalise("input_gates", gates),
            self.normalise("input_candidate", candidate),
        ]

    def step(self, part, states, masks):
        if self.placement in ("output", "none"):
            h, _ = super().step(part, states, masks)
            h = self.normalise("output", h)
            return h, [h]
        (x_gates, x_n), (h,) = part, states
        h_gates, h_n = self._parted(self.recurrent_product(h, masks))
        h_gates = self.normalise("recurrent_gates", h_gates)
        h_n = self.normalise("recurrent_candidate", h_n)
        gates_bias = bias_n = None
        if self.use_bias:
            gates_bias, bias_n = self._parted(self.bias[0])
            recurrent_gates_bias, recurrent_bias_n = self._parted(self.bias[1])
            gates_bias = gates_bias + recurrent_gates_bias
            h_n = h_n + recurrent_bias_n
        gates = x_gates + h_gates
        parts = 2 if self.placement == "gates" else 1
        gates = ops.sigmoid(self.normalise_sum("gates", gates, gates_bias, parts))
        z, r = ops.split(gates, 2, axis=-1)
        n = x_n + r * h_n
        n = ops.tanh(self.normalise_sum("candidate", n, bias_n))
        h = (1.0 - z) * n + z * h
        return h, [h]

    def _parted(self, vector):
        """Return the parts of the two gates and of the candidate."""
        return ops.split(vector, [2 * self.units], axis=-1)
