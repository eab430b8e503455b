"""Scores several texts side by side, in few shapes."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dualnet.builders import Reader

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
    reader: Reader,
    streams: Sequence[np.ndarray],
    names: Sequence[str] = ("losses",),
    *,
    temperature: float = 1.0,
    work: int | None = None,
) -> dict[str, list[np.ndarray]]:
    """Return the answers of a reader for each token of `streams`, except the first of each.

    Streams of similar length are read together, each from the zero state.

    Args:
        names: Which of the reader's answers to return.
        work: As for `batches`.

    Returns:
        For each name a list with float32 `(tokens - 1,)` for each stream.
    """
    lengths = [len(stream) - 1 for stream in streams]
    answers = {name: [np.empty(length, np.float32) for length in lengths] for name in names}
    for rows, steps, batch in batches(lengths, work=work):
        parts = {name: [arrays[i] for i in batch] for name, arrays in answers.items()}
        of_batch = [streams[i] for i in batch]
        score_streams(reader, of_batch, parts, rows, steps, temperature)
    return answers


def score_streams(
    reader: Reader,
    streams: Sequence[np.ndarray],
    answers: Mapping[str, Sequence[np.ndarray]],
    rows: int,
    steps: int,
    temperature: float,
) -> None:
    """Read `streams` side by side from the zero state, `rows` of `steps` tokens per call.

    Fills `answers`, by name an array for each stream, with what the reader answers for each of
    its tokens but the first.
    """
    lengths = [len(stream) - 1 for stream in streams]
    for start, answer in segments(reader, streams, lengths, rows, steps, temperature):
        for name, arrays in answers.items():
            for array, values in zip(arrays, answer[name]):
                part = array[start : start + steps]
                part[:] = values[: len(part)]


def segments(
    reader: Reader,
    streams: Sequence[np.ndarray],
    lengths: Sequence[int],
    rows: int,
    steps: int,
    temperature: float = 1.0,
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Read the first `lengths` tokens of `streams`, as `score_streams` does; the state is carried.

    Yields the position of each segment, and the answer, each array of `rows` x `steps`, padding
    included. All segments have one shape, since JAX compiles each.
    """
    states = [np.zeros((rows, size), np.float32) for size in reader.state_size]
    segment: dict[str, Any] = {"states": states}
    if temperature != 1:
        segment["temperature"] = np.full((rows, 1), temperature, np.float32)
    for start in range(0, max(lengths), steps):
        tokens, targets = np.zeros((2, rows, steps), np.int32)
        for row, (stream, length) in enumerate(zip(streams, lengths)):
            count = max(0, min(steps, length - start))
            tokens[row, :count] = stream[start : start + count]
            following = stream[start + 1 : start + 1 + count]  # none after the last of a stream
            targets[row, : len(following)] = following
        answer = reader.predict_on_batch({**segment, "tokens": tokens, "targets": targets})
        segment["states"] = answer.pop("states")
        yield start, answer
