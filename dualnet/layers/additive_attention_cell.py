import math

import keras
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._attention_cell import AttentionCell, memory_size
from dualnet.layers._products import matmul


@keras.saving.register_keras_serializable("dualnet")
class AdditiveAttentionCell(AttentionCell):
    """Recurrent cells that read a context of Bahdanau's additive attention, as one cell.

    w_s = softmax over s of v . tanh(h_(t-1) W + key_s),  c_t = sum over s of w_s memory_s
    h_t = cells([input_t; c_t])

    h is the output of the highest cell. With key_s = memory_s U this is the alignment of
    Bahdanau et al., without bias, as in the depth-gated LSTM; U is the kernel of a
    `keras.layers.Dense` outside of the cell, which computes all keys at once.

    Args:
        cells: list of cells, the lowest first.
        alignment_units: int, at least 1. Size of v and of the keys.
        internal_dropout, internal_locked: Dropout between the cells; see the cells' own
            arguments for the others.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    States: those of the cells.
    Output: `[h of every cell, the lowest first; c]`, side by side, `sum(level_sizes)` wide.

    Weights: those of the cells, `alignment_kernel` (size of h, alignment_units) and
    `alignment_vector` (alignment_units).

    Reference: Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, section A.1.2; Yao et al.,
    2015, https://arxiv.org/abs/1508.03790.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import AdditiveAttentionCell, GRUCell, Recurrence
    >>> memory, keys = np.ones((2, 7, 6), "float32"), np.ones((2, 7, 3), "float32")
    >>> recurrence = Recurrence(AdditiveAttentionCell([GRUCell(4), GRUCell(4)], 3))
    >>> outputs, *states = recurrence(np.ones((2, 5, 8), "float32"), constants=[memory, keys])
    >>> tuple(outputs.shape), len(states)  # h of both cells, and the context
    ((2, 5, 14), 2)
    """

    def __init__(self, cells, alignment_units, **kwargs):
        super().__init__(cells, **kwargs)
        self.alignment_units = check_count("alignment_units", alignment_units)
        self.output_size = None  # the context is as wide as the memory

    def build(self, input_shape, constants_shape=None):
        size = memory_size(constants_shape, self)
        self.level_sizes = [*(cell.output_size for cell in self.cells), size]
        self.output_size = sum(self.level_sizes)
        self.build_cells(input_shape[-1] + size)
        shape = self.cells[-1].output_size, self.alignment_units
        self.alignment_kernel = self.add_matrix("alignment_kernel", shape)
        limit = math.sqrt(6.0 / (self.alignment_units + 1))  # Glorot's, for a product of size 1
        initializer = keras.initializers.RandomUniform(-limit, limit)
        self.add_matrix("alignment_vector", (self.alignment_units,), initializer)

    def call(self, inputs, states, constants=None, training=False, masks=None):
        context = self.context(self.top_output(states), constants)
        x = ops.concatenate([inputs, context], axis=-1)
        outputs, states = self.run_cells(x, states, masks or {})
        return ops.concatenate([*outputs, context], axis=-1), states

    def queries(self, outputs, states):
        # It attends before the step: the output of the step before is the query.
        after = super().queries(outputs, states)[:, :-1]
        return ops.concatenate([self.top_output(states)[:, None], after], axis=1)

    def project(self, queries):
        return matmul(queries, self.alignment_kernel)

    def scores(self, projected, keys):
        keys = keys[:, None] if len(projected.shape) == 3 else keys
        return ops.sum(ops.tanh(projected[..., None, :] + keys) * self.alignment_vector, axis=-1)
