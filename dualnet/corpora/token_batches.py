"""Batches of a token stream in reading order; alone in this room needs Keras."""

from typing import Any

import keras
import numpy as np

from dualnet._checks import ArgumentError, check_count, check_flag, check_penalty
from dualnet.corpora.cached_ids import release_pages
from dualnet.corpora.streams import streams
from dualnet.text import Vocabulary

RELEASE_BYTES = 32 << 20
AROUND_BYTES = 2 << 20  # Linux maps up to so much around an address that is read
HALF = 0.05  # of the random lengths are drawn around half the length
SHORTEST = 5  # random length
LENGTHS, ORDER, CUTS = range(3)  # what a random generator is for


class TokenBatches(keras.utils.PyDataset):
    """Batches `(inputs, targets)` over parallel streams of one text.

    The text is laid out as `streams` says; batch k + 1 goes on where batch k
    stopped, row for row. Each of the targets is the token after its input.
    Where the streams are no multiple of `sequence_length`, the FIRST batch is
    the short one, so that no token is dropped: Keras infers the shapes from the
    first two batches, and sees that the length varies only if these differ.
    The memory stays flat: of a memory map, what was read is let go.

    With `length_deviation` above 0 the lengths of the batches are random: each
    is `max(5, int(Normal(base, length_deviation)))`, where `base` is
    `sequence_length`, or half of it with probability 0.05, and at most
    `longest_length`; one takes what remains of the streams. Those of the first
    two batches differ.

    With `partial_shuffle` each stream is cut at a random point before each
    epoch, also the first, and its two halves are swapped. Inputs and targets
    are rotated together, so that every target stays the token that follows its
    input in the text; what a model has read before it breaks off once in each
    stream.

    Both are functions of `seed` and `epoch`, which `fit` counts on.

    Differs from the released code (Merity et al.): the random lengths are drawn
    once and come in another order each epoch, so that every epoch has as many
    steps: Keras wants to know the number before training.

    Args:
        tokens: int array `(num_tokens,)`, in reading order.
        batch_size: int, at least 1. Number of parallel streams.
        sequence_length: int, at least 1. Tokens of each stream per batch.
        vocabulary: the `Vocabulary` of the ids, or None; only kept.
        length_deviation: float, at least 0. Standard deviation of the lengths; 0:
            all are `sequence_length`.
        longest_length: int. Longest batch, at least `sequence_length`; 0 for no limit.
        partial_shuffle: bool.
        seed: int, at least 0.

    Items:
        Inputs and targets, int32 `(batch_size, length)` each, a function of
        seed, epoch and index alone.

    Attributes:
        num_tokens: int. Predicted tokens per epoch:
            `(len(tokens) - 1) // batch_size * batch_size`.
        lengths: tuple of int. Tokens of each stream in each batch of this epoch.
        lengths_vary: bool. Whether they are random. Where each length is compiled, `fit`
            pads the batches to few lengths.
        epoch: int, 0 at first. May be set.

    Raises:
        ValueError: if an argument is out of range, or `tokens` holds fewer than
            `batch_size + 1` ids.

    References: Merity et al., 2018, https://arxiv.org/abs/1708.02182, section 5
    (lengths); Press, 2019, https://arxiv.org/abs/1903.04167 (partial shuffle)
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        batch_size: int,
        sequence_length: int,
        vocabulary: Vocabulary | None = None,
        length_deviation: float = 0.0,
        longest_length: int = 0,
        partial_shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        check_count("sequence_length", sequence_length, least=1)
        check_lengths(sequence_length, length_deviation, longest_length, partial_shuffle)
        check_count("seed", seed, least=0)
        inputs, targets = streams(tokens, batch_size)
        super().__init__(workers=1, use_multiprocessing=False)
        self._inputs, self._targets = inputs, targets
        self.batch_size = int(batch_size)
        self.sequence_length = int(sequence_length)
        self.vocabulary = vocabulary
        self.length_deviation = float(length_deviation)
        self.longest_length = int(longest_length)
        self.partial_shuffle = bool(partial_shuffle)
        self.seed = int(seed)
        self.lengths_vary = self.length_deviation > 0
        self.num_tokens = int(inputs.size)
        self._drawn = self._draw_lengths() if length_deviation else None
        self._finished = False  # whether the last batch of the epoch was read
        self._touched = 0  # bytes of a memory map since its pages were let go
        self._next = 0  # index of the batch that lies beside the last one
        self.epoch = 0

    # --- the epoch

    @property
    def epoch(self) -> int:
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = check_count("epoch", epoch, least=0)
        # Behind a batch of this index the next one begins.
        self._ends = None if self._drawn is None else np.cumsum(self._in_order(self._drawn))
        self._cuts = None
        if self.partial_shuffle:
            self._cuts = self._random(CUTS).integers(self._inputs.shape[1], size=self.batch_size)
            self._next = -1  # the streams begin elsewhere

    @property
    def lengths(self) -> tuple[int, ...]:
        spans = (self._span(index) for index in range(len(self)))
        return tuple(end - start for start, end in spans)

    def on_epoch_end(self) -> None:
        if self._finished:  # Keras calls it before the first epoch too, having looked ahead
            self._finished = False
            self.epoch += 1

    # --- the batches

    def __len__(self) -> int:
        if self._drawn is not None:
            return len(self._drawn)
        length: int = self._inputs.shape[1]
        return (length - 1) // self.sequence_length + 1  # rounded up

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")  # also ends a plain `for`
        self._finished = index == len(self) - 1
        start, end = self._span(index)
        batch = self._read(self._inputs, start, end), self._read(self._targets, start, end)
        per_row = (end - start) * self._inputs.itemsize
        self._touched += self.batch_size * (per_row if index == self._next else AROUND_BYTES)
        self._next = index + 1
        if self._touched >= RELEASE_BYTES:
            release_pages(self._inputs)
            self._touched = 0
        return batch

    def _span(self, index: int) -> tuple[int, int]:
        """Return where batch `index` begins and ends in the streams."""
        if self._ends is not None:
            return int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        short = self._inputs.shape[1] - len(self) * self.sequence_length  # 0 or negative
        start = max(0, short + index * self.sequence_length)
        return start, short + (index + 1) * self.sequence_length

    def _read(self, rows: np.ndarray, start: int, end: int) -> np.ndarray:
        """Return a copy of the columns from `start` to `end`, each row counted from its cut."""
        if self._cuts is None:
            return rows[:, start:end].astype("int32")
        length = rows.shape[1]
        read = np.empty((len(rows), end - start), "int32")
        for row, into, cut in zip(rows, read, self._cuts):
            first = (start + cut) % length
            before = row[first : first + end - start]
            into[: len(before)] = before
            into[len(before) :] = row[: len(into) - len(before)]
        return read

    # --- what is random

    def _random(self, purpose: int, epoch: int | None = None) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch if epoch is None else epoch, purpose])

    def _draw_lengths(self) -> np.ndarray:
        """Return the lengths of all batches, int `(batches,)`, at least two of them different."""
        total = self._inputs.shape[1]
        random = self._random(LENGTHS, epoch=0)
        drawn = np.zeros(0, "int64")
        while drawn.sum() < total:
            count = total // self.sequence_length + 16
            halved = random.random(count) < HALF
            base = np.where(halved, self.sequence_length / 2, self.sequence_length)
            longest = self.longest_length or max(total, SHORTEST)
            more = np.clip(random.normal(base, self.length_deviation), SHORTEST, longest)
            drawn = np.concatenate([drawn, more.astype("int64")])
        ends = np.cumsum(drawn)
        count = int(np.searchsorted(ends, total)) + 1
        lengths = drawn[:count]
        lengths[-1] -= ends[count - 1] - total
        if count > 1 and (lengths == lengths[0]).all():
            lengths = np.append(lengths, 1)
            lengths[-2] -= 1
        return lengths

    def _in_order(self, lengths: np.ndarray) -> np.ndarray:
        """Return `lengths` in the order of this epoch, the first two different."""
        lengths = self._random(ORDER).permutation(lengths)
        if len(lengths) > 1:
            other = int(np.argmax(lengths != lengths[0]))
            lengths[[1, other]] = lengths[[other, 1]]
        return lengths


def check_lengths(
    sequence_length: int, length_deviation: Any, longest_length: Any, partial_shuffle: Any
) -> None:
    """Raise `ValueError` if an argument of `TokenBatches` about random lengths is out of range."""
    check_penalty("length_deviation", length_deviation)
    check_count("longest_length", longest_length, least=0)
    if 0 < longest_length < max(sequence_length, SHORTEST):
        raise ArgumentError(
            "longest_length",
            f"must be 0, for no limit, or at least {SHORTEST} and at least "
            f"`sequence_length`. Received: longest_length={longest_length!r}, "
            f"sequence_length={sequence_length!r}.",
        )
    if longest_length and not length_deviation:
        raise ArgumentError(
            "longest_length",
            "must be 0 without `length_deviation`, since all segments are then of "
            f"one length. Received: longest_length={longest_length!r}. Give `length_deviation` "
            "above 0.",
        )
    check_flag("partial_shuffle", partial_shuffle)
