"""The folder of a search: what its processes share, and the corpus that its trials read."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._files import folder_beside, read_json, write_whole
from dualnet.cards import Card
from dualnet.corpora import SPLITS, Corpus
from dualnet.corpora.encoding import mapped
from dualnet.runs import Run
from dualnet.runs.folder import READ_AS, corpus_table, tokenizer_file
from dualnet.text import load_tokenizer
from dualnet.training import card_for, versions
from dualnet.training.initial_weights import load_with
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job
from dualnet.tuning.loading import load_job
from dualnet.tuning.trial import Task

TABLE = "corpus.json"  # in the folder of a corpus
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
        """Return True once the deadline has passed."""
        return self.deadline is not None and time.time() >= self.deadline

    def write(self) -> None:
        """Write `job.toml` and `search.json`."""
        write_whole(self.folder / JOB, self.job.to_toml())
        fields = {key: vars(self)[key] for key in vars(self) if key not in ("folder", "job")}
        text = json.dumps({**fields, "versions": versions()}, indent=2)
        write_whole(self.folder / SEARCH, text + "\n")


def read_search(folder: Path) -> Search:
    """Return the search in `folder`."""
    with unaltered(folder, f"{SEARCH} and {JOB}", ValueError, FileNotFoundError):
        fields = read_json(folder / SEARCH)
        del fields["versions"]
        return Search(folder=folder, job=load_job(folder / JOB), **fields)


@contextlib.contextmanager
def unaltered(folder: Path, names: str, *faults: type[Exception]) -> Iterator[None]:
    """Raise `ValueError` for files of the search in `folder` that have other keys or kinds.

    `faults` are further errors that their contents may lead to.
    """
    shapes: tuple[type[Exception], ...] = (KeyError, TypeError, AttributeError, RuntimeError)
    try:
        yield
    except shapes + faults as error:
        raise ValueError(
            f"{names} of a search must not be altered. Received: those in "
            f"{str(folder)!r}, damaged or altered ({type(error).__name__}: {error}). Restore them, "
            "or start a new search in another folder."
        ) from None


def check_resumable(before: Search, now: Search) -> None:
    """Raise `ValueError` if the search `before` cannot continue as `now`."""
    of_job = [name for name in Job.names() if name not in (*RESUMABLE, "file")]
    changed = [key for key in of_job if getattr(before.job, key) != getattr(now.job, key)]
    of_search = ("run", "run_sha256", "corpus_sha256", "vocabulary_sha256", "checkpoint_steps")
    changed += [key for key in of_search if getattr(before, key) != getattr(now, key)]
    if changed:
        message = "must not change when a search is resumed. Received: another "
        received = f"{', another '.join(changed)} for {str(now.folder)!r}"
        way_out = f"Restore what {JOB} and {SEARCH} state, or start a new search elsewhere."
        raise ArgumentError(changed[0], f"{message}{received}. {way_out}")


# --- its corpus


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Write `corpus` as `folder`, where the processes of trials read it."""
    with folder_beside(folder) as temporary:
        for split in SPLITS:
            np.save(temporary / f"{split}.npy", corpus.split(split), allow_pickle=False)
        corpus.vocabulary.save(temporary / corpus.vocabulary.file_name)
        fields = corpus_table(corpus)
        (temporary / TABLE).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus that `write_corpus` wrote, its ids as memory maps."""
    fields = read_json(folder / TABLE)
    settings = {"documents": fields.pop("documents", "line"), "lowercase": fields["lowercase"]}
    vocabulary = load_tokenizer(str(tokenizer_file(folder)), **settings)
    ids: dict[str, Any] = {split: mapped(folder / f"{split}.npy") for split in SPLITS}
    return Corpus(**fields, **ids, vocabulary=vocabulary)


def load_corpus(corpus: str, model: str, run: Run | None, read_as: Mapping[str, Any]) -> Corpus:
    """Return the corpus for a model or RUN; "" is the one that the RUN was trained on.

    `read_as` are other arguments of `corpora.load`; a RUN has its own.
    """
    if run is None:
        lowercase = card_for(model, corpus).lowercase
        return load_with(None, corpus, {"lowercase": lowercase, **read_as})
    if corpus:
        return load_with(run.vocabulary, corpus, run.own_reading(corpus))
    return cast(Corpus, run.corpus())  # a search takes no translators


def run_of_a_trial(folder: Path) -> Run | None:
    """Return the RUN of a trial, which read the corpus as the others do, or None."""
    folders = filter(tokenizer_file, sorted(folder.glob("trials/*/run")))
    return next(map(Run.open_folder, folders), None)


def resumed_corpus(folder: Path, corpus: str, read_as: Mapping[str, Any]) -> Corpus:
    """Return the corpus that `write_corpus` wrote, with the hash that `corpus` has now."""
    written = read_corpus(folder)
    before = {**READ_AS, **corpus_table(written)}
    for key, value in read_as.items():
        if value != before[key]:
            message = f"must stay {before[key]!r}, as when the search started, with --resume."
            way_out = " Leave it out, or start a new search."
            raise ArgumentError(key, message, way_out, **{key: value})
    now = load_with(written.vocabulary, corpus, {"fractions": written.fractions})
    return dataclasses.replace(written, sha256=now.sha256)
