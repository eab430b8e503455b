"""A running search, and the results that it leaves."""

import collections
import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

from dualnet._files import is_full, write_whole
from dualnet.training import versions
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning.engine import oracles, processes
from dualnet.tuning.engine.chief import Chief, chief_address, serve
from dualnet.tuning.engine.oracles import count_trials, make_oracle
from dualnet.tuning.engine.tuner import Tuner
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.report.display import Display
from dualnet.tuning.report.figures import write_plots
from dualnet.tuning.report.hparams import write_hparams
from dualnet.tuning.report.tables import FIGURES, RESULTS, Row, best_row, read_rows, write_tables
from dualnet.tuning.search_folder import Search
from dualnet.tuning.trial import RUN, TRIALS, Task, write_task

COMPARISON = "comparison"  # the folder of the evaluations before and after a search


class SearchError(ValueError):
    """A search in which no trial was completed; the message says why the first trial failed.

    Example:

    >>> from dualnet.tuning import SearchError
    >>> issubclass(SearchError, ValueError)
    True
    """


def make_tuner(search: Search, poll: Callable[[], bool], hypermodel: Any = None) -> Tuner:
    """Return the tuner, with the trials of the search so far."""
    oracle = make_oracle(search.job, epochs=search.epochs)
    if search.deadline is not None:
        oracle.deadline = search.deadline
    return Tuner(oracle, hypermodel, search, poll)


class SearchRun:
    """Runs a search to its end, or until `interrupts` ask to stop."""

    def __init__(
        self, search: Search, hypermodel: HyperModel | None, interrupts: Interrupts, progress: bool
    ) -> None:
        self.search = search
        self.job = search.job
        self.folder = search.folder
        self.interrupts = interrupts
        self.tuner = make_tuner(search, self.poll, hypermodel)
        self.oracle = self.tuner.oracle
        self.ended: dict[str, Row] = {}
        self.reported = -1  # number of ended trials in the tables
        total = count_trials(self.oracle)
        self.display = Display(search.job, self.rows, total, search.deadline, show=progress)

    def run(self, workers: int, *, is_chief: bool) -> Tuner:
        """Run all trials, report, and return the tuner."""
        try:
            return self._run(workers, is_chief=is_chief)
        except OSError as error:
            if not is_full(error):
                raise
            message = "`output` must be a folder with space for the search. Received: "
            way_out = f"{str(error).rstrip('.')}. Free some space. {self._how_to_continue()}"
            raise OSError(message + way_out) from None

    def _run(self, workers: int, *, is_chief: bool) -> Tuner:
        with self.display:
            with contextlib.suppress(Stopped):
                if is_chief:
                    with Chief(self.oracle, chief_address()) as chief:
                        self.display.say(f"Waiting for workers at {chief_address()}.")
                        serve(chief, self.poll)
                else:
                    self.tuner.search(workers)
            for name in [] if is_chief else list(self.oracle.ongoing_trials):
                self.oracle.release(name)  # no process of this machine works on it any more
            self.display.update(at_once=True)
        rows = self.rows()
        left_out: dict[str, str] = {}
        if rows:
            write_tables(self.folder, self.job, rows)
            left_out = write_plots(self.folder, self.job, rows)
            write_hparams(self.folder, self.job, rows)
        left = sum(not row.has_ended for row in rows)
        completed = sum(row.status == "completed" for row in rows)
        if self.interrupts.asked:
            begun = f"{completed} trials completed and {left} begun."
            raise Stopped(f"Stopped, with {begun} {self._how_to_continue()}")
        if not completed:
            raise SearchError(self._failure(rows))
        total = count_trials(self.oracle)
        if total and len(rows) < total and not (left or self.search.is_over()):
            self.display.say(
                f"Ended after {len(rows)} of at most {total} trials: the tuner found no further "
                "values that had not been tried."
            )
        comparison: list[dict[str, Any]] = []
        if not left:
            for checkpoints in (self.folder / TRIALS).glob(f"*/{RUN}/checkpoints"):
                shutil.rmtree(checkpoints)  # kept so that Hyperband could continue a trial
            if self.job.kind == "evaluation":
                comparison = self._compare(rows)
        self._write_results(rows, comparison, left_out)
        return self.tuner

    def poll(self) -> bool:
        """Write and show what is new; return whether to stop."""
        if self.oracle.unwritten is not None:
            raise self.oracle.unwritten
        if len(self.oracle.end_order) != self.reported:
            self.reported = len(self.oracle.end_order)
            if self.reported:
                write_tables(self.folder, self.job, self.rows())
        self.display.update()
        return self.interrupts.asked or self.search.is_over()

    def rows(self) -> list[Row]:
        """Return a row for each trial so far; ended trials are read from disk once."""
        trials = list(self.oracle.trials.values())
        new = [trial for trial in trials if trial.trial_id not in self.ended]
        # Read once: while a chief ends a trial, it is briefly in both lists.
        ended = set(self.oracle.end_order)
        ongoing = {trial.trial_id for trial in list(self.oracle.ongoing_trials.values())} - ended
        rows = {row.trial: row for row in read_rows(self.folder, self.job, new, ongoing)}
        self.ended |= {trial: row for trial, row in rows.items() if trial in ended}
        rows |= self.ended
        return [rows[trial.trial_id] for trial in sorted(trials, key=lambda t: int(t.trial_id))]

    def _compare(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Return the perplexities before and after the search, static and dynamic."""
        if self.display.show:
            print("Evaluating on both splits ...", file=sys.stderr, flush=True)
        fixed = self.job.fixed
        comparison = []
        for mode in ("static", "dynamic"):
            best = best_row(
                row for row in rows if {**fixed, **row.drawn}.get("evaluation", "static") == mode
            )
            if best is None:
                continue
            after = {**fixed, **best.drawn}
            for when, settings in (("before", {**fixed, "evaluation": mode}), ("after", after)):
                result: dict[str, Any] = {"evaluation": mode, "when": when, "settings": settings}
                for split in ("valid", "test"):
                    folder = self.folder / COMPARISON / f"{mode}-{when}-{split}-{best.trial}"
                    outcome = self._evaluate(folder, settings, split)
                    if outcome["status"] == "failed":
                        result["message"] = outcome["message"]
                    for key in ("val_perplexity", *FIGURES):
                        result[key.replace("val", split, 1)] = outcome.get(key)
                comparison.append(result)
        return comparison

    def _evaluate(self, folder: Any, settings: dict[str, Any], split: str) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        write_task(folder, Task(settings=settings, split=split))
        try:
            return processes.run_task(folder, lambda: self.interrupts.asked)
        except Stopped:
            where = "after the last trial, before both splits were evaluated."
            raise Stopped(f"Stopped {where} {self._how_to_continue()}") from None

    def _write_results(
        self, rows: list[Row], comparison: list[dict[str, Any]], left_out: dict[str, str]
    ) -> None:
        """Write `results.json`; `left_out` are names of plots and why they are not drawn."""
        best, job, search = best_row(rows), self.job, self.search
        assert best is not None
        keys = ("trial", "val_perplexity", "best_epoch", "epochs", "parameters", *FIGURES)
        results = {
            "job": job.name,
            "kind": job.kind,
            "tuner": job.tuner,
            "trials": dict(collections.Counter(row.status for row in rows)),
            "best": {**{key: getattr(best, key) for key in keys}, "settings": best.drawn},
            "seed": job.seed,
            "corpus": {
                "sha256": search.corpus_sha256,
                "vocabulary_sha256": search.vocabulary_sha256,
            },
            "versions": versions(),
        }
        if comparison:
            results["comparison"] = comparison
        if left_out:
            results["left_out"] = left_out
        write_whole(self.folder / RESULTS, json.dumps(results, indent=2) + "\n")

    def _failure(self, rows: list[Row]) -> str:
        """Return the error message of a search without a completed trial."""
        failed = [row for row in rows if row.status == "failed"]
        if failed:
            subject = f"All {len(failed)} trials" if len(failed) > 1 else "The only trial"
            rule = ""
            if len(failed) >= oracles.FAILURES:
                rule = f", and a search ends if its first {oracles.FAILURES} do"
            return f"{subject} failed{rule}. Trial {failed[0].trial}: {failed[0].message}"
        limit = " within `max_hours`" if self.search.is_over() else ""
        return f"No trial was completed{limit}. {self._how_to_continue('more time')}"

    def _how_to_continue(self, what: str = "the same command") -> str:
        if self.job.tuner == "grid":
            return "A grid search cannot be resumed: start a new one in another folder."
        return f"Continue with {what} and --resume."
