"""The temperature at which a model is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel
from dualnet.evaluation.arguments import check_temperature
from dualnet.evaluation.perplexities import perplexity

FACTORS = range(106, 78, -2)  # hundredths: what the logits are multiplied by
PATIENCE = 2


def best_temperature(
    model: LanguageModel,
    tokens: Any,
    *,
    temperatures: Sequence[float] | None = None,
    batch_size: int = 1,
    sequence_length: int | None = None,
    by_sentence: bool = False,
) -> float:
    """Return the temperature at which the perplexity of `model` on `tokens` is lowest.

    Logits are divided by the temperature. By default those are tried that the
    released code of Melis et al. tries, which multiplies instead: the
    reciprocals of 1.06, 1.04, .. 0.80, in this order, until two after each
    other are no better than the best before. Dropouts are off. Take the tokens
    from a validation text; Melis et al. take about 50,000.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order.
        temperatures: floats above 0, all of which are tried; the first of equally
            good ones is taken.
        batch_size, sequence_length, by_sentence: as for `evaluate`.

    Raises:
        ValueError: if `temperatures` is empty or holds one out of range, or if
            `evaluate` raises it.

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 4.
    """
    patience = math.inf
    if temperatures is None:
        temperatures, patience = [100 / factor for factor in FACTORS], PATIENCE
    temperatures = list(temperatures)
    if not temperatures:
        raise ArgumentError("temperatures", "must hold at least one. Received: temperatures=[].")
    for temperature in temperatures:
        check_temperature(temperature)
    best, lowest, behind = temperatures[0], math.inf, 0
    for temperature in temperatures:
        found = perplexity(
            model,
            tokens,
            temperature=temperature,
            batch_size=batch_size,
            sequence_length=sequence_length,
            by_sentence=by_sentence,
        )
        behind += 1
        if found < lowest:
            best, lowest, behind = temperature, found, 0
        if behind == patience:
            break
    return float(best)
