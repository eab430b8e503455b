"""Does a scorer look ahead? A check for any function from ids to log-probabilities."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError, check_count, check_ids


@dataclasses.dataclass(frozen=True)
class Causality:
    """The result of `check_causal`.

    Attributes:
        causal: Whether the scorer passed.
        changed: First position of the tokens that were changed when a score moved, or None.
        moved: Position of the first score that moved then, or whose probabilities do not sum to 1;
            None if there is none.
        difference: float. The largest change of a score that must not move, in nats.
        excess: float. The largest difference from 1 of a sum of probabilities; 0 where the scorer
            does not give all of them.
        positions: The positions that were tried.

    Example:

    >>> from dualnet.evaluation import Causality
    >>> print(Causality(False, 5, 3, difference=0.25))
    Looks ahead: the score of token 3 moves by up to 0.25 nats with the tokens from 5 on.
    """

    causal: bool
    changed: int | None = None
    moved: int | None = None
    difference: float = 0.0
    excess: float = 0.0
    positions: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.causal:
            return f"Causal, as far as {len(self.positions)} positions show."
        if self.changed is not None:
            moves = f"moves by up to {self.difference:.2g} nats"
            by = f"with the tokens from {self.changed} on"
            return f"Looks ahead: the score of token {self.moved} {moves} {by}."
        if self.moved is not None:
            return f"The probabilities of token {self.moved} do not sum to 1: {self.excess:+.2g}."
        return f"Not a function: the same tokens get other scores, by {self.difference:.2g} nats."


def check_causal(
    scorer: Callable[[np.ndarray], ArrayLike],
    tokens: ArrayLike,
    *,
    positions: int = 8,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Causality:
    """Check that a scorer predicts each token from those before it alone.

    The tokens from a position on are replaced by others, for several positions: no score before
    may move. So scores that were computed after learning from the text are found out. A scorer is
    a function: asked twice, it must answer the same, without a memory of the first time.

    Args:
        scorer: function of int32 ids `(tokens,)` that returns an array with the log-probability
            of each id, or of each but the first; or the log-probabilities of all words at each,
            `(tokens, words)`, which are also checked to sum to 1.
        tokens: int array `(tokens,)`, with at least two different ids.
        positions: int, at least 1. How many positions to try, spread over the text.
        tolerance: float above 0. Largest change, in nats, and largest error of a sum, that count
            as rounding.
        seed: int, at least 0. Random seed of the replacements, drawn from the ids of `tokens`.

    Example: a scorer that knows how often each word of the whole text occurs.

    >>> import numpy as np
    >>> import dualnet
    >>> def cheat(ids):
    ...     return np.log(np.bincount(ids)[ids] / len(ids))
    >>> dualnet.check_causal(cheat, [1, 2, 1, 1, 3]).causal
    False
    """
    tokens = check_ids("tokens", tokens, least=2).astype(np.int32)
    check_count("positions", positions)
    words = np.unique(tokens)
    if len(words) < 2:
        raise ArgumentError("tokens", f"must hold different ids. Received: {words[0]} alone.")
    random = np.random.default_rng(seed)
    first = _scores(scorer, tokens)
    missing = len(tokens) - len(first)
    excess = 0.0
    if first.ndim == 2:
        errors = np.exp(first).sum(axis=1) - 1
        worst = int(np.abs(errors).argmax())
        excess = float(errors[worst])
        if not abs(excess) <= tolerance:
            return Causality(False, moved=worst + missing, excess=excess)
    difference = float(_changes(first, _scores(scorer, tokens)).max())
    if not difference <= tolerance:
        return Causality(False, difference=difference, excess=excess)
    # The words' probabilities at a position are given before its token is known.
    begin = 1 + missing if first.ndim == 1 else max(missing, 1)
    spread = np.linspace(len(tokens) - 1, min(begin, len(tokens) - 1), min(positions, len(tokens)))
    tried = tuple(np.unique(spread.astype(int))[::-1].tolist())
    for position in tried:
        changed = tokens.copy()
        # Another one of `words`, at each place.
        shifts = random.integers(1, len(words), size=len(tokens) - position)
        places = np.searchsorted(words, tokens[position:])
        changed[position:] = words[(places + shifts) % len(words)]
        known = position + (first.ndim == 2) - missing
        changes = _changes(first[:known], _scores(scorer, changed)[:known])
        moved = np.flatnonzero(~(changes <= tolerance))
        if len(moved):
            place = int(moved[0]) + missing
            return Causality(False, position, place, float(changes.max()), excess, tried)
        difference = max(difference, float(changes.max(initial=0)))
    return Causality(True, difference=difference, excess=excess, positions=tried)


def _scores(scorer: Callable[[np.ndarray], ArrayLike], tokens: np.ndarray) -> np.ndarray:
    """Return the scores of `tokens`, float64; raise `ArgumentError` for a wrong shape or value."""
    scores = np.asarray(scorer(tokens.copy()), np.float64)
    if scores.ndim not in (1, 2) or len(tokens) - len(scores) not in (0, 1):
        raise ArgumentError(
            "scorer",
            "must return one log-probability, or those of all words, for each id. Received: shape "
            f"{scores.shape} for {len(tokens)} ids.",
        )
    if np.isnan(scores).any() or (scores > 1e-3).any():
        raise ArgumentError("scorer", "must return logarithms of probabilities, at most 0.")
    return scores


def _changes(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return the largest change of the scores of each token; -inf equals itself."""
    with np.errstate(invalid="ignore"):
        changes = np.where(one == two, 0.0, np.abs(one - two))
    return changes if changes.ndim == 1 else changes.max(axis=1)
