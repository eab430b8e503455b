"""Parallel streams of a text."""

import numpy as np

from dualnet._checks import ArgumentError, check_ids


def streams(tokens: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and targets of `batch_size` parallel streams.

    N tokens are N - 1 pairs of a token and the next one. Stream b holds the pairs from
    `b * length` to `(b + 1) * length - 1`, where `length` is `(N - 1) // batch_size`:
    together, the streams predict every token but the first exactly once, in reading order.
    The last `(N - 1) % batch_size` pairs are dropped.

    Args:
        tokens: int array `(num_tokens,)`, in reading order, of at least `batch_size + 1` ids.
        batch_size: int, at least 1.

    Returns:
        Inputs and targets, views of `tokens`, each `(batch_size, length)`.

    Example:

    >>> import numpy as np
    >>> from dualnet.corpora import streams
    >>> inputs, targets = streams(np.arange(8), batch_size=2)
    >>> inputs.tolist(), targets.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    tokens = check_ids("tokens", tokens)
    length = (len(tokens) - 1) // batch_size
    if length < 1:
        raise ArgumentError(
            "tokens",
            f"must hold at least batch_size + 1 = {batch_size + 1} ids. Received: {len(tokens)} "
            "ids. Use a smaller `batch_size` or a longer text.",
        )
    end = batch_size * length
    return (
        tokens[:end].reshape(batch_size, length),
        tokens[1 : end + 1].reshape(batch_size, length),
    )
