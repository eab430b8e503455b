"""Begins, resumes and runs searches, and writes the results that they leave."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import grpc

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet._fields import documented
from dualnet._files import claim, sha256_of, write_json
from dualnet.builders.wrapping_stations import Cache, Gate
from dualnet.corpora import Corpus
from dualnet.requests import AdaptationRule, ReadingCorpus
from dualnet.runs import Run
from dualnet.runs.folder import RESULTS, WEIGHTS
from dualnet.training import Recipe, card_for, split_overrides, versions
from dualnet.training.from_runs import GATED
from dualnet.training.initial_weights import load_with, reading
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.recipe import plain
from dualnet.tuning.engine.chief import Chief, chief_address, role, serve
from dualnet.tuning.engine.oracles import make_oracle
from dualnet.tuning.engine.tuner import Tuner
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job, Searching, load_job
from dualnet.tuning.report import (
    FIGURES,
    Display,
    Row,
    best_row,
    read_rows,
    write_plot,
    write_report,
)
from dualnet.tuning.search_folder import Search, read_search, resumed_corpus, write_corpus
from dualnet.tuning.trial import RUN, TRIALS


class SearchError(ValueError):
    """A search in which no trial was completed; the message says why the first trial failed.

    Example:

    >>> from dualnet.tuning import SearchError
    >>> issubclass(SearchError, ValueError)
    True
    """


class SearchRun:
    """Runs a search to its end, or until `interrupts` ask to stop."""

    def __init__(
        self, search: Search, hypermodel: HyperModel | None, interrupts: Interrupts, progress: bool
    ) -> None:
        self.search = search
        self.job = search.job
        self.folder = search.folder
        self.interrupts = interrupts
        self.tuner = Tuner(search, self.poll, hypermodel)
        self.oracle = self.tuner.oracle
        self.reported = len(self.oracle.end_order)  # number of ended trials in the report
        self.display = Display(self.rows(), show=progress)

    def run(self, workers: int, *, is_chief: bool) -> Tuner:
        """Run all trials, report, and return the tuner."""
        with contextlib.suppress(Stopped):
            if is_chief:
                with Chief(self.oracle, chief_address()) as chief:
                    self.display.say(f"Waiting for workers at {chief_address()}.")
                    serve(chief, self.poll)
            else:
                self.tuner.search(workers)
        for name in [] if is_chief else list(self.oracle.ongoing_trials):
            self.oracle.release(name)  # no process of this machine works on it any more
        rows = self.report()
        write_plot(self.folder, self.job, rows)
        left = sum(not row.has_ended for row in rows)
        best = best_row(rows)
        if self.interrupts.asked:
            completed = sum(row.status == "completed" for row in rows)
            raise Stopped(
                f"Stopped, with {completed} trials completed and {left} begun. Continue with the "
                "same command and --resume."
            )
        if best is None:
            raise SearchError(self._failure(rows))
        if len(rows) < (self.oracle.max_trials or 0) and not (left or self.search.is_over()):
            self.display.say(f"The tuner found no values for more than {len(rows)} trials.")
        if not left:
            for checkpoints in (self.folder / TRIALS).glob(f"*/{RUN}/checkpoints"):
                shutil.rmtree(checkpoints)  # kept so that Hyperband could continue a trial
        self._write_results(rows, best)
        return self.tuner

    def poll(self) -> bool:
        """Write and show what is new; return whether to stop."""
        if self.oracle.unwritten is not None:
            raise self.oracle.unwritten
        if len(self.oracle.end_order) != self.reported:
            self.report()
        return self.interrupts.asked or self.search.is_over()

    def report(self) -> list[Row]:
        """Write and show the trials so far; return their rows."""
        self.reported = len(self.oracle.end_order)
        rows = self.rows()
        if rows:
            write_report(self.folder, self.job, rows)
        self.display.update(rows)
        return rows

    def rows(self) -> list[Row]:
        """Return a row for each trial so far."""
        trials = sorted(self.oracle.trials.values(), key=lambda trial: int(trial.trial_id))
        # While a chief ends a trial, it is briefly in both lists.
        ongoing = {trial.trial_id for trial in list(self.oracle.ongoing_trials.values())}
        return read_rows(self.folder, self.job, trials, ongoing - {*self.oracle.end_order})

    def _write_results(self, rows: list[Row], best: Row) -> None:
        """Write `results.json`."""
        job, search = self.job, self.search
        keys = ("trial", "val_perplexity", "best_epoch", "epochs", "parameters", *FIGURES)
        sums = {"sha256": search.corpus_sha256, "vocabulary_sha256": search.vocabulary_sha256}
        results = {
            "job": job.name,
            "kind": job.kind,
            "tuner": job.tuner,
            "trials": dict(collections.Counter(row.status for row in rows)),
            "best": {**{key: getattr(best, key) for key in keys}, "settings": best.drawn},
            "seed": job.seed,
            "corpus": sums,
            "versions": versions(),
        }
        write_json(self.folder / RESULTS, results)

    def _failure(self, rows: list[Row]) -> str:
        """Return the error message of a search without a completed trial."""
        if failed := [row for row in rows if row.status == "failed"]:
            reason = f"Trial {failed[0].trial}: {failed[0].message}"
            return f"No trial was completed, and {len(failed)} failed. {reason}"
        limit = " within `max_hours`" if self.search.is_over() else ""
        return f"No trial was completed{limit}. Continue with more time and --resume."


@documented(ReadingCorpus, Searching, rest="settings")
def search(
    job: Job | StrPath,
    corpus: Corpus | str | None = None,
    *,
    output: StrPath,
    run: StrPath | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Tuner:
    """Search the space of `job` and keep everything in the folder `output`.

    Each trial runs in a process of its own. If that process, or the whole search, is killed,
    only the steps since the last checkpoint are lost: a killed trial is restarted, a killed
    search continues with `resume`.

    After each trial, `output` has `trials.csv` and `best.toml`; at the end also `search.png` and
    `results.json`. For a job of the kind "evaluation", `best.toml` has the commands that evaluate
    the validation and the test split.

    To search on several machines that share the folder `output`, call `search` with the same
    arguments on each, and set KerasTuner's environment variables: KERASTUNER_TUNER_ID, "chief"
    or another name for each worker, and KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT, the
    address of the chief.

    Args:
        job: name of a job, path of a job file (.toml), or `Job`.
        corpus: `Corpus`, or argument of `corpora.load`. Default for the kinds "gate" and
            "evaluation": the corpus that the RUN was trained on.
        output: folder, new or empty unless `resume`.
        run: RUN folder, for a job of the kind "gate" or "evaluation".
        resume: bool. Continue the search in `output` with its settings; only `max_trials` and
            the time limits may change.
        progress: bool. Whether to show each trial that ends on standard error.
        {arguments}
        **settings: values to fix instead of searching them, and other arguments of builder,
            recipe or evaluation; `parameters` sets a budget of weights.

    Returns:
        A KerasTuner tuner, with `get_best_hyperparameters`, `get_best_models` (for the kinds
        "training" and "gate"), `results_summary` and `oracle.trials`. The best trials are
        completed ones.

    Raises:
        SearchError: if no trial was completed.
        OSError: if all workers are lost, the chief's port is in use, or the disk is full. After
            a full disk nothing is lost: free some space, and continue with `resume`.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the trials under way are saved. A
            second signal stops at once, and leaves them at their last checkpoints.

    Example:

    >>> from dualnet import tuning
    >>> tuner = tuning.search(  # doctest: +SKIP
    ...     "dual_table1", "python-reference", output="searches/mine", max_trials=12, units=64
    ... )
    >>> tuner.get_best_hyperparameters()[0].values["rounds"]  # doctest: +SKIP
    4
    """
    folder = Path(output)
    process_role = role()
    if process_role == "worker":
        return _work(folder)
    limits = {name: settings.pop(name) for name in Searching.names() if name in settings}
    request = Searching(**limits)
    job = job if isinstance(job, Job) else load_job(job)
    read_as, overrides = reading(corpus, settings)
    overrides = {name: plain(value) for name, value in overrides.items()}  # as files hold them
    job = _changed(job, request).with_settings(overrides)
    _check(job)
    if process_role == "chief" and request.workers != 1:
        raise ArgumentError(
            "workers",
            "must be left out for a chief, whose workers are started separately.",
            workers=request.workers,
        )
    if resume and job.tuner == "grid":
        raise ArgumentError(
            "resume",
            "must be False for the tuner 'grid': KerasTuner forgets which trials are left.",
            resume=True,
        )
    leftover = (JOB, CORPUS)  # of a search that was killed as it began
    claimed = claim(folder, resume=resume, may_hold=leftover)
    with claimed, Interrupts() as interrupts:
        before = read_search(folder) if resume else None
        state, hypermodel = _begin(
            folder, job, corpus, read_as, run, request.checkpoint_steps, before
        )
        if progress and hypermodel and hypermodel.corpus.note:
            print(hypermodel.corpus.note, file=sys.stderr, flush=True)
        search_run = SearchRun(state, hypermodel, interrupts, progress)
        return search_run.run(request.workers, is_chief=process_role == "chief")


def _changed(job: Job, request: Searching) -> Job:
    """Return `job` with the limits, tuner and seed of `request` in place of its own."""
    changes = request.given(("max_trials", "max_hours", "max_hours_per_trial", "seed", "tuner"))
    if changes.get("tuner", job.tuner) != job.tuner:
        changes["tuner_options"] = {}
    if zoo.is_file(job.model):
        changes["model"] = os.path.abspath(job.model)
    return dataclasses.replace(job, **changes)


def _check(job: Job) -> None:
    """Raise `ArgumentError` for a setting that no trial can have."""
    if job.kind == "evaluation":
        known = ["evaluation", "temperature", "sequence_length", "batch_size", "window"]
        known += [*AdaptationRule.names(), *Cache.names()]
    elif job.kind == "gate":
        known = [*Gate.names(), *Recipe.names()]
    else:
        known = [*zoo.known_arguments(zoo.card(job.model)), *Recipe.names()]
    solved = job.solved_sizes if job.parameters else ()
    for name in (*job.fixed, *(parameter.name for parameter in job.written)):
        if name in solved:
            raise ArgumentError(name, "must be left out beside `parameters`, which determines it.")
        if name not in known:
            raise ArgumentError(
                name,
                f"is not a setting of a job of the kind {job.kind!r}.",
                did_you_mean(name, known),
            )


def _begin(
    folder: Path,
    job: Job,
    corpus: Corpus | str | None,
    read_as: Mapping[str, object],
    run: StrPath | None,
    checkpoint_steps: int,
    before: Search | None,
) -> tuple[Search, HyperModel | None]:
    """Write what the processes of the search share; return it and the models of a training.

    The search goes on from `before`, unless that is None.
    """
    if (run is None) != (job.kind == "training"):
        rule = "must be given, a RUN folder," if run is None else "must be left out"
        raise ArgumentError("run", f"{rule} for a job of the kind {job.kind!r}.")
    opened = None if run is None else Run.open_folder(run).check_language_model()
    if corpus is None and not opened:
        raise ArgumentError("corpus", "must be given for a job of the kind 'training'.")
    for key, value in read_as.items() if opened else ():
        raise ArgumentError(
            key,
            "must be left out for a job over a RUN, whose tokeniser reads the text.",
            **{key: value},
        )
    name = "" if corpus is None or isinstance(corpus, Corpus) else corpus
    if name and name not in corpora.NAMES:
        name = str(Path(name).expanduser().resolve())
    if isinstance(corpus, Corpus):
        name, loaded = CORPUS, corpus
    elif before is not None:
        loaded = resumed_corpus(folder, name, read_as)
        name = name or before.corpus
    elif opened is None:
        lowercase = card_for(job.model, name).lowercase
        loaded = load_with(None, name, {"lowercase": lowercase, **read_as})
    elif name:
        loaded = load_with(opened.vocabulary, name, opened.own_reading(name))
    else:
        loaded = cast(Corpus, opened.corpus())  # a search takes no translators
    hypermodel = HyperModel(job, loaded) if job.kind == "training" else None
    epochs = 1
    if job.kind != "evaluation":
        card = hypermodel.card if hypermodel else zoo.card(GATED)
        epochs = split_overrides(card, job.fixed)[1].epochs  # fails now, not in every trial
    make_oracle(job, epochs=epochs)  # raises before anything is written
    state = Search(
        folder=folder,
        job=job,
        run=str(opened.path.resolve()) if opened else "",
        corpus=name,
        corpus_sha256=loaded.sha256,
        vocabulary_sha256=loaded.vocabulary.sha256,
        run_sha256=sha256_of(opened.path / WEIGHTS) if opened else "",
        checkpoint_steps=checkpoint_steps,
        epochs=epochs,
        deadline=None if job.max_hours is None else time.time() + job.max_hours * 3600,
    )
    if before is not None:
        state.check_resumes(before)
    if before is None or not (folder / CORPUS).is_dir():
        write_corpus(folder / CORPUS, loaded)
    state.write()
    return state, hypermodel


# --- a worker of another machine


def _work(folder: Path) -> Tuner:
    """Run trials of the chief of the search in `folder` until there are no more."""
    with Interrupts() as interrupts:
        while not (folder / SEARCH).is_file():  # which the chief writes
            if interrupts.asked:
                raise Stopped("Stopped before the chief had begun.")
            time.sleep(0.5)
        search = read_search(folder)
        tuner = Tuner(search, lambda: interrupts.asked or search.is_over())
        try:
            tuner.search()
        except Stopped:
            if not search.is_over():
                raise Stopped(
                    "Stopped and saved. Continue the trial with the same command."
                ) from None
        except grpc.RpcError as error:
            raise OSError(
                f"The chief at {chief_address()} must answer. Received: {error}. Start it again "
                "with --resume, then this worker."
            ) from None
    return tuner
