"""The program of a trial: `python -m dualnet.tuning.trial_process FOLDER`.

It does the task in FOLDER, which lies in the folder of a search, and writes `outcome.json`. A
training continues from its last checkpoint. The process ends with the one that started it, however
that ends: it reads its standard input, which then closes.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import filelock
import numpy as np

from dualnet import adaptation, builders, evaluation, training
from dualnet._files import is_full, written_beside
from dualnet.adaptation import GradientStatistics, gradient_statistics
from dualnet.builders import LanguageModel
from dualnet.builders.wrapping_stations import Cache
from dualnet.corpora import Corpus
from dualnet.evaluation.comparison import Comparable
from dualnet.requests import DynamicEvaluating, Evaluating
from dualnet.runs import Run, read_card
from dualnet.training.interrupts import Stopped
from dualnet.training.schedule import plan
from dualnet.tuning import trial
from dualnet.tuning.budget import solved
from dualnet.tuning.job import CORPUS
from dualnet.tuning.search_folder import Search, read_corpus, read_search

LOCK_SECONDS = 600.0  # how long to wait for a RUN that another process still writes to


def main(folder: Path) -> int:
    """Run the trial in `folder`; return 0 if it has ended, else `STOPPED` or `DISK_FULL`."""
    try:
        return _run(folder)
    except Exception as error:
        if is_full(error):  # no fault of the trial, which continues when there is space
            return trial.DISK_FULL
        raise


def _run(folder: Path) -> int:
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _raise_stopped)  # a training installs its own handler
    start = time.monotonic()
    search = read_search(folder.parents[1])
    task = trial.Task.read(folder)
    out_of_time = threading.Event()
    try:
        if task.max_seconds is not None:
            spent = sum(epoch.seconds for epoch in trial.read_epochs(folder))
            _limit(task.max_seconds - spent, out_of_time)
        run = _evaluate if search.job.kind == "evaluation" else _train
        outcome = run(folder, search, task)
        if not math.isfinite(outcome.val_perplexity or math.nan):
            raise ValueError("The validation perplexity is not finite. Take a smaller step.")
    except Stopped:
        if not out_of_time.is_set():
            return trial.STOPPED
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to stop
        if trial.read_epochs(folder):
            outcome = _progress(folder, read_corpus(search.folder / CORPUS), ended="time")
        else:
            message = "It took longer than `max_hours_per_trial` before its first result."
            outcome = trial.Outcome(status="failed", message=message)
    except filelock.Timeout:
        return trial.STOPPED
    except Exception as error:
        if is_full(error):
            raise
        message = str(error)
        if not isinstance(error, ValueError | OSError | ImportError):  # a backend's
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
        outcome = trial.Outcome(status="failed", message=message)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if outcome.seconds is None:
        outcome = dataclasses.replace(outcome, seconds=time.monotonic() - start)
    outcome.write(folder)
    if search.job.tuner != "hyperband":  # whose next trials may continue this one
        shutil.rmtree(folder / trial.RUN / "checkpoints", ignore_errors=True)
    return 0


def end_with_parent() -> None:
    """End this process with the one that started it, when standard input closes."""
    while os.read(0, 4096):  # reading sys.stdin would lock it at exit
        pass
    os._exit(1)


def _limit(seconds: float, out_of_time: threading.Event) -> None:
    """After some seconds, end the training with a checkpoint, as SIGTERM does."""

    def end() -> None:
        out_of_time.set()
        os.kill(os.getpid(), signal.SIGTERM)

    if seconds < threading.TIMEOUT_MAX:
        timer = threading.Timer(max(seconds, 0.0), end)
        timer.daemon = True
        timer.start()


def _raise_stopped(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped("Stopped.")


def _figures(result: Comparable) -> dict[str, Any]:
    """Return the figures of a `Comparable` as fields of an outcome."""
    return {f"val_{key}": value for key, value in result.figures().items()}


# --- training


def _train(folder: Path, search: Search, task: trial.Task) -> trial.Outcome:
    run, job = folder / trial.RUN, search.job
    if run.exists():  # a worker that was given up may still be training
        with filelock.FileLock(run / ".lock", timeout=LOCK_SECONDS):
            pass
    corpus = read_corpus(search.folder / CORPUS)
    resume = (run / "card.toml").is_file()
    card = training.card_for(job.model, corpus) if job.kind == "training" else None
    settings: dict[str, Any] = {} if resume else dict(task.settings)  # else it keeps its own
    if card and not resume:
        settings = solved(job, card, settings, len(corpus.vocabulary))
    if task.epochs is not None:  # of a round of Hyperband, after which the training may go on
        settings |= {"epochs": task.epochs, "finetune": "none"}
        settings |= {} if resume else {"linear_decay": False}
    prunes = job.early_stopping == "median" and job.tuner != "hyperband"
    settings |= {
        "output": run,
        "seed": None if resume else job.seed,
        "resume": resume,
        "evaluate": False,
        "progress": False,
        "checkpoint_steps": search.checkpoint_steps,
        "stop": _stop_rule(folder) if prunes else None,
    }
    if card:
        result = training.train(card, corpus, **settings)
    else:
        result = training.train_gate(search.run, corpus, **settings)
    ended = "hopeless" if plan(_recipe(folder), result.history) else "all epochs"
    outcome = _progress(folder, corpus, ended=ended)
    return dataclasses.replace(outcome, parameters=result.model.count_params())


def _progress(folder: Path, corpus: Corpus, *, ended: str) -> trial.Outcome:
    """Return the outcome of a training that has `ended`, with figures beside its perplexity."""
    outcome = trial.read_progress(folder, "completed")
    assert outcome.val_perplexity is not None
    count = training.batches_of(corpus, "valid", _recipe(folder)).num_tokens
    start = int(count < len(corpus.valid))  # streams do not predict the first token
    predicted = corpus.valid[start : start + count]
    nats = count * math.log(outcome.val_perplexity)
    figures = _figures(evaluation.comparable(corpus.vocabulary, predicted, nats))
    return dataclasses.replace(outcome, ended=ended, **figures)


def _recipe(folder: Path) -> training.Recipe:
    return training.Recipe(**read_card(folder / trial.RUN).recipe)


def _stop_rule(folder: Path) -> Callable[[Sequence[Mapping[str, Any]]], bool]:
    def stop(history: Sequence[Mapping[str, Any]]) -> bool:
        others = [trial.read_epochs(path) for path in folder.parent.glob("*/") if path != folder]
        peers = [[epoch.val_perplexity for epoch in epochs] for epochs in others]
        perplexities = [row["val_perplexity"] for row in history]
        return trial.should_prune(perplexities, peers, _recipe(folder).epochs)

    return stop


# --- evaluation


def _evaluate(folder: Path, search: Search, task: trial.Task) -> trial.Outcome:
    run = Run.open(search.run)
    model = run.model()
    corpus = read_corpus(search.folder / CORPUS)
    cache, request = evaluation_of(task.settings)
    if cache.is_used:
        values = {key.removeprefix("cache_"): value for key, value in cache.arguments().items()}
        model = builders.with_cache(model, **values)
    tokens, settings = corpus.valid, request.changed()
    if isinstance(request, DynamicEvaluating):
        if request.rule == "rms":
            # The statistics are always those of the text that the model was trained on.
            text = run.training_text() if search.corpus else corpus.train
            length = request.of_rule()["sequence_length"]
            settings["statistics"] = _statistics(folder, model, text, length)
        result: Any = adaptation.dynamic_evaluation(model, tokens, **settings)
    else:
        as_stream = settings.keys() & set(Evaluating.excludes["by_sentence"])
        by_sentence = run.card.recipe.get("batching") == "sentences" and not as_stream
        settings = {"by_sentence": by_sentence, **settings}
        result = evaluation.evaluate(model, tokens, **settings)
    return trial.Outcome(
        status="completed",
        val_perplexity=result.perplexity,
        parameters=model.count_params(),
        **_figures(result),
    )


def evaluation_of(
    settings: Mapping[str, object],
) -> tuple[Cache, Evaluating | DynamicEvaluating]:
    """Return the cache, and how the text is read, of a trial of the kind "evaluation"."""
    others = {key: x for key, x in settings.items() if key not in ("evaluation", *Cache.names())}
    cache = Cache(**Cache.fields_of(settings))
    if settings.get("evaluation", "static") == "static":
        return cache, Evaluating.of(others, requirement="must be left out of a static evaluation.")
    if others.get("clipnorm") == 0:  # no clipping
        del others["clipnorm"]
    others.setdefault("rule", "nadam")  # a shipped model's own is "sgd"
    return cache, DynamicEvaluating.of(
        others, requirement="must be left out of a dynamic evaluation."
    )


def _statistics(
    folder: Path, model: LanguageModel, tokens: np.ndarray, length: int
) -> GradientStatistics:
    """Return the gradient statistics, stored once for all trials of the same segment length."""
    if model.cache_size:  # a cache changes the gradients
        return gradient_statistics(model, tokens, sequence_length=length)
    path = folder.parents[1] / "statistics" / f"{length}.npz"
    if not path.is_file():
        statistics = gradient_statistics(model, tokens, sequence_length=length)
        path.parent.mkdir(exist_ok=True)
        with written_beside(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, statistics.batches, *statistics.roots)
    with np.load(path, allow_pickle=False) as stored:
        batches, *roots = stored.values()
        return GradientStatistics(roots, int(batches))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
