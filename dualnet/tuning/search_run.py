"""Begins, resumes and runs searches, and writes the results that they leave."""

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError, StrPath
from dualnet._fields import documented
from dualnet._files import claim, is_full, sha256_of, write_whole
from dualnet.corpora import Corpus
from dualnet.requests import ReadingCorpus
from dualnet.runs import Run
from dualnet.runs.folder import WEIGHTS
from dualnet.training import card_for, split_overrides, versions
from dualnet.training.from_runs import GATED
from dualnet.training.initial_weights import reading
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning import search_folder
from dualnet.tuning.engine import oracles, processes
from dualnet.tuning.engine.chief import Chief, chief_address, role, serve
from dualnet.tuning.engine.oracles import count_trials, make_oracle
from dualnet.tuning.engine.tuner import Tuner
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job, Searching
from dualnet.tuning.job_checks import EVALUATIONS, check_job
from dualnet.tuning.loading import load_job
from dualnet.tuning.report.display import Display
from dualnet.tuning.report.figures import write_plots
from dualnet.tuning.report.hparams import write_hparams
from dualnet.tuning.report.tables import FIGURES, RESULTS, Row, best_row, read_rows, write_tables
from dualnet.tuning.search_folder import Search
from dualnet.tuning.trial import RUN, TRIALS, Task, read_task, write_task

COMPARISON = "comparison"  # the folder of the evaluations before and after a search


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
        self.ended: dict[str, Row] = {}
        self.reported = 0  # number of ended trials in the tables
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
        if rows := self.rows():
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
            message = f"Ended after {len(rows)} of at most {total} trials: the tuner found no "
            self.display.say(f"{message}further values that had not been tried.")
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
        fixed, comparison = {"evaluation": EVALUATIONS[0], **self.job.fixed}, []
        for mode in EVALUATIONS:
            of_mode = [row for row in rows if {**fixed, **row.drawn}["evaluation"] == mode]
            if (best := best_row(of_mode)) is None:
                continue
            after = dict(read_task(self.folder / TRIALS / best.trial).settings)
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
            **({"comparison": comparison} if comparison else {}),
            **({"left_out": left_out} if left_out else {}),
        }
        write_whole(self.folder / RESULTS, json.dumps(results, indent=2) + "\n")

    def _failure(self, rows: list[Row]) -> str:
        """Return the error message of a search without a completed trial."""
        if failed := [row for row in rows if row.status == "failed"]:
            subject = f"All {len(failed)} trials" if len(failed) > 1 else "The only trial"
            ends = f", and a search ends if its first {oracles.FAILURES} do"
            rule = ends if len(failed) >= oracles.FAILURES else ""
            return f"{subject} failed{rule}. Trial {failed[0].trial}: {failed[0].message}"
        limit = " within `max_hours`" if self.search.is_over() else ""
        return f"No trial was completed{limit}. {self._how_to_continue('more time')}"

    def _how_to_continue(self, what: str = "the same command") -> str:
        if self.job.tuner == "grid":
            return "A grid search cannot be resumed: start a new one in another folder."
        return f"Continue with {what} and --resume."


CHIEF_SECONDS = 3600.0  # how long a worker waits for its chief, as KerasTuner's workers do


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

    After each trial, `output` has `trials.csv` and `best.toml`; at the end also
    `parallel_coordinates.png`, `importance.png` (from ten completed trials on), TensorBoard's
    HParams and `results.json`. For a job of the kind "evaluation", `results.json` compares the
    perplexities before and after the search on the validation and test splits.

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
        progress: bool. Whether to show a table of the trials on standard error.
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
    own = settings.keys() & {*Searching.names()}
    request = Searching(**{name: settings.pop(name) for name in own})
    job = job if isinstance(job, Job) else load_job(job)
    read_as, overrides = reading(corpus, settings)
    job = _changed(job, request).with_settings(overrides)
    check_job(job)
    if process_role == "chief" and request.workers != 1:
        message = "must be left out for a chief, whose workers are started separately."
        raise ArgumentError("workers", message, workers=request.workers)
    if resume and job.tuner == "grid":
        message = "must be False for the tuner 'grid': KerasTuner forgets which trials are left."
        way_out = " Start a new search in another folder."
        raise ArgumentError("resume", message, way_out, resume=True)
    if resume and not (folder / SEARCH).is_file():
        message = f"`output` must be the folder of a search to resume. Received: {str(folder)!r},"
        way_out = "Start a new search, without --resume."
        raise FileNotFoundError(f"{message} without {SEARCH}. {way_out}")
    leftover = (JOB, CORPUS)  # of a search that was killed as it began
    claimed = claim(folder, holds="search", resume=resume, may_hold=leftover)
    with claimed, Interrupts() as interrupts:
        read = search_folder.unaltered(folder, "The files")
        with read if resume else contextlib.nullcontext():
            state, hypermodel = _begin(
                folder, job, corpus, read_as, run, request.checkpoint_steps, resume=resume
            )
            if progress and hypermodel and hypermodel.corpus.note:
                print(hypermodel.corpus.note, file=sys.stderr, flush=True)
            search_run = SearchRun(state, hypermodel, interrupts, progress)
        return search_run.run(request.workers, is_chief=process_role == "chief")


def _changed(job: Job, request: Searching) -> Job:
    """Return `job` with the limits, tuner and seed of `request` in place of its own."""
    tuner = request.tuner
    changes = request.given(("max_trials", "max_hours", "max_hours_per_trial", "seed"))
    if tuner not in (None, job.tuner):
        changes |= {"tuner": tuner, "tuner_options": {}}
        if tuner == "hyperband":
            changes["early_stopping"] = "none"  # it ends trials early itself
        default = None if tuner == "grid" else job.max_trials or Job.max_trials
        changes.setdefault("max_trials", default)
    if zoo.is_file(job.model):
        changes["model"] = os.path.abspath(job.model)
    return dataclasses.replace(job, **changes)


def _begin(
    folder: Path,
    job: Job,
    corpus: Corpus | str | None,
    read_as: Mapping[str, Any],
    run: StrPath | None,
    checkpoint_steps: int,
    *,
    resume: bool,
) -> tuple[Search, HyperModel | None]:
    """Write what the processes of the search share; return it and the models of a training."""
    opened = _open_run(job, run)
    if corpus is None and not opened:
        raise ArgumentError("corpus", "must be given for a job of the kind 'training'.")
    for key, value in read_as.items() if opened else ():
        message = "must be left out for a job over a RUN, whose tokeniser reads the text."
        raise ArgumentError(key, message, **{key: value})
    written, name = folder / CORPUS, CORPUS
    before = search_folder.read_search(folder) if resume else None
    if isinstance(corpus, Corpus):
        loaded = corpus
    else:
        place = corpus or ""
        if place and place not in corpora.NAMES:
            place = str(Path(place).expanduser().resolve())
        had_name = before is None or before.corpus not in (CORPUS, str(written.resolve()))
        name = place if had_name and not read_as else CORPUS
        if corpus and before and written.is_dir():  # with the tokeniser that was learnt
            loaded = search_folder.resumed_corpus(written, corpus, read_as)
        elif corpus and before and (run_of_trial := search_folder.run_of_a_trial(folder)):
            loaded = search_folder.load_corpus(corpus, job.model, run_of_trial, {})
        else:
            loaded = search_folder.load_corpus(place, job.model, opened, read_as)
    hypermodel = None
    epochs = int(job.fixed.get("epochs", zoo.card(GATED).recipe["epochs"]))
    if job.kind == "training":
        card = card_for(job.model, loaded if name == CORPUS else name)
        hypermodel = HyperModel(job, loaded, card)
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
    if before:
        search_folder.check_resumable(before, state)
    if not (before and written.is_dir()):
        search_folder.write_corpus(written, loaded)
    state.write()
    return state, hypermodel


def _open_run(job: Job, path: StrPath | None) -> Run | None:
    """Open the RUN folder that the job searches the gate or the evaluation of."""
    of_kind = f"for a job of the kind {job.kind!r}"
    if job.kind == "training":
        if path is not None:
            raise ArgumentError("run", f"must be left out {of_kind}. Received: {str(path)!r}.")
        return None
    if path is None:
        way_out = "Train a model first, with `dualnet train`."
        raise ArgumentError("run", f"must be given, a RUN folder, {of_kind}. {way_out}")
    run = Run.open_folder(path).check_language_model()
    if not (run.path / WEIGHTS).is_file():
        message = "`run` must be a RUN folder with weights, which it has after its first epoch."
        way_out = "Continue the training with --resume."
        raise FileNotFoundError(f"{message} Received: {str(path)!r}. {way_out}")
    return run


# --- a worker of another machine


def _work(folder: Path) -> Tuner:
    """Run trials of the chief of the search in `folder` until there are no more."""
    with Interrupts() as interrupts:
        _wait_for_chief(folder, interrupts)
        search = search_folder.read_search(folder)
        tuner = Tuner(search, lambda: interrupts.asked or search.is_over())
        try:
            tuner.search()
        except Stopped:
            if not search.is_over():
                message = "Stopped and saved. Continue the trial with the same command."
                raise Stopped(message) from None
        except grpc.RpcError as error:
            received = f"{error}. Start it again with --resume, then this worker"
            message = f"The chief at {chief_address()} must answer. Received: {received}."
            raise OSError(message) from None
        except OSError as error:
            if not is_full(error):
                raise
            raise OSError(f"{error} Free some space, then start this worker again.") from None
    return tuner


def _wait_for_chief(folder: Path, interrupts: Interrupts) -> None:
    """Return once the chief answers; by then it has written `search.json`."""
    end = time.monotonic() + CHIEF_SECONDS
    while time.monotonic() < end:
        if interrupts.asked:
            raise Stopped("Stopped before the chief answered.")
        with grpc.insecure_channel(chief_address()) as channel:
            try:
                grpc.channel_ready_future(channel).result(1.0)
            except grpc.FutureTimeoutError:
                continue
        if (folder / SEARCH).is_file():
            return
        message = "`output` must be a folder that this machine shares with the chief. Received: "
        received = f"{str(folder)!r}, without {SEARCH}. Use the chief's folder"
        raise FileNotFoundError(f"{message}{received}.")
    received = f"nothing for {CHIEF_SECONDS / 60:.0f} minutes. Start it, then this worker"
    raise OSError(f"The chief at {chief_address()} must answer. Received: {received}.")
