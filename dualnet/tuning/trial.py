"""One trial, in a process of its own: `python -m dualnet.tuning.trial FOLDER`.

The folder holds `task.json`, what is to be done, and gets `outcome.json`, what came out. The
process ends with the one that began it, however that ends: it reads its standard input, which
closes then. A training goes on from its last checkpoint when the same folder is given again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from dualnet._checks import ArgumentError
from dualnet._files import write_whole, written_beside
from dualnet.training.interrupts import Stopped
from dualnet.tuning.rows import history_of

TASK, OUTCOME, RUN = "task.json", "outcome.json", "run"
# Trials that must have come as far before one is thought hopeless, and the part of all epochs
# in which none is.
PEERS, GRACE = 3, 5
STOPPED = 3  # exit code
IN_USE = 600.0  # seconds that a RUN is waited for that another process trains into


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a trial is to do; stands in `task.json`.

    Attributes:
        kind: Kind of the job: "training", "gate" or "evaluation".
        model: Name or path of the card; "" but for the kind "training".
        run: RUN folder that a gate or an evaluation is for, else "".
        corpus: What `corpora.load` takes, or a folder that `write_corpus` wrote; "" for the
            one that the RUN was trained on.
        corpus_sha256: Of the corpus as it was when the search began.
        settings: Arguments of the builder and of `Recipe`, or of the evaluation.
        parameters, solve_for: Budget, and the size that takes it up.
        epochs: Epochs of the training, None for those of the recipe.
        seed: Of weights and masks.
        early_stopping: "median" or "none".
        max_seconds: Longest training, None for no limit.
        checkpoint_steps: Steps between two checkpoints.
        keep_checkpoints: Whether another trial may go on with this one.
        split: Of an evaluation.
    """

    kind: str
    model: str = ""
    run: str = ""
    corpus: str = ""
    corpus_sha256: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    solve_for: str = "units"
    epochs: int | None = None
    seed: int = 0
    early_stopping: str = "none"
    max_seconds: float | None = None
    checkpoint_steps: int = 500
    keep_checkpoints: bool = False
    split: str = "valid"


def write_task(folder: Path, task: Task) -> None:
    """Write `task.json`."""
    write_whole(folder / TASK, json.dumps(dataclasses.asdict(task), indent=2) + "\n")


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return what came out of the trial in `folder`, None if it has not ended."""
    try:
        return json.loads((folder / OUTCOME).read_text("utf-8"))
    except FileNotFoundError:
        return None


def read_history(folder: Path) -> list[float]:
    """Return the validation perplexity of each epoch so far of the trial in `folder`."""
    return [epoch["val_perplexity"] for epoch in history_of(folder)]


def is_hopeless(own: Sequence[float], others: Sequence[Sequence[float]], epochs: int) -> bool:
    """Return whether a trial is behind the median of the others at the same epoch.

    The median stopping rule of Golovin et al., 2017 (Google Vizier), on the best perplexity
    so far. The first fifth of the epochs is let pass, and so is a trial of which fewer than
    three others have come as far.

    Args:
        own: validation perplexity of each epoch of the trial.
        others: the same of the others, ended or not.
        epochs: epochs of a whole trial.
    """
    if len(own) <= math.ceil(epochs / GRACE):
        return False
    reached = [min(each[: len(own)]) for each in others if len(each) >= len(own)]
    return len(reached) >= PEERS and min(own) > statistics.median(reached)


class _Clock:
    """Ends the training under way after some seconds, as SIGTERM does: with a checkpoint."""

    def __init__(self) -> None:
        self.is_over = False

    def start(self, seconds: float) -> None:
        if seconds < threading.TIMEOUT_MAX:
            timer = threading.Timer(max(seconds, 0.0), self._end)
            timer.daemon = True
            timer.start()

    def _end(self) -> None:
        self.is_over = True
        os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path) -> int:
    """Run the trial in `folder`; return 0 if it has ended, `STOPPED` if it was told to stop."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _raise_stopped)  # a training has its own handler
    began = time.monotonic()
    task = Task(**json.loads((folder / TASK).read_text("utf-8")))
    limit = task.max_seconds
    clock = _Clock()
    try:
        if limit is not None:
            clock.start(limit - _seconds_before(folder))
        outcome = _evaluate(folder, task) if task.kind == "evaluation" else _train(folder, task)
        if not math.isfinite(outcome["val_perplexity"]):
            raise ValueError("The validation perplexity is not finite. Take a smaller step.")
    except Stopped:
        if not clock.is_over:
            return STOPPED
        if read_history(folder):
            outcome = _outcome_of_run(folder, "time")
        else:
            outcome = _failed(
                f"It took longer than the {(limit or 0) / 3600:g} hours of `max_hours_per_trial` "
                "before it had a result. Give it more, or search smaller models."
            )
    except filelock.Timeout:
        return STOPPED
    except (ValueError, OSError, ImportError) as error:  # of ours, which say what to do
        outcome = _failed(str(error))
    except Exception as error:  # of a backend
        traceback.print_exc()
        outcome = _failed(f"{type(error).__name__}: {error}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outcome.setdefault("seconds", time.monotonic() - began)
    write_whole(folder / OUTCOME, json.dumps(outcome, indent=2) + "\n")
    if not task.keep_checkpoints:
        shutil.rmtree(folder / RUN / "checkpoints", ignore_errors=True)
    return 0


def end_with_parent() -> None:
    """End this process with the one that began it, by which standard input ends."""
    while os.read(0, 4096):  # sys.stdin would be locked where the process ends by itself
        pass
    os._exit(1)


def _raise_stopped(number: int, frame: Any) -> None:
    raise Stopped("Stopped.")


def _failed(message: str) -> dict[str, Any]:
    return {
        "status": "failed", "val_perplexity": None, "best_epoch": None, "epochs": None,
        "parameters": None, "ended": "", "message": message,
    }  # fmt: skip


# --- training


def _train(folder: Path, task: Task) -> dict[str, Any]:
    from dualnet import runs, training
    from dualnet.tuning.budget import solve

    run = folder / RUN
    if run.exists():  # a worker that was given up may still be at it
        with filelock.FileLock(run / ".lock", timeout=IN_USE):
            pass
    corpus = load_given(task.corpus, model=task.model, run=task.run)
    _check_corpus(corpus, task)
    settings = dict(task.settings)
    if task.epochs is not None:
        settings["epochs"] = task.epochs
    resume = (run / "card.toml").is_file()
    known: dict[str, Any] = {
        "output": run,
        "seed": None if resume else task.seed,
        "resume": resume,
        "evaluate": False,
        "progress": False,
        "checkpoint_steps": task.checkpoint_steps,
        "stop": _stop(folder, task) if task.early_stopping == "median" else None,
    }
    if resume:  # with what it began with
        settings = {key: settings[key] for key in ("epochs",) if task.epochs is not None}
    if task.kind == "gate":
        found = training.train_gate(task.run, corpus, **known, **settings)
    else:
        card = card_given(task.model, task.corpus)
        if task.parameters is not None and not resume:
            settings[task.solve_for] = solve(
                card,
                settings,
                task.parameters,
                solve_for=task.solve_for,
                vocabulary_size=len(corpus.vocabulary),
            )
        found = training.train(card, corpus, **known, **settings)
    planned = runs.read_card(run).recipe["epochs"]
    ended = "hopeless" if len(found.history) < planned else "all epochs"
    return {**_outcome_of_run(folder, ended), "parameters": found.model.count_params()}


def _outcome_of_run(folder: Path, ended: str) -> dict[str, Any]:
    history = read_history(folder)
    best = min(history)
    return {
        "status": "completed", "val_perplexity": best, "best_epoch": history.index(best) + 1,
        "epochs": len(history), "parameters": None, "seconds": _seconds_before(folder),
        "ended": ended, "message": "",
    }  # fmt: skip


def _seconds_before(folder: Path) -> float:
    """Return how long the epochs took that the trial has so far."""
    return sum(epoch["seconds"] for epoch in history_of(folder))


def _stop(folder: Path, task: Task) -> Any:
    def stop(history: Sequence[Mapping[str, Any]]) -> bool:
        from dualnet.runs import read_card

        epochs = read_card(folder / RUN).recipe["epochs"]
        others = [each for each in folder.parent.iterdir() if each != folder and each.is_dir()]
        own = [row["val_perplexity"] for row in history]
        return is_hopeless(own, [read_history(each) for each in others], epochs)

    return stop


# --- the corpus


CORPUS = "corpus.json"


def write_corpus(folder: Path, corpus: Any) -> None:
    """Write `corpus` into `folder`, for the processes of trials to read."""
    from dualnet.corpora import SPLITS

    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        with open(folder / f"{split}.npy", "wb") as file:
            np.save(file, corpus.split(split), allow_pickle=False)
    corpus.vocabulary.save(folder / "vocabulary.txt")
    about = {key: getattr(corpus, key) for key in ("name", "sha256", "lowercase", "source")}
    write_whole(folder / CORPUS, json.dumps(about, indent=2) + "\n")


def read_corpus(folder: Path) -> Any:
    """Return the corpus that `write_corpus` wrote, its ids as memory maps."""
    from dualnet.corpora import SPLITS, Corpus, Vocabulary

    about = json.loads((folder / CORPUS).read_text("utf-8"))
    words = Vocabulary.load(folder / "vocabulary.txt", lowercase=about["lowercase"])
    ids = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
    return Corpus(**about, **ids, vocabulary=words)


def card_given(model: str, corpus: Any) -> Any:
    """Return the card of `model` for what was given as corpus, as `Task` has it."""
    from dualnet.training import card_for

    return card_for(model, read_corpus(Path(corpus)) if _is_written(corpus) else corpus)


def load_given(corpus: str, *, model: str, run: str) -> Any:
    """Return the corpus that `Task` has as `corpus`, for its model or RUN."""
    from dualnet import corpora
    from dualnet.runs import corpus_of_run, read_card
    from dualnet.runs.folder import WORDS
    from dualnet.text import Vocabulary

    if _is_written(corpus):
        return read_corpus(Path(corpus))
    if not run:
        return corpora.load(corpus, lowercase=card_given(model, corpus).lowercase)
    if not corpus:
        return corpus_of_run(run)
    lowercase = read_card(run).lowercase
    words = Vocabulary.load(Path(run) / WORDS, lowercase=lowercase)
    return corpora.load(corpus, lowercase=lowercase, vocabulary=words)


def _is_written(corpus: Any) -> bool:
    return isinstance(corpus, str) and corpus != "" and (Path(corpus) / CORPUS).is_file()


def _check_corpus(corpus: Any, task: Task) -> None:
    if task.corpus_sha256 not in ("", corpus.sha256):
        raise ArgumentError(
            "corpus",
            "must stay as it was when the search began. Received: "
            f"{corpus.name!r} from {corpus.source!r} with other words. Restore it, or search anew.",
        )


# --- evaluation


def _evaluate(folder: Path, task: Task) -> dict[str, Any]:
    from dualnet import adaptation, builders, evaluation, runs

    model = runs.load(task.run)
    corpus = load_given(task.corpus, model="", run=task.run)
    _check_corpus(corpus, task)
    settings = dict(task.settings)
    cache = {
        key.removeprefix("cache_"): settings.pop(key)
        for key in list(settings)
        if key.startswith("cache_")
    }
    if cache.get("size", 0):
        model = builders.with_cache(model, **cache)
    tokens = corpus.split(task.split)
    if settings.pop("evaluation", "static") == "dynamic":
        if settings.get("rule") == "rms":
            # Of the text that it was trained on, whatever is evaluated.
            text = runs.corpus_of_run(task.run).train if task.corpus else corpus.train
            settings["statistics"] = _statistics(folder, model, text, settings)
        settings["clipnorm"] = settings.get("clipnorm") or None  # 0: none
        perplexity = adaptation.dynamic_evaluation(model, tokens, **settings).perplexity
    else:
        by_sentence = runs.read_card(task.run).recipe.get("batching") == "sentences"
        perplexity = evaluation.evaluate(
            model, tokens, by_sentence=by_sentence, **settings
        ).perplexity
    return {
        "status": "completed", "val_perplexity": perplexity, "best_epoch": None, "epochs": None,
        "parameters": model.count_params(), "ended": "", "message": "",
    }  # fmt: skip


def _statistics(folder: Path, model: Any, tokens: Any, settings: Mapping[str, Any]) -> Any:
    """Return the gradient statistics, which all trials of one segment length share."""
    from dualnet.adaptation import RULES, GradientStatistics, gradient_statistics

    length = settings.get("sequence_length") or RULES["rms"]["sequence_length"]
    file = folder.parents[1] / "statistics" / f"{length}.npz"
    if model.cache_size:  # whose gradients are others
        return gradient_statistics(model, tokens, sequence_length=length)
    if not file.is_file():
        found = gradient_statistics(model, tokens, sequence_length=length)
        arrays: dict[str, Any] = {f"{i:05}": root for i, root in enumerate(found.roots)}
        file.parent.mkdir(exist_ok=True)
        with written_beside(file) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, batches=found.batches, **arrays)
    with np.load(file, allow_pickle=False) as kept:
        roots = [kept[f"{i:05}"] for i in range(len(kept.files) - 1)]
        return GradientStatistics(roots, int(kept["batches"]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
