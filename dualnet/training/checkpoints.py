"""The last two states of a run, whole and with a checksum each, or not there at all."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dualnet._files import flush, sha256_of, write_whole
from dualnet.builders import LanguageModel
from dualnet.runs.folder import WEIGHTS, put

FOLDER = "checkpoints"
KEPT = 2
STATE, PROGRESS = "state.npz", "progress.json"


@dataclasses.dataclass
class Progress:
    """Where a run is, beside the variables of its model and optimizer.

    Attributes:
        history: One dict for each finished epoch, the rows of `metrics.csv`.
        step: Steps done in the epoch under way.
        seconds: Time that they took.
        metrics: Values of the metrics' variables, over these steps.
    """

    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    metrics: list[float] = dataclasses.field(default_factory=list)


def save(folder: Path, model: LanguageModel, progress: Progress) -> None:
    """Write a checkpoint into the RUN folder `folder`: whole or not at all; keep the last two.

    It holds every variable of the model and of its optimizer: weights, slots, averages,
    states of random generators, carried rows. And the best weights so far.

    Raises:
        OSError: if it cannot be written; those before it stay.
    """
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=place))
        try:
            with open(unfinished / STATE, "wb") as file:
                np.savez(file, **_arrays(model))  # type: ignore[arg-type]
            if (folder / WEIGHTS).is_file():
                shutil.copyfile(folder / WEIGHTS, unfinished / WEIGHTS)
            files = sorted(path.name for path in unfinished.iterdir())
            for name in files:
                flush(unfinished / name)
            body = {
                **dataclasses.asdict(progress),
                "files": {name: sha256_of(unfinished / name) for name in files},
            }
            write_whole(unfinished / PROGRESS, json.dumps({**body, "sha256": _sum(body)}))
            name = f"epoch-{len(progress.history):05}-step-{progress.step:08}"
            shutil.rmtree(place / name, ignore_errors=True)  # damaged, else it were not made again
            os.replace(unfinished, place / name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        _sync_folder(place)
        for old in _found(folder)[KEPT:]:
            shutil.rmtree(old)
    except OSError as error:
        raise OSError(
            f"A checkpoint could not be written into {str(place)!r} ({error.strerror or error}). "
            "What was written before is whole: make room, then go on with --resume."
        ) from None


def restore(folder: Path, model: LanguageModel) -> Progress | None:
    """Give `model` and its optimizer the newest whole checkpoint; return where it stands.

    A damaged one is told on standard error, and the one before it taken. The
    best weights are put back as they were then. None if there is no checkpoint.

    Raises:
        ValueError: if there are checkpoints, all damaged.
    """
    place = folder / FOLDER
    for unfinished in place.glob(".unfinished-*"):
        shutil.rmtree(unfinished)
    damaged: dict[Path, str] = {}
    for path in _found(folder):
        try:
            progress = _read(path)
            arrays = _load_arrays(path / STATE, _variables(model))
        except _DamagedError as error:
            damaged[path] = str(error)
            print(
                f"Checkpoint {str(path)!r} is damaged: {error}. The one before it is tried.",
                file=sys.stderr,
                flush=True,
            )
            continue
        for variable, array in zip(_variables(model), arrays):
            variable.assign(array)
        for broken in damaged:
            shutil.rmtree(broken)
        best = path / WEIGHTS
        now = folder / WEIGHTS
        if best.is_file() and not (now.is_file() and sha256_of(now) == sha256_of(best)):
            put(folder, WEIGHTS, best.read_bytes())
        return progress
    if damaged:
        raise ValueError(
            f"A RUN folder must hold a whole checkpoint. Received: {str(folder)!r}, whose "
            f"{len(damaged)} checkpoints are all damaged. Train anew, into a new folder."
        )
    return None


def exist(folder: Path) -> bool:
    """Return whether the RUN folder holds a checkpoint, whole or damaged."""
    return bool(_found(folder))


def peek(folder: Path) -> Progress | None:
    """Return where the newest whole checkpoint stands, without reading its variables."""
    for path in _found(folder):
        with contextlib.suppress(_DamagedError):
            return _read(path)
    return None


class _DamagedError(Exception):
    pass


def _found(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, the newest first."""
    return sorted((folder / FOLDER).glob("epoch-*-step-*"), reverse=True)


def _read(path: Path) -> Progress:
    """Return the progress in the checkpoint `path`, all its files checked."""
    try:
        body = json.loads((path / PROGRESS).read_text("utf-8"))
        if body.pop("sha256") != _sum(body):
            raise _DamagedError(f"{PROGRESS} is not as it was written")
        files = body.pop("files")
    except FileNotFoundError:
        raise _DamagedError(f"{PROGRESS} is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise _DamagedError(f"{PROGRESS} is not as it was written") from None
    for name, expected in files.items():
        if not (path / name).is_file():
            raise _DamagedError(f"{name} is missing")
        if sha256_of(path / name) != expected:
            raise _DamagedError(f"{name} has another SHA-256 than when it was written")
    try:
        return Progress(**body)
    except TypeError:
        raise _DamagedError(f"{PROGRESS} is of another release") from None


def _sum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _variables(model: LanguageModel) -> list[Any]:
    """Return all that a step reads and changes, each once, in an order that a new model has too."""
    rows = {id(variable) for variable in model.evaluation_rows.variables}  # zeroed before use
    every = [*model.variables, *model.optimizer.variables]
    return list({id(each): each for each in every if id(each) not in rows}.values())


def _arrays(model: LanguageModel) -> dict[str, np.ndarray]:
    return {f"{i:05}": _as_numpy(variable) for i, variable in enumerate(_variables(model))}


def _as_numpy(variable: Any) -> np.ndarray:
    array = np.asarray(keras.ops.convert_to_numpy(variable))
    # bfloat16 is no type of NumPy's own; float32 holds it exactly.
    return array.astype("float32") if array.dtype.kind == "V" else array


def _load_arrays(path: Path, variables: list[Any]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if len(stored.files) != len(variables):
                raise _DamagedError(f"{path.name} holds the state of another model")
            arrays = [stored[f"{i:05}"] for i in range(len(variables))]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _DamagedError(f"{path.name} holds no arrays of numbers") from error
    for array, variable in zip(arrays, variables):
        if array.shape != tuple(variable.shape):
            raise _DamagedError(f"{path.name} holds the state of another model")
    return arrays


def _sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
