"""Batches of a token stream in reading order; alone in this room needs Keras."""

import keras
import numpy as np

from dualnet._checks import check_count
from dualnet.corpora.cached_ids import release_pages
from dualnet.corpora.corpus import streams
from dualnet.corpora.vocabulary import Vocabulary

RELEASE_BYTES = 32 << 20
AROUND_BYTES = 2 << 20  # Linux maps up to so much around an address that is read


class TokenBatches(keras.utils.PyDataset):
    """Batches `(inputs, targets)` over parallel streams of one text.

    The text is laid out as `streams` says; batch k + 1 goes on where batch k
    stopped, row for row. Each of the targets is the token after its input.
    Where the streams are no multiple of `sequence_length`, the FIRST batch is
    the short one, so that no token is dropped: Keras infers the shapes from the
    first two batches, and sees that the length varies only if these differ.
    The memory stays flat: of a memory map, what was read is let go.

    Args:
        tokens: int array `(num_tokens,)`, in reading order.
        batch_size: int, at least 1. Number of parallel streams.
        sequence_length: int, at least 1. Tokens of each stream per batch.
        vocabulary: the `Vocabulary` of the ids, or None; only kept.

    Items:
        Inputs and targets, int32 `(batch_size, sequence_length)` each, a
        function of the index alone.

    Attributes:
        num_tokens: int. Predicted tokens per epoch:
            `(len(tokens) - 1) // batch_size * batch_size`.

    Raises:
        ValueError: if a size is not an integer of at least 1, or `tokens` holds
            fewer than `batch_size + 1` ids.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        batch_size: int,
        sequence_length: int,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        check_count("sequence_length", sequence_length, least=1)
        inputs, targets = streams(tokens, batch_size)
        super().__init__(workers=1, use_multiprocessing=False)
        self._inputs, self._targets = inputs, targets
        self.batch_size = int(batch_size)
        self.sequence_length = int(sequence_length)
        self.vocabulary = vocabulary
        self.num_tokens = int(inputs.size)
        self._touched = 0  # bytes of a memory map since its pages were let go
        self._next = 0  # index of the batch that lies beside the last one

    def __len__(self) -> int:
        length: int = self._inputs.shape[1]
        return (length - 1) // self.sequence_length + 1  # rounded up

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")  # also ends a plain `for`
        short = self._inputs.shape[1] - len(self) * self.sequence_length  # 0 or negative
        start = max(0, short + index * self.sequence_length)
        end = short + (index + 1) * self.sequence_length
        # Both are copies.
        batch = (
            self._inputs[:, start:end].astype("int32"),
            self._targets[:, start:end].astype("int32"),
        )
        per_row = (end - start) * self._inputs.itemsize
        self._touched += self.batch_size * (per_row if index == self._next else AROUND_BYTES)
        self._next = index + 1
        if self._touched >= RELEASE_BYTES:
            release_pages(self._inputs)
            self._touched = 0
        return batch
