"""Names for the types of values that Keras does not ship types of."""

from typing import Any

# A tensor of the backend, symbolic or not, or an array: what `keras.ops` takes and returns.
Tensor = Any
Tensors = dict[str, Tensor]
