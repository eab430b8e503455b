"""Scores several texts side by side, in few shapes."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from dualnet._types import Tensors
from dualnet.builders import Reader

WORK = 2048  # tokens that one call reads, about
STEPS = (8, 16, 32, 64, 128, 256, 512)  # tokens of a text that a call reads, one of them
ROWS = (1, 2, 4, *STEPS)
CALL, STEP = 64, 8  # what a call, and each of its steps, costs beside its tokens, in tokens


def shape(lengths: Sequence[int] | np.ndarray, work: int | None = None) -> tuple[int, int]:
    """Return rows and steps per call with which texts of these lengths are read fastest.

    A row that has ended its text reads the next. Rows and steps are powers of two: few shapes,
    since JAX compiles each. A call reads `work` tokens at most, a power of two; `WORK` by default.
    """
    longest_first, work = -np.sort(-np.asarray(lengths, np.int64)), work or WORK
    best, least = (1, min(STEPS[0], work)), math.inf
    for steps, rows in itertools.product(STEPS, ROWS):
        if rows * steps <= work and rows < 2 * len(lengths):
            sums = np.append(0, np.cumsum(-(-longest_first // steps)))
            # Of the k * rows + 1 longest texts, a row reads at least k + 1.
            ends = np.arange(1, len(sums), rows)
            of_row = sums[ends] - sums[ends - 1 - np.arange(len(ends))]
            calls = max(math.ceil(sums[-1] / rows), of_row.max())
            if (cost := calls * (CALL + steps * (STEP + rows))) < least:
                best, least = (rows, steps), cost
    return best


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least `number`."""
    return 1 << (int(number) - 1).bit_length()


def read(
    reader: Reader,
    streams: Sequence[np.ndarray],
    names: Sequence[str] = ("losses",),
    *,
    temperature: float = 1.0,
    work: int | None = None,
    begin: Sequence[np.ndarray] | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return the answers of a reader for each token of `streams`, except the first of each.

    Streams are read side by side, each from the zero state or from that of `begin`.

    Args:
        names: Which of the reader's answers to return.
        work: As for `shape`.
        begin: Arrays `(1, size)`.

    Returns:
        For each name a list with float32 `(tokens - 1,)` for each stream.
    """
    lengths = [len(stream) - 1 for stream in streams]
    answers = {name: [np.empty(length, np.float32) for length in lengths] for name in names}
    score_streams(reader, streams, answers, *shape(lengths, work), temperature, begin)
    return answers


def score_streams(
    reader: Reader,
    streams: Sequence[np.ndarray],
    answers: Mapping[str, Sequence[np.ndarray]],
    rows: int,
    steps: int,
    temperature: float,
    begin: Sequence[np.ndarray] | None = None,
) -> None:
    """Read `streams` from the state `begin`, `rows` side by side, `steps` tokens per call.

    Fills `answers`, by name an array for each stream, with what the reader answers for each of
    its tokens but the first.
    """
    lengths = [len(stream) - 1 for stream in streams]
    for places, answer in segments(reader, streams, lengths, rows, steps, temperature, begin):
        for name, arrays in answers.items():
            for row, i, start in places:
                part = arrays[i][start : start + steps]
                part[:] = answer[name][row, : len(part)]


def segments(
    reader: Reader,
    streams: Sequence[np.ndarray],
    lengths: Sequence[int],
    rows: int,
    steps: int,
    temperature: float = 1.0,
    begin: Sequence[np.ndarray] | None = None,
) -> Iterator[tuple[list[tuple[int, int, int]], dict[str, np.ndarray]]]:
    """Read the first `lengths` tokens of `streams`, as `score_streams` does; the state is carried.

    A row that has ended a stream reads the next, from the first state. Yields the rows that are in
    use, each with the index of its stream and the position there; and the answer, each array of
    `rows` x `steps`, padding included. All segments have one shape, since JAX compiles each.
    """
    begin = begin or reader.graph.begin(1)
    first = states = [np.repeat(state, rows, axis=0) for state in begin]
    segment: Tensors = {}
    if temperature != 1:
        segment["temperature"] = np.full((rows, 1), temperature, np.float32)
    order: Iterable[int] = range(len(lengths))
    if len(lengths) > rows:  # the longest first, so that all rows end together
        order = np.argsort(-np.asarray(lengths), kind="stable")
    waiting = ((i, 0) for i in order if lengths[i] > 0)
    places: dict[int, tuple[int, int]] = dict(enumerate(itertools.islice(waiting, rows)))
    while places:
        tokens, targets = np.zeros((2, rows, steps), np.int32)
        for row, (i, start) in places.items():
            count = min(steps, lengths[i] - start)
            tokens[row, :count] = streams[i][start : start + count]
            following = streams[i][start + 1 : start + 1 + count]  # none after the last of a stream
            targets[row, : len(following)] = following
        segment |= {"tokens": tokens, "targets": targets, "states": states}
        answer = reader.predict_on_batch(segment)
        states = answer.pop("states")
        yield [(row, *place) for row, place in places.items()], answer
        ended = [row for row, (i, start) in places.items() if start + steps >= lengths[i]]
        begun = dict(zip(ended, waiting))
        places = {row: (i, start + steps) for row, (i, start) in places.items() if row not in ended}
        places |= begun
        if begun:
            begins = np.isin(np.arange(rows), [*begun])[:, None]
            states = [np.where(begins, *pair) for pair in zip(first, states)]
