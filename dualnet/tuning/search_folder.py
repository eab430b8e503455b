"""The folder of a search: what its processes share."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from dualnet._checks import ArgumentError
from dualnet._files import is_full, write_whole
from dualnet.training import versions
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning.engine.chief import chief_address
from dualnet.tuning.engine.oracles import make_oracle
from dualnet.tuning.engine.tuner import Tuner
from dualnet.tuning.job import JOB, Job
from dualnet.tuning.job_files import load_job
from dualnet.tuning.trial import Task

SEARCH = "search.json"
RESUMABLE = ("max_trials", "max_hours", "max_hours_per_trial")  # may change on resuming


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What the processes of a search share; stored in `job.toml` and `search.json`."""

    folder: Path
    job: Job
    run: str  # RUN folder, "" for none
    corpus: str  # as for `corpora.load`, or a folder of `write_corpus`; "": that of `run`
    corpus_sha256: str  # these three when the search began
    vocabulary_sha256: str
    run_sha256: str  # of its weights
    checkpoint_steps: int  # between two checkpoints
    epochs: int  # of a whole trial
    deadline: float | None  # `time.time()` at which the search stops; None for never

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return the task of a trial with these values of `HyperParameters`."""
        hours = self.job.max_hours_per_trial
        return dataclasses.replace(
            self.task_with(self.job.settings(values)),
            epochs=values.get("tuner/epochs"),
            max_seconds=None if hours is None else hours * 3600,
        )

    def task_with(self, settings: Mapping[str, Any], split: str = "valid") -> Task:
        """Return the task for `settings`, without limits."""
        of_job = ("kind", "model", "parameters", "solve_for", "seed", "early_stopping")
        of_search = ("run", "corpus", "corpus_sha256", "checkpoint_steps")
        return Task(
            **{name: getattr(self.job, name) for name in of_job},
            **{name: getattr(self, name) for name in of_search},
            settings=settings,
            split=split,
            keep_checkpoints=self.job.tuner == "hyperband",
        )

    def tuner(self, poll: Callable[[], bool], hypermodel: Any = None) -> Tuner:
        """Return the tuner, with the trials of the search so far."""
        oracle = make_oracle(self.job, epochs=self.epochs)
        if self.deadline is not None:
            oracle.deadline = self.deadline
        return Tuner(oracle, hypermodel, self.folder, self.task, poll)

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and time.time() >= self.deadline

    def work(self, interrupts: Interrupts) -> bool:
        """Run trials that a chief gives out; return whether none is left."""
        try:
            self.tuner(lambda: interrupts.asked or self.is_over()).search()
        except Stopped:
            return self.is_over()
        except grpc.RpcError as error:
            raise OSError(
                f"The chief at {chief_address()} must answer. Received: {error}. Start it again "
                "with --resume, then this worker."
            ) from None
        except OSError as error:
            if not is_full(error):
                raise
            raise OSError(f"{error} Free some space, then start this worker again.") from None
        return True

    def write(self) -> None:
        """Write `job.toml` and `search.json`."""
        write_whole(self.folder / JOB, self.job.to_toml())
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["folder"], fields["job"]
        fields["versions"] = versions()
        write_whole(self.folder / SEARCH, json.dumps(fields, indent=2) + "\n")


def read_search(folder: Path) -> Search:
    """Return the search in `folder`."""
    try:
        fields = json.loads((folder / SEARCH).read_text("utf-8"))
        del fields["versions"]
        return Search(folder=folder, job=load_job(folder / JOB), **fields)
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(
            f"{SEARCH} and {JOB} of a search must not be altered. Received: those in "
            f"{str(folder)!r}, damaged or altered ({type(error).__name__}: {error}). Restore them, "
            "or start a new search in another folder."
        ) from None


def check_resumable(before: Search, now: Search) -> None:
    """Raise `ValueError` if the search `before` cannot continue as `now`."""
    of_job = [f.name for f in dataclasses.fields(Job) if f.name not in (*RESUMABLE, "file")]
    changed = [key for key in of_job if getattr(before.job, key) != getattr(now.job, key)]
    of_search = ("run", "run_sha256", "corpus_sha256", "vocabulary_sha256", "checkpoint_steps")
    changed += [key for key in of_search if getattr(before, key) != getattr(now, key)]
    if changed:
        raise ArgumentError(
            changed[0],
            f"must not change when a search is resumed. Received: another "
            f"{', another '.join(changed)} for {str(now.folder)!r}. Restore what {JOB} and "
            f"{SEARCH} state, or start a new search in another folder.",
        )
