"""Loads the model of a RUN folder or a `.keras` file, and writes a RUN folder."""

import collections
import json
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

LARGEST_CONFIG = 64 * 10**6  # bytes; the vocabulary of WikiText-103 has 3 million
# In it: layers, initializers, members of ensembles and others, which Keras builds in up to 0.03 s
# each. The largest ensemble of the zoo has 12, an optimizer and metrics add a few; the rest is for
# stock Keras models, which are refused by their class.
MOST_OBJECTS = 300


def load_keras_file(path: Path) -> LanguageModel:
    """Load the model of a `.keras` file."""
    try:
        _check_config(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            # Another dtype policy may need another optimizer, around a loss scale: it starts anew.
            warnings.filterwarnings("default", message="Skipping variable loading for optimizer")
            model = keras.models.load_model(path)
    except ImportError:  # of a part that is not imported
        raise
    except Exception as error:  # Keras, zipfile, json and h5py each raise their own
        message = f"must be a .keras file saved by dualnet or Keras. Received: {str(path)!r}, which"
        fault = f"is damaged or of another kind ({first_line(error)})."
        raise ArgumentError("path", f"{message} {fault}") from error
    if not isinstance(model, LanguageModel):
        message = f"must hold a language model of dualnet. Received: {str(path)!r}, which holds a "
        way_out = "Load it with keras.models.load_model."
        raise ArgumentError("path", f"{message}{type(model).__name__}. {way_out}")
    return model


def _check_config(path: Path) -> None:
    """Raise `ValueError` for a `.keras` file that Keras would read or build for ever."""
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("config.json").file_size  # zipfile reads no more than it states
        if size > LARGEST_CONFIG:
            raise ValueError(f"its config.json has {size:,} bytes, above {LARGEST_CONFIG:,}")
        config = archive.read("config.json")
    keys: collections.Counter[str] = collections.Counter()
    # Parsed, since JSON may spell a key in other ways.
    json.loads(config, object_pairs_hook=lambda pairs: keys.update(key for key, _ in pairs))
    if (objects := keys["class_name"] + keys["builder"]) > MOST_OBJECTS:
        raise ValueError(f"its config.json has {objects:,} layers, above {MOST_OBJECTS:,}")


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
