"""Checkpoints: the last two states of a run, each written whole and verified by checksums."""

import contextlib
import dataclasses
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dualnet import _files
from dualnet._backend import assign_all
from dualnet._files import DamagedError, sha256_of
from dualnet.builders import LanguageModel
from dualnet.builders.weights import as_numpy
from dualnet.runs.folder import PLAIN_WEIGHTS, WEIGHTS, write_file
from dualnet.training.optimizers import state_of
from dualnet.training.schedule import History

FOLDER = "checkpoints"
KEPT = 2
STATE, PROGRESS = "state.npz", "progress.json"
BEST = (WEIGHTS, PLAIN_WEIGHTS)


@dataclasses.dataclass
class Progress:
    """How far a run has come, apart from the variables of its model and optimizer."""

    history: History = dataclasses.field(default_factory=list)
    step: int = 0  # steps taken in the current epoch
    seconds: float = 0.0  # that they took
    metrics: list[float] = dataclasses.field(default_factory=list)  # variables, over these steps
    run: str = ""  # identity of the run; 0.2.0.dev0 wrote none
    restarts: list[int] = dataclasses.field(default_factory=list)  # epochs that had diverged
    callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)  # the state of each
    stopped: bool = False  # by a callback, after this step
    start: float | None = None  # validation perplexity before the first step, of given weights


def save(
    folder: Path, model: LanguageModel, progress: Progress, *, best: int | None = None
) -> Path:
    """Write a checkpoint into the RUN folder `folder`, whole or not at all; return its path.

    Keep two: the last, and the one before it; within an epoch, from the second on, in its place the
    one after the last epoch, which validation has proven. With `best`, an epoch, keep the one after
    it, too.

    It holds every variable of the model and its optimizer (weights, slots, averages, states
    of random generators, stream states), and the best weights so far.
    """
    parent = folder / FOLDER
    try:
        parent.mkdir(exist_ok=True)
        name = _name(len(progress.history), progress.step)
        if progress.restarts:  # newer than any before the restart
            name = f"restart-{len(progress.restarts):02}-{name}"
        # Replaces only a damaged checkpoint: a whole one would have been resumed from.
        with _files.folder_beside(parent / name) as unfinished:
            arrays = {f"{i:05}": as_numpy(v) for i, v in enumerate(_variables(model))}
            np.savez(unfinished / STATE, **arrays)  # type: ignore[arg-type]
            for weights in filter(Path.is_file, (folder / name for name in BEST)):
                shutil.copyfile(weights, unfinished / weights.name)
            _files.seal(unfinished, PROGRESS, dataclasses.asdict(progress))
        with contextlib.suppress(OSError):  # not every system can flush a folder
            _files.flush(parent)
        newest, end = newest_first(folder), newest_first(folder, len(progress.history))[:1]
        of_best = [] if best is None else newest_first(folder, best)[:1]
        last = newest[:KEPT] if end in ([], newest[:1]) else newest[:1]
        for old in {*newest} - {*last, *end, *of_best}:
            shutil.rmtree(old)
        return parent / name
    except OSError as error:
        raise OSError(
            f"A checkpoint could not be written into {str(parent)!r} ({error.strerror or error}). "
            "Earlier checkpoints are intact: free some space, then resume with --resume."
        ) from None


def is_finite(model: LanguageModel) -> bool:
    """Return True if all weights of `model` and all variables of its optimizer are finite."""
    variables = (*model.trainable_variables, *state_of(model.optimizer))
    return all(bool(keras.ops.all(keras.ops.isfinite(variable))) for variable in variables)


def restore(
    folder: Path, model: LanguageModel, run: str = "", *, after: int | None = None
) -> Progress | None:
    """Load the newest intact checkpoint into `model` and its optimizer; return its progress.

    With `after`, an epoch, that is one written after it.

    With `run`, the identity of a run, one of another run counts as damaged.

    Reports a damaged checkpoint on standard error and falls back to the one before. The best
    weights of the RUN folder are reset to those of the checkpoint. Returns None if there is
    no checkpoint.
    """
    _files.remove_unfinished(folder / FOLDER)
    damaged = []
    for path in newest_first(folder, after):
        try:
            progress = _read(path)
            if run and progress.run not in ("", run):
                raise DamagedError("it belongs to another run")
            arrays = _load_arrays(path / STATE, _variables(model))
        except DamagedError as error:
            damaged.append(path)
            print(
                f"Checkpoint {str(path)!r} is damaged: {error}. Trying the one before.",
                file=sys.stderr,
                flush=True,
            )
            continue
        assign_all(_variables(model), arrays)
        for broken in damaged:
            shutil.rmtree(broken)
        for saved in filter(Path.is_file, (path / name for name in BEST)):
            current = folder / saved.name
            if not current.is_file() or sha256_of(current) != sha256_of(saved):
                write_file(folder, saved.name, saved.read_bytes())
        return progress
    if damaged:
        raise ValueError(
            f"A RUN folder must hold an intact checkpoint. Received: {str(folder)!r}, whose "
            f"{len(damaged)} checkpoints are all damaged. Train again, into a new folder."
        )
    return None


def peek(folder: Path) -> Progress | None:
    """Return the progress of the newest intact checkpoint, without loading its variables."""
    for path in newest_first(folder):
        with contextlib.suppress(DamagedError):
            return _read(path)
    return None


def newest_first(folder: Path, epoch: int | None = None) -> list[Path]:
    """Return the checkpoints in `folder`, or those after this `epoch`."""
    name = "epoch-*-step-*" if epoch is None else _name(epoch, 0)
    return sorted((folder / FOLDER).glob(f"*{name}"), reverse=True)


def _name(epochs: int, step: int) -> str:
    return f"epoch-{epochs:05}-step-{step:08}"


def _read(path: Path) -> Progress:
    """Return the progress of the checkpoint `path` after verifying all its files."""
    body = _files.unseal(path, PROGRESS)
    try:
        return Progress(**body)
    except TypeError:
        raise DamagedError(f"{PROGRESS} is of another release") from None


def _variables(model: LanguageModel) -> list[keras.Variable]:
    """Return each variable that a step reads or changes once, in an order that is reproducible."""
    skipped = {id(variable) for variable in model.evaluation_rows.variables}  # zeroed before use
    variables = {id(v): v for v in (*model.variables, *state_of(model.optimizer))}
    return [variable for key, variable in variables.items() if key not in skipped]


def _load_arrays(path: Path, variables: list[keras.Variable]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = [stored[name] for name in sorted(stored.files)]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{path.name} holds no numeric arrays") from error
    shapes = [tuple(variable.shape) for variable in variables]
    # 0.2.0.dev0 left out the last one of Nadam in float16.
    if [array.shape for array in arrays] not in (shapes, shapes[:-1]):
        raise DamagedError(f"{path.name} holds the state of another model")
    return arrays
