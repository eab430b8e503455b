"""The rows of state that a step carries to the next."""

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet.devices import divided


class CarriedState(keras.layers.Layer):
    """The rows of state that one kind of step, training or evaluation, carries.

    Holds one variable `(batch, size)` for each state, made when the batch size
    is known. They are state and no weights: absent from `weights`, so that
    weights fit a model of any batch size, but in `variables`, as JAX needs, and
    saved with the model.
    """

    def __init__(self, sizes, **kwargs):
        super().__init__(trainable=False, **kwargs)
        self.sizes = sizes
        self.batch_size = None
        self.carried = True
        self.in_few_lengths = False  # whether what is read is padded by `FewLengths`
        self.known = 0  # variables of the model when its step was made
        self.built = True

    @property
    def weights(self):
        return []

    def carries(self, carried):
        """Say whether the rows are used at all; return whether that has changed."""
        before, self.carried = self.carried, carried
        return before != carried

    def resize(self, batch_size):
        """Make rows for `batch_size` streams; return whether the variables are new."""
        if batch_size == self.batch_size:
            return False
        for i, size in enumerate(self.sizes):
            if self.batch_size is not None:
                delattr(self, f"state_{i}")
            variable = self.add_weight(
                name=f"state_{i}", shape=(batch_size, size), initializer="zeros", dtype="float32"
            )
            setattr(self, f"state_{i}", variable)
        self.batch_size = batch_size
        return True

    def read(self, batch_size):
        """Return a copy of the rows: they may be assigned to before they are used."""
        if batch_size not in (None, self.batch_size):
            raise ArgumentError(
                "x",
                f"must come in batches of {self.batch_size} rows, the number of streams. "
                f"Received: a batch of {batch_size}. Leave the incomplete batch out, or use "
                "`Corpus.batches`, which does.",
            )
        return divided([ops.copy(row) for row in self._rows()])

    def write(self, states):
        for row, state in zip(self._rows(), states):
            row.assign(state)

    def zero(self):
        for row in self._rows():
            row.assign(ops.zeros(row.shape, row.dtype))

    def save_own_variables(self, store):
        for i, row in enumerate(self._rows()):
            store[f"state_{i}"] = row.numpy()

    def load_own_variables(self, store):
        if "state_0" in store:  # absent: saved before any step was taken
            self.resize(int(store["state_0"].shape[0]))
            self.write([store[f"state_{i}"][...] for i in range(len(self.sizes))])

    def _rows(self):
        if self.batch_size is None:
            return []
        return [getattr(self, f"state_{i}") for i in range(len(self.sizes))]
