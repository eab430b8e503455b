import keras
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._configured import ConfiguredLayer, Role


@keras.saving.register_keras_serializable("dualnet")
class FirstState(ConfiguredLayer):
    """The state that every row of a batch starts from: zeros, or learned.

    Args:
        sizes: list of int, the size of each state.
        learned: bool. Whether the states are weights, which start as zeros under every
            `initializer` of a builder.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`.

    Call arguments:
        inputs: a tensor whose first axis is the batch; its values do not count.

    Returns:
        A list of `(batch, size)`, float32.

    Weights: `state_1`, `state_2` and so on, one vector of each size, if learned.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import FirstState
    >>> h, c = FirstState([4, 4], learned=True)(np.ones((2, 5)))
    >>> tuple(h.shape)
    (2, 4)
    """

    def __init__(self, sizes, *, learned=False, **kwargs):
        super().__init__(**kwargs)
        self.sizes = [check_count("sizes", size) for size in sizes]
        self.learned = learned

    def build(self, input_shape):
        sizes = enumerate(self.sizes if self.learned else [], start=1)
        self.vectors = [self.add_zeros(f"state_{i}", size, role=Role.SCALE) for i, size in sizes]

    def call(self, inputs):
        batch = ops.shape(inputs)[0]
        vectors = self.vectors if self.learned else map(ops.zeros, self.sizes)
        vectors = [ops.cast(vector, "float32") for vector in vectors]
        return [ops.broadcast_to(v, (batch, size)) for v, size in zip(vectors, self.sizes)]

    def compute_output_spec(self, inputs):
        return [keras.KerasTensor((inputs.shape[0], size), "float32") for size in self.sizes]
