"""Batches of whole sentences, each read on its own; they need Keras."""

from typing import Any

import numpy as np
from keras.utils import pad_sequences

from dualnet._checks import check_ids
from dualnet.corpora.cached_ids import release_pages
from dualnet.corpora.token_batches import EpochBatches
from dualnet.text import EOS, Tokenizer

PADDING_ID = -1  # of inputs; not the id of a word
CHUNK_TOKENS = 1 << 21
POOL = 50  # batches whose sentences are sorted together


class ShuffledBatches(EpochBatches):
    """Batches of sentences, each read on its own after `<eos>`, padded, in any order."""

    carried = False
    pads = True
    lengths_vary = True

    def __init__(
        self, tokens: np.ndarray, *, vocabulary: Tokenizer, shuffle: bool, **settings: Any
    ) -> None:
        super().__init__(tokens, vocabulary=vocabulary, **settings)
        self.shuffle = shuffle
        self._eos_id = vocabulary.require_eos()

    def _random(self) -> np.random.Generator | None:
        """Return the generator of this epoch; None for the order of the text or of the lengths."""
        return np.random.default_rng((self.seed, self.epoch)) if self.shuffle else None

    def _padded(
        self, sentences: list[np.ndarray], length: int, padding: str = "post"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs, targets and weights of sentences that end with `<eos>`."""
        shifted = [np.append(self._eos_id, ids[:-1]) for ids in sentences]
        inputs = pad_sequences(shifted, length, padding=padding, value=PADDING_ID)
        targets = pad_sequences(sentences, length, padding=padding)
        return inputs, targets, (inputs != PADDING_ID).astype("float32")


class SentenceBatches(ShuffledBatches):
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
        group_by_length: bool. Whether sentences of similar length stand together, so that there
            is little padding: those of 50 batches in a row are sorted by length and divided
            anew. With `shuffle`, the batches then come in random order.
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

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        vocabulary: Tokenizer,
        batch_size: int,
        padding: str = "pre",
        shuffle: bool = True,
        group_by_length: bool = False,
        seed: int = 0,
    ) -> None:
        self.padding = padding
        self.group_by_length = group_by_length
        tokens = check_ids("tokens", tokens, least=1)
        self._starts = np.append(0, sentence_ends(tokens, vocabulary))  # and the end of the last
        super().__init__(
            tokens, vocabulary=vocabulary, shuffle=shuffle, batch_size=batch_size, seed=seed
        )
        self.num_tokens = len(tokens)

    def __len__(self) -> int:
        return (len(self._starts) - 2) // self.batch_size + 1  # rounded up

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._begin(index)
        sentences = self._sentences(index)
        length = max(map(len, sentences))
        if index == 0 and len(self) > 1 and length == max(map(len, self._sentences(1))):
            length += 1
        return self._padded(sentences, length, self.padding)

    def _sentences(self, index: int) -> list[np.ndarray]:
        """Return the sentences of a batch."""
        chosen = self._plan()[index * self.batch_size : (index + 1) * self.batch_size]
        return [self._tokens[slice(*self._starts[i : i + 2])] for i in chosen]

    def _draw(self) -> np.ndarray:
        order = np.arange(len(self._starts) - 1)
        random = self._random()
        if random is not None:
            order = random.permutation(order)
        if self.group_by_length:
            pools = np.arange(len(order)) // (POOL * self.batch_size)
            order = order[np.lexsort((np.diff(self._starts)[order], pools))]
            if random is not None:
                whole = order[: len(order) // self.batch_size * self.batch_size]
                random.shuffle(whole.reshape(-1, self.batch_size))  # the rest stays at the end
        return order


def sentence_ends(tokens: np.ndarray, vocabulary: Tokenizer) -> np.ndarray:
    """Return the end of each sentence of a text: int64 `(num_sentences,)`.

    Sentence k is `tokens[ends[k - 1] : ends[k]]`, `<eos>` included; the last one ends where
    the text does. The tokens are read in chunks.
    """
    required = f"must contain {EOS}, which ends a sentence."
    way_out = " Use `batches` for a text without sentences."
    eos_id = vocabulary.require_eos("vocabulary", required, way_out)
    chunks = []
    for start in range(0, len(tokens), CHUNK_TOKENS):
        chunks.append(start + 1 + np.flatnonzero(tokens[start : start + CHUNK_TOKENS] == eos_id))
        release_pages(tokens)
    ends = np.concatenate(chunks)
    if not len(ends) or ends[-1] < len(tokens):
        ends = np.append(ends, len(tokens))
    return ends
