"""The recurrent state that a step hands to the next one."""

from collections.abc import Sequence

import numpy as np
from keras import layers, ops

from dualnet._checks import ArgumentError
from dualnet._types import Tensor
from dualnet.builders.batches import check_streams
from dualnet.devices import divided


class StreamState(layers.Layer):
    """The recurrent state of the streams that one kind of step reads, training or evaluation.

    Holds a variable `(batch, size)` per state, created when the batch size is known. They are
    no weights: absent from `weights`, so that weights fit a model of any batch size, but in
    `variables`, as JAX needs, and saved with the model.

    Attributes:
        sizes: list of int, the size of each state.
        batch_size: int, the number of streams; None before it is known.
        carried: bool. Whether steps use the state at all; else each starts from zeros.
        bucketed: bool. Whether the batches are padded by `BucketedBatches`.
        samples: int. Number of streams of each row of a batch, one for each dropout sample.
        first: tuple of arrays `(1, size)` or `(batch_size, size)`, or of a row for each row of a
            batch, the state that the streams start from; None for zeros.
        num_variables: int. Number of variables that the model had when its step was compiled.
    """

    def __init__(self, sizes: list[int], **kwargs) -> None:
        super().__init__(trainable=False, **kwargs)
        self.sizes = sizes
        self.batch_size: int | None = None
        self.samples = 1
        self.carried = True
        self.bucketed = False
        self.first: tuple[np.ndarray, ...] | None = None
        self.num_variables = 0
        self.built = True

    @property
    def weights(self):
        return []

    @property
    def layout(self):
        """Whether the states are carried, whether batches are bucketed, and the batch size."""
        return self.carried, self.bucketed, self.batch_size

    def resize(self, batch_size: int, samples: int = 1) -> bool:
        """Make room for `batch_size` streams; return whether the variables are new."""
        self.samples = samples
        if batch_size == self.batch_size:
            return False
        for i, size in enumerate(self.sizes):
            if self.batch_size is not None:
                delattr(self, f"state_{i}")
            name = f"state_{i}"
            setattr(self, name, self.add_weight((batch_size, size), "zeros", "float32", name=name))
        self.batch_size = batch_size
        self.restart()
        return True

    def read(self, batch_size: int | None) -> list[Tensor]:
        """Return a copy of the states, since a step may assign to them before it uses them."""
        if batch_size is not None and self.batch_size is not None:
            check_streams(batch_size, self.batch_size)
        return divided([ops.copy(state) for state in self._states()])

    def write(self, states: Sequence[Tensor]) -> None:
        for variable, state in zip(self._states(), states):
            variable.assign(state)

    def restart(self) -> None:
        """Let the streams start from their first state again."""
        of_batch = None if self.batch_size is None else self.batch_size // self.samples
        rows = {len(state) for state in self.first or ()} - {1, of_batch, self.batch_size}
        if rows and of_batch is not None:
            raise ArgumentError(
                "state",
                f"must have one row, or {of_batch}, the number of streams. Received: {rows.pop()} "
                "rows. Call reset_state with another state.",
            )
        for i, state in enumerate(self._states()):
            first = np.zeros((1, 1)) if self.first is None else self.first[i]
            if len(first) == of_batch:
                first = np.tile(first, (self.samples, 1))
            state.assign(ops.broadcast_to(ops.convert_to_tensor(first, state.dtype), state.shape))

    def save_own_variables(self, store):
        for i, state in enumerate(self._states()):
            store[f"state_{i}"] = state.numpy()

    def load_own_variables(self, store):
        if "state_0" in store:  # absent if saved before the first step
            self.resize(int(store["state_0"].shape[0]))
            self.write([store[f"state_{i}"][...] for i in range(len(self.sizes))])

    def _states(self):
        if self.batch_size is None:
            return []
        return [getattr(self, f"state_{i}") for i in range(len(self.sizes))]
