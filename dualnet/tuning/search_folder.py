"""The folder of a search: what its processes share, and whose it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import grpc

from dualnet._checks import ArgumentError
from dualnet._files import make_folder, write_whole
from dualnet.training import versions
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning.jobs import Job, load_job
from dualnet.tuning.oracles import make_oracle
from dualnet.tuning.trial import Task
from dualnet.tuning.tuner import Tuner

JOB, ABOUT = "job.toml", "search.json"
CORPUS = "corpus"  # folder of one that has no name
# What may be given anew with `resume`.
RESUMABLE = ("max_trials", "max_hours", "max_hours_per_trial")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What the processes of one search share; stands in `job.toml` and `search.json`.

    Attributes:
        folder: The folder of the search.
        job: `Job`.
        run: RUN folder, "" without one.
        corpus: What `corpora.load` takes, or a folder of `write_corpus`; "" for that of `run`.
        corpus_sha256, vocabulary_sha256, run_sha256: Of the corpus and of the weights of
            `run` as they were when the search began.
        checkpoint_steps: Steps between two checkpoints.
        epochs: Of a whole trial.
        deadline: Time, as `time.time()`, at which the search is stopped; None for never.
    """

    folder: Path
    job: Job
    run: str
    corpus: str
    corpus_sha256: str
    vocabulary_sha256: str
    run_sha256: str
    checkpoint_steps: int
    epochs: int
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
            corpus_sha256=self.corpus_sha256,
            settings=settings,
            split=split,
            parameters=job.parameters,
            solve_for=job.solve_for,
            seed=job.seed,
            early_stopping=job.early_stopping,
            checkpoint_steps=self.checkpoint_steps,
            keep_checkpoints=job.tuner == "hyperband",
        )

    def tuner(self, poll: Callable[[], bool], hypermodel: Any = None) -> Tuner:
        """Return the tuner, with the trials that the search has so far."""
        oracle = make_oracle(self.job, epochs=self.epochs)
        if self.deadline is not None:
            oracle.deadline = self.deadline
        return Tuner(oracle, hypermodel, self.folder, self.task, poll)

    def is_over(self) -> bool:
        """Return whether its time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def work(self, interrupts: Interrupts) -> bool:
        """Run trials that a chief gives out; return whether there are no more.

        Raises:
            OSError: if the chief does not answer any more.
        """
        try:
            self.tuner(lambda: interrupts.asked or self.is_over()).search()
        except Stopped:
            return self.is_over()
        except grpc.RpcError as error:
            raise OSError(
                f"The chief at {address_of_chief()} must answer. Received: {error}. Begin it again "
                "with --resume, and then this worker."
            ) from None
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
    """Return the search that was begun in `folder`.

    Raises:
        ValueError: if its files are damaged or altered.
    """
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        del about["versions"]
        return Search(folder=folder, job=load_job(folder / JOB), **about)
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(
            f"{ABOUT} and {JOB} of a search must be as they were written. Received: those in "
            f"{str(folder)!r}, damaged or altered ({type(error).__name__}: {error}). Put them "
            "back, or search anew in another folder."
        ) from None


def address_of_chief() -> str:
    """Return the address that KerasTuner's environment variables give the chief."""
    return ":".join(os.environ[name] for name in ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"))


def check_same(before: Search, now: Search) -> None:
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
    for key in ("run", "run_sha256", "corpus_sha256", "vocabulary_sha256", "checkpoint_steps"):
        if getattr(before, key) != getattr(now, key):
            changed.append(key)
    if changed:
        raise ArgumentError(
            changed[0],
            f"must stay as the search began in {str(now.folder)!r}. Received: "
            f"another {', another '.join(changed)} with resume. Give what it began with, as "
            f"{JOB} and {ABOUT} tell, or search anew in another folder.",
        )


@contextlib.contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
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
        raise ArgumentError(
            "output",
            f"must be a folder that no other search uses. Received: {str(folder)!r}, "
            "which is in use. Wait for the other, or choose another folder.",
        ) from None
    try:
        found = {path.name for path in folder.iterdir()}
        # All that there is of a search that was killed before it had begun.
        begun = {name for name in found if name.startswith(".unfinished-")}
        if not resume and found - begun - {".lock", JOB, CORPUS}:
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
