"""The table of a search under way, on standard error."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from dualnet.tuning.jobs import Job
from dualnet.tuning.rows import Row, best_row

SHOWN = 5  # trials that have ended, the best of them


class Display:
    """Shows the trials while a search runs, as a context manager.

    A table that is drawn anew on a terminal; elsewhere a line for each trial that ends.

    Args:
        job: `Job`.
        rows: returns the `Row` of each trial so far.
        total: trials of the whole search at most, None if that is not known.
        deadline: time, as `time.time()`, at which the search is stopped; None for never.
        show: whether to show anything.
    """

    def __init__(
        self,
        job: Job,
        rows: Callable[[], list[Row]],
        *,
        total: int | None,
        deadline: float | None,
        show: bool,
    ) -> None:
        self.job = job
        self.rows = rows
        self.total = total
        self.deadline = deadline
        self.show = show
        self.began = time.monotonic()
        self.updated = -math.inf
        self.told: set[str] = set()
        self.before: int | None = None  # trials that had ended when this began
        self.live: Any = None

    def __enter__(self) -> Display:
        self.told = {row.trial for row in self.rows() if row.status in ("completed", "failed")}
        self.before = len(self.told)
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
        """Show what is new; does nothing if it did just now."""
        now = time.monotonic()
        if not self.show or (now - self.updated < 0.5 and not at_once):
            return
        self.updated = now
        rows = self.rows()
        if self.live is not None:
            self.live.update(self._table(rows), refresh=True)
            return
        for row in rows:
            if row.status in ("completed", "failed") and row.trial not in self.told:
                self.told.add(row.trial)
                self.say(f"trial {row.trial} {_result(row)}.  {self._summary(rows)}")

    def say(self, line: str) -> None:
        """Show a line."""
        if self.live is not None:
            self.live.console.print(line, highlight=False, markup=False)
        elif self.show:
            print(line, file=sys.stderr, flush=True)

    def _summary(self, rows: Sequence[Row]) -> str:
        ended = [row for row in rows if row.status in ("completed", "failed")]
        failed = sum(row.status == "failed" for row in rows)
        running = sum(row.status == "running" for row in rows)
        of = f" of {self.total}" if self.total else ""
        parts = [f"{len(ended) - failed}{of} done", f"{running} running", f"{failed} failed"]
        best = best_row(rows)
        if best is not None:
            parts.append(f"best {best.val_perplexity:.2f} (trial {best.trial})")
        parts.append(f"{self._left(len(ended))} left")
        return ", ".join(parts)

    def _left(self, ended: int) -> str:
        """Return the time that is left, by what the trials since the start have taken."""
        left = math.inf
        seconds = time.monotonic() - self.began
        done = ended - (self.before or 0)
        if self.total and done > 0:
            left = max(self.total - ended, 0) * seconds / done
        if self.deadline is not None:
            left = min(left, max(self.deadline - time.time(), 0.0))
        return "unknown time" if math.isinf(left) else f"about {_duration(left)}"

    def _table(self, rows: Sequence[Row]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"{self.job.name}: {self.job.tuner} search, perplexity on the validation text",
            caption=f"{self._summary(rows)}; {_duration(time.monotonic() - self.began)} so far",
            title_justify="left",
            caption_justify="left",
        )
        for column in ("trial", "status", "epoch", "valid"):
            table.add_column(column, no_wrap=True)
        table.add_column("settings", min_width=8, ratio=1)
        running = [row for row in rows if row.status == "running"]
        completed = [row for row in rows if row.status == "completed"]
        failed = [row for row in rows if row.status == "failed"]
        best = sorted(completed, key=lambda row: row.val_perplexity or math.inf)[:SHOWN]
        for row in [*running, *best, *failed[-2:]]:
            what = row.message if row.status == "failed" else settings_text(row.drawn)
            perplexity = "" if row.val_perplexity is None else f"{row.val_perplexity:.2f}"
            style = {"running": "cyan", "failed": "red"}.get(row.status, "")
            table.add_row(
                row.trial, row.ended if row.ended in ("hopeless", "time") else row.status,
                str(row.epochs or ""), perplexity, Text(what, overflow="ellipsis", no_wrap=True),
                style="bold green" if best and row is best[0] else style,
            )  # fmt: skip
        return table


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as one line, numbers short."""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={json.dumps(value)}"
        for key, value in settings.items()
    ).replace('"', "")


def _result(row: Row) -> str:
    if row.status == "failed":
        return f"failed: {row.message.splitlines()[0].rstrip('.')}"
    early = {"hopeless": ", stopped early", "time": ", out of time"}.get(row.ended, "")
    return f"has validation perplexity {row.val_perplexity:.2f}{early}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
