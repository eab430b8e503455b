"""Is one model better than another on a text, by more than chance?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError, check_count, did_you_mean, shown
from dualnet.builders import LanguageModel
from dualnet.builders.weights import check_language_model
from dualnet.evaluation.perplexities import Evaluation, evaluate

LEVEL = 0.95  # of the interval


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`, of this text: another training of the models may differ otherwise.

    Attributes:
        difference: float. Mean loss of the first model less that of the second, in nats per token:
            above 0 if the second is better.
        interval: tuple of two floats, the 95 % interval of `difference`.
        perplexities: tuple of two floats, of the first and of the second.
        tokens: int. Number of tokens.
        blocks: int. Number of blocks that were drawn from.
    """

    difference: float
    interval: tuple[float, float]
    perplexities: tuple[float, float]
    tokens: int
    blocks: int

    def __str__(self) -> str:
        low, high = self.interval
        share = 100 * np.expm1([-self.difference, -high, -low])
        more = "by more than chance" if low > 0 or high < 0 else "which may be chance"
        return (
            f"perplexity {self.perplexities[0]:.2f} and {self.perplexities[1]:.2f}: the second's "
            f"is {share[0]:+z.1f} % (95 % interval {share[1]:+z.1f} to {share[2]:+z.1f}), {more}, "
            f"on {self.blocks:,} blocks of this text; another training is not asked about"
        )


def compare(
    first: LanguageModel | Evaluation,
    second: LanguageModel | Evaluation,
    tokens: ArrayLike | None = None,
    *,
    block: int | None = None,
    resamples: int = 2000,
    seed: int = 0,
    **settings: Any,
) -> Comparison:
    """Compare two models on one text: their difference, with a block-bootstrap interval.

    Each token is scored by both, so that what makes it hard to predict cancels out. Neighbouring
    tokens have much in common, so blocks of them are drawn again, with replacement, and not single
    ones. The interval speaks of other texts like this one. It does not speak of other trainings:
    for a claim about two kinds of models, train each with several seeds. With few blocks it is too
    narrow: 95 % are about 90 % with 10 blocks, 92 % with 20 and 94 % with 100.

    Args:
        first, second: `LanguageModel`, of the same words; or what `evaluate` or
            `dynamic_evaluation` returned for them on the same text.
        tokens: int array `(num_tokens,)`, for models.
        block: int, at least 1. Tokens of a block; by default 500, and fewer in a text of less than
            20 such blocks. There must be at least 10.
        resamples: int, at least 1. How many texts are drawn.
        seed: int, at least 0. Random seed of the texts that are drawn, and of MC dropout.
        **settings: Other arguments of `evaluate`, for models alone.

    Raises:
        ValueError: if the models have other words, the results other tokens, or there are fewer
            than 10 blocks.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> models = [dualnet.zoo.build("lstm", vocabulary_size=9, units=u) for u in (3, 4)]
    >>> comparison = dualnet.compare(*models, np.arange(2000) % 9, block=20)
    >>> low, high = comparison.interval
    >>> comparison.blocks, low < comparison.difference < high
    (100, True)

    Reference: Künsch, 1989, https://doi.org/10.1214/aos/1176347265
    """
    check_count("resamples", resamples)
    results: list[Any] = [first, second]
    if tokens is not None:
        check_language_model("first", results[0])
        check_language_model("second", results[1])
        words = [(model.vocabulary_size, model.vocabulary) for model in results]
        if words[0] != words[1]:
            required = "must have the vocabulary of `first`: bits per byte compare other models."
            raise ArgumentError("second", required, second=words[1], first=words[0])
        results = [evaluate(model, tokens, seed=seed, **settings) for model in results]
    elif settings:
        name = min(settings)
        hint = did_you_mean(name, ["block", "resamples", "seed"])
        raise ArgumentError(name, "needs models that read `tokens`.", hint, **settings)
    losses = (getattr(result, "token_losses", ()) for result in results)
    one, other = (np.asarray(each, np.float64) for each in losses)
    if len(one) != len(other) or not len(one):
        required = "must be given for models; results must be of the same text, token by token."
        raise ArgumentError("tokens", f"{required} Received: {shown(results)}.")
    block = max(1, min(500, len(one) // 20)) if block is None else check_count("block", block)
    starts = np.arange(0, len(one), block)
    if len(starts) < 10:
        raise ArgumentError(
            "tokens",
            f"must fill at least 10 blocks. Received: {len(one)} tokens in blocks of {block}. "
            "Read a longer text.",
        )
    sums, counts = np.add.reduceat(one - other, starts), np.diff([*starts, len(one)])
    rng = np.random.default_rng(check_count("seed", seed, least=0))
    drawn = rng.multinomial(len(starts), np.full(len(starts), 1 / len(starts)), resamples)
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Comparison(
        difference=float(sums.sum() / len(one)),
        interval=(low, high),
        perplexities=(float(np.exp(one.mean())), float(np.exp(other.mean()))),
        tokens=len(one),
        blocks=len(starts),
    )
