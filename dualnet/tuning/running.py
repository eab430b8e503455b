"""A search at work, and what it leaves: tables, plots, results."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import sys
from typing import Any

from dualnet._files import write_whole
from dualnet.training import versions
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning import report
from dualnet.tuning.display import Display
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.oracles import count_trials
from dualnet.tuning.rows import Row, best_row, read_rows
from dualnet.tuning.search_folder import Search, address_of_chief
from dualnet.tuning.trial import RUN, write_task
from dualnet.tuning.tuner import TRIALS, Tuner, run_task
from dualnet.tuning.workers import LOOPBACK, Chief, serve, supervise

COMPARISON = "comparison"


class SearchError(ValueError):
    """A search without a result; says what the first trial failed of."""


class Running:
    """One search at work.

    Args:
        search: `Search`.
        model: Its `HyperModel`, for a job of the kind "training".
        interrupts: `Interrupts`, whose wish is heard.
        progress: Whether to show the trials on standard error.
    """

    def __init__(
        self,
        search: Search,
        model: HyperModel | None,
        interrupts: Interrupts,
        progress: bool,
    ) -> None:
        self.search = search
        self.folder = search.folder
        self.interrupts = interrupts
        self.progress = progress
        self.tuner = search.tuner(self.poll, model)
        self.oracle = self.tuner.oracle
        self.ended: dict[str, Row] = {}
        self.reported = -1
        self.display = Display(
            search.job,
            self.rows,
            total=count_trials(self.oracle),
            deadline=search.deadline,
            show=progress,
        )

    def run(self, workers: int, *, is_chief: bool) -> Tuner:
        """Run the search to its end, and report.

        Raises:
            SearchError: if no trial was completed.
            Stopped: after Ctrl-C or SIGTERM.
        """
        with self.display:
            with contextlib.suppress(Stopped):
                self._run_trials(workers, is_chief=is_chief)
            for name in [] if is_chief else list(self.oracle.ongoing_trials):
                self.oracle.release(name)  # nobody on this machine is at work any more
            self.display.update(at_once=True)
        rows = self.rows()
        if rows:
            report.report(self.folder, self.search.job, rows)
        left = [row for row in rows if row.status in ("running", "unfinished")]
        completed = sum(row.status == "completed" for row in rows)
        if self.interrupts.asked:
            raise Stopped(
                f"Stopped, with {completed} trials completed and {len(left)} begun. "
                + self._way_on("the same command")
            )
        if not completed:
            raise SearchError(self._failure(rows))
        comparison: list[dict[str, Any]] = []
        if not left:
            for each in (self.folder / TRIALS).glob(f"*/{RUN}/checkpoints"):
                shutil.rmtree(each)  # with which Hyperband might have gone on
            if self.search.job.kind == "evaluation":
                if self.progress:
                    print("Evaluating on both splits ...", file=sys.stderr, flush=True)
                try:
                    comparison = self.compare(rows)
                except Stopped:
                    raise Stopped(
                        "Stopped after the last trial, but before both splits were evaluated. "
                        + self._way_on("the same command")
                    ) from None
        self.write_results(rows, comparison)
        return self.tuner

    def _run_trials(self, workers: int, *, is_chief: bool) -> None:
        if is_chief:
            with Chief(self.oracle, address_of_chief()) as chief:
                self.display.say(f"Waiting for workers at {address_of_chief()}.")
                serve(chief, self.poll)
        elif workers > 1:
            with Chief(self.oracle, f"{LOOPBACK}:0") as chief:
                supervise(chief, self.folder, workers, self.poll)
        else:
            self.tuner.search()

    def poll(self) -> bool:
        """Report and show what is new; return whether to stop."""
        if len(self.oracle.end_order) != self.reported:
            self.reported = len(self.oracle.end_order)
            if self.reported:
                report.write_tables(self.folder, self.search.job, self.rows())
        self.display.update()
        return self.interrupts.asked or self.search.is_over()

    def rows(self) -> list[Row]:
        """Return what is known of each trial; of those that have ended it is read once."""
        trials = list(self.oracle.trials.values())
        new = [each for each in trials if each.trial_id not in self.ended]
        # Looked at once: while a chief ends a trial, it is for a moment among both.
        ended = set(self.oracle.end_order)
        running = {each.trial_id for each in list(self.oracle.ongoing_trials.values())} - ended
        read = read_rows(self.folder, self.search.job, new, running)
        found = self.ended | {row.trial: row for row in read}
        self.ended |= {row.trial: row for row in read if row.trial in ended}
        return [
            found[each.trial_id] for each in sorted(trials, key=lambda each: int(each.trial_id))
        ]

    def compare(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Return the perplexities before and after the search, static and dynamic."""
        fixed = self.search.job.fixed
        comparison = []
        for way in ("static", "dynamic"):
            own = [row for row in rows if {**fixed, **row.drawn}.get("evaluation", "static") == way]
            best = best_row(own)
            if best is None:
                continue
            before = {**fixed, "evaluation": way}
            for when, settings in {"before": before, "after": {**fixed, **best.drawn}}.items():
                result: dict[str, Any] = {"evaluation": way, "when": when, "settings": settings}
                for split in ("valid", "test"):
                    folder = self.folder / COMPARISON / f"{way}-{when}-{split}-{best.trial}"
                    folder.mkdir(parents=True, exist_ok=True)
                    write_task(folder, self.search.task_with(settings, split))
                    outcome = run_task(folder, lambda: self.interrupts.asked)
                    if outcome["status"] == "failed":
                        result["message"] = outcome["message"]
                    result[f"{split}_perplexity"] = outcome["val_perplexity"]
                comparison.append(result)
        return comparison

    def write_results(self, rows: list[Row], comparison: list[dict[str, Any]]) -> None:
        """Write `results.json`."""
        best = best_row(rows)
        assert best is not None
        results = {
            "job": self.search.job.name,
            "kind": self.search.job.kind,
            "tuner": self.search.job.tuner,
            "trials": dict(collections.Counter(row.status for row in rows)),
            "best": {
                "trial": best.trial,
                "val_perplexity": best.val_perplexity,
                "best_epoch": best.best_epoch,
                "epochs": best.epochs,
                "parameters": best.parameters,
                "settings": best.drawn,
            },
            "seed": self.search.job.seed,
            "corpus": {
                "sha256": self.search.corpus_sha256,
                "vocabulary_sha256": self.search.vocabulary_sha256,
            },
            "versions": versions(),
        }
        if comparison:
            results["comparison"] = comparison
        write_whole(self.folder / report.RESULTS, json.dumps(results, indent=2) + "\n")

    def _failure(self, rows: list[Row]) -> str:
        """Return why no trial was completed."""
        failed = [row for row in rows if row.status == "failed"]
        if failed:
            which = f"All {len(failed)} trials" if len(failed) > 1 else "The one trial"
            return f"{which} failed. Trial {failed[0].trial}: {failed[0].message}"
        in_time = " in the time of `max_hours`" if self.search.is_over() else ""
        return f"No trial was completed{in_time}. {self._way_on('more time')}"

    def _way_on(self, what: str) -> str:
        if self.search.job.tuner == "grid":
            return "A grid cannot be resumed: search anew, into a new folder."
        return f"Go on with {what} and --resume."
