import keras
from keras import ops

from dualnet._checks import check_count
from dualnet.layers._attention_cell import AttentionCell, memory_size
from dualnet.layers._products import matmul, matmul_per_row


@keras.saving.register_keras_serializable("dualnet")
class GeneralAttentionCell(AttentionCell):
    """Recurrent cells with Luong's general attention and input feeding, as one cell.

    x_t = [a_(t-1); input_t],  h_t = cells(x_t)
    w_s = softmax over s of h_t . key_s,  c_t = sum over s of w_s memory_s
    a_t = tanh([h_t; c_t] W)

    h_t is the output of the highest cell, a_t the attentional vector, which the next step reads
    (input feeding). With key_s = memory_s U, the score is h_t U' memory_s, Luong's "general";
    U is the kernel of a `keras.layers.Dense` outside of the cell, which computes all keys at
    once. A key is as wide as h_t.

    Args:
        cells: list of cells, the lowest first.
        units: int, at least 1. Size of the attentional vector.
        internal_dropout, internal_locked: Dropout between the cells; see the cells' own
            arguments for the others.
        **kwargs: Passed to `keras.layers.Layer`, e.g. `name`, `dtype`.

    States: `[a, *states of the cells]`.
    Output: `[h of every cell, the lowest first; a]`, side by side, `sum(level_sizes)` wide.

    Weights: those of the cells, and `attention_kernel` (size of h + size of memory, units).

    Reference: Luong et al., 2015, https://arxiv.org/abs/1508.04025, sections 3.1 and 3.3.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import GeneralAttentionCell, LSTMCell, Recurrence
    >>> memory, keys = np.ones((2, 7, 6), "float32"), np.ones((2, 7, 4), "float32")
    >>> recurrence = Recurrence(GeneralAttentionCell([LSTMCell(4), LSTMCell(4)], 5))
    >>> outputs, *states = recurrence(np.ones((2, 3, 8), "float32"), constants=[memory, keys])
    >>> tuple(outputs.shape), len(states)  # h of both cells, and the attentional vector
    ((2, 3, 13), 5)
    """

    def __init__(self, cells, units, **kwargs):
        super().__init__(cells, **kwargs)
        self.units = check_count("units", units)
        self.level_sizes = [*self.level_sizes, self.units]
        self.state_size = [self.units, *self.state_size]
        self.output_size = sum(self.level_sizes)

    def build(self, input_shape, constants_shape=None):
        self.build_cells(self.units + input_shape[-1])
        size = self.cells[-1].output_size + memory_size(constants_shape, self)
        self.attention_kernel = self.add_matrix("attention_kernel", (size, self.units))

    def call(self, inputs, states, constants=None, training=False, masks=None):
        fed, *states = states
        x = ops.concatenate([fed, inputs], axis=-1)
        outputs, states = self.run_cells(x, states, masks or {})
        h = ops.concatenate([outputs[-1], self.context(outputs[-1], constants)], axis=-1)
        attentional = ops.tanh(matmul(h, self.attention_kernel))
        return ops.concatenate([*outputs, attentional], axis=-1), [attentional, *states]

    def scores(self, projected, keys):
        return matmul_per_row(projected, keys, transposed=True)
