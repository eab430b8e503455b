"""The temperature with the lowest perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel
from dualnet.evaluation.perplexities import perplexity
from dualnet.requests import Scoring

FACTORS = range(106, 78, -2)  # in hundredths; the logits are multiplied by them
PATIENCE = 2


def best_temperature(
    model: LanguageModel,
    tokens: Any,
    *,
    temperatures: Sequence[float] | None = None,
    **settings: Any,
) -> float:
    """Return the temperature at which the perplexity of `model` on `tokens` is lowest.

    Logits are divided by the temperature. The default candidates are those of the released
    code of Melis et al., which multiplies instead: the reciprocals of 1.06, 1.04, ..., 0.80,
    in this order, until two in a row are no better than the best before. Dropouts are off.
    Use tokens of a validation text; Melis et al. use about 50,000.

    Args:
        model, tokens: As for `evaluate`.
        temperatures: floats above 0, all of which are tried; the first of equally good ones
            wins.
        **settings: `batch_size`, `sequence_length`, `by_sentence` and `window` of `evaluate`.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> tokens = np.array([1, 2, 3, 4, 5])
    >>> dualnet.best_temperature(model, tokens, temperatures=[1.25])
    1.25

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 4.
    """
    patience = PATIENCE if temperatures is None else math.inf
    temperatures = [100 / k for k in FACTORS] if temperatures is None else list(temperatures)
    if not temperatures:
        raise ArgumentError("temperatures", "must hold at least one. Received: temperatures=[].")
    for temperature in temperatures:
        Scoring(temperature=temperature)
    best, lowest, misses = temperatures[0], math.inf, 0
    for temperature in temperatures:
        value = perplexity(model, tokens, temperature=temperature, **settings)
        misses += 1
        if value < lowest:
            best, lowest, misses = temperature, value, 0
        if misses == patience:
            break
    return float(best)
