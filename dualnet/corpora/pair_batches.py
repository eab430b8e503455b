"""Batches of pairs of similar length; Keras is needed here."""

import numpy as np
from keras.utils import pad_sequences

from dualnet.corpora.pair_split import PairSplit
from dualnet.corpora.sentence_batches import PADDING_ID, ShuffledBatches
from dualnet.text import Tokenizer


class PairBatches(ShuffledBatches):
    """Batches `({"source": ..., "target": ...}, targets, sample_weight)` of pairs.

    The words w1 .. wn of a target line and `<eos>` are the targets; the target inputs are
    `<eos>`, w1 .. wn. A source line is read as it is, without `<eos>`. Padding is on the right.

    Pairs of similar length stand together, and a batch is as large as its bounds allow. An
    epoch holds every pair once, in the same number of batches. Keras infers the shapes from
    the first two batches, and detects a varying length only if these differ, so they do in
    each length that varies. A plain Keras model needs `fit(..., shuffle=False)`: the batches
    shuffle themselves.

    Args:
        pairs: `PairSplit`.
        vocabulary: The `Tokenizer` of the target, with `<eos>`.
        source_vocabulary: The `Tokenizer` of the source. `fit` gives both to a model without.
        tokens_per_batch: int, at least 1. Maximum number of positions of source and target
            together, including padding. A longer pair has a batch of its own.
        batch_size: int, at least 1, or None for no limit. Maximum number of pairs.
        pad_to_multiple_of: int, at least 1. Lengths are rounded up to a multiple of it, so
            that few shapes are compiled, and pairs in between are shuffled together.
        shuffle: bool. Whether each epoch has other batches in another order, a function of
            `seed` and `epoch` alone; else the shortest targets come first.
        seed: int, at least 0.

    Items:
        A dict of `source`, int32 `(rows, source_length)`, and `target`, int32
        `(rows, target_length)`, both -1 for padding; targets, int32 `(rows, target_length)`,
        0 for padding; sample weights, float32, 0 for padding and 1 elsewhere. An empty
        source line is padding alone.

    Attributes:
        num_tokens: int. Predicted tokens per epoch, `<eos>` included.
        epoch: int, initially 0; may be set. `on_epoch_end` adds 1 after the last batch.
        carried: False. Every batch is read from the zero state.
        pads: True. The model must support padding.
        lengths_vary: True.

    Example:

    >>> from dualnet import corpora
    >>> corpus = corpora.load_pairs("numbers")
    >>> batches = corpus.batches("test", tokens_per_batch=1000, shuffle=False)
    >>> inputs, targets, weights = batches[1]
    >>> inputs["source"].shape, inputs["target"].shape, targets.shape
    ((83, 4), (83, 8), (83, 8))
    """

    def __init__(
        self,
        pairs: PairSplit,
        *,
        vocabulary: Tokenizer,
        source_vocabulary: Tokenizer | None = None,
        tokens_per_batch: int = 4096,
        batch_size: int | None = None,
        pad_to_multiple_of: int = 4,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.tokens_per_batch = tokens_per_batch
        self.pad_to_multiple_of = pad_to_multiple_of
        super().__init__(
            pairs.target_ids,
            vocabulary=vocabulary,
            batch_size=batch_size or len(pairs),
            shuffle=shuffle,
            seed=seed,
        )
        self.num_tokens = len(pairs.target_ids) + len(pairs)
        self._pairs = pairs
        self.source_vocabulary = source_vocabulary
        lengths = [np.diff(pairs.source_offsets), np.diff(pairs.target_offsets) + 1]
        blocks = -(-np.stack(lengths, axis=1) // pad_to_multiple_of)  # rounded up
        self._widths = np.maximum(blocks, 1) * pad_to_multiple_of  # (pairs, 2)
        self._starts, self._shapes = self._divide()

    def __len__(self) -> int:
        return len(self._shapes)

    def pairs_of(self, index: int) -> np.ndarray:
        """Return the pairs in batch `index` of this epoch, int64 `(rows,)`."""
        pairs, order = self._plan()
        batch = order[index]
        return pairs[self._starts[batch] : self._starts[batch + 1]]

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        self._begin(index)
        chosen = self.pairs_of(index)
        source_width, target_width = self._widths[chosen].max(axis=0)
        sources = [self._pairs.source(pair) for pair in chosen]
        source = pad_sequences(sources, source_width, padding="post", value=PADDING_ID)
        sentences = [np.append(self._pairs.target(pair), self._eos_id) for pair in chosen]
        target, targets, weights = self._padded(sentences, target_width)
        return {"source": source, "target": target}, targets, weights

    # --- the shapes, the same in every epoch

    def _divide(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first of the sorted pairs in each batch, and the widths of the batches."""
        widths = self._widths[self._sorted(None)]
        starts, widest = [0], (0, 0)
        for k, (source, target) in enumerate(widths.tolist()):
            rows = k - starts[-1] + 1
            widest = max(source, widest[0]), max(target, widest[1])
            too_large = rows > self.batch_size or rows * sum(widest) > self.tokens_per_batch
            if rows > 1 and too_large:
                starts.append(k)
                widest = source, target
        return np.append(starts, len(widths)), np.maximum.reduceat(widths, starts)

    def _sorted(self, random: np.random.Generator | None) -> np.ndarray:
        """Return the pairs by their widths, those of equal widths in random order."""
        source, target = self._widths.T
        ties = np.arange(len(source)) if random is None else random.permutation(len(source))
        # Source widths go up and down in turn, so that neighbours are of similar width.
        snake = np.where(target // self.pad_to_multiple_of % 2, source, -source)
        return np.lexsort((ties, snake, target))

    # --- the epoch

    def _draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs in the order of their batches, and the order of the batches."""
        random = self._random()
        pairs = self._sorted(random)
        order = np.arange(len(self)) if random is None else random.permutation(len(self))
        varies = (self._shapes != self._shapes[0]).any(axis=0)
        shapes = self._shapes[order][:, varies]
        for first, shape in enumerate(shapes if varies.any() else ()):
            others = np.flatnonzero((shapes != shape).all(axis=1))
            if len(others):
                front = [first, others[0]]
                return pairs, np.append(order[front], np.delete(order, front))
        return pairs, order
