import keras
from keras import ops

from dualnet._checks import check_choice, check_count, check_finite
from dualnet.layers._products import matmul, select_columns
from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import RecurrentCell, gate_biases, product

READS = ("state", "candidate")


@keras.saving.register_keras_serializable("dualnet")
class RecurrentHighwayCell(RecurrentCell):
    """One step of a recurrent highway network: `depth` highway layers within one time step.

    With s_0 the state of the last time step, for k = 1 .. depth:

    h_k = tanh(x W_h + s_(k-1) R_h,k + b_h,k)
    t_k = sigmoid(x W_t + s_(k-1) R_t,k + b_t,k)
    s_k = (h_k - s_(k-1)) * t_k + s_(k-1)

    where x enters for k = 1 only. The last s is the output and the new state. The carry gate
    is coupled to the transform gate t: it is 1 - t.

    Only the s that enters the products is dropped out, not the s that is carried over. All
    micro-steps share one mask of s, and so do h and t unless `mask_per_gate`.
    `weight_dropout` acts on all recurrent matrices.

    The defaults are those of Zilly et al. In the code that the results of Takase et al. come
    from, t reads the new candidate, t_k = sigmoid(x W_t + h_k R_t,k + b_t,k), which is
    `gate_reads="candidate"`, and the transform bias starts at 0. That h_k is not dropped out, in
    our reading.

    Args:
        units: int, at least 1. Size of s.
        depth: int, at least 1. Micro-steps per time step.
        transform_bias: float. Initial value of the transform gate's biases. Below 0, a fresh
            cell mostly carries its state over.
        gate_reads: what R_t is multiplied by: "state", s_(k-1), or "candidate", h_k. The
            weights are the same.
        **kwargs: Passed to `RecurrentCell`, as by `LSTMCell`.

    Call arguments, returns: as `RecurrentCell`.
    States: `[s]`; the output is s.

    Weights, with the gates side by side in the order h, t: `kernel` (features, 2 units);
    for each micro-step k `recurrent_kernel_k` (units, 2 units); then, if used, for each
    `bias_k` (2 units).

    Reference: Zilly et al., 2017, https://arxiv.org/abs/1607.03474, section 4;
    Takase et al., 2017, https://arxiv.org/abs/1709.08907

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import Recurrence, RecurrentHighwayCell
    >>> outputs, s = Recurrence(RecurrentHighwayCell(4, depth=3))(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), tuple(s.shape)
    ((2, 5, 4), (2, 4))
    """

    gates = 2

    def __init__(self, units, *, depth=1, transform_bias=-2.0, gate_reads="state", **kwargs):
        super().__init__(units, **kwargs)
        self.depth = check_count("depth", depth)
        self.transform_bias = check_finite("transform_bias", transform_bias)
        self.gate_reads = check_choice("gate_reads", gate_reads, READS)

    def mask_sizes(self):
        sizes = super().mask_sizes()
        if self.gate_reads == "candidate":
            sizes["recurrent"] = self.units  # only h reads s
        return sizes

    def recurrent_kernels(self):
        return [f"recurrent_kernel_{k}" for k in range(1, self.depth + 1)]

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        size = 2 * self.units
        self.kernel = self.add_input_kernel("kernel", (self.input_size, size))
        for name in self.recurrent_kernels():
            self.add_recurrent_kernel(name, (self.units, size))
        start = gate_biases(0.0, self.transform_bias)
        self.biases = [self.add_bias(f"bias_{k}", size, start) for k in range(1, self.depth + 1)]

    def input_projection(self, inputs, masks):
        return product(inputs, self.kernel, masks.get("input"))

    def step(self, projection, states, masks):
        (s,) = states
        for k, (name, bias) in enumerate(zip(self.recurrent_kernels(), self.biases), start=1):
            added = [projection] * (k == 1) + [bias] * self.use_bias
            if self.gate_reads == "state":
                z = sum(added, start=self.recurrent_product(s, masks, name))
                h, t = ops.split(z, 2, axis=-1)  # (batch, units) each
                h = ops.tanh(h)
            else:
                kernel = masks.get(name, getattr(self, name))
                dropped = s * masks["recurrent"] if "recurrent" in masks else s
                h = ops.tanh(_gate_sum(0, dropped, kernel, added))
                t = _gate_sum(1, h, kernel, added)
            t = ops.sigmoid(t)
            s = (h - s) * t + s
            record(self, **{f"h_{k}": h, f"t_{k}": t, f"s_{k}": s})
        return s, [s]


def _gate_sum(i, vector, kernel, added):
    """Return the sum of gate `i`, 0 for h and 1 for t, of which `vector` enters the product."""
    return sum((select_columns(a, (i, 2)) for a in added), start=matmul(vector, kernel, (i, 2)))
