"""Reads and writes the model of a RUN folder."""

from __future__ import annotations

import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

from dualnet import corpora
from dualnet._checks import ArgumentError
from dualnet.builders import BUILDERS, LanguageModel
from dualnet.corpora import Corpus
from dualnet.runs.folder import CARD, WEIGHTS, WORDS, check_sums, read_card, summed
from dualnet.text import Vocabulary


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
        raise ArgumentError(
            "path",
            f"must be a RUN folder or a .keras file. Received: {str(path)!r}. Weights alone "
            "are loaded into a built model, with model.load_weights.",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = keras.models.load_model(path)
    except Exception as error:  # Keras, zipfile, json and h5py have each their own
        raise ArgumentError(
            "path",
            f"must be a .keras file that dualnet or Keras saved. Received: {str(path)!r}, "
            f"which is damaged or of another kind ({_first_line(error)}).",
        ) from error
    if not isinstance(model, LanguageModel):
        raise ArgumentError(
            "path",
            f"must hold a language model of dualnet. Received: {str(path)!r} with a "
            f"{type(model).__name__}. Load it with keras.models.load_model.",
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


def put_weights(folder: Path, model: LanguageModel) -> None:
    """Write the weights of `model` as those of the best epoch."""
    # Out of a .keras archive: on a full disk `save_weights` ends the process with a crash in
    # HDF5, whereas the archive is made in memory and written by Python.
    with (
        tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside,
        summed(folder, WEIGHTS) as temporary,
    ):
        archive = Path(beside) / "model.keras"
        _without_optimizer(model).save(archive)
        with zipfile.ZipFile(archive) as stored:
            temporary.write_bytes(stored.read(WEIGHTS))


def load_weights(model: LanguageModel, path: Path) -> None:
    """Give `model` the weights that `put_weights` wrote."""
    _without_optimizer(model).load_weights(path)


def _without_optimizer(model: LanguageModel) -> LanguageModel:
    # Keras would write the optimizer's state, twice as large, into the file of weights.
    return LanguageModel(
        model.graph, builder=model.builder, arguments=model.arguments, name=model.name
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
