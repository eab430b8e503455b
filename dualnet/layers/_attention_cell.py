"""What the recurrent cells with attention have in common."""

from keras import ops

from dualnet._checks import ArgumentError, check_rate
from dualnet.layers._configured import ConfiguredLayer
from dualnet.layers._products import matmul_per_row
from dualnet.layers._recurrent_cell import MaskSpec, build_cell

FAR_BELOW = -1e30  # a score that leaves no weight, without the nan of minus infinity


class AttentionCell(ConfiguredLayer):
    """Runs a stack of recurrent cells, each on the output of the one below, beside an attention.

    Every step reads `constants` whole: the memory that it attends to, one vector for each
    position of the source; a key for each of these vectors; and which positions are padding.
    What depends on the memory alone, such as the keys, is computed once, outside of the cell.

    Args:
        cells: list of cells such as `dualnet.layers.LSTMCell`, the lowest first.
        internal_dropout: float, at least 0 and below 1. Dropout between the cells.
        internal_locked: bool. Whether that dropout keeps its mask for a whole segment.

    Call arguments:
        inputs: `(batch, features)`.
        states: list of `(batch, size)`.
        constants: `[memory, keys]` or `[memory, keys, mask]`: `(batch, source, size)`,
            `(batch, source, key size)`, and bool `(batch, source)`, False at padding, which has
            no weight. If all positions are padding, the context is 0.
        training: bool.
        masks: dict from the names in `mask_specs()` to the masks drawn, or None.
    """

    def __init__(self, cells, *, internal_dropout=0.0, internal_locked=False, **kwargs):
        super().__init__(**kwargs)
        self.cells = list(cells) if isinstance(cells, list | tuple) else [cells]
        self.internal_dropout = check_rate("internal_dropout", internal_dropout)
        self.internal_locked = internal_locked
        self.level_sizes = [cell.output_size for cell in self.cells]
        self.state_size = [size for cell in self.cells for size in cell.state_size]

    # --- weights and masks

    def build_cells(self, input_size):
        """Build each cell for the output of the one below; the lowest reads `input_size`."""
        for cell in self.cells:
            build_cell(cell, (None, input_size))
            input_size = cell.output_size

    def mask_specs(self):
        """Return the masks that a training step needs, those of all cells included."""
        specs = []
        for number, cell in enumerate(self.cells, start=1):
            if number > 1 and self.internal_dropout > 0:
                size, rate = self.cells[number - 2].output_size, self.internal_dropout
                specs.append(MaskSpec(f"internal_{number}", rate, size, self.internal_locked))
            specs += [s._replace(name=f"cell_{number}/{s.name}") for s in cell.mask_specs()]
        return specs

    # --- one step

    def run_cells(self, x, states, masks):
        """Return the outputs of all cells, the lowest first, and their new states."""
        outputs, new_states = [], []
        for number, cell in enumerate(self.cells, start=1):
            if f"internal_{number}" in masks:
                x = x * masks[f"internal_{number}"]
            prefix = f"cell_{number}/"
            own = {n.removeprefix(prefix): m for n, m in masks.items() if n.startswith(prefix)}
            of_cell, states = states[: len(cell.state_size)], states[len(cell.state_size) :]
            x, after = cell.step(cell.input_projection(x, own), list(of_cell), own)
            outputs.append(x)
            new_states.extend(after)
        return outputs, new_states

    def top_output(self, states):
        """Return the output of the highest cell after the step before, one of its states."""
        top = self.cells[-1]
        return states[-len(top.state_size) :][top.output_state]

    def context(self, query, constants):
        """Return the mean of the memory `(batch, size)`, weighted for `query` `(batch, size)`."""
        memory, keys, *mask = constants
        return matmul_per_row(self.alignments(query, keys, *mask), memory)

    def queries(self, outputs, states):
        """Return the attention queries `(batch, time, size)`: the outputs of the highest cell.

        Args:
            outputs: `(batch, time, output_size)`, of all steps.
            states: list of the states before the first step.
        """
        end = sum(cell.output_size for cell in self.cells)
        return outputs[..., end - self.cells[-1].output_size : end]

    def alignments(self, queries, keys, mask=None):
        """Return the weight of each source position for each query: `(batch, time, source)`.

        Args:
            queries: `(batch, time, size)`, see `queries`.
            keys: `(batch, source, key size)`.
            mask: bool `(batch, source)`, False at padding, or None.
        """
        scores = self.scores(self.project(queries), keys)
        if mask is not None:
            mask = mask[:, None] if len(scores.shape) == 3 else mask
            scores = ops.where(mask, scores, FAR_BELOW)
        # Not `ops.softmax`, which warns of a source of one position.
        weights = ops.exp(scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True)))
        if mask is not None:
            weights = ops.where(mask, weights, 0.0)
        # The sum is at least 1, or else 0: then all is padding.
        return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)

    def project(self, queries):
        """Return `queries` as `scores` reads them."""
        return queries

    def scores(self, projected, keys):
        """Return the score of each key for each projected query: `(batch, time, source)`.

        A single step has no time axis.
        """
        raise NotImplementedError


def dropped_weights(cell):
    """Return the weights of `cell` that `mask_specs` says to drop out, by the name there."""
    if isinstance(cell, AttentionCell):
        return {
            f"cell_{number}/{name}": weight
            for number, member in enumerate(cell.cells, start=1)
            for name, weight in dropped_weights(member).items()
        }
    specs = cell.mask_specs()
    return {spec.name: getattr(cell, spec.name) for spec in specs if isinstance(spec.size, tuple)}


def memory_size(constants_shape, cell):
    """Return the size of the vectors of the memory, which a cell needs to know its weights."""
    if not constants_shape:
        required = f"must be [memory, keys] or [memory, keys, mask] for `{type(cell).__name__}`."
        raise ArgumentError("constants", f"{required} Received: none.")
    return constants_shape[0][-1]
