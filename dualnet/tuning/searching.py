"""Begins and resumes searches."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError, check_choice, check_count, check_penalty
from dualnet._files import sha256_of
from dualnet.corpora import Corpus
from dualnet.runs.folder import WEIGHTS, read_card
from dualnet.training import card_for, split_overrides
from dualnet.training.from_runs import GATED
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.jobs import TUNERS, Job, load_job
from dualnet.tuning.oracles import make_oracle
from dualnet.tuning.running import Running
from dualnet.tuning.search_folder import (
    ABOUT,
    CORPUS,
    Search,
    address_of_chief,
    check_same,
    claimed,
    read_search,
)
from dualnet.tuning.trial import load_given, write_corpus
from dualnet.tuning.tuner import Tuner

WAIT = 3600.0  # seconds that a worker waits for its chief, as KerasTuner's do


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
    `parallel_coordinates.png`, `importance.png`, TensorBoard's HParams and `results.json`,
    which of a job of the kind "evaluation" has the perplexities before and after too, on
    the validation and on the test split.

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
        OSError: if all workers are lost, or the port of a chief is in use.
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the trials under way have been saved, or
            with a second one are as they were at their last checkpoint.
    """
    folder = Path(output)
    role = _role()
    if role == "worker":
        return _work(folder)
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
        raise ArgumentError(
            "workers",
            "must be left out where KERASTUNER_TUNER_ID makes this process a chief, "
            f"whose workers begin by themselves. Received: workers={workers}.",
        )
    if resume and job.tuner == "grid":
        raise ArgumentError(
            "resume",
            "must be False with the tuner 'grid', since KerasTuner forgets which "
            "combinations are left. Received: resume=True. Search anew, into a new folder.",
        )
    with claimed(folder, resume=resume), Interrupts() as interrupts:
        found, model = _begin(folder, job, corpus, run, checkpoint_steps, resume=resume)
        return Running(found, model, interrupts, progress).run(workers, is_chief=role == "chief")


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
        given["max_trials"] = None if tuner == "grid" else job.max_trials or Job.max_trials
        if tuner == "hyperband":
            given["early_stopping"] = "none"  # which it is itself
    for name, limit in limits.items():
        if limit is None:
            continue
        if name == "max_trials":
            check_count(name, limit, least=1)
        elif check_penalty(name, limit) == 0:
            raise ArgumentError(name, f"must be above 0. Received: {name}={limit!r}.")
        given[name] = limit
    if seed is not None:
        given["seed"] = check_count("seed", seed, least=0)
    if zoo.is_file(job.model):
        given["model"] = os.path.abspath(job.model)
    return dataclasses.replace(job, **given).with_settings(settings)


def _begin(
    folder: Path,
    job: Job,
    corpus: Corpus | str | None,
    run: str | os.PathLike[str] | None,
    checkpoint_steps: int,
    *,
    resume: bool,
) -> tuple[Search, HyperModel | None]:
    """Write what the processes of the search share; return it and its models."""
    run = _checked_run(job, run)
    if corpus is None and not run:
        raise ArgumentError("corpus", "must be given for a job of the kind 'training'.")
    given = corpus if isinstance(corpus, Corpus) else _absolute(corpus)
    loaded = given if isinstance(given, Corpus) else load_given(given, model=job.model, run=run)
    card = None
    if job.kind == "training":
        card = card_for(job.model, given)
        epochs = split_overrides(card, job.fixed)[1].epochs  # and what all trials would fail of
    else:
        epochs = int(job.fixed.get("epochs", zoo.card(GATED).recipe["epochs"]))
    found = Search(
        folder=folder,
        job=job,
        run=run,
        corpus=str((folder / CORPUS).resolve()) if isinstance(given, Corpus) else given,
        corpus_sha256=loaded.sha256,
        vocabulary_sha256=loaded.vocabulary.sha256,
        run_sha256=sha256_of(Path(run) / WEIGHTS) if run else "",
        checkpoint_steps=checkpoint_steps,
        epochs=epochs,
        deadline=None if job.max_hours is None else time.time() + job.max_hours * 3600,
    )
    make_oracle(job, epochs=epochs)  # nothing is written if it cannot be
    if resume:
        check_same(read_search(folder), found)
    if isinstance(corpus, Corpus):
        write_corpus(folder / CORPUS, corpus)
    found.write()
    model = None if card is None else HyperModel(job, loaded, card)
    return found, model


def _checked_run(job: Job, run: str | os.PathLike[str] | None) -> str:
    if job.kind == "training":
        if run is not None:
            raise ArgumentError(
                "run",
                f"must be left out for a job of the kind 'training'. Received: {str(run)!r} "
                f"with the job {job.name!r}.",
            )
        return ""
    if run is None:
        raise ArgumentError(
            "run",
            f"must be given, a RUN folder, for a job of the kind {job.kind!r}. Received: the "
            f"job {job.name!r} without it. Train a model first, with `dualnet train`.",
        )
    read_card(run)
    if not (Path(run) / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"`run` must be a RUN folder with weights, which it has after its first epoch. "
            f"Received: {str(run)!r}. Train on with --resume."
        )
    return str(Path(run).resolve())


def _absolute(corpus: str | None) -> str:
    if corpus is None:
        return ""
    return corpus if corpus in corpora.NAMES else str(Path(corpus).resolve())


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


def _work(folder: Path) -> Tuner:
    """Run trials of the chief of the search in `folder` until there are no more."""
    with Interrupts() as interrupts:
        _wait_for_chief(folder, interrupts)
        found = read_search(folder)
        if not found.work(interrupts):
            raise Stopped("Stopped and saved. The same command goes on with the trial.")
    return found.tuner(lambda: False)


def _wait_for_chief(folder: Path, interrupts: Interrupts) -> None:
    """Return as soon as the chief answers, which it does when `folder` tells of the search."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        if interrupts.asked:
            raise Stopped("Stopped, before the chief had answered.")
        with grpc.insecure_channel(address_of_chief()) as channel:
            try:
                grpc.channel_ready_future(channel).result(1.0)
            except grpc.FutureTimeoutError:
                continue
        if (folder / ABOUT).is_file():
            return
        raise FileNotFoundError(
            f"`output` must be a folder that this machine shares with the chief. Received: "
            f"{str(folder)!r}, without {ABOUT}. Give the folder that the chief was given."
        )
    raise OSError(
        f"The chief at {address_of_chief()} must answer. Received: nothing for {WAIT / 60:.0f} "
        "minutes. Begin it, and then this worker."
    )
