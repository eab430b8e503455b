"""Batches of whole sentences, each read for itself; beside TokenBatches alone needs Keras."""

import keras
import numpy as np

from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet.corpora.cached_ids import CHUNK_TOKENS, release_pages
from dualnet.corpora.token_batches import AROUND_BYTES, RELEASE_BYTES
from dualnet.text import EOS, Vocabulary

PADDINGS = ("pre", "post")
PADDING_ID = -1  # of the inputs; the id of no word


class SentenceBatches(keras.utils.PyDataset):
    """Batches `(inputs, targets, sample_weight)` of the sentences of one text.

    A sentence ends with `<eos>`, and the last one where the text does. Its
    words w1 .. wn and `<eos>` are the targets; the inputs are `<eos>`, w1 .. wn.
    An epoch holds every sentence once, in an order of its own. A batch is as
    long as its longest sentence, and the last one of an epoch may have fewer
    rows. Keras infers the shapes from the first two batches and sees that the
    length varies only if these differ: where they do not, the first one has one
    more column of padding. The memory stays flat: of a memory map, what was
    read is let go.

    Args:
        tokens: int array `(num_tokens,)`, in reading order.
        vocabulary: the `Vocabulary` of the ids, with `<eos>`.
        batch_size: int, at least 1. Sentences of a batch.
        padding: "pre" or "post". Whether padding stands before the words or after.
        shuffle: bool. Whether each epoch has another order; else it is that of the text.
        seed: int, at least 0. The order is a function of `seed` and `epoch` alone.

    Items:
        Inputs, int32 `(rows, time)`, -1 on padding; targets, int32, 0 on
        padding; sample weights, float32, 0 on padding and 1 elsewhere. A
        function of `epoch` and the index alone.

    Attributes:
        num_tokens: int. Predicted tokens per epoch: `len(tokens)`.
        epoch: int, at first 0; may be set. `on_epoch_end` adds 1 once the last batch
            was read.
        carried: False. Every batch is read from the zero state.
        pads: True. A model must know padding.
        lengths_vary: True. Where each length is compiled, `fit` adds padding.

    Raises:
        ValueError: if an argument is out of range, `vocabulary` lacks `<eos>`, or
            `tokens` is not a vector of at least one id.
    """

    carried = False
    pads = True
    lengths_vary = True

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        vocabulary: Vocabulary,
        batch_size: int,
        padding: str = "pre",
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        check_count("batch_size", batch_size, least=1)
        check_choice("padding", padding, PADDINGS)
        check_count("seed", seed, least=0)
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer) or not len(tokens):
            raise ArgumentError(
                "tokens",
                "must be an integer array of shape (num_tokens,), with at least one id. "
                f"Received: shape {tokens.shape}, dtype {tokens.dtype}.",
            )
        super().__init__(workers=1, use_multiprocessing=False)
        self._ends = sentence_ends(tokens, vocabulary)
        self._tokens = tokens
        self._eos_id = vocabulary.eos_id
        self.vocabulary = vocabulary
        self.batch_size = int(batch_size)
        self.padding = padding
        self.shuffle = bool(shuffle)
        self.seed = int(seed)
        self.epoch = 0
        self.num_tokens = len(tokens)
        self._finished = False  # whether the last batch of the epoch was read
        self._ordered = (-1, np.arange(len(self._ends)))  # an epoch and its order
        self._touched = 0  # bytes of a memory map since its pages were let go

    def __len__(self) -> int:
        return (len(self._ends) - 1) // self.batch_size + 1  # rounded up

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")  # also ends a plain `for`
        self._finished = index == len(self) - 1
        starts, ends = self._bounds(index)
        length = self._longest(index)
        if index == 0 and len(self) > 1 and length == self._longest(1):
            length += 1
        inputs = np.full((len(starts), length), PADDING_ID, "int32")
        targets = np.zeros_like(inputs)
        weight = np.zeros(inputs.shape, "float32")
        for row, (start, end) in enumerate(zip(starts, ends)):
            first = length - (end - start) if self.padding == "pre" else 0
            words = slice(first, first + end - start)
            targets[row, words] = self._tokens[start:end]
            inputs[row, first] = self._eos_id
            inputs[row, first + 1 : words.stop] = targets[row, first : words.stop - 1]
            weight[row, words] = 1.0
            self._release(end - start)
        return inputs, targets, weight

    def on_epoch_end(self) -> None:
        if self._finished:  # Keras calls it before the first epoch too, having looked ahead
            self._finished = False
            self.epoch += 1

    def _bounds(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the sentences of a batch start, and where they end."""
        chosen = self._order()[index * self.batch_size : (index + 1) * self.batch_size]
        # The first sentence has none before it.
        return np.where(chosen > 0, self._ends[chosen - 1], 0), self._ends[chosen]

    def _longest(self, index: int) -> int:
        starts, ends = self._bounds(index)
        return int((ends - starts).max())

    def _order(self) -> np.ndarray:
        epoch, order = self._ordered
        if self.shuffle and epoch != self.epoch:
            epoch = self.epoch
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self._ends))
            self._ordered = (epoch, order)  # at once: TensorFlow reads ahead in a thread
        return order

    def _release(self, count: int) -> None:
        around = AROUND_BYTES if self.shuffle else 0
        self._touched += count * self._tokens.itemsize + around
        if self._touched >= RELEASE_BYTES:
            release_pages(self._tokens)
            self._touched = 0


def sentence_ends(tokens: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Return where each sentence of a text ends: int64 `(num_sentences,)`.

    Sentence k is `tokens[ends[k - 1] : ends[k]]`, `<eos>` included; the last
    one ends where the text does. The tokens are read piece by piece.

    Raises:
        ValueError: if `vocabulary` has no `<eos>`.
    """
    if getattr(vocabulary, "eos_id", None) is None:
        raise ArgumentError(
            "vocabulary",
            f"must have {EOS}, which ends a sentence. Received: {vocabulary!r} "
            "without it. Use `batches` for a text without sentences.",
        )
    found = []
    for start in range(0, len(tokens), CHUNK_TOKENS):
        piece = tokens[start : start + CHUNK_TOKENS]
        found.append(start + 1 + np.flatnonzero(piece == vocabulary.eos_id))
        release_pages(tokens)
    ends = np.concatenate(found)
    if not len(ends) or ends[-1] < len(tokens):
        ends = np.append(ends, len(tokens))
    return ends
