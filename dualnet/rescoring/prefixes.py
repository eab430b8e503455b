"""Reads hypotheses side by side; prefixes that they share are read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from dualnet.builders import LanguageModel, TranslationModel, questions
from dualnet.builders.graph import Graph
from dualnet.builders.reader import Reader, reader_of
from dualnet.corpora.sentence_batches import PADDING_ID
from dualnet.evaluation import scoring
from dualnet.generation.translation import padded

STEPS = 4  # tokens that a call reads; prefixes are shared in multiples of it
ROWS = scoring.WORK // STEPS  # that a call reads, at most


def log_probabilities(
    model: LanguageModel,
    streams: Sequence[np.ndarray],
    *,
    states: Sequence[np.ndarray] | None = None,
    sources: Sequence[np.ndarray] | None = None,
    owners: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the log-probability, in nats, of each stream's tokens but the first.

    Args:
        model: `LanguageModel`, or a `TranslationModel` with `sources`.
        streams: int arrays, ids of the model; each begins with `<eos>`.
        states: arrays `(1, size)` that a language model begins in; default zeros.
        sources: int arrays, ids of the texts to translate.
        owners: the index of its source for each stream.

    Returns:
        float64 `(streams,)`.
    """
    segment: dict[str, Any] = {}
    if isinstance(model, TranslationModel):
        reader = reader_of(model, _losses_given_sources)
        first, segment["constants"] = _encoded(model, sources or [])
    else:
        reader = reader_of(model, questions.losses)
        first = [np.zeros((1, size), np.float32) for size in reader.state_size]
        first = first if states is None else list(states)
    counts = np.array([len(stream) for stream in streams]) - 1
    ids = np.full((len(streams), 2 + max(counts, default=0)), PADDING_ID, np.int32)
    ids[:, 0] = 0 if owners is None else owners
    for row, stream in zip(ids, streams):
        row[1 : len(stream) + 1] = stream
    # Neighbours in this order share the longest prefixes; `shared` counts their columns.
    order = np.lexsort(ids.T[::-1])
    ids, counts = ids[order], counts[order]
    differ = np.pad(ids[1:] != ids[:-1], ((0, 0), (0, 1)), constant_values=True)
    shared = np.append(0, differ.argmax(axis=1))[: len(ids)]
    totals = np.zeros(len(ids))
    places = ids[:, 0]  # of each hypothesis among the rows that were read last
    for start in range(0, max(counts, default=0), STEPS):
        end = start + STEPS
        left = counts > start
        new = left & (shared < min(end + 2, ids.shape[1]))  # the others are equal so far
        rows = np.flatnonzero(new)
        tokens, targets = (
            np.pad(part, ((0, 0), (0, STEPS - part.shape[1])), constant_values=PADDING_ID)
            for part in (ids[rows, start + 1 : end + 1], ids[rows, start + 2 : end + 2])
        )
        losses, first = _read(reader, segment, tokens, targets, first, places[rows], ids[rows, 0])
        places = np.cumsum(new) - 1
        totals[left] -= losses[places[left]]
    return totals[np.argsort(order)]


def state_after(
    model: LanguageModel, ids: np.ndarray, states: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Return the states `(1, size)` of a language model after it read `ids`.

    Powers of two are read at a time, and no padding: few shapes are compiled.
    """
    reader = reader_of(model, questions.losses)
    if states is None:
        states = [np.zeros((1, size), np.float32) for size in reader.state_size]
    while len(ids):
        tokens = ids[None, : 1 << (len(ids).bit_length() - 1)]
        segment = {"tokens": tokens, "targets": tokens, "states": list(states)}
        states = reader.predict_on_batch(segment)["states"]
        ids = ids[tokens.shape[1] :]
    return list(states)


def _read(
    reader: Reader,
    segment: dict[str, Any],
    tokens: np.ndarray,
    targets: np.ndarray,
    states: Sequence[np.ndarray],
    places: np.ndarray,
    owners: np.ndarray,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Read rows of tokens, each in the state at its place.

    Returns:
        The sum of each row's losses, float64 `(rows,)`, and the states after the rows.
    """
    counted = targets != PADDING_ID
    sums: list[np.ndarray] = []
    states_after: list[list[np.ndarray]] = []
    for begin in range(0, len(tokens), ROWS):
        chosen = np.arange(begin, min(begin + ROWS, len(tokens)))
        rows = 1 << (len(chosen) - 1).bit_length()  # few numbers of rows are compiled
        filled = np.append(chosen, np.full(rows - len(chosen), begin))
        part = {
            "tokens": np.maximum(tokens[filled], 0),
            "targets": np.maximum(targets[filled], 0),
            "states": [state[places[filled]] for state in states],
            **segment,
        }
        if segment:
            part["owners"] = owners[filled]
        outputs = reader.predict_on_batch(part)
        losses = outputs["losses"][: len(chosen)].astype(np.float64)
        sums.append(np.sum(losses * counted[chosen], axis=1))
        states_after.append([state[: len(chosen)] for state in outputs["states"]])
    return np.concatenate(sums), [np.concatenate(several) for several in zip(*states_after)]


def _encoded(
    model: TranslationModel, sources: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the states in which translations of the sources begin, and their constants."""
    arrays = [ops.convert_to_numpy(array) for array in model.encode(padded(sources))]
    count = model.graph.constants
    return arrays[count:], arrays[:count]


def _losses_given_sources(graph: Graph, segment: dict[str, Any]) -> dict[str, Any]:
    """Answer as `questions.losses`, with what was read of the sources.

    A segment also has `constants`, arrays with a row for each source, and `owners`, int
    `(batch,)`, the source of each row.
    """
    constants = [ops.take(part, segment["owners"], axis=0) for part in segment["constants"]]
    return questions.losses(graph, {**segment, "states": [*constants, *segment["states"]]})
