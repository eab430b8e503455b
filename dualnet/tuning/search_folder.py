"""The folder of a search: what its processes share."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._files import write_whole
from dualnet.cards import Card
from dualnet.corpora import Corpus
from dualnet.training import card_for, versions
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job
from dualnet.tuning.job_files import load_job
from dualnet.tuning.trial import Task

RESUMABLE = ("max_trials", "max_hours", "max_hours_per_trial")  # may change on resuming


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What the processes of a search share; stored in `job.toml` and `search.json`."""

    folder: Path
    job: Job
    run: str  # RUN folder, "" for none
    corpus: str  # as for `corpora.load`, CORPUS if it has no name; "" for that of `run`
    corpus_sha256: str  # these three when the search began
    vocabulary_sha256: str
    run_sha256: str  # of its weights
    checkpoint_steps: int  # between two checkpoints
    epochs: int  # of a whole trial
    deadline: float | None  # `time.time()` at which the search stops; None for never

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return the task of a trial with these values of `HyperParameters`."""
        hours = self.job.max_hours_per_trial
        return Task(
            settings=self.job.settings(values),
            epochs=values.get("tuner/epochs"),
            max_seconds=None if hours is None else hours * 3600,
        )

    def card(self, corpus: Corpus) -> Card:
        """Return the card of a training on `corpus`, that of the search."""
        return card_for(self.job.model, corpus if self.corpus == CORPUS else self.corpus)

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and time.time() >= self.deadline

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
