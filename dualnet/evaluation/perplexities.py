"""The perplexity of a model on a text: of one pass, or averaged over passes with dropout."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dualnet._checks import ArgumentError, check_count, is_number
from dualnet.builders import LanguageModel
from dualnet.corpora.sentence_batches import sentence_ends
from dualnet.evaluation import reading
from dualnet.evaluation.checks import (
    check_cache,
    check_temperature,
    check_tokens,
    perplexity_of,
    vocabulary_with_eos,
)
from dualnet.evaluation.samples import Sampler

SAMPLED_STEPS = 70  # as long as the windows in which Melis et al. train, and draw masks


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        perplexity: exp of the mean loss.
        tokens: Number of tokens predicted: all but the first; by sentence, all.
        batch_size: Number of streams. 1 is the reference; more streams start as
            many times from the zero state, which costs a little perplexity.
        sequence_length: Tokens per step; without influence on the value but for
            locked masks of samples. None by sentence.
        temperature: What the logits were divided by.
        token_losses: float32 `(tokens,)`, -log p of each token in nats, in reading order.
        by_sentence: Whether each sentence was read from the zero state.
        samples: Passes with dropout whose probabilities were averaged; 0 for one without.
        dropout_scale: What their dropout rates were multiplied by.
        seed: Of their masks.
    """

    perplexity: float
    tokens: int
    batch_size: int
    sequence_length: int | None
    temperature: float
    token_losses: np.ndarray = dataclasses.field(repr=False)
    by_sentence: bool = False
    samples: int = 0
    dropout_scale: float = 1.0
    seed: int = 0


def perplexity(
    model: LanguageModel,
    tokens: Any,
    *,
    temperature: float = 1.0,
    batch_size: int = 1,
    sequence_length: int | None = None,
    by_sentence: bool = False,
    samples: int = 0,
    dropout_scale: float = 1.0,
    seed: int = 0,
) -> float:
    """Return the perplexity of `model` on `tokens`; arguments and errors as for `evaluate`."""
    return evaluate(
        model,
        tokens,
        temperature=temperature,
        batch_size=batch_size,
        sequence_length=sequence_length,
        by_sentence=by_sentence,
        samples=samples,
        dropout_scale=dropout_scale,
        seed=seed,
    ).perplexity


def evaluate(
    model: LanguageModel,
    tokens: Any,
    *,
    temperature: float = 1.0,
    batch_size: int = 1,
    sequence_length: int | None = None,
    by_sentence: bool = False,
    samples: int = 0,
    dropout_scale: float = 1.0,
    seed: int = 0,
) -> Evaluation:
    """Return the loss of `model` on `tokens`, every token but the first predicted once.

    The stream is cut into `batch_size` streams of equal length (the last may be
    shorter), read side by side with carried state. The first token of a stream
    is predicted from the zero state and the token before it. Losses are summed
    in float64.

    By sentence, for a model that was trained so, each sentence is read after
    `<eos>` from the zero state, and every token is predicted once, the first
    one, too. A sentence ends with `<eos>`, and the last one where the text does.

    With samples, the probability of a token is the arithmetic mean of those of
    as many passes with dropout, each of which carries its own state over the
    text (Melis et al.). A locked mask is drawn anew for each step of
    `sequence_length` tokens, and by sentence for each sentence, or each 2048
    tokens of a longer one. The model itself stays as it is.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order. An int32 array, which may
            be memory-mapped, is read piece by piece and never copied whole.
        temperature: float above 0; logits are divided by it, in each pass.
        batch_size: int. Number of streams; 1 by sentence, where it means nothing.
        sequence_length: int. Tokens per step; default about 2048 / batch_size, and
            70 with samples. None by sentence.
        by_sentence: bool.
        samples: int. Number of passes with dropout; 0 for one pass without.
        dropout_scale: float above 0, at most 1. With samples, the dropout rates of
            the model, its builder's arguments `..._dropout`, are multiplied by it.
        seed: int, at least 0. The masks are a function of it and the other arguments.

    Raises:
        ValueError: if `tokens` holds fewer than `batch_size + 1` tokens (by sentence,
            none) or ids beyond the model's vocabulary, if an argument is out of range,
            or for samples of a model without dropout. By sentence, if the model has
            no vocabulary with `<eos>`.

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 4.
    """
    tokens = check_tokens(tokens, model.vocabulary_size, least=1 if by_sentence else 2)
    check_cache(model, tokens)
    check_temperature(temperature)
    check_count("batch_size", batch_size, least=1)
    check_count("samples", samples, least=0)
    check_count("seed", seed, least=0)
    if not is_number(dropout_scale) or not 0 < dropout_scale <= 1:
        raise ArgumentError(
            "dropout_scale",
            f"must be a number above 0 and at most 1. Received: dropout_scale={dropout_scale!r}.",
        )
    if samples == 0 and dropout_scale != 1:
        raise ArgumentError(
            "dropout_scale",
            "is for passes with dropout, and needs `samples` of at least 1. "
            f"Received: dropout_scale={dropout_scale!r}, samples=0.",
        )
    if by_sentence:
        plan = _sentences(model, tokens, batch_size, sequence_length, whole=samples > 0)
    else:
        plan = _streams(tokens, batch_size, sequence_length, sampled=samples > 0)
    losses = np.empty(plan.tokens, np.float32)
    if samples > 0:
        sampler = Sampler(model, dropout_scale, tempered=temperature != 1)
        _average(model, plan, losses, temperature, samples, sampler, seed)
    else:
        _pass(model, plan, [losses], temperature)
    return Evaluation(
        perplexity=perplexity_of(losses),
        tokens=plan.tokens,
        batch_size=batch_size,
        sequence_length=plan.sequence_length,
        temperature=temperature,
        token_losses=losses,
        by_sentence=bool(by_sentence),
        samples=samples,
        dropout_scale=dropout_scale,
        seed=seed,
    )


class _Plan(NamedTuple):
    """How a text is read.

    Attributes:
        tokens: int. Number of tokens predicted.
        sequence_length: int or None. Tokens per step of every part.
        parts: yields rows, steps and spans of the predicted tokens to be read
            together, each span from the zero state.
        cut: returns the ids of a span: its tokens, and the one before.
    """

    tokens: int
    sequence_length: int | None
    parts: Callable[[], Iterator[tuple[int, int, list[tuple[int, int]]]]]
    cut: Callable[[int, int], np.ndarray]


def _streams(
    tokens: np.ndarray, batch_size: int, sequence_length: int | None, *, sampled: bool
) -> _Plan:
    """Return the plan of a text as `batch_size` streams."""
    pairs = len(tokens) - 1
    if batch_size > pairs:
        raise ArgumentError(
            "batch_size",
            f"must be at most the {pairs} predicted tokens. Received: batch_size={batch_size}.",
        )
    if sequence_length is None:
        sequence_length = SAMPLED_STEPS if sampled else max(16, reading.WORK // batch_size)
    check_count("sequence_length", sequence_length, least=1)
    length = math.ceil(pairs / batch_size)
    steps = min(sequence_length, length)
    ends = [min(row * length, pairs) for row in range(batch_size + 1)]
    part = (batch_size, steps, list(itertools.pairwise(ends)))
    return _Plan(pairs, steps, lambda: iter([part]), lambda start, end: tokens[start : end + 1])


def _sentences(
    model: LanguageModel,
    tokens: np.ndarray,
    batch_size: int,
    sequence_length: int | None,
    *,
    whole: bool,
) -> _Plan:
    """Return the plan of a text by sentence; `whole` ones are read in one piece."""
    vocabulary, eos_id = vocabulary_with_eos(
        model, begins="sentence", otherwise="Leave `by_sentence` False."
    )
    if model.cache_size:
        raise ArgumentError(
            "by_sentence",
            "must be False for a model with a cache, which each sentence would "
            f"empty. Received: by_sentence=True, a cache of {model.cache_size} words.",
        )
    if batch_size != 1:
        raise ArgumentError(
            "batch_size",
            "must be 1 by sentence, where every sentence starts from the zero state "
            f"and there are no streams. Received: batch_size={batch_size}.",
        )
    if sequence_length is not None:
        raise ArgumentError(
            "sequence_length",
            "must be None by sentence, where a sentence is read as a whole. "
            f"Received: sequence_length={sequence_length!r}.",
        )
    ends = sentence_ends(tokens, vocabulary)
    starts = np.append(0, ends[:-1])
    first = np.append(eos_id, tokens[: ends[0]]).astype(np.int32)

    def parts():
        for rows, steps, places in reading.batches(ends - starts, whole=whole):
            yield rows, steps, [(starts[i], ends[i]) for i in places]

    # Before every other sentence stands the <eos> of the one before it.
    return _Plan(
        len(tokens), None, parts, lambda start, end: tokens[start - 1 : end] if start else first
    )


def _pass(
    model: LanguageModel,
    plan: _Plan,
    found: list[np.ndarray],
    temperature: float,
    *,
    passes: int = 1,
    scorer: Any = None,
) -> None:
    """Read a text as often as `found` has arrays of losses, and at most `passes` times at once."""
    for rows, steps, spans in plan.parts():
        streams = [plan.cut(*span) for span in spans]
        reading.read(
            model,
            streams * len(found),
            [losses[start:end] for losses in found for start, end in spans],
            rows=rows * passes,
            steps=steps,
            temperature=temperature,
            scorer=scorer,
        )


def _average(
    model: LanguageModel,
    plan: _Plan,
    losses: np.ndarray,
    temperature: float,
    samples: int,
    sampler: Sampler,
    seed: int,
) -> None:
    """Fill `losses` with -log of the mean probabilities of passes with dropout."""
    together = 1
    if sampler.masks_rows_apart and plan.sequence_length is not None:
        rows, steps, _ = next(plan.parts())
        together = max(1, min(samples, reading.WORK // (rows * steps)))
    total = np.full(plan.tokens, -np.inf)
    for first in range(0, samples, together):
        found = np.empty((min(together, samples - first), plan.tokens), np.float32)
        sampler.draw_anew(seed, first)
        _pass(model, plan, list(found), temperature, passes=together, scorer=sampler)
        for each in found:
            np.logaddexp(total, -each, out=total)
    losses[:] = math.log(samples) - total
