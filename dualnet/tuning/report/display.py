"""The progress of a search, on standard error."""

import collections
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from dualnet.training.recorder import duration
from dualnet.tuning.job import Job
from dualnet.tuning.report.tables import Row, best_row

SHOWN = 5  # best trials in the table


@dataclasses.dataclass
class Display:
    """Shows the trials of a running search, as a context manager.

    On a terminal, a table that is redrawn; elsewhere, a line for each trial that ends.
    """

    job: Job
    rows: Callable[[], list[Row]]  # returns the `Row` of each trial so far
    total: int | None  # largest number of trials, None if unknown
    deadline: float | None  # `time.time()` at which the search stops; None for never
    show: bool  # whether to show anything

    def __enter__(self) -> Self:
        self.show = self.show and sys.stderr is not None  # None would print to standard output
        self.start, self.updated = time.monotonic(), -math.inf
        self.live: Any = None
        self.shown = {row.trial for row in self.rows() if row.has_ended}
        self.ended_before = len(self.shown)
        if self.show and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), auto_refresh=False)
            self.live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, *, at_once: bool = False) -> None:
        """Show what is new, at most twice a second unless `at_once`."""
        now = time.monotonic()
        if not self.show or (now - self.updated < 0.5 and not at_once):
            return
        self.updated = now
        rows = self.rows()
        if self.live is not None:
            self.live.update(self._table(rows), refresh=True)
            return
        for row in rows:
            if row.has_ended and row.trial not in self.shown:
                self.shown.add(row.trial)
                self.say(f"trial {row.trial} {_result(row)}.  {self._summary(rows)}")

    def say(self, line: str) -> None:
        """Show a line."""
        if self.live is not None:
            self.live.console.print(line, highlight=False, markup=False)
        elif self.show:
            print(line, file=sys.stderr, flush=True)

    def _summary(self, rows: Sequence[Row]) -> str:
        count = collections.Counter(row.status for row in rows)
        done = f"{count['completed']}{f' of {self.total}' if self.total else ''} done"
        text = f"{done}, {count['running']} running, {count['failed']} failed"
        if best := best_row(rows):
            text += f", best {best.val_perplexity:.2f} (trial {best.trial})"
        return f"{text}, {self._time_left(count['completed'] + count['failed'])} left"

    def _time_left(self, ended: int) -> str:
        """Return the time left, estimated from the trials that ended since the start."""
        left, new = math.inf, ended - self.ended_before
        if self.total and new > 0:
            left = max(self.total - ended, 0) * (time.monotonic() - self.start) / new
        if self.deadline is not None:
            left = min(left, max(self.deadline - time.time(), 0.0))
        return "unknown time" if math.isinf(left) else f"about {duration(left)}"

    def _table(self, rows: Sequence[Row]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"{self.job.name}: {self.job.tuner} search, validation perplexity",
            caption=f"{self._summary(rows)}; {duration(time.monotonic() - self.start)} so far",
            title_justify="left",
            caption_justify="left",
        )
        has_bits = any(row.per_byte for row in rows)
        for column in ("trial", "status", "epoch", "valid", *["bits/byte"] * has_bits):
            table.add_column(column, no_wrap=True)
        table.add_column("settings", min_width=8, ratio=1)
        running = [row for row in rows if row.status == "running"]
        failed = [row for row in rows if row.status == "failed"]
        completed = [row for row in rows if row.status == "completed"]
        best = sorted(completed, key=lambda row: row.val_perplexity or math.inf)[:SHOWN]
        for row in [*running, *best, *failed[-2:]]:
            text = row.message if row.status == "failed" else _settings_text(row.drawn)
            style = {"running": "cyan", "failed": "red"}.get(row.status, "")
            bits = "" if row.val_bits_per_byte is None else f"{row.val_bits_per_byte:.3f}"
            table.add_row(
                row.trial,
                {"hopeless": "pruned", "time": "time"}.get(row.ended, row.status),
                str(row.epochs or ""),
                "" if row.val_perplexity is None else f"{row.val_perplexity:.2f}",
                *[bits] * has_bits,
                Text(text, overflow="ellipsis", no_wrap=True),
                style="bold green" if best and row is best[0] else style,
            )
        return table


def _settings_text(settings: dict[str, Any]) -> str:
    """Return settings on one line, with short numbers."""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={json.dumps(value)}"
        for key, value in settings.items()
    ).replace('"', "")


def _result(row: Row) -> str:
    if row.status == "failed":
        first, *_ = row.message.split("\n")
        return f"failed: {first.rstrip('.')}"
    early = {"hopeless": ", pruned", "time": ", out of time"}.get(row.ended, "")
    return f"has validation perplexity {row.val_perplexity:.2f}{row.per_byte}{early}"
