"""Loads the model of a RUN folder or a `.keras` file, and writes a RUN folder."""

import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

from dualnet._checks import ArgumentError
from dualnet._files import UNFINISHED
from dualnet.builders import BUILDERS, LanguageModel, TranslationModel
from dualnet.cards import Card
from dualnet.runs.folder import WEIGHTS, checksummed


def load_keras_file(path: Path) -> LanguageModel:
    """Load the model of a `.keras` file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            # Another dtype policy may need another optimizer, around a loss scale: it starts anew.
            warnings.filterwarnings("default", message="Skipping variable loading for optimizer")
            model = keras.models.load_model(path)
    except ImportError:  # of a part that is not imported
        raise
    except Exception as error:  # Keras, zipfile, json and h5py each raise their own
        message = f"must be a .keras file. Received: {str(path)!r}, damaged or of another kind "
        raise ArgumentError("path", f"{message}({first_line(error)}).") from error
    if not isinstance(model, LanguageModel):
        message = f"must hold a language model of dualnet. Received: {str(path)!r}, which holds a "
        raise ArgumentError("path", f"{message}{type(model).__name__}.")
    return model


def build_with_weights(card: Card, run: Any) -> LanguageModel:
    """Return the model of `card`, with the tokenisers and the best weights of its `Run`."""
    model = BUILDERS[card.builder](**card.config, name=card.name)
    model.vocabulary = run.vocabulary
    if isinstance(model, TranslationModel):
        model.source_vocabulary = run.source_vocabulary
    model.loss_reduction = card.recipe.get("loss_reduction", "mean")
    with warnings.catch_warnings():
        # Keras only warns when it leaves layers at their random weights.
        warnings.simplefilter("error", UserWarning)
        load_weights(model, run.path / WEIGHTS)
    model.run = run
    return model


def write_weights(folder: Path, model: LanguageModel, name: str = WEIGHTS) -> None:
    """Write the weights of `model` into the RUN folder as file `name`."""
    # By way of a .keras archive, built in memory and written by Python: on a full disk,
    # `save_weights` would crash the process inside HDF5.
    with (
        tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as temporary,
        checksummed(folder, name) as path,
    ):
        archive = Path(temporary) / "model.keras"
        model.without_optimizer().save(archive)
        with zipfile.ZipFile(archive) as file:
            path.write_bytes(file.read(WEIGHTS))


def load_weights(model: LanguageModel, path: Path) -> None:
    """Load weights written by `write_weights` into `model`."""
    model.without_optimizer().load_weights(path)


def first_line(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
