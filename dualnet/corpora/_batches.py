"""Batches for `fit`; apart from the other files because it needs Keras."""

import keras
import numpy as np

from dualnet.corpora._streams import streams
from dualnet.corpora.vocabulary import Vocabulary


class Batches(keras.utils.PyDataset):
    """Segments of parallel streams: item k is `(inputs, targets)`, int32 `(batch, time)`.

    Targets are the inputs one token later. Row b of item k + 1 goes on where row
    b of item k ended. Where the streams are no multiple of the segment, the
    first segment is the short one: Keras learns from the first two that the
    length varies, so that no token need be left out.

    Attributes:
        batch_size, sequence_length: int.
        num_tokens: int, tokens predicted in one epoch.
        vocabulary: of the corpus; a model takes it over in `fit`.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        batch_size: int,
        sequence_length: int,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__(workers=1)
        self.inputs, self.targets = streams(
            tokens, batch_size=batch_size, sequence_length=sequence_length
        )
        self.batch_size = batch_size
        self.sequence_length = sequence_length
        self.vocabulary = vocabulary
        self.num_tokens = self.inputs.size
        length = self.inputs.shape[1]
        first = length % sequence_length or sequence_length
        self._ends = range(first, length + 1, sequence_length)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        end = self._ends[index]
        segment = slice(max(0, end - self.sequence_length), end)
        return self.inputs[:, segment], self.targets[:, segment]
