"""Two-tailed averaging: what becomes of the two averages after each validation (pure functions).

Both averages grow by each step, the long one from an earlier beginning. Once the short one is
as good, it becomes the long one, and a new short one begins: so the long one always leaves out
the early weights that would harm it.

Differs from the source: it leaves open how many evaluations without a gain are too many, and
here these are 3. An evaluation comes after each epoch.

Reference: Melis, 2022, https://arxiv.org/abs/2209.12581, Algorithm 1 and its extensions
"""

from collections.abc import Mapping

from dualnet.training.schedule import History, Result, Row, since_best, watched

PLAIN, SHORT, LONG = CANDIDATES = ("plain", "short", "long")
KEEP, SHORTEN, EMPTY_SHORT, EMPTY = "keep", "shorten", "empty_short", "empty"
PATIENCE = 3  # validations without a gain; the source says "a few"


def columns(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the columns of `metrics.csv` that hold the `results` of each candidate."""
    return {
        f"{key}_{name}": value
        for name in CANDIDATES
        for key, value in results[name].items()
        if key != "val_loss"
    }


def next_action(history: History) -> str:
    """Return the action to take on the averages after the last epoch of `history`.

    Returns:
        "shorten": the short average becomes the long one, and a new short one begins. It does
            once it is as good, or if the long one has not gained for a while.
        "empty_short": the short one begins anew: it has not gained for a while.
        "empty": both begin anew, since the plain weights have been better from the start.
        "keep": both go on.
    """
    action, long_epochs = KEEP, 0
    shorts = []  # results since each average began
    longs = []
    for row in history:
        plain, short, long = (result_of(row, name) for name in CANDIDATES)
        shorts.append(short)
        longs.append(long)
        long_epochs += 1
        if plain < long and long_epochs == 1:
            action = EMPTY
        elif short <= long or since_best(longs) >= PATIENCE:
            action = SHORTEN
        else:
            action = EMPTY_SHORT if since_best(shorts) >= PATIENCE else KEEP
        if action == EMPTY:
            long_epochs, longs = 0, []
        elif action == SHORTEN:
            long_epochs, longs = len(shorts), [short]
        if action != KEEP:
            shorts = []
    return action


def result_of(row: Row, name: str) -> Result:
    keys = ("val_perplexity", "val_bleu")
    return watched({key: row[f"{key}_{name}"] for key in keys if f"{key}_{name}" in row})
