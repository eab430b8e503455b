"""The folder of a search: what its processes share, and the corpus that its trials read."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._files import folder_beside, read_json, write_json, write_whole
from dualnet.corpora import SPLITS, Corpus
from dualnet.corpora.encoding import mapped
from dualnet.runs import Run
from dualnet.runs.folder import READ_AS, corpus_table, tokenizer_file
from dualnet.text import load_tokenizer
from dualnet.training import versions
from dualnet.training.initial_weights import load_with
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job, Scalar, load_job
from dualnet.tuning.trial import RUN, TRIALS, Task

TABLE = "corpus.json"  # in the folder of a corpus
# What must stay on resuming.
OF_JOB = (
    "kind", "model", "tuner", "tuner_options", "parameters", "solve_for", "seed", "fixed",
    "written",
)  # fmt: skip
OF_SEARCH = ("run", "run_sha256", "corpus_sha256", "vocabulary_sha256", "checkpoint_steps")


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

    def task(self, values: Mapping[str, Scalar]) -> Task:
        """Return the task of a trial with these values of `HyperParameters`."""
        hours, epochs = self.job.max_hours_per_trial, values.get("tuner/epochs")
        return Task(
            settings=self.job.settings(values),
            epochs=None if epochs is None else int(epochs),
            max_seconds=None if hours is None else hours * 3600,
        )

    def is_over(self) -> bool:
        """Return True once the deadline has passed."""
        return self.deadline is not None and time.time() >= self.deadline

    def write(self) -> None:
        """Write `job.toml` and `search.json`."""
        write_whole(self.folder / JOB, self.job.to_toml())
        fields = {key: vars(self)[key] for key in vars(self) if key not in ("folder", "job")}
        write_json(self.folder / SEARCH, {**fields, "versions": versions()})

    def check_resumes(self, before: Search) -> None:
        """Raise `ArgumentError` if the search `before` cannot continue as this one."""
        changed = [key for key in OF_JOB if getattr(before.job, key) != getattr(self.job, key)]
        changed += [key for key in OF_SEARCH if getattr(before, key) != getattr(self, key)]
        if changed:
            raise ArgumentError(
                changed[0],
                "must not change when a search is resumed. Received: another "
                f"{', another '.join(changed)} for {str(self.folder)!r}.",
                f" Restore what {JOB} and {SEARCH} state, or start a new search elsewhere.",
            )


def read_search(folder: Path) -> Search:
    """Return the search in `folder`."""
    fields = read_json(folder / SEARCH)
    del fields["versions"]
    return Search(folder=folder, job=load_job(folder / JOB), **fields)


# --- its corpus


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Write `corpus` as `folder`, where the processes of trials read it."""
    with folder_beside(folder) as temporary:
        for split in SPLITS:
            np.save(temporary / f"{split}.npy", corpus.split(split), allow_pickle=False)
        corpus.vocabulary.save(temporary / corpus.vocabulary.file_name)
        write_json(temporary / TABLE, corpus_table(corpus))


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus that `write_corpus` wrote, its ids as memory maps."""
    fields = read_json(folder / TABLE)
    settings = {"documents": fields.pop("documents", "line"), "lowercase": fields["lowercase"]}
    vocabulary = load_tokenizer(str(tokenizer_file(folder)), **settings)
    ids: dict[str, Any] = {split: mapped(folder / f"{split}.npy") for split in SPLITS}
    return Corpus(**fields, **ids, vocabulary=vocabulary)


def resumed_corpus(folder: Path, corpus: str, read_as: Mapping[str, object]) -> Corpus:
    """Return the corpus of the search in `folder`, with the hash that the text has now.

    The text is `corpus`, which was read with the arguments `read_as` of `corpora.load`; "" stands
    for that of a RUN.
    """
    written = folder / CORPUS
    if not written.is_dir():  # 0.2.0.dev0 kept only the tokenisers, in the RUNs of the trials
        paths = filter(tokenizer_file, sorted(folder.glob(f"{TRIALS}/*/{RUN}")))
        for run in map(Run.open_folder, paths):
            return load_with(run.vocabulary, corpus, run.own_reading(corpus))
        return load_with(None, corpus, {})
    loaded = read_corpus(written)
    before = READ_AS | corpus_table(loaded)
    for key, value in read_as.items():
        if value != before[key]:
            raise ArgumentError(
                key,
                f"must stay {before[key]!r}, as when the search started, with --resume.",
                **{key: value},
            )
    if not corpus:
        return loaded
    now = load_with(loaded.vocabulary, corpus, {"fractions": loaded.fractions})
    return dataclasses.replace(loaded, sha256=now.sha256)
