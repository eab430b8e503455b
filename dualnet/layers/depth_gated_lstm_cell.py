import keras
from keras import ops

from dualnet._checks import ArgumentError, check_choice, check_count, check_rate
from dualnet.layers._configured import Role
from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import RecurrentCell, check_forget_bias, gate_biases, product

PEEPHOLES = ("full", "diagonal")
FIRST_GATES = ("own", "shared", "none")


@keras.saving.register_keras_serializable("dualnet")
class DepthGatedLSTMCell(RecurrentCell):
    """One step of a whole stack of LSTM layers, with memories joined by depth gates.

    Layer L reads x, the output h of the layer below (layer 1: the input of the cell),
    and the new memory c_below of that layer. With h and c from the last time step:

    i = sigmoid(x W_i + h U_i + c P_i + b_i),  f = 1 - i,  j = tanh(x W_j + h U_j + b_j)
    d = sigmoid(x W_d + w_c * c + w_l * c_below + b_d)
    c' = d * c_below + f * c + i * j
    o = sigmoid(x W_o + h U_o + c' P_o + b_o),  h' = o * tanh(c')

    Layer 1 has no layer below: its d lacks w_l * c_below, and x M takes the place of
    c_below in c'. The last h' is the output. Where the layer below has another size, w_l is a
    matrix, as the paper says, c_below W_l; and c_below N takes the place of c_below in c', with a
    matrix N of its own, of which the paper does not speak.

    With depth gates, nothing bounds c': in long streams, the memories of upper layers grow fast.
    The released code begins each sentence with states of zero, as `batching="sentences"` does,
    or, where it translates, with learned ones.

    Only the h that enters the products with U is dropped out, with one mask per layer; a
    memory never is. With `mask_per_gate`, each gate and x M have their own mask of the input in
    layer 1, and each gate its own mask of h in every layer; the h that passes from layer to
    layer has one mask for all gates. `weight_dropout` acts on U of all layers, `input_l2` on
    all W, M, N and A, and `recurrent_l2` on U, and on P if it is a matrix.

    Differs from the paper: M is a separate matrix, as in the released code; the paper uses W_d
    there, which is `first_gate="shared"`; then W_l also takes the place of N. `stabilised` is in
    the code only, and neither has any dropout.
    Differs from the released code: at a first step without history the paper's
    equations hold with states of zero, so that o includes c' P_o.

    Args:
        units: int, at least 1. Size of h and c of every layer, or of the last one with
            `lower_units`.
        depth: int, at least 1. Number of layers.
        lower_units: list of int, the sizes of the layers below the last one, or None: `units`.
        peepholes: "full" if P is a matrix, or "diagonal" if it is a vector that multiplies c.
        coupled: bool. Whether f = 1 - i; otherwise each layer has a forget gate,
            f = sigmoid(x W_f + h U_f + c P_f + b_f).
        depth_gated: bool. Whether there are depth gates. Without, c' = f * c + i * j in all
            layers, and `first_gate` has no effect: what to compare a depth-gated stack with.
        first_gate: the depth gate of layer 1. "own" has M; "shared" has W_d in place of M;
            "none" is a layer without depth gate, c' = f * c + i * j.
        stabilised: bool. Whether layers multiply x by exp(s), s a learned scalar, in all
            products except x M (or the x W_d in its place).
        affine: bool. Whether layers above the first read h A + a instead of h.
        internal_dropout: float, at least 0 and below 1. Dropout of the h that passes from
            layer to layer, before the affine map if there is one.
        forget_bias: as in `LSTMCell`, for the forget gates of all layers, if not `coupled`.
        locked: list of the dropouts that keep their mask for a whole segment, some of
            "input", "recurrent" and "internal". The others draw a fresh mask at each step.
        **kwargs: Passed to `RecurrentCell`, as by `LSTMCell`.

    Call arguments, returns: as `RecurrentCell`. The masks are `input`, `recurrent_k` of
    layer k, `internal_k` between layers k and k + 1, and `recurrent_kernel_k`.
    States: `[h_1, c_1, h_2, c_2, ...]`; the output is the h of the last layer.

    Weights, for each layer k, with the gates side by side in the order i, f, j, o, d (f
    only if not `coupled`, d only where there is a depth gate):
    `kernel_k` (size in, 3 to 5 units), `recurrent_kernel_k` (units, 3 or 4 units; no d),
    `bias_k` (3 to 5 units) if used;
    `peephole_input_k`, `peephole_forget_k` (if not `coupled`), `peephole_output_k`
    (units, units), or (units) if diagonal;
    `depth_previous_k` (units), w_c, where there is a depth gate, and above layer 1
    `depth_lower_k` (units), w_l, or (units below, units), W_l, above a layer of another size, with
    `memory_kernel_k` (units below, units), N, unless `first_gate="shared"`;
    `memory_kernel` (features, units), M, in layer 1 of "own";
    `affine_kernel_k` (units, units) and, if biases are used, `affine_bias_k` (units), in
    affine layers above the first;
    `stabiliser_k` (scalar) if stabilised.
    Initial values: all W, M, N and A Glorot uniform; U, and P if a matrix, orthogonal; the
    forget part of a bias `forget_bias`; all else 0.

    Reference: Yao et al., 2015, https://arxiv.org/abs/1508.03790

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import DepthGatedLSTMCell, Recurrence
    >>> recurrence = Recurrence(DepthGatedLSTMCell(4, depth=2))
    >>> outputs, *states = recurrence(np.ones((2, 5, 3), "float32"))
    >>> tuple(outputs.shape), len(states)
    ((2, 5, 4), 4)
    """

    dropouts = ("input", "recurrent", "internal")
    output_state = -2

    def __init__(
        self,
        units,
        *,
        depth=1,
        lower_units=None,
        peepholes="full",
        coupled=True,
        depth_gated=True,
        first_gate="own",
        stabilised=False,
        affine=False,
        internal_dropout=0.0,
        forget_bias=1.0,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        self.depth = check_count("depth", depth)
        sizes = [self.units] * (depth - 1) if lower_units is None else list(lower_units)
        self.lower_units = None if lower_units is None else sizes
        if len(sizes) != depth - 1:
            raise ArgumentError(
                "lower_units",
                f"must have a size for each of the {depth} layers of `depth` but the last.",
                lower_units=sizes,
            )
        self.layer_units = [*(check_count("units", size) for size in sizes), self.units]
        self.peepholes = check_choice("peepholes", peepholes, PEEPHOLES)
        self.coupled = coupled
        self.depth_gated = depth_gated
        self.first_gate = check_choice("first_gate", first_gate, FIRST_GATES)
        self.stabilised = stabilised
        self.affine = affine
        self.internal_dropout = check_rate("internal_dropout", internal_dropout)
        self.forget_bias = check_forget_bias(forget_bias)
        self.state_size = [size for size in self.layer_units for _ in "hc"]

    def mask_sizes(self):
        input_masks = recurrent_masks = 1
        if self.mask_per_gate:
            input_masks = len(self._gates(1)) + (self._first_gate == "own")
            recurrent_masks = len(self._recurrent_gates())
        layers = range(1, self.depth + 1)
        return {
            "input": input_masks * self.input_size,
            **{f"recurrent_{k}": recurrent_masks * self.layer_units[k - 1] for k in layers},
            **{f"internal_{k}": self.layer_units[k - 1] for k in layers[:-1]},
        }

    def recurrent_kernels(self):
        return [f"recurrent_kernel_{k}" for k in range(1, self.depth + 1)]

    def units_of(self, weight):
        name, _, k = weight.name.rpartition("_")
        if not k.isdecimal():  # `memory_kernel`
            return self.layer_units[0]
        return self.layer_units[int(k) - (2 if name.startswith("affine") else 1)]

    def build(self, input_shape):
        self.input_size = input_shape[-1]
        for k in range(1, self.depth + 1):
            self._build_layer(k)

    def input_projection(self, inputs, masks):
        mask, memory_mask = self._input_masks(masks)
        projections = [product(inputs, self.kernel_1, mask)]
        if self._first_gate == "own":
            projections.append(product(inputs, self.memory_kernel, memory_mask))
        return projections

    def step(self, projections, states, masks):
        new_states: list = []
        for k in range(1, self.depth + 1):
            if k == 1:
                z, *memory = projections
                c_below = memory[0] if memory else None
                if self._first_gate == "shared":
                    c_below = ops.split(z, len(self._gates(1)), axis=-1)[-1]  # not stabilised
            else:
                h_below, c_below = new_states[-2:]
                z = product(self._lower_output(k, h_below, masks), self._get("kernel", k))
            h, c = states[2 * k - 2 : 2 * k]
            new_states += self._layer(k, z, c_below, h, c, masks)
        return new_states[-2], new_states

    @property
    def _first_gate(self):
        return self.first_gate if self.depth_gated else "none"

    def _gates(self, k):
        """Return the names of the gates of layer `k`, in order."""
        has_depth_gate = self.depth_gated if k > 1 else self._first_gate != "none"
        return self._recurrent_gates() + ["d"] * has_depth_gate

    def _recurrent_gates(self):
        return ["i", "j", "o"] if self.coupled else ["i", "f", "j", "o"]

    def _build_layer(self, k):
        units, gates = self.layer_units[k - 1], self._gates(k)
        size = self.input_size if k == 1 else self.layer_units[k - 2]
        self.add_input_kernel(f"kernel_{k}", (size, len(gates) * units))
        width = len(self._recurrent_gates()) * units
        self.add_recurrent_kernel(f"recurrent_kernel_{k}", (units, width))
        start = gate_biases(*[self.forget_bias if gate == "f" else 0.0 for gate in gates])
        self.add_bias(f"bias_{k}", len(gates) * units, start)
        for gate in ["input", "output"] if self.coupled else ["input", "forget", "output"]:
            if self.peepholes == "full":
                self.add_recurrent_kernel(f"peephole_{gate}_{k}", (units, units))
            else:
                self.add_zeros(f"peephole_{gate}_{k}", units)
        if "d" in gates:
            self.add_zeros(f"depth_previous_{k}", units)
            if k > 1 and size == units:
                self.add_zeros(f"depth_lower_{k}", units)
            elif k > 1:
                self.add_input_kernel(f"depth_lower_{k}", (size, units))
                if self.first_gate != "shared":
                    self.add_input_kernel(f"memory_kernel_{k}", (size, units))
        if k == 1 and self._first_gate == "own":
            self.add_input_kernel("memory_kernel", (size, units))
        if self.affine and k > 1:
            self.add_input_kernel(f"affine_kernel_{k}", (size, size))
            self.add_bias(f"affine_bias_{k}", size)
        if self.stabilised:
            self.add_zeros(f"stabiliser_{k}", role=Role.SCALE)

    def _layer(self, k, z, c_below, h, c, masks):
        """Return the new h and c of layer `k`; `z` is the product of its input for all gates."""
        names = self._gates(k)
        if self.stabilised:
            z = ops.exp(self._get("stabiliser", k)) * z  # = (exp(s) x) W
        if self.use_bias:
            z = z + self._get("bias", k)
        sums = dict(zip(names, ops.split(z, len(names), axis=-1)))  # (batch, units) each
        z = self.recurrent_product(h, masks, f"recurrent_kernel_{k}", f"recurrent_{k}")
        names = self._recurrent_gates()
        for name, part in zip(names, ops.split(z, len(names), axis=-1)):
            sums[name] = sums[name] + part

        i = ops.sigmoid(sums["i"] + self._peephole("input", k, c))
        f = 1.0 - i if self.coupled else ops.sigmoid(sums["f"] + self._peephole("forget", k, c))
        j = ops.tanh(sums["j"])
        new_c = f * c + i * j
        if "d" in sums:
            d = sums["d"] + c * self._get("depth_previous", k)
            if k > 1:
                weight = self._get("depth_lower", k)
                is_vector = len(weight.shape) == 1
                lower = c_below * weight if is_vector else product(c_below, weight)
                d = d + lower
                if not is_vector:
                    shared = self.first_gate == "shared"
                    c_below = lower if shared else product(c_below, self._get("memory_kernel", k))
            d = ops.sigmoid(d)
            new_c = d * c_below + new_c
            record(self, **{f"d_{k}": d})
        o = ops.sigmoid(sums["o"] + self._peephole("output", k, new_c))
        h = o * ops.tanh(new_c)
        named = {"i": i, "f": f, "j": j, "o": o, "c": new_c, "h": h}
        record(self, **{f"{name}_{k}": value for name, value in named.items()})
        return h, new_c

    def _input_masks(self, masks):
        """Return the masks of the input for `kernel_1` and for `memory_kernel`."""
        mask = masks.get("input")
        if mask is None or not self.mask_per_gate or self._first_gate != "own":
            return mask, mask
        return ops.split(mask, [mask.shape[-1] - self.input_size], axis=-1)

    def _lower_output(self, k, h, masks):
        """Return the `h` of the layer below as layer `k` reads it."""
        mask = masks.get(f"internal_{k - 1}")
        if not self.affine:
            return h if mask is None else h * mask
        h = product(h, self._get("affine_kernel", k), mask)
        return h + self._get("affine_bias", k) if self.use_bias else h

    def _peephole(self, gate, k, c):
        weight = self._get(f"peephole_{gate}", k)
        return product(c, weight) if self.peepholes == "full" else c * weight

    def _get(self, name, k):
        return getattr(self, f"{name}_{k}")
