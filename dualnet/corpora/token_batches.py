"""Batches of a token stream in reading order; Keras is needed here."""

import abc
from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError
from dualnet.corpora.cached_ids import release_pages
from dualnet.corpora.streams import streams
from dualnet.text import Tokenizer

HALF = 0.05  # fraction of the random lengths around half of `sequence_length`
SHORTEST = 5  # minimum of the random lengths
LENGTHS, ORDER, CUTS = range(3)  # purposes of random generators


class EpochBatches(keras.utils.PyDataset, abc.ABC):
    """Batches of a text, in memory or mapped, that are a function of `epoch` and index alone."""

    epoch = 0

    def __init__(
        self, tokens: np.ndarray, *, vocabulary: Tokenizer | None, batch_size: int, seed: int
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self._tokens = tokens
        self.vocabulary = vocabulary
        self.batch_size = batch_size
        self.seed = seed
        self._finished = False  # whether the last batch of the epoch was read
        self._drawn: tuple[int, Any] = (-1, None)  # an epoch and its plan

    def on_epoch_end(self) -> None:
        if self._finished:  # Keras also calls it before the first epoch
            self._finished = False
            self.epoch += 1

    @abc.abstractmethod
    def _draw(self) -> Any:
        """Return the plan of this epoch."""

    def _plan(self) -> Any:
        """Return the plan of this epoch, drawn when it is first asked for."""
        epoch, plan = self._drawn
        if epoch != self.epoch:
            plan = self._draw()
            self._drawn = (self.epoch, plan)  # in one step: TensorFlow reads ahead in a thread
        return plan

    def _begin(self, index: int) -> None:
        """Check the index of a batch that is about to be read."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")  # also ends a `for` loop
        self._finished = index == len(self) - 1
        release_pages(self._tokens)  # that the last batch read


class TokenBatches(EpochBatches):
    """Batches `(inputs, targets)` over parallel streams of a text.

    `streams` lays out the text; batch k + 1 continues where batch k ends, row by row. Each
    target is the token after its input. If the length of the streams is not a multiple of
    `sequence_length`, the FIRST batch is the short one, and no token is dropped: Keras infers
    the shapes from the first two batches, and detects a varying length only if these differ.
    Memory use is constant: pages of a memory map are released after they are read.

    With `length_deviation` above 0, batches have random lengths: each is
    `max(5, int(Normal(base, length_deviation)))`, where `base` is `sequence_length`, or half
    of it with probability 0.05, and at most `longest_length`; one takes the rest of the
    streams. The first two lengths differ.

    With `partial_shuffle`, each stream is cut at a random point before each epoch, and its
    two parts are swapped. Inputs and targets are rotated together, so that every target is
    still the token that follows its input in the text; the context is broken once per stream.

    Both are functions of `seed` and `epoch`, which `fit` increments.

    Differs from the released code (Merity et al.): random lengths are drawn once and
    reordered each epoch, because Keras needs to know the number of steps before training.

    Args:
        tokens: int array `(num_tokens,)`, in reading order.
        batch_size: int, at least 1. Number of parallel streams.
        sequence_length: int, at least 1. Tokens of each stream per batch.
        vocabulary: The `Tokenizer` of the ids, or None. Kept as an attribute.
        length_deviation: float, at least 0. Standard deviation of the lengths. 0: all are
            `sequence_length`.
        longest_length: int. Maximum length, at least `sequence_length`; 0 for no limit.
        partial_shuffle: bool.
        seed: int, at least 0.

    Items:
        Inputs and targets, each int32 `(batch_size, length)`.

    Attributes:
        num_tokens: int. Predicted tokens per epoch:
            `(len(tokens) - 1) // batch_size * batch_size`.
        lengths: tuple of int. Length of each batch of this epoch.
        lengths_vary: bool. Whether the lengths are random; `fit` then buckets the batches
            if each new length would be compiled.
        epoch: int, initially 0. May be set.

    Example:

    >>> import numpy as np
    >>> from dualnet.corpora.token_batches import TokenBatches
    >>> batches = TokenBatches(np.arange(10), batch_size=2, sequence_length=3)
    >>> inputs, targets = batches[1]
    >>> inputs.tolist(), targets.tolist()
    ([[1, 2, 3], [5, 6, 7]], [[2, 3, 4], [6, 7, 8]])

    References: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 5 (lengths);
    Press, 2019, https://arxiv.org/abs/1903.04167 (partial shuffle)
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        batch_size: int,
        sequence_length: int,
        vocabulary: Tokenizer | None = None,
        length_deviation: float = 0.0,
        longest_length: int = 0,
        partial_shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        check_lengths(sequence_length, length_deviation, longest_length)
        self._inputs, self._targets = streams(tokens, batch_size)
        super().__init__(self._inputs, vocabulary=vocabulary, batch_size=batch_size, seed=seed)
        self.sequence_length = sequence_length
        self.length_deviation = length_deviation
        self.longest_length = longest_length
        self.partial_shuffle = partial_shuffle
        self.lengths_vary = length_deviation > 0
        self.num_tokens = int(self._inputs.size)
        self._lengths = self._random_lengths() if length_deviation else self._equal_lengths()

    @property
    def lengths(self) -> tuple[int, ...]:
        bounds, _ = self._plan()
        return tuple(np.diff(bounds).tolist())

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self._begin(index)
        bounds, cuts = self._plan()
        places = (np.arange(*bounds[index : index + 2]) + cuts) % self._inputs.shape[1]
        return (
            np.take_along_axis(self._inputs, places, axis=1).astype("int32"),
            np.take_along_axis(self._targets, places, axis=1).astype("int32"),
        )

    def _random(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, purpose])

    def _draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of the batches, and where each stream is cut, `(batch_size, 1)`."""
        lengths = self._lengths
        if self.lengths_vary:
            lengths = self._random(ORDER).permutation(lengths)
            if len(lengths) > 1:  # the first two differ
                other = int(np.argmax(lengths != lengths[0]))
                lengths[[1, other]] = lengths[[other, 1]]
        cuts = np.zeros(self.batch_size, int)
        if self.partial_shuffle:
            cuts = self._random(CUTS).integers(self._inputs.shape[1], size=self.batch_size)
        return np.append(0, np.cumsum(lengths)), cuts[:, None]

    def _equal_lengths(self) -> np.ndarray:
        """Return the lengths of all batches, of which only the first may be shorter."""
        bounds = np.arange(self._inputs.shape[1], 0, -self.sequence_length)
        return np.diff(np.append(bounds, 0)[::-1])

    def _random_lengths(self) -> np.ndarray:
        """Return the lengths of all batches, int `(batches,)`, not all of them equal."""
        total = self._inputs.shape[1]
        longest = self.longest_length or max(total, SHORTEST)
        random, count = self._random(LENGTHS), total // self.sequence_length + 16
        ends = np.zeros(1, "int64")
        while ends[-1] < total:
            halved = random.random(count) < HALF
            base = np.where(halved, self.sequence_length / 2, self.sequence_length)
            lengths = np.clip(random.normal(base, self.length_deviation), SHORTEST, longest)
            ends = np.append(ends, ends[-1] + np.cumsum(lengths.astype("int64")))
        lengths = np.diff(np.append(ends[ends < total], total))
        if len(lengths) > 1 and (lengths == lengths[0]).all():
            lengths = np.append(lengths, 1)
            lengths[-2] -= 1
        return lengths


def check_lengths(sequence_length: int, length_deviation: float, longest_length: int) -> None:
    """Check the arguments of `TokenBatches` for random lengths."""
    if length_deviation and 0 < longest_length < max(sequence_length, SHORTEST):
        required = f"must be 0, for no limit, or at least {SHORTEST} and `sequence_length`."
        received = {"longest_length": longest_length, "sequence_length": sequence_length}
        raise ArgumentError("longest_length", required, **received)
