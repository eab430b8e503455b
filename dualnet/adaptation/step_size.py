"""The learning rate of dynamic evaluation: the model's own, or found on validation text."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dualnet._backend import assign_all, sum_of, values_of
from dualnet._checks import ArgumentError
from dualnet._files import read_json, write_json
from dualnet.adaptation.adapted_copy import Adaptation
from dualnet.builders import LanguageModel
from dualnet.builders.wrapping_stations import Cache
from dualnet.corpora.sentence_batches import sentence_ends
from dualnet.evaluation.arguments import check_tokens, perplexity_of, vocabulary_with_eos
from dualnet.requests import AUTO, AdaptationRule

LEARNING = "learning.json"  # in a RUN folder: the learning rates that were found
FOUND = ("learning_rate", "perplexity", "static_perplexity", "weights")  # beside the settings
TOKENS = 5000  # of the validation text that are read with each learning rate
MORE_TOKENS = 25_000  # that are read with the best and lower ones: what gains at first may drift
MOST = 6  # learning rates that are tried
FACTORS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)  # of the default of the rule
LEAST_GAIN = 0.005  # of the perplexity


def with_own_settings(
    model: LanguageModel, request: AdaptationRule, *, by_text: bool
) -> AdaptationRule:
    """Return `request` with the rule and settings of a shipped model, if it names no rule."""
    run = model.run
    if request.rule is not None or run is None or not run.is_shipped:
        return request
    own = run.results["dynamic"]
    settings = request.fields_of({"rule": own["rule"], **own["settings"]})
    if by_text:
        settings.pop("sequence_length", None)
    return dataclasses.replace(request, **settings | request.changed())


def is_open(model: LanguageModel, request: AdaptationRule, valid: ArrayLike | None) -> bool:
    """Return True if a search finds the learning rate; raise `ArgumentError` if none can."""
    rate, run = request.learning_rate, model.run
    own = None if run is None or run.is_shipped else run
    if rate == AUTO and valid is None and own is None:
        raise ArgumentError(
            "learning_rate",
            "can be 'auto' for the model of a RUN folder of your own, whose validation text it is "
            "found on. Received: another model.",
            " Give `valid`, the ids of a validation text, to dualnet.dynamic_evaluation.",
        )
    has_text = valid is not None or (own is not None and own.is_folder)
    return rate == AUTO or (rate is None and has_text)


def found_rate(
    model: LanguageModel,
    adaptation: Adaptation,
    *,
    by_text: bool,
    valid: ArrayLike | None,
    is_asked: bool,
) -> float:
    """Return the best learning rate of an adaptation, whose copy is as before.

    Args:
        model: `LanguageModel`.
        adaptation: `Adaptation`, whose learning rate is the default of its rule.
        by_text: Whether texts or sentences are learnt from one by one.
        valid: int tokens to find it on; None for the validation text of the model's RUN, which
            keeps what is found.
        is_asked: Whether to raise an error if the text of the RUN is not at hand; otherwise the
            default is returned.
    """
    rule, run = adaptation.rule, model.run
    settings = {**adaptation.settings}
    default = settings.pop("learning_rate")
    key = {"rule": rule, **settings, "by_text": by_text, "adapt": adaptation.items or None}
    key |= Cache(**Cache.fields_of(model.arguments)).changed()
    if adaptation.copy.cache:
        key["cache"] = adaptation.copy.cache
    if adaptation.temperature != 1:  # which no key of 0.2.0.dev0 has
        key["temperature"] = adaptation.temperature
    file, records = None, []
    # What has learnt since it was loaded has another rate.
    if valid is None and run is not None and sum_of(model.core.weights) == model.sum_of_run:
        file = run.path / LEARNING
        records = _kept(file, run.weights_sha256)
    of_key = (
        rate
        for rate in records
        # An older record of all weights has no key `adapt`.
        if {"adapt": None} | {name: rate[name] for name in rate if name not in FOUND} == key
    )
    record = next(of_key, None)
    if record is None:
        try:
            if valid is None:
                valid = run.corpus(download=is_asked).split("valid")
            tokens = check_tokens(valid, model.vocabulary_size, least=2, name="valid")
            length = None if by_text else int(settings["sequence_length"])
            texts = [tokens[: count + (not by_text)] for count in (TOKENS, MORE_TOKENS)]
            few, more = (segments_of(model, text, length) for text in texts)
        except (OSError, ValueError):  # the RUN's text is gone, changed or has no two tokens
            if is_asked:
                raise
            _say(f"{rule!r} learns at its default rate: the RUN's text is not at hand.")
            return default
        record = key | _find(adaptation, few, more, default, by_text=by_text)
        if file is not None:
            records.append({**record, "weights": run.weights_sha256})
            with contextlib.suppress(OSError):  # a folder that may not be written to
                write_json(file, records)
    gain = 1 - record["perplexity"] / record["static_perplexity"]
    if gain < LEAST_GAIN:
        _say(
            f"The rule {rule!r} lowers the perplexity of the validation text by {max(gain, 0):.1%} "
            "only, at any learning rate. Try another rule or, with 'nadam', epsilon=1e-3."
        )
    return record["learning_rate"]


def _kept(file: Path, weights: str) -> list[dict[str, Any]]:
    """Return the learning rates in `file` that were found for the `weights` of this checksum."""
    try:
        return [rate for rate in read_json(file) if rate["weights"] == weights]
    except (OSError, ValueError, TypeError, KeyError):  # none, or damaged: they are found again
        return []


def _find(
    adaptation: Adaptation,
    segments: list[np.ndarray],
    more: list[np.ndarray],
    default: float,
    *,
    by_text: bool,
) -> dict[str, float]:
    count = sum(len(ids) - 1 for ids in segments)
    rule, copy = adaptation.rule, adaptation.copy
    _say(f"Finding the learning rate of {rule!r} on {count:,} tokens of validation text")
    state = [*copy.trainable_variables, *copy.optimizer.variables]
    before = values_of(state)

    def restore() -> None:
        assign_all(state, before)
        copy.restart()

    def loss_of(rate: float) -> float:
        restore()
        copy.optimizer.learning_rate = rate
        try:
            losses = [adaptation.learn(ids, alone=by_text) for ids in segments]
        except ArgumentError:  # they are not finite
            return math.inf
        return float(np.concatenate(losses).mean(dtype=np.float64))

    best, loss = best_rate(loss_of, default)
    if len(more) > len(segments):
        segments = more
        best, loss = best_rate(loss_of, best, steps=(-1,))
    static = perplexity_of([loss_of(0.0)])
    restore()
    learnt = perplexity_of([loss])
    _say(f"learning_rate {best:g}: perplexity {learnt:.2f}, {static:.2f} with fixed weights")
    return {"learning_rate": best, "perplexity": learnt, "static_perplexity": static}


def segments_of(model: LanguageModel, tokens: np.ndarray, length: int | None) -> list[np.ndarray]:
    """Return segments of `length` predicted tokens; for None sentences, each after `<eos>`."""
    if length is not None:
        return [tokens[start : start + length + 1] for start in range(0, len(tokens) - 1, length)]
    vocabulary, eos_id = vocabulary_with_eos(model)
    sentences = np.split(tokens, sentence_ends(tokens, vocabulary)[:-1])
    return [np.append(eos_id, sentence) for sentence in sentences]


def best_rate(
    loss_of: Callable[[float], float], default: float, steps: Sequence[int] = (1, -1)
) -> tuple[float, float]:
    """Return the best learning rate around `default`, and its loss: the first that is a minimum.

    Of `steps`, 1 is up and -1 is down.

    Example:

    >>> from dualnet.adaptation.step_size import best_rate
    >>> best_rate(lambda rate: abs(rate - 0.8), 0.1)
    (1.0, 0.19999999999999996)
    """
    losses = {}

    def tried(i: int) -> float:
        rate = float(f"{default * FACTORS[i]:.6g}")
        if rate not in losses:
            losses[rate] = loss_of(rate)
        return losses[rate]

    start = FACTORS.index(1)
    for step in steps:
        i = start
        while 0 <= i + step < len(FACTORS) and len(losses) < MOST and tried(i + step) < tried(i):
            i += step
        if i != start:
            break
    best = min(losses, key=lambda rate: losses[rate])
    return best, losses[best]


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)
