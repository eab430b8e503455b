"""Reads hypotheses side by side; prefixes that they share are read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from dualnet.builders import LanguageModel, TranslationModel, questions
from dualnet.builders.graph import Graph
from dualnet.builders.reader import reader_of
from dualnet.evaluation import scoring
from dualnet.generation import translation

STEPS = 4  # tokens that a call reads; prefixes are shared in multiples of it
ROWS = scoring.WORK // STEPS  # that a call reads, at most
CALLS = 4  # of full rows, into which the streams of a language model are divided at each step


def log_probabilities(
    model: LanguageModel,
    streams: Sequence[np.ndarray],
    *,
    states: Sequence[np.ndarray] | None = None,
    sources: Sequence[np.ndarray] = (),
    owners: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the log-probability, in nats, of each stream's tokens but the first.

    A call reads at most `ROWS` streams, fewer for long sources, and they are not padded to the
    longest: what a long one needs of memory does not depend on the others.

    Args:
        model: `LanguageModel`, or a `TranslationModel` with `sources`.
        streams: int arrays, ids of the model; each begins with `<eos>`.
        states: arrays `(1, size)` that a language model begins in; default zeros.
        sources: int arrays, ids of the texts to translate.
        owners: the index of its source for each stream.

    Returns:
        float64 `(streams,)`.
    """
    widths = [max(1, len(source)) for source in sources] or [1]
    owner_of = owners or [0] * len(streams)
    # Neighbours in this order share the longest prefixes, and have sources of similar lengths.
    keys = [(-widths[k], k, ids.astype(">i4").tobytes()) for k, ids in zip(owner_of, streams)]
    order = sorted(range(len(streams)), key=keys.__getitem__)
    totals = np.zeros(len(streams))
    while order:
        rows = max(1, min(ROWS, translation.POSITIONS // widths[owner_of[order[0]]]))
        several = rows if sources else CALLS * rows
        group, order = order[:several], order[several:]
        used, places = np.unique([owner_of[i] for i in group], return_inverse=True)
        constants = None
        if isinstance(model, TranslationModel):
            states, constants = _encoded(model, [sources[k] for k in used])
        totals[group] = _of_neighbours(
            model, [streams[i] for i in group], places, states, constants, rows
        )
    return totals


def _of_neighbours(
    model: LanguageModel,
    streams: Sequence[np.ndarray],
    owners: np.ndarray,
    states: Sequence[np.ndarray] | None,
    constants: Sequence[np.ndarray] | None,
    most: int,
) -> np.ndarray:
    """Return the log-probabilities of sorted streams; `owners` are the rows of their sources.

    A call reads at most as many as `most`.
    """
    reader = reader_of(model, questions.losses if constants is None else _losses_given_sources)
    if states is None:
        states = [np.zeros((1, size), np.float32) for size in reader.state_size]
    counts = np.array([len(stream) for stream in streams]) - 1
    begins = np.cumsum(counts + 1) - counts - 1
    ids = np.concatenate(streams)
    shared = np.array([0, *map(_shared, streams, streams[1:])])
    shared[1:][owners[1:] != owners[:-1]] = 0
    totals = np.zeros(len(streams))
    places = owners  # of each stream among the rows that were read last
    for start in range(0, counts.max(), STEPS):
        left = counts > start
        new = left & (shared <= start + STEPS)  # the others are equal so far
        answers: list[list[np.ndarray]] = []
        for part in np.split(np.flatnonzero(new), range(most, new.sum(), most)):
            several = 1 << (len(part) - 1).bit_length()  # few numbers of rows are compiled
            rows = np.append(part, np.full(several - len(part), part[0]))
            columns = start + np.arange(STEPS + 1)
            inside = columns <= counts[rows, None]
            pieces = ids[(begins[rows, None] + columns) * inside]
            segment: dict[str, Any] = {
                "tokens": pieces[:, :-1],
                "targets": pieces[:, 1:],
                "states": [state[places[rows]] for state in states],
            }
            if constants is not None:
                segment |= {"constants": constants, "owners": owners[rows]}
            answer = reader.predict_on_batch(segment)
            losses: Any = np.sum(answer["losses"] * inside[:, 1:], axis=1, dtype=np.float64)
            answers.append([array[: len(part)] for array in (losses, *answer["states"])])
        losses, *states = map(np.concatenate, zip(*answers))
        places = np.cumsum(new) - 1
        totals[left] -= losses[places[left]]
    return totals


def _shared(stream: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the prefix that two streams share; of equal ones it is endless."""
    length = min(len(stream), len(other))
    differ = stream[:length] != other[:length]
    if differ.any():
        return int(differ.argmax())
    return length if len(stream) != len(other) else np.iinfo(int).max


def state_after(
    model: LanguageModel, ids: np.ndarray, states: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Return the states `(1, size)` of a language model after it read `ids`.

    Powers of two, and `WORK` at most, are read at a time, without padding: few shapes are compiled.
    """
    reader = reader_of(model, questions.losses)
    if states is None:
        states = [np.zeros((1, size), np.float32) for size in reader.state_size]
    while len(ids):
        tokens = ids[None, : min(1 << (len(ids).bit_length() - 1), scoring.WORK)]
        segment = {"tokens": tokens, "targets": tokens, "states": list(states)}
        states = reader.predict_on_batch(segment)["states"]
        ids = ids[tokens.shape[1] :]
    return list(states)


def _encoded(
    model: TranslationModel, sources: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the states in which translations of the sources begin, and their constants."""
    rows = 1 << (len(sources) - 1).bit_length()  # few numbers of rows are compiled
    ids = translation.padded([*sources, *[sources[0]] * (rows - len(sources))])
    arrays = [ops.convert_to_numpy(array) for array in model.encode(ids)]
    count = model.graph.constants
    return arrays[count:], arrays[:count]


def _losses_given_sources(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
    """Answer as `questions.losses`, with what was read of the sources.

    A segment also has `constants`, arrays with a row for each source, and `owners`, int
    `(batch,)`, the source of each row.
    """
    constants = [ops.take(part, segment["owners"], axis=0) for part in segment["constants"]]
    return questions.losses(graph, {**segment, "states": [*constants, *segment["states"]]})
