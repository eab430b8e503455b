"""Begins and resumes searches."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError, check_count, checked
from dualnet._files import claim, is_full, sha256_of
from dualnet.corpora import Corpus
from dualnet.runs import Run
from dualnet.runs.folder import WEIGHTS
from dualnet.training import split_overrides
from dualnet.training.from_runs import GATED
from dualnet.training.initial_weights import reading
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.tuning.corpus_files import load_corpus, resumed_corpus, write_corpus
from dualnet.tuning.engine.chief import chief_address, role
from dualnet.tuning.engine.oracles import make_oracle
from dualnet.tuning.engine.tuner import Tuner
from dualnet.tuning.hypermodel import HyperModel
from dualnet.tuning.job import CORPUS, JOB, SEARCH, Job
from dualnet.tuning.job_checks import override
from dualnet.tuning.job_files import load_job
from dualnet.tuning.search_folder import Search, check_resumable, read_search
from dualnet.tuning.search_run import SearchRun, make_tuner

CHIEF_SECONDS = 3600.0  # how long a worker waits for its chief, as KerasTuner's workers do


@checked
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
    tokenizer: str | os.PathLike[str] | None = None,
    documents: str | None = None,
    fractions: Sequence[float] | None = None,
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
        tuner: "random", "bayesian", "hyperband" or "grid"; default: the job's.
        max_trials: int. Number of trials; default: the job's. Hyperband sets its own.
        max_hours: float. Time limit of the search; default: the job's. Trials under way at the
            limit are left for `resume`, which starts the limit anew.
        max_hours_per_trial: float. Time limit of a trial, which then ends with its result so far.
        workers: int. Number of trials at a time on this machine.
        seed: int. Seed of the search and of each trial; default: the job's.
        resume: bool. Continue the search in `output` with its settings; only `max_trials` and
            the time limits may change.
        checkpoint_steps: int. Steps between two checkpoints of a training.
        progress: bool. Whether to show a table of the trials on standard error.
        tokenizer, documents, fractions: how to read a corpus given by name, see `corpora.load`.
            It is read once, for all trials. On resuming, as before.
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
    limits = {"max_hours": max_hours, "max_hours_per_trial": max_hours_per_trial}
    job = _override_job(job, tuner, {"max_trials": max_trials, "seed": seed, **limits}, settings)
    read_as = reading(corpus, tokenizer, documents, fractions)
    check_count("workers", workers, least=1)
    check_count("checkpoint_steps", checkpoint_steps, least=1)
    if process_role == "chief" and workers != 1:
        message = "must be left out for a chief, whose workers are started separately."
        raise ArgumentError("workers", f"{message} Received: workers={workers}.")
    if resume and job.tuner == "grid":
        raise ArgumentError(
            "resume",
            "must be False for the tuner 'grid', since KerasTuner does not store which "
            "combinations are left. Received: resume=True. Start a new search in another folder.",
        )
    if resume and not (folder / SEARCH).is_file():
        raise FileNotFoundError(
            f"`output` must be the folder of a search to resume. Received: {str(folder)!r}, "
            f"without {SEARCH}. Start a new search, without --resume."
        )
    leftover = (JOB, CORPUS)  # of a search that was killed as it began
    claimed = claim(folder, holds="search", resume=resume, may_hold=leftover)
    with claimed, Interrupts() as interrupts:
        state, hypermodel = _begin(
            folder, job, corpus, read_as, run, checkpoint_steps, resume=resume
        )
        search_run = SearchRun(state, hypermodel, interrupts, progress)
        return search_run.run(workers, is_chief=process_role == "chief")


def _override_job(
    job: Job | str | os.PathLike[str],
    tuner: str | None,
    changes: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Job:
    """Return the job with the arguments of `search` in place of its own, checked."""
    job = job if isinstance(job, Job) else load_job(job)
    changes = {key: value for key, value in changes.items() if value is not None}
    if tuner not in (None, job.tuner):
        changes |= {"tuner": tuner, "tuner_options": {}}
        if tuner == "hyperband":
            changes["early_stopping"] = "none"  # it ends trials early itself
        default = None if tuner == "grid" else job.max_trials or Job.max_trials
        changes.setdefault("max_trials", default)
    if zoo.is_file(job.model):
        changes["model"] = os.path.abspath(job.model)
    return override(dataclasses.replace(job, **changes), settings)


def _begin(
    folder: Path,
    job: Job,
    corpus: Corpus | str | None,
    read_as: Mapping[str, Any],
    run: str | os.PathLike[str] | None,
    checkpoint_steps: int,
    *,
    resume: bool,
) -> tuple[Search, HyperModel | None]:
    """Write what the processes of the search share; return it and the models of a training."""
    run = _checked_run(job, run)
    if corpus is None and not run:
        raise ArgumentError("corpus", "must be given for a job of the kind 'training'.")
    if read_as and run:
        name = next(iter(read_as))
        raise ArgumentError(
            name,
            "must be left out for a job over a RUN, whose tokeniser reads the text. Received: "
            f"{name}={read_as[name]!r}.",
        )
    written = folder / CORPUS
    before = read_search(folder) if resume else None
    name = CORPUS
    if isinstance(corpus, Corpus):
        loaded = corpus
    elif corpus and before and before.corpus in (CORPUS, str(written.resolve())):
        loaded = resumed_corpus(written, corpus, read_as)
    else:
        place = corpus or ""
        if place and place not in corpora.NAMES:
            place = str(Path(place).resolve())
        name = name if read_as else place
        loaded = load_corpus(place, model=job.model, run=run, read_as=read_as)
    state = Search(
        folder=folder,
        job=job,
        run=run,
        corpus=name,
        corpus_sha256=loaded.sha256,
        vocabulary_sha256=loaded.vocabulary.sha256,
        run_sha256=sha256_of(Path(run) / WEIGHTS) if run else "",
        checkpoint_steps=checkpoint_steps,
        epochs=0,  # until the card is known
        deadline=None if job.max_hours is None else time.time() + job.max_hours * 3600,
    )
    card = state.card(loaded) if job.kind == "training" else None
    if card:
        # Fail now rather than in every trial.
        epochs = split_overrides(card, job.fixed)[1].epochs
    else:
        epochs = int(job.fixed.get("epochs", zoo.card(GATED).recipe["epochs"]))
    state = dataclasses.replace(state, epochs=epochs)
    make_oracle(job, epochs=epochs)  # raises before anything is written
    if before:
        check_resumable(before, state)
    if not (before and written.is_dir()):
        write_corpus(written, loaded)
    state.write()
    return state, None if card is None else HyperModel(job, loaded, card)


def _checked_run(job: Job, run: str | os.PathLike[str] | None) -> str:
    """Return the path of the RUN folder, "" for a training."""
    of_kind = f"for a job of the kind {job.kind!r}"
    if job.kind == "training":
        if run is not None:
            raise ArgumentError("run", f"must be left out {of_kind}. Received: {str(run)!r}.")
        return ""
    if run is None:
        way_out = "Train a model first, with `dualnet train`."
        raise ArgumentError("run", f"must be given, a RUN folder, {of_kind}. {way_out}")
    if not (Run.open_folder(run).path / WEIGHTS).is_file():
        raise FileNotFoundError(
            "`run` must be a RUN folder with weights, which it has after its first epoch. "
            f"Received: {str(run)!r}. Continue the training with --resume."
        )
    return str(Path(run).resolve())


# --- a worker of another machine


def _work(folder: Path) -> Tuner:
    """Run trials of the chief of the search in `folder` until there are no more."""
    with Interrupts() as interrupts:
        _wait_for_chief(folder, interrupts)
        search = read_search(folder)
        tuner = make_tuner(search, lambda: interrupts.asked or search.is_over())
        try:
            tuner.search()
        except Stopped:
            if not search.is_over():
                message = "Stopped and saved. Continue the trial with the same command."
                raise Stopped(message) from None
        except grpc.RpcError as error:
            raise OSError(
                f"The chief at {chief_address()} must answer. Received: {error}. Start it again "
                "with --resume, then this worker."
            ) from None
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
        raise FileNotFoundError(
            "`output` must be a folder that this machine shares with the chief. Received: "
            f"{str(folder)!r}, without {SEARCH}. Use the chief's folder."
        )
    raise OSError(
        f"The chief at {chief_address()} must answer. Received: nothing for "
        f"{CHIEF_SECONDS / 60:.0f} minutes. Start it, then this worker."
    )
