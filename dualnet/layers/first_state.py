from keras import KerasTensor, ops, saving

from dualnet._checks import ArgumentError, check_count, check_flag
from dualnet.layers._configured import ConfiguredLayer, Role


@saving.register_keras_serializable("dualnet")
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
        if not isinstance(sizes, (list, tuple)):
            raise ArgumentError("sizes", "must be a list of sizes.", sizes=sizes)
        self.sizes = [check_count("sizes", size, least=1) for size in sizes]
        self.learned = check_flag("learned", learned)

    def build(self, input_shape):
        self.vectors = [
            self.add_zeros(f"state_{number}", size, role=Role.SCALE)
            for number, size in enumerate(self.sizes, start=1)
            if self.learned
        ]

    def call(self, inputs):
        shapes = [(ops.shape(inputs)[0], size) for size in self.sizes]
        if not self.learned:
            return [ops.zeros(shape, "float32") for shape in shapes]
        vectors = [ops.cast(vector, "float32")[None] for vector in self.vectors]
        return [*map(ops.broadcast_to, vectors, shapes)]

    def compute_output_spec(self, inputs):
        return [KerasTensor((inputs.shape[0], size), "float32") for size in self.sizes]
