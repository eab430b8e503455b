"""Plans the next epoch of a run from its recipe and its history: pure functions."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dualnet.training.recipe import Recipe

Row = dict[str, Any]  # of `metrics.csv`: the figures of an epoch, and its phase
History = list[Row]
Result = tuple[float, ...]
TRAIN, AVERAGED, ROUND = "train", "averaged", "finetune-"
RESTART_FACTOR = 0.9  # of the learning rate


@dataclasses.dataclass(frozen=True)
class Plan:
    """The next epoch.

    A phase begins with a fresh average, a round of fine-tuning from the best weights so far.
    """

    epoch: int  # from 1
    last: int  # the last epoch that the phase can have
    phase: str  # "train", then "averaged", then "finetune-1", "finetune-2", ...
    begins: bool  # whether the phase begins with this epoch
    learning_rate: float  # for a segment of `sequence_length` tokens
    fall: float = 0.0  # by which the rate is lower at the end of the epoch

    @property
    def averaged(self) -> bool:
        """Whether the weights are averaged and the averages validated."""
        return self.phase != TRAIN

    def rates(self, steps: int) -> list[float]:
        """Return the learning rate of each of the steps of the epoch."""
        return [self.learning_rate - self.fall * step / steps for step in range(steps)]


def plan(recipe: Recipe, history: History, *, restarts: int = 0) -> Plan | None:
    """Return the epoch that follows `history`, None if the training is finished.

    Each of the `restarts` has lowered the learning rate.
    """
    phase = _phase(recipe, history)
    if phase is None:
        return None
    epoch, fall = len(history) + 1, 0.0
    begins = not history or history[-1]["phase"] != phase
    if is_round(phase):
        before = sum(row["phase"] != phase for row in history)
        last = before + (recipe.finetune_epochs or recipe.epochs)
        rate = recipe.finetune_learning_rate or recipe.learning_rate
        return Plan(epoch, last, phase, begins, rate * RESTART_FACTOR**restarts)
    rate = recipe.learning_rate * recipe.decay ** max(epoch - recipe.hold_epochs, 0)
    rate *= recipe.plateau_decay ** _without_gain(_watched(history))
    if recipe.square_root_decay:
        rate /= math.sqrt(epoch)
    rate *= RESTART_FACTOR**restarts
    if recipe.linear_decay:
        fall = rate / recipe.epochs
        rate -= fall * len(history)
    return Plan(epoch, recipe.epochs, phase, begins, rate, fall)


def is_round(phase: str) -> bool:
    """Return True for a round of fine-tuning."""
    return phase.startswith(ROUND)


def _phase(recipe: Recipe, history: History) -> str | None:
    phase = history[-1]["phase"] if history else TRAIN
    if not is_round(phase):
        out_of_patience = 0 < recipe.patience <= since_best(_watched(history))
        if len(history) < recipe.epochs and not out_of_patience:
            return AVERAGED if phase == AVERAGED or _averaging_is_due(recipe, history) else TRAIN
        return None if recipe.finetune == "none" else f"{ROUND}1"
    if recipe.finetune == "none":
        return None
    in_round = _watched(row for row in history if row["phase"] == phase)
    before = _watched(row for row in history if row["phase"] != phase)
    stalled = has_stalled(in_round, recipe.average_interval)
    if len(in_round) < (recipe.finetune_epochs or recipe.epochs) and not stalled:
        return phase
    if recipe.finetune == "until_no_gain" and min(in_round) < min(before):
        return f"{ROUND}{int(phase.removeprefix(ROUND)) + 1}"
    return None


def since_best(results: Sequence[Result]) -> int:
    """Return the number of results after the first of the best ones."""
    return len(results) - 1 - results.index(min(results)) if results else 0


def has_diverged(row: Row, history: History) -> bool:
    """Return True if the epoch `row` has lost what was learnt in `history`; see `Recipe`.

    The perplexity of the weights themselves tells where it is known: an average hides it.
    """
    plain = "val_perplexity_plain"
    key = plain if plain in row else "val_perplexity"
    if not history or not math.isfinite(row[key]):
        return not math.isfinite(row[key])
    valid, train = (min(past[name] for past in history) for name in (key, "perplexity"))
    return row[key] > 2 * valid and row["perplexity"] > train


def _averaging_is_due(recipe: Recipe, history: History) -> bool:
    if recipe.averaging in ("none", "two_tailed"):
        return recipe.averaging == "two_tailed"  # from the first step on
    if 0 < recipe.average_from <= len(history) + 1:
        return True
    perplexities = _watched(history)
    if recipe.averaging == "asgd":
        return has_stalled(perplexities, recipe.average_interval)
    return since_best(perplexities) >= recipe.average_interval


def has_stalled(perplexities: Sequence[Result], interval: int) -> bool:
    """Apply the non-monotonic criterion to the last of `perplexities`.

    It is met by one that exceeds the minimum of all earlier ones except the `interval` right
    before it. The released code of Merity et al. does the same: it checks before it logs the last.
    """
    if len(perplexities) - 1 <= interval:
        return False
    *logged, last = perplexities
    return last > min(logged[:-interval])


def _without_gain(perplexities: Sequence[Result]) -> int:
    """Return the number of epochs that did not improve on the best before them."""
    best = itertools.accumulate(perplexities, min)
    return sum(perplexity >= before for perplexity, before in zip(perplexities[1:], best))


def watched(row: Row) -> Result:
    """Return the validation results of an epoch that decide, lower for a better one.

    Where BLEU decides, perplexity does among equals.
    """
    perplexity = row["val_perplexity"]
    return (-row["val_bleu"], perplexity) if "val_bleu" in row else (perplexity,)


def _watched(rows: Iterable[Row]) -> list[Result]:
    return list(map(watched, rows))
