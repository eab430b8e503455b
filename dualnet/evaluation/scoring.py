"""Scores several texts side by side, in few shapes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dualnet.builders import LanguageModel
from dualnet.builders.reader import SegmentReader

WORK = 2048  # tokens that one call reads, about
SHORTEST, LONGEST = 8, 512  # tokens of a text that one call of `score` reads


def batches(
    lengths: Sequence[int] | np.ndarray, *, whole: bool = False, work: int | None = None
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield rows, steps per call and indices, shortest first, of texts to be read together.

    Texts of similar length are read in about eight pieces, so that there is little padding. If
    `whole`, only those of more than `WORK` tokens are read in pieces. Rows and steps are powers of
    two: few shapes, since JAX compiles each. A call reads `work` tokens at most, a power of two;
    `WORK` by default.
    """
    lengths = np.asarray(lengths, np.int64)
    work = work or WORK
    parts, longest_part = (1, work) if whole else (8, min(LONGEST, work))

    def pieces(i: int) -> int:
        return min(max(SHORTEST, _power_of_two(lengths[i]) // parts), longest_part)

    order = np.argsort(lengths, kind="stable")
    for steps, group in itertools.groupby(order[lengths[order] > 0], key=pieces):
        while batch := list(itertools.islice(group, work // steps)):
            rows = _power_of_two(len(batch))
            longest = max(SHORTEST, _power_of_two(lengths[batch[-1]]))
            # The last batch has fewer rows, and so longer pieces.
            yield rows, steps if whole else min(work // rows, longest, LONGEST), batch


def _power_of_two(number: int) -> int:
    """Return the least power of two that is at least `number`."""
    return 1 << (int(number) - 1).bit_length()


def read(
    reader: SegmentReader,
    streams: Sequence[np.ndarray],
    *,
    temperature: float = 1.0,
    columns: tuple[int, ...] = (),
) -> list[np.ndarray]:
    """Return -log p of each token of each of `streams` but the first, from the zero state.

    Streams of similar length are read together. A reader that computes several numbers for each
    token, `losses` of shape `(batch, time, *columns)`, has its `columns` named.
    """
    losses = [np.empty((len(stream) - 1, *columns), np.float32) for stream in streams]
    for rows, steps, batch in batches([len(row) for row in losses]):
        several = [[arrays[i] for i in batch] for arrays in (streams, losses)]
        score_streams(reader, *several, rows=rows, steps=steps, temperature=temperature)
    return losses


def score_streams(
    reader: SegmentReader,
    streams: Sequence[np.ndarray],
    losses: Sequence[np.ndarray],
    *,
    rows: int,
    steps: int,
    temperature: float,
    ranks: Sequence[np.ndarray] | None = None,
) -> None:
    """Read `streams` side by side from the zero state, `rows` of `steps` tokens per call.

    Fills `losses`, an array for each stream, with -log p of each of its tokens but the first;
    and `ranks` likewise, with a reader that ranks.
    """
    zeros = [np.zeros((rows, size), np.float32) for size in reader.state_size]
    segment: dict[str, Any] = {"states": zeros}
    if temperature != 1:
        segment["temperature"] = np.full((rows, 1), temperature, np.float32)
    for start in range(0, max(map(len, losses)), steps):
        inputs, targets = np.zeros((2, rows, steps), np.int32)  # beyond a stream: not counted
        ends = [min(start + steps, len(row)) for row in losses]
        for row, (stream, end) in enumerate(zip(streams, ends)):
            if end > start:
                inputs[row, : end - start] = stream[start:end]
                targets[row, : end - start] = stream[start + 1 : end + 1]
        result = reader.predict_on_batch({**segment, "tokens": inputs, "targets": targets})
        segment["states"] = result["states"]
        for row, (row_losses, end) in enumerate(zip(losses, ends)):
            if end > start:
                row_losses[start:end] = result["losses"][row, : end - start]
                if ranks is not None:
                    ranks[row][start:end] = result["ranks"][row, : end - start]


_Readers = dict[type[SegmentReader], SegmentReader]
_readers: weakref.WeakKeyDictionary[LanguageModel, _Readers] = weakref.WeakKeyDictionary()
_ranking_readers: weakref.WeakKeyDictionary[LanguageModel, SegmentReader]
_ranking_readers = weakref.WeakKeyDictionary()


def reader_of(model: LanguageModel, kind: type[SegmentReader] = SegmentReader) -> SegmentReader:
    """Return the reader of a model without dropout, which is kept as long as the model."""
    readers = _readers.setdefault(model, {})
    if kind not in readers:
        readers[kind] = kind(model.graph, name="scorer")
    return readers[kind]


def ranking_reader_of(model: LanguageModel) -> SegmentReader:
    """Return `reader_of` a model that ranks, too."""
    if model not in _ranking_readers:
        _ranking_readers[model] = SegmentReader(model.graph, ranks=True, name="ranker")
    return _ranking_readers[model]
