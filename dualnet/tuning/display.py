"""The progress of a search, on standard error."""

import collections
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from dualnet._contexts import progress_bar
from dualnet.tuning.report import Row, best_row

SECONDS = 0.5  # between two updates
EARLY = {"hopeless": ", pruned", "time": ", out of time"}


class Display:
    """Shows the trials of a running search, as a context manager.

    A line for each trial that ends, and on a terminal a bar. `rows` returns the `Row` of each
    trial so far, and `total` is the largest number of trials, None if unknown.
    """

    def __init__(self, rows: Callable[[], list[Row]], total: int | None, *, show: bool) -> None:
        self.rows = rows
        self.show = show and sys.stderr is not None
        self.bar = progress_bar(show=self.show)
        self.task = self.bar.add_task("trials", total=total, figures="")
        self.shown = {row.trial for row in rows() if row.has_ended}
        self.updated = -math.inf

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def update(self, *, at_once: bool = False) -> None:
        """Show what is new, at most twice a second unless `at_once`."""
        now = time.monotonic()
        if not self.show or (now - self.updated < SECONDS and not at_once):
            return
        self.updated = now
        rows = self.rows()
        figures = _figures(rows)
        for row in rows:
            if row.has_ended and row.trial not in self.shown:
                self.shown.add(row.trial)
                self.say(f"trial {row.trial} {_result(row)}.  {figures}")
        self.bar.update(self.task, completed=len(self.shown), figures=figures)

    def say(self, line: str) -> None:
        """Show a line."""
        if self.show:
            self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _figures(rows: Sequence[Row]) -> str:
    count = collections.Counter(row.status for row in rows)
    text = ", ".join(f"{count[status]} {status}" for status in ("completed", "running", "failed"))
    if best := best_row(rows):
        text += f", best {best.val_perplexity:.2f} (trial {best.trial})"
    return text


def _result(row: Row) -> str:
    if row.status == "failed":
        first, _, _ = row.message.partition("\n")
        return f"failed: {first.rstrip('.')}"
    early = EARLY.get(row.ended, "")
    return f"has validation perplexity {row.val_perplexity:.2f}{row.per_byte}{early}"
