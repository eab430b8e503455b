"""Searches: `search`, and what a folder of one holds."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from dualnet import corpora, zoo
from dualnet._checks import check_choice, check_count, check_penalty
from dualnet._files import make_folder, write_whole
from dualnet.corpora import Corpus, Vocabulary
from dualnet.training import (
    card_for,
    corpus_of_run,
    read_card,
    split_overrides,
    versions,
)
from dualnet.training.combining import GATED
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.run_folder import WORDS
from dualnet.tuning import report
from dualnet.tuning.display import Display
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.jobs import TUNERS, Job, load_job
from dualnet.tuning.oracles import count_trials, make_oracle
from dualnet.tuning.trial import RUN, Task, write_corpus, write_task
from dualnet.tuning.tuner import TRIALS, Tuner, run_task
from dualnet.tuning.workers import LOOPBACK, Chief, serve, supervise

JOB, ABOUT = "job.toml", "search.json"
CORPUS_FOLDER, COMPARISON = "corpus", "comparison"
# What may be given anew with `resume`.
RESUMABLE = ("max_trials", "max_hours", "max_hours_per_trial")
WAIT = 3600.0  # seconds that a worker waits for its chief, as KerasTuner's do


class SearchError(ValueError):
    """A search without a result; says what the first trial failed of."""


def search(
    job: Job | str | os.PathLike[str],
    corpus: Corpus | str | None = None,
    *,
    output: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    tuner: str | None = None,
    max_trials: int | None = None,
    max_hours: float | None = None,
    max_hours_per_trial: float | None = None,
    workers: int = 1,
    seed: int | None = None,
    resume: bool = False,
    checkpoint_steps: int = 500,
    progress: bool = True,
    **settings: Any,
) -> Tuner:
    """Search the space of `job` and keep everything in the folder `output`.

    Each trial runs in a process of its own. Of a trial whose process is killed nothing is
    lost but the steps since its last checkpoint; the same holds for the whole search, with
    `resume`. The folder gets `trials.csv` and `best.toml` after each trial; at the end
    `parallel_coordinates.png`, `importance.png` and TensorBoard's HParams too; and, of a
    job of the kind "evaluation", `results.json`: the perplexities before and after, on the
    validation and on the test split.

    The environment variables of KerasTuner make this process the chief, or a worker, of a
    search on several machines that share the folder `output`: KERASTUNER_TUNER_ID ("chief",
    or any other name for each worker), KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT, the
    address of the chief. All of them call `search` with the same arguments.

    Args:
        job: name of a job, path of one of your own (.toml), or `Job`.
        corpus: `Corpus`, or what `corpora.load` takes. By default, for the kinds "gate" and
            "evaluation", what the RUN was trained on.
        output: folder, new or empty unless `resume`.
        run: RUN folder that a job of the kind "gate" or "evaluation" is for.
        tuner: "random", "bayesian", "hyperband" or "grid"; default: the job's.
        max_trials: int. Most trials; default: the job's. Hyperband has its own number.
        max_hours: float. Time after which no trial begins and those under way are left for
            `resume`; default: the job's. It counts anew with `resume`.
        max_hours_per_trial: float. Time after which a trial ends with what it has.
        workers: int. Trials at a time on this machine. Above 1, a chief and so many workers
            talk over a port that is open to this machine alone.
        seed: int. Of the search and of each trial; default: the job's.
        resume: bool. Go on with the search in `output`, with its own settings; `max_trials`
            and the hours may be given anew.
        checkpoint_steps: int. Steps between two checkpoints of a training.
        progress: bool. Show a table of the trials on standard error.
        **settings: values of the space that are fixed instead of searched, and other
            arguments of builder, recipe or evaluation; `parameters` is a budget.

    Returns:
        The tuner of KerasTuner, with `get_best_hyperparameters`, `get_best_models` (of
        trainings), `results_summary` and `oracle.trials`; the best are completed trials only.

    Raises:
        ValueError: for a job, corpus or setting that does not fit.
        SearchError: if no trial was completed.
        FileExistsError: if `output` holds files and `resume` is False.
        FileNotFoundError: if there is no search in `output` to resume, or no RUN.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; all trials have been saved.
    """
    folder = Path(output)
    role = _role()
    if role == "worker":
        found = _wait_for(folder)
        found.work()
        return found.tuner(lambda: False)
    job = _given(
        job,
        settings,
        tuner,
        seed,
        max_trials=max_trials,
        max_hours=max_hours,
        max_hours_per_trial=max_hours_per_trial,
    )
    check_count("workers", workers, least=1)
    check_count("checkpoint_steps", checkpoint_steps, least=1)
    if role == "chief" and workers != 1:
        raise ValueError(
            "`workers` must be left out where KERASTUNER_TUNER_ID makes this process a chief, "
            f"whose workers begin by themselves. Received: workers={workers}."
        )
    if resume and job.tuner == "grid":
        raise ValueError(
            "`resume` must be False with the tuner 'grid', since KerasTuner forgets which "
            "combinations are left. Received: resume=True. Search anew, into a new folder."
        )
    with _claimed(folder, resume=resume), Interrupts() as interrupts:
        found, loaded = _begin(folder, job, corpus, run, checkpoint_steps, resume=resume)
        return _run(found, loaded, workers, role == "chief", interrupts, progress)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What the processes of one search share; stands in `job.toml` and `search.json`.

    Attributes:
        folder: The folder of the search.
        job: `Job`.
        run: RUN folder, "" without one.
        corpus: What `corpora.load` takes, or a folder of `write_corpus`; "" for that of `run`.
        corpus_sha256, vocabulary_sha256: Of the corpus as it was when the search began.
        checkpoint_steps: Steps between two checkpoints.
        deadline: Time, as `time.time()`, at which the search is stopped; None for never.
    """

    folder: Path
    job: Job
    run: str
    corpus: str
    corpus_sha256: str
    vocabulary_sha256: str
    checkpoint_steps: int
    deadline: float | None

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return what a trial with these values of `HyperParameters` is to do."""
        settings, hours = self.job.settings(values), self.job.max_hours_per_trial
        return dataclasses.replace(
            self.task_with(settings),
            epochs=values.get("tuner/epochs"),
            max_seconds=None if hours is None else hours * 3600,
        )

    def task_with(self, settings: Mapping[str, Any], split: str = "valid") -> Task:
        """Return what is to be done for `settings`, without limit."""
        job = self.job
        return Task(
            kind=job.kind,
            model=job.model,
            run=self.run,
            corpus=self.corpus,
            settings=settings,
            split=split,
            parameters=job.parameters,
            solve_for=job.solve_for,
            seed=job.seed,
            early_stopping=job.early_stopping,
            checkpoint_steps=self.checkpoint_steps,
            keep_checkpoints=job.tuner == "hyperband",
        )

    def tuner(self, poll: Callable[[], bool], hypermodel: HyperModel | None = None) -> Tuner:
        """Return the tuner, with the trials that the search has so far."""
        oracle = make_oracle(self.job, epochs=self.epochs())
        if self.deadline is not None:
            oracle.deadline = self.deadline
        return Tuner(oracle, hypermodel, self.folder, self.task, poll)

    def epochs(self) -> int:
        """Return the epochs of a whole trial."""
        if self.job.kind == "training":
            card = card_for(self.job.model, self.corpus)
            return split_overrides(card, self.job.fixed)[1].epochs
        return int(self.job.fixed.get("epochs", zoo.card(GATED).recipe["epochs"]))

    def is_over(self) -> bool:
        """Return whether its time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def work(self) -> bool:
        """Run trials that a chief gives out; return whether there are no more."""
        with Interrupts() as interrupts:
            try:
                self.tuner(lambda: interrupts.asked or self.is_over()).search()
            except Stopped:
                return self.is_over()
        return True

    def write(self) -> None:
        """Write `job.toml` and `search.json`."""
        write_whole(self.folder / JOB, self.job.to_toml())
        about = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("folder", "job")
        }
        about["versions"] = versions()
        write_whole(self.folder / ABOUT, json.dumps(about, indent=2) + "\n")


def read_search(folder: Path) -> Search:
    """Return the search that was begun in `folder`."""
    about = json.loads((folder / ABOUT).read_text("utf-8"))
    del about["versions"]
    return Search(folder=folder, job=load_job(folder / JOB), **about)


def _given(
    job: Job | str | os.PathLike[str],
    settings: Mapping[str, Any],
    tuner: str | None,
    seed: int | None,
    **limits: Any,
) -> Job:
    """Return the job with what was given in place of its own."""
    job = job if isinstance(job, Job) else load_job(job)
    given: dict[str, Any] = {}
    if tuner is not None and check_choice("tuner", tuner, TUNERS) != job.tuner:
        given |= {"tuner": tuner, "tuner_options": {}}
        if tuner != "grid" and limits["max_trials"] is None and job.max_trials is None:
            given["max_trials"] = Job.max_trials
        if tuner == "hyperband":
            given["early_stopping"] = "none"  # which it is itself
    for name, limit in limits.items():
        if limit is None:
            continue
        if name == "max_trials":
            check_count(name, limit, least=1)
        elif check_penalty(name, limit) == 0:
            raise ValueError(f"`{name}` must be above 0. Received: {name}={limit!r}.")
        given[name] = limit
    if seed is not None:
        given["seed"] = check_count("seed", seed, least=0)
    return dataclasses.replace(job, **given).with_settings(settings)


def _begin(
    folder: Path,
    job: Job,
    corpus: Corpus | str | None,
    run: str | os.PathLike[str] | None,
    checkpoint_steps: int,
    *,
    resume: bool,
) -> tuple[Search, Corpus]:
    """Write what the processes of the search share; return it and the corpus."""
    run = _checked_run(job, run)
    if corpus is None and not run:
        raise ValueError("`corpus` must be given for a job of the kind 'training'.")
    loaded, name = _corpus(folder, job, corpus, run)
    if job.kind == "training":
        # Says at once what all trials would fail of.
        split_overrides(card_for(job.model, loaded), job.fixed)
    found = Search(
        folder=folder,
        job=job,
        run=run,
        corpus=name,
        corpus_sha256=loaded.sha256,
        vocabulary_sha256=loaded.vocabulary.sha256,
        checkpoint_steps=checkpoint_steps,
        deadline=None if job.max_hours is None else time.time() + job.max_hours * 3600,
    )
    make_oracle(job, epochs=found.epochs())  # nothing is written if it cannot be
    if resume:
        _check_same(read_search(folder), found)
    if isinstance(corpus, Corpus):
        write_corpus(folder / CORPUS_FOLDER, corpus)
    found.write()
    return found, loaded


def _checked_run(job: Job, run: str | os.PathLike[str] | None) -> str:
    if job.kind == "training":
        if run is not None:
            raise ValueError(
                f"`run` must be left out for a job of the kind 'training'. Received: {str(run)!r} "
                f"with the job {job.name!r}."
            )
        return ""
    if run is None:
        raise ValueError(
            f"`run` must be given, a RUN folder, for a job of the kind {job.kind!r}. Received: the "
            f"job {job.name!r} without it. Train a model first, with `dualnet train`."
        )
    read_card(run)
    return str(Path(run).resolve())


def _corpus(folder: Path, job: Job, corpus: Corpus | str | None, run: str) -> tuple[Corpus, str]:
    """Return the corpus, and what the processes of trials load it by."""
    if isinstance(corpus, Corpus):
        return corpus, str((folder / CORPUS_FOLDER).resolve())
    if run:
        vocabulary = Vocabulary.load(
            Path(run) / WORDS, lowercase=read_card(run)["corpus"]["lowercase"]
        )
        if corpus is None:
            return corpus_of_run(run), ""
        name = _absolute(corpus)
        return corpora.load(name, lowercase=vocabulary.lowercase, vocabulary=vocabulary), name
    assert corpus is not None
    name = _absolute(corpus)
    card = card_for(job.model, name)
    return corpora.load(name, lowercase=card.lowercase), name


def _absolute(corpus: str) -> str:
    return corpus if corpus in corpora.NAMES else str(Path(corpus).resolve())


def _check_same(before: Search, now: Search) -> None:
    """Raise `ValueError` if a search cannot go on so."""
    old = dataclasses.replace(
        before.job, file="", **{key: getattr(now.job, key) for key in RESUMABLE}
    )
    new = dataclasses.replace(now.job, file="")
    changed = [
        field.name
        for field in dataclasses.fields(Job)
        if getattr(old, field.name) != getattr(new, field.name)
    ]
    for key in ("run", "corpus_sha256", "vocabulary_sha256", "checkpoint_steps"):
        if getattr(before, key) != getattr(now, key):
            changed.append(key)
    if changed:
        raise ValueError(
            f"`{changed[0]}` must stay as the search began in {str(now.folder)!r}. Received: "
            f"another {', another '.join(changed)} with resume. Give what it began with, as "
            f"{JOB} and {ABOUT} tell, or search anew in another folder."
        )


@contextlib.contextmanager
def _claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold `folder` for this process alone, as long as the search runs."""
    if resume and not (folder / ABOUT).is_file():
        raise FileNotFoundError(
            f"`output` must be the folder of a search to resume. Received: {str(folder)!r}, "
            f"without {ABOUT}. Search anew, without --resume."
        )
    made = not folder.exists()
    make_folder("output", folder)
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(
            f"`output` must be a folder that no other search uses. Received: {str(folder)!r}, "
            "which is in use. Wait for the other, or choose another folder."
        ) from None
    try:
        if not resume and any(path.name != ".lock" for path in folder.iterdir()):
            raise FileExistsError(
                f"`output` must be a new or empty folder. Received: {str(folder)!r}, which holds "
                "files. Choose another, or go on with the search in it with --resume."
            )
        yield
    except BaseException:
        if made and {path.name for path in folder.iterdir()} <= {".lock"}:
            lock.release()
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
        raise
    finally:
        lock.release()


# --- several machines


def _role() -> str:
    """Return what KerasTuner's environment variables make of this process, "" without them."""
    names = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")
    given = [name for name in names if os.environ.get(name)]
    if not given:
        return ""
    if len(given) < len(names):
        missing = [name for name in names if name not in given]
        raise ValueError(
            f"{', '.join(names)} must be set together. Received: {', '.join(given)} without "
            f"{', '.join(missing)}. Set all of them, or none for a search on this machine alone."
        )
    return "chief" if "chief" in os.environ["KERASTUNER_TUNER_ID"] else "worker"


def _wait_for(folder: Path) -> Search:
    """Return the search that the chief begins in `folder`."""
    until = time.monotonic() + WAIT
    while not (folder / ABOUT).is_file():
        if time.monotonic() > until:
            raise FileNotFoundError(
                f"`output` must be a folder that this machine shares with the chief. Received: "
                f"{str(folder)!r}, without {ABOUT} for {WAIT / 60:.0f} minutes."
            )
        time.sleep(1)
    return read_search(folder)


# --- at work


def _run(
    found: Search,
    corpus: Corpus,
    workers: int,
    is_chief: bool,
    interrupts: Interrupts,
    progress: bool,
) -> Tuner:
    """Run the search to its end, and report."""
    model = HyperModel(found.job, corpus) if found.job.kind == "training" else None
    tuner = found.tuner(lambda: poll(), model)
    oracle = tuner.oracle
    address = f"{LOOPBACK}:0"
    if is_chief:
        variables = os.environ["KERASTUNER_ORACLE_IP"], os.environ["KERASTUNER_ORACLE_PORT"]
        address = ":".join(variables)
    display = Display(
        found.job,
        lambda: _rows(found, tuner),
        total=count_trials(oracle),
        workers=max(len(oracle.tuner_ids), 1) if is_chief else workers,
        deadline=found.deadline,
        show=progress,
    )
    reported = -1

    def poll() -> bool:
        nonlocal reported
        if len(oracle.end_order) != reported:
            reported = len(oracle.end_order)
            _report(found, tuner)
        display.update()
        return interrupts.asked or found.is_over()

    with display:
        with contextlib.suppress(Stopped):
            if is_chief or workers > 1:
                with Chief(oracle, address) as chief:
                    if is_chief:
                        display.say(f"Waiting for workers at {address}.")
                        serve(chief, poll)
                    else:
                        supervise(chief, found.folder, workers, poll)
            else:
                tuner.search()
        display.update(at_once=True)
    rows = _report(found, tuner, at_end=True)
    completed = sum(row.status == "completed" for row in rows)
    left = [row.trial for row in rows if row.status in ("running", "unfinished")]
    if interrupts.asked:
        raise Stopped(
            f"Stopped and saved, with {completed} trials completed and {len(left)} begun. Go on "
            "with the same command and --resume."
        )
    if not completed:
        raise SearchError(_failure(rows))
    comparison: list[dict[str, Any]] = []
    if not left:
        for each in (found.folder / TRIALS).glob(f"*/{RUN}/checkpoints"):
            shutil.rmtree(each)  # with which Hyperband might have gone on
        if found.job.kind == "evaluation":
            if progress:
                print("Evaluating on both splits ...", file=sys.stderr, flush=True)
            with contextlib.suppress(Stopped):
                comparison = _compare(found, rows, lambda: interrupts.asked)
    _write_results(found, rows, comparison)
    return tuner


def _rows(found: Search, tuner: Tuner) -> list[report.Row]:
    """Return what is known of each trial."""
    running = {trial.trial_id for trial in list(tuner.oracle.ongoing_trials.values())}
    return report.read_rows(found.folder, found.job, list(tuner.oracle.trials.values()), running)


def _report(found: Search, tuner: Tuner, *, at_end: bool = False) -> list[report.Row]:
    """Write `trials.csv` and `best.toml`, and at the end what takes longer."""
    rows = _rows(found, tuner)
    if rows:
        (report.report if at_end else report.write_tables)(found.folder, found.job, rows)
    return rows


def _failure(rows: list[report.Row]) -> str:
    """Return why no trial was completed."""
    failed = [row for row in rows if row.status == "failed"]
    if not failed:
        return (
            "No trial was completed in the time of `max_hours`. Go on with --resume and more of it."
        )
    first = failed[0]
    return f"All {len(failed)} trials failed. Trial {first.trial}: {first.message}"


def _write_results(found: Search, rows: list[report.Row], comparison: list[dict[str, Any]]) -> None:
    """Write `results.json`."""
    best = report.best_row(rows)
    assert best is not None
    results = {
        "job": found.job.name,
        "kind": found.job.kind,
        "tuner": found.job.tuner,
        "trials": dict(collections.Counter(row.status for row in rows)),
        "best": {
            "trial": best.trial,
            "val_perplexity": best.val_perplexity,
            "best_epoch": best.best_epoch,
            "epochs": best.epochs,
            "parameters": best.parameters,
            "settings": best.drawn,
        },
        "seed": found.job.seed,
        "corpus": {"sha256": found.corpus_sha256, "vocabulary_sha256": found.vocabulary_sha256},
        "versions": versions(),
    }
    if comparison:
        results["comparison"] = comparison
    write_whole(found.folder / report.RESULTS, json.dumps(results, indent=2) + "\n")


def _compare(
    found: Search, rows: list[report.Row], poll: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Return the perplexities before and after the search, static and dynamic."""
    job = found.job
    comparison = []
    for way in ("static", "dynamic"):
        own = [row for row in rows if {**job.fixed, **row.drawn}.get("evaluation", "static") == way]
        best = report.best_row(own)
        if best is None:
            continue
        before = {**job.fixed, "evaluation": way}
        for when, settings in {"before": before, "after": {**job.fixed, **best.drawn}}.items():
            result: dict[str, Any] = {"evaluation": way, "when": when, "settings": settings}
            for split in ("valid", "test"):
                folder = found.folder / COMPARISON / f"{way}-{when}-{split}-{best.trial}"
                folder.mkdir(parents=True, exist_ok=True)
                write_task(folder, found.task_with(settings, split))
                outcome = run_task(folder, poll)
                if outcome["status"] == "failed":
                    result["message"] = outcome["message"]
                result[f"{split}_perplexity"] = outcome["val_perplexity"]
            comparison.append(result)
    return comparison
