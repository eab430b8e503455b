"""The RUN folder: what is in it, who may write to it, and whether it is as it was written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock
import keras
import tomli_w

from dualnet import corpora
from dualnet._files import make_folder, sha256_of, write_whole, written_beside
from dualnet._toml import KINDS, read_toml
from dualnet.builders import BUILDERS, LanguageModel
from dualnet.corpora import Corpus, Vocabulary
from dualnet.zoo import KEYS

CARD = "card.toml"
WORDS = "vocabulary.txt"
WEIGHTS = "model.weights.h5"  # the best epoch's
RESULTS = "results.json"
SUMS = "sums.json"
LOCK = ".lock"


def load(path: str | os.PathLike[str]) -> LanguageModel:
    """Return the model of a RUN folder (its best weights) or of a `.keras` file.

    The vocabulary comes with it, as `model.vocabulary`. Nothing in the files is
    executed: they hold numbers, words and the arguments of a builder.

    Raises:
        FileNotFoundError: if `path` does not exist or is no RUN folder.
        ValueError: if a file is damaged, altered, or of another kind of model.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a RUN folder or a .keras file. Received: {str(path)!r}, which does "
            "not exist."
        )
    if path.suffix != ".keras":
        raise ValueError(
            f"`path` must be a RUN folder or a .keras file. Received: {str(path)!r}. Weights alone "
            "are loaded into a built model, with model.load_weights."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = keras.models.load_model(path)
    except Exception as error:  # Keras, zipfile, json and h5py have each their own
        raise ValueError(
            f"`path` must be a .keras file that dualnet or Keras saved. Received: {str(path)!r}, "
            f"which is damaged or of another kind ({_first_line(error)})."
        ) from error
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"`path` must hold a language model of dualnet. Received: {str(path)!r} with a "
            f"{type(model).__name__}. Load it with keras.models.load_model."
        )
    return model


def _load_folder(folder: Path) -> LanguageModel:
    used = read_card(folder)
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {WEIGHTS}, which is written after the first epoch. "
            f"Received: {str(folder)!r}, without it. Train on with --resume, or anew."
        )
    _check_words(folder)
    check_sums(folder)
    try:
        vocabulary = _words(folder, used)
        model = BUILDERS[used["builder"]](**used["config"], name=used["name"])
        model.vocabulary = vocabulary
        model.loss_reduction = used["recipe"].get("loss_reduction", "mean")
        with warnings.catch_warnings():
            # By which Keras tells that it has left layers at their random weights.
            warnings.simplefilter("error", UserWarning)
            load_weights(model, folder / WEIGHTS)
    except Exception as error:  # only an altered folder without sums.json comes here
        raise ValueError(
            f"The files of a RUN folder must belong together. Received: {str(folder)!r}, which was "
            f"altered ({_first_line(error)}). Put it back as it was, or train anew."
        ) from error
    return model


def corpus_of_run(folder: str | os.PathLike[str]) -> Corpus:
    """Return the corpus that the model in the RUN folder was trained on, with its vocabulary.

    Raises:
        FileNotFoundError: if `folder` is no RUN folder, or the corpus is not there.
        ValueError: if the corpus holds other words than the run was trained on, or a file
            of the folder is damaged or altered.
    """
    folder = Path(folder)
    used = read_card(folder)
    _check_words(folder)
    check_sums(folder, (CARD, WORDS))
    before = used["corpus"]
    named = before["name"] in corpora.NAMES
    source = before["source"]
    name = before["name"] if named else source
    corpus = corpora.load(
        name,
        path=source if named and os.path.isdir(source) else None,
        lowercase=before["lowercase"],
        vocabulary=_words(folder, used),
    )
    if corpus.sha256 != before["sha256"]:
        raise ValueError(
            f"The corpus of a RUN must be unchanged. Received: {corpus.name!r} from "
            f"{corpus.source!r} with other words than the run was trained on. To take them all "
            f"the same, name the corpus: --corpus {name}, or corpora.load in Python."
        )
    return corpus


def _words(folder: Path, used: dict[str, Any]) -> Vocabulary:
    return Vocabulary.load(folder / WORDS, lowercase=used["corpus"]["lowercase"])


def _check_words(folder: Path) -> None:
    if not (folder / WORDS).is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {WORDS}. Received: {str(folder)!r}, without it. Put it back, "
            "or train anew."
        )


def read_card(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the card as used of a RUN folder: name, builder, corpus, seed, config, recipe.

    And `weights`, the path of the model whose weights the run began with, if there was one.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is no such card.
    """
    file = Path(folder) / CARD
    if not file.is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {CARD}. Received: {str(folder)!r}, without it. Make one "
            "with `dualnet train NAME --corpus CORPUS --output RUN`."
        )
    used = read_toml(file)
    needed = {key: KEYS[key] for key in ("name", "builder", "seed", "corpus", "config", "recipe")}
    if "weights" in used:
        needed["weights"] = KEYS["weights"]
    for key, kind in needed.items():
        if type(used.get(key)) is not kind:
            raise ValueError(
                f"{file}: `{key}` must be there, and be {KINDS[kind]}. Put the card back as it "
                "was, or train anew."
            )
    corpus = used["corpus"]
    texts = all(isinstance(corpus.get(key), str) for key in ("name", "source", "sha256"))
    if used["builder"] not in BUILDERS or not texts or type(corpus.get("lowercase")) is not bool:
        raise ValueError(
            f"{file}: `builder` must be one of {sorted(BUILDERS)}, and `corpus` must tell name, "
            "source, sha256 and lowercase. Put the card back as it was, or train anew."
        )
    return used


def write_card(folder: Path, used: dict[str, Any]) -> None:
    """Write the card as used, without what is None: TOML has no word for it."""
    put(folder, CARD, tomli_w.dumps(_without_none(used)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(each) for each in value]
    return value


# --- who may write


@contextlib.contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold `folder` for this process alone, while it trains into it.

    The lock is the system's: it ends with the process, however that ends.

    Raises:
        FileExistsError: if `folder` is a file, or holds files and `resume` is False.
        OSError: if it cannot be made or written to.
        ValueError: if another process trains into it.
    """
    made = not folder.exists()
    make_folder("output", folder)
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(
            f"`output` must be a folder that no other process trains into. Received: "
            f"{str(folder)!r}, which is in use. Wait for the other, or choose another folder."
        ) from None
    try:
        # All that there is of a run that was stopped before its first checkpoint.
        began = {CARD, WORDS, SUMS, LOCK}
        found = {path.name for path in folder.iterdir()}
        foreign = {name for name in found if not name.startswith(".unfinished-")} - began
        if foreign and not resume:
            raise FileExistsError(
                f"`output` must be a new or empty folder. Received: {str(folder)!r}, which holds "
                "files. Choose another, or go on with the run in it with --resume."
            )
        if not foreign or CARD in found:
            for unfinished in folder.glob(".unfinished-*"):  # of a process that was killed
                shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
        yield
    except BaseException:
        if made and {path.name for path in folder.iterdir()} <= {LOCK}:
            lock.release()
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
        raise
    finally:
        lock.release()


# --- whether it is as it was written


def put(folder: Path, name: str, data: str | bytes) -> None:
    """Write file `name` of the RUN folder, and its sum beside it."""
    with _summed(folder, name) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def put_words(folder: Path, vocabulary: Vocabulary) -> None:
    """Write the vocabulary."""
    with _summed(folder, WORDS) as temporary:
        vocabulary.save(temporary)


def put_weights(folder: Path, model: LanguageModel) -> None:
    """Write the weights of `model` as those of the best epoch."""
    # Out of a .keras archive: on a full disk `save_weights` ends the process with a crash in
    # HDF5, whereas the archive is made in memory and written by Python.
    with (
        tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside,
        _summed(folder, WEIGHTS) as temporary,
    ):
        archive = Path(beside) / "model.keras"
        _without_optimizer(model).save(archive)
        with zipfile.ZipFile(archive) as stored:
            temporary.write_bytes(stored.read(WEIGHTS))


def load_weights(model: LanguageModel, path: Path) -> None:
    """Give `model` the weights that `put_weights` wrote."""
    _without_optimizer(model).load_weights(path)


@contextlib.contextmanager
def _summed(folder: Path, name: str) -> Iterator[Path]:
    with written_beside(folder / name) as temporary:
        yield temporary
        sums = _read_sums(folder)
        sums[name] = [sha256_of(temporary)]
        if (folder / name).is_file():  # a kill may come before it is replaced
            sums[name].append(sha256_of(folder / name))
        write_whole(folder / SUMS, json.dumps(sums, indent=2) + "\n")


def check_sums(folder: Path, names: Iterable[str] = (CARD, WORDS, WEIGHTS)) -> None:
    """Raise `ValueError` if a file is not as it was written; without sums all is taken as it is."""
    sums = _read_sums(folder)
    for name in names:
        known = sums.get(name, [])
        if known and (folder / name).is_file() and sha256_of(folder / name) not in known:
            raise ValueError(
                f"{name} of a RUN folder must be as it was written. Received: "
                f"{str(folder / name)!r}, damaged or altered: its SHA-256 is not in {SUMS}. Put it "
                f"back, or remove {SUMS} to use it as it is."
            )


def _read_sums(folder: Path) -> dict[str, list[str]]:
    if not (folder / SUMS).is_file():
        return {}
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return {name: [str(each) for each in sums[name]] for name in (CARD, WORDS, WEIGHTS)
                if name in sums}  # fmt: skip
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{SUMS} of a RUN folder must be as it was written. Received: {str(folder / SUMS)!r}, "
            "damaged or altered. Remove it to use the other files as they are."
        ) from error


def _without_optimizer(model: LanguageModel) -> LanguageModel:
    # Keras would write the optimizer's state, twice as large, into the file of weights.
    return LanguageModel(
        model.core, builder=model.builder, arguments=model.arguments, name=model.name
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
