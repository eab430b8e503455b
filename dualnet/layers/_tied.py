"""Layers that may share the matrix of an embedding."""

from typing import Any

from keras import ops

from dualnet._checks import ArgumentError
from dualnet.layers._configured import ConfiguredLayer, Role


class TiedLayer(ConfiguredLayer):
    """A layer with the argument `tied_to`, a `keras.layers.Embedding` or None.

    An output layer has `vocabulary_size` and `use_bias`, too, and calls `build_output` and
    `output_weights`.
    """

    def __init__(self, *, tied_to, **kwargs):
        super().__init__(**kwargs)
        self.tied_to: Any = tied_to

    def build_output(self, units):
        """Add `kernel` (units, vocabulary) unless it is tied, and `bias` if used."""
        if self.tied_to is None:
            self.kernel = self.add_matrix("kernel", (units, self.vocabulary_size))
        else:
            self.build_embedding()
        if self.use_bias:
            self.bias = self.add_zeros("bias", self.vocabulary_size, role=Role.BIAS)

    def build_embedding(self):
        if not self.tied_to.built:
            self.tied_to.build()

    def output_weights(self):
        """Return the output matrix in the compute dtype and the bias in float32, or None.

        The matrix is `(vocabulary, units)` if tied, else `(units, vocabulary)`.
        """
        matrix = self.kernel if self.tied_to is None else self.tied_to.embeddings
        bias = ops.cast(self.bias, "float32") if self.use_bias else None
        return ops.cast(matrix, self.compute_dtype), bias


def check_tied_size(argument, value, size, of):
    """Raise `ValueError` unless `value` is `size`, the number `of` rows or units of a matrix."""
    if value != size:
        required = f"must equal the {size} {of} of the embedding that the output is tied to."
        raise ArgumentError(argument, f"{required} Received: {argument}={value!r}.")
