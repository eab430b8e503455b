"""What a model must know of its batches before the first step."""

import itertools

import keras
import numpy as np

from dualnet._checks import ArgumentError


def look_ahead(data, batch_size, lowest, vocabulary_size):
    """Return `data` and the number of rows of its batches, looked up in the first one."""
    if hasattr(data, "shape"):  # an array, which Keras cuts into batches of 32 by default
        rows, batch_size = len(data), batch_size or 32
        if rows < batch_size or rows % batch_size:
            raise ArgumentError(
                "x",
                "must hold a multiple of `batch_size` rows, since each row continues the stream "
                f"of the row `batch_size` before it. Received: {rows} rows, "
                f"batch_size={batch_size}.",
            )
        if isinstance(data, np.ndarray) and data.size:
            low, high = data.min(), data.max()
            if low < lowest or high >= vocabulary_size:  # JAX and XLA would clip or wrap them
                or_padding = "" if lowest == 0 else ", or -1 for padding"
                raise ArgumentError(
                    "x",
                    f"must hold ids of the model's vocabulary, 0 to {vocabulary_size - 1}"
                    f"{or_padding}. Received: {low} to {high}.",
                )
        return data, batch_size
    if isinstance(data, keras.utils.PyDataset):
        first = data[0]
    elif iter(data) is data:  # a generator: the first batch is put back
        first = next(data)
        data = (batch for batch in itertools.chain([first], data))  # the only kind for Keras
    else:
        first = next(iter(data))
    tokens = first[0] if isinstance(first, (tuple, list)) else first
    return data, int(tokens.shape[0])
