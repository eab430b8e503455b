"""Reads streams of ids side by side, in few shapes."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from dualnet.builders import LanguageModel
from dualnet.builders.losses import core_of_logits, losses_of
from dualnet.layers import without_gradients

WORK = 2048  # tokens that one call reads, about
SHORTEST, LONGEST = 8, 512  # tokens of a text that one call of `score` reads


def batches(
    lengths: Sequence[int] | np.ndarray, *, whole: bool = False
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield rows, steps per call and places, shortest first, of texts to be read together.

    Texts of about one length are read in about eight pieces, so that little is
    padding, and many side by side. Rows and steps are powers of two: few shapes,
    since JAX compiles each.

    Args:
        lengths: tokens of each text.
        whole: bool. Whether each text is to be read in one piece, if it is of at
            most `WORK` tokens; else in pieces of so many.
    """
    lengths = np.asarray(lengths, np.int64)

    def pieces(i: int) -> int:
        length = _power_of_two(lengths[i])
        return (
            min(max(SHORTEST, length), WORK) if whole else min(max(SHORTEST, length // 8), LONGEST)
        )

    order = np.argsort(lengths, kind="stable")
    for steps, group in itertools.groupby(order[lengths[order] > 0], key=pieces):
        while batch := list(itertools.islice(group, WORK // steps)):
            rows = _power_of_two(len(batch))
            longest = max(SHORTEST, _power_of_two(lengths[batch[-1]]))
            # fewer, and longer pieces, in the last batch
            yield rows, steps if whole else min(WORK // rows, longest, LONGEST), batch


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (int(number) - 1).bit_length()


def read(
    model: LanguageModel,
    streams: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    *,
    rows: int,
    steps: int,
    temperature: float,
    scorer: Any = None,
) -> None:
    """Read `streams` side by side from the zero state, with carried state; fill `found`.

    Args:
        streams: int arrays `(n + 1,)` with an n of their own, at most `rows` of them.
        found: float32 arrays `(n,)`: -log p of each token but the first of a stream,
            in nats, is written here.
        rows: int. Rows of a call; those without a stream are padding.
        steps: int. Tokens of a row in one call.
        temperature: float. Logits are divided by it.
        scorer: what finds the losses, if not the model without dropouts.
    """
    scorer = scorer or (scorer_of(model) if temperature == 1 else scorer_of(model, True))
    divisor = np.full((rows, 1), temperature, np.float32)
    states = [np.zeros((rows, size), np.float32) for size in model.state_size]
    for start in range(0, max(map(len, found)), steps):
        inputs, targets = np.zeros((2, rows, steps), np.int32)  # what lies beyond is not counted
        ends = [min(start + steps, len(each)) for each in found]
        for row, (stream, end) in enumerate(zip(streams, ends)):
            if end > start:
                inputs[row, : end - start] = stream[start:end]
                targets[row, : end - start] = stream[start + 1 : end + 1]
        losses, *states = scorer.predict_on_batch([inputs, targets, divisor, *states])
        for row, (each, end) in enumerate(zip(found, ends)):
            if end > start:
                each[start:end] = losses[row, : end - start]


class Scorer(keras.Model):
    """`[tokens, targets, temperature, *states] -> [losses, *states]`, of a model's graph.

    Args:
        model: `LanguageModel`.
        tempered: bool. Whether logits are divided by the temperature, `(rows, 1)` and the
            same in all rows, else it is 1 and not read.
        training: bool. Whether dropouts are on.
    """

    def __init__(self, model, *, tempered=False, training=False, **kwargs):
        super().__init__(**kwargs)
        self.core = model.core
        self.find_losses = losses_of(core_of_logits(model.core), model.features)
        self.tempered = tempered
        self.training = training
        self.built = True

    def call(self, inputs):
        tokens, targets, temperature, *states = inputs
        temperature = temperature[0, 0] if self.tempered else None
        with without_gradients():
            return self.find_losses([tokens, *states], targets, self.training, temperature)


_scorers: weakref.WeakKeyDictionary[LanguageModel, dict[bool, Scorer]] = weakref.WeakKeyDictionary()


def scorer_of(model: LanguageModel, tempered: bool = False) -> Scorer:
    """Return the `Scorer` of the model without dropouts, kept for the model."""
    kept = _scorers.setdefault(model, {})
    if tempered not in kept:
        kept[tempered] = Scorer(model, tempered=tempered)
    return kept[tempered]
