"""Batches of whole sentences, each read on its own; they need Keras."""

import numpy as np

from dualnet._checks import ArgumentError, check_choice, check_ids
from dualnet.corpora.cached_ids import CHUNK_TOKENS, release_pages
from dualnet.corpora.token_batches import AROUND_BYTES, EpochBatches
from dualnet.text import EOS, Tokenizer

PADDINGS = ("pre", "post")
PADDING_ID = -1  # of inputs; not the id of a word


class SentenceBatches(EpochBatches):
    """Batches `(inputs, targets, sample_weight)` of the sentences of a text.

    A sentence ends with `<eos>`, the last one where the text does. Its words w1 .. wn and
    `<eos>` are the targets; the inputs are `<eos>`, w1 .. wn. An epoch holds every sentence
    once. A batch is as long as its longest sentence, and the last batch may have fewer rows.
    Keras infers the shapes from the first two batches and detects a varying length only if
    these differ; if they do not, the first batch gets one more column of padding. Memory use
    is constant: pages of a memory map are released after they are read.

    Args:
        tokens: int array `(num_tokens,)`, in reading order.
        vocabulary: The `Tokenizer` of the ids, with `<eos>`.
        batch_size: int, at least 1. Sentences per batch.
        padding: "pre" or "post". Whether padding is added before or after the words.
        shuffle: bool. Whether each epoch has another order, a function of `seed` and `epoch`
            alone; else it is that of the text.
        seed: int, at least 0.

    Items:
        Inputs, int32 `(rows, time)`, -1 for padding; targets, int32, 0 for padding; sample
        weights, float32, 0 for padding and 1 elsewhere.

    Attributes:
        num_tokens: int. Predicted tokens per epoch: `len(tokens)`.
        epoch: int, initially 0; may be set. `on_epoch_end` adds 1 after the last batch.
        carried: False. Every batch is read from the zero state.
        pads: True. The model must support padding.
        lengths_vary: True. `fit` buckets the batches if each new length would be compiled.

    Example:

    >>> from dualnet.corpora import Vocabulary
    >>> from dualnet.corpora.sentence_batches import SentenceBatches
    >>> words = Vocabulary(("<eos>", "the", "cat"))
    >>> tokens = words.encode("the cat\\nthe\\n")
    >>> batches = SentenceBatches(tokens, vocabulary=words, batch_size=2, shuffle=False)
    >>> inputs, targets, weights = batches[0]
    >>> inputs.tolist(), targets.tolist()
    ([[0, 1, 2], [-1, 0, 1]], [[1, 2, 0], [0, 1, 0]])
    """

    carried = False
    pads = True
    lengths_vary = True

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        vocabulary: Tokenizer,
        batch_size: int,
        padding: str = "pre",
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        check_choice("padding", padding, PADDINGS)
        tokens = check_ids("tokens", tokens, least=1)
        super().__init__(tokens, vocabulary=vocabulary, batch_size=batch_size, seed=seed)
        self._ends = sentence_ends(tokens, vocabulary)
        self._eos_id = vocabulary.eos_id
        self.padding = padding
        self.shuffle = bool(shuffle)
        self.num_tokens = len(tokens)
        self._ordered = (-1, np.arange(len(self._ends)))  # an epoch and its order

    def __len__(self) -> int:
        return (len(self._ends) - 1) // self.batch_size + 1  # rounded up

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._begin(index)
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
            around = AROUND_BYTES if self.shuffle else 0
            self._release((end - start) * self._tokens.itemsize + around)
        return inputs, targets, weight

    def _bounds(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the starts and ends of the sentences of a batch."""
        chosen = self._order()[index * self.batch_size : (index + 1) * self.batch_size]
        return np.where(chosen > 0, self._ends[chosen - 1], 0), self._ends[chosen]

    def _longest(self, index: int) -> int:
        starts, ends = self._bounds(index)
        return int((ends - starts).max())

    def _order(self) -> np.ndarray:
        epoch, order = self._ordered
        if self.shuffle and epoch != self.epoch:
            epoch = self.epoch
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self._ends))
            self._ordered = (epoch, order)  # in one step: TensorFlow reads ahead in a thread
        return order


def sentence_ends(tokens: np.ndarray, vocabulary: Tokenizer) -> np.ndarray:
    """Return the end of each sentence of a text: int64 `(num_sentences,)`.

    Sentence k is `tokens[ends[k - 1] : ends[k]]`, `<eos>` included; the last one ends where
    the text does. The tokens are read in chunks.
    """
    if getattr(vocabulary, "eos_id", None) is None:
        raise ArgumentError(
            "vocabulary",
            f"must contain {EOS}, which ends a sentence. Received: {vocabulary!r} "
            "without it. Use `batches` for a text without sentences.",
        )
    chunks = []
    for start in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens[start : start + CHUNK_TOKENS]
        chunks.append(start + 1 + np.flatnonzero(chunk == vocabulary.eos_id))
        release_pages(tokens)
    ends = np.concatenate(chunks)
    if not len(ends) or ends[-1] < len(tokens):
        ends = np.append(ends, len(tokens))
    return ends
