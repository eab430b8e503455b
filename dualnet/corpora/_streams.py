"""Cuts one stream of tokens into parallel ones."""

import numpy as np


def streams(
    tokens: np.ndarray, *, batch_size: int, sequence_length: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of `batch_size` parallel streams.

    N tokens are N - 1 pairs of a token and its successor. They are cut into
    `batch_size` contiguous streams of equal length; the remainder, fewer than
    `batch_size` pairs, is left out.

    Args:
        tokens: int `(num_tokens,)`, in reading order.
        batch_size: int, at least 1.
        sequence_length: int, at least 1. Tokens that a stream must hold at least.

    Returns:
        `(inputs, targets)`, int32 `(batch_size, (num_tokens - 1) // batch_size)`.

    Raises:
        ValueError: if an argument is below 1 or `tokens` holds less than one batch.
    """
    for name, value in {"batch_size": batch_size, "sequence_length": sequence_length}.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(
                f"`{name}` must be an integer of at least 1. Received: {name}={value!r}."
            )
    pairs = len(tokens) - 1
    if pairs < batch_size * sequence_length:
        raise ValueError(
            f"One batch of batch_size={batch_size} streams with sequence_length={sequence_length} "
            f"needs {batch_size * sequence_length + 1} tokens. Received: {len(tokens)} tokens. "
            "Use a smaller batch_size or sequence_length, or more text."
        )
    used = pairs // batch_size * batch_size
    inputs = np.asarray(tokens[:used], np.int32).reshape(batch_size, -1)
    targets = np.asarray(tokens[1 : used + 1], np.int32).reshape(batch_size, -1)
    return inputs, targets
