"""Layer normalisation inside a cell."""

from keras import backend, ops

from dualnet._checks import check_choice, check_count, check_positive
from dualnet.layers._configured import Role
from dualnet.layers._recurrent_cell import RecurrentCell


class NormalisedCell(RecurrentCell):
    """Adds layer normalisation to a cell, which comes after it among the bases of a subclass.

    The subclass lists in `normalised`, for each placement, the vectors that are normalised:
    their names, which are also those of their gains and shifts, and their sizes in units.
    """

    normalised: dict[str, dict[str, int]] = {}

    def __init__(self, units, *, placement="separate", affine=True, epsilon=1e-5, **kwargs):
        placement = check_choice("placement", placement, self.normalised)
        # A single feature minus its mean is 0: the output of a cell of one unit would be constant.
        units = check_count("units", units, least=1 if placement == "none" else 2)
        super().__init__(units, **kwargs)
        self.placement = placement
        self.affine = affine
        self.epsilon = check_positive("epsilon", epsilon)

    def build(self, input_shape):
        super().build(input_shape)
        if self.affine:
            for name, size in self.normalised[self.placement].items():
                for kind, initializer in (("gain", "ones"), ("shift", "zeros")):
                    shape = (size * self.units,)
                    self.add_matrix(f"{name}_{kind}", shape, initializer, role=Role.SCALE)

    def normalise(self, name, vector, parts=1):
        """Return `vector`, normalised if the placement says so, each of its `parts` separately."""
        if name not in self.normalised[self.placement]:
            return vector
        vector = layer_norm(vector, self.epsilon, parts)
        if self.affine:
            vector = vector * getattr(self, f"{name}_gain") + getattr(self, f"{name}_shift")
        return vector

    def normalise_sum(self, name, vector, bias, parts=1):
        """Return `normalise(name, vector)` plus `bias`, which "joint" adds before it."""
        if bias is None:
            return self.normalise(name, vector, parts)
        if self.placement == "joint":
            return self.normalise(name, vector + bias)
        return self.normalise(name, vector, parts) + bias


def layer_norm(vector, epsilon, parts=1):
    """Return (v - mean(v)) / sqrt(var(v) + epsilon) of `vector`, or of each of its equal parts."""
    shape = ops.shape(vector)
    # float32: in bfloat16 a variance has two digits, and in float16 a sum of squares overflows.
    fine = ops.cast(vector, backend.result_type(vector.dtype, "float32"))
    if parts > 1:
        fine = ops.reshape(fine, (-1, parts, vector.shape[-1] // parts))
    centred = fine - ops.mean(fine, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return ops.cast(ops.reshape(centred * ops.rsqrt(variance + epsilon), shape), vector.dtype)
