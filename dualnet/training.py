"""Recipes, and training into a RUN folder that can be stopped, resumed and loaded."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import platform
import statistics
import sys
import time
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import tomli_w

from dualnet import corpora, zoo
from dualnet._checks import check_choice, check_count, check_fraction, check_penalty, did_you_mean
from dualnet._files import write_whole
from dualnet.builders import BUILDERS, LanguageModel
from dualnet.corpora import Corpus, Vocabulary
from dualnet.evaluation import evaluate
from dualnet.plots import plot_curves

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "nadam": keras.optimizers.Nadam,
    "sgd": keras.optimizers.SGD,
}
RESUMABLE = ("epochs", "learning_rate", "clipnorm")  # what may be given anew with `resume`
WEIGHTS = "model.weights.h5"  # the best epoch's, in a RUN folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Args:
        optimizer: "nadam", "adam" or "sgd".
        learning_rate: float above 0.
        beta_1: float, at least 0 and below 1. Momentum of "nadam" and "adam".
        clipnorm: float. Largest norm of each weight's gradient; 0 for none.
        batch_size: int. Number of parallel streams.
        sequence_length: int. Tokens between two updates, and the reach of back-propagation.
        epochs: int. Passes over the training text.

    Raises:
        ValueError: if a value is out of range.
    """

    optimizer: str = "nadam"
    learning_rate: float = 1e-3
    beta_1: float = 0.9
    clipnorm: float = 0.0
    batch_size: int = 32
    sequence_length: int = 25
    epochs: int = 100

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("batch_size", "sequence_length", "epochs"):
            check_count(name, getattr(self, name), least=1)
        for name in ("learning_rate", "clipnorm"):
            check_penalty(name, getattr(self, name))
        check_fraction("beta_1", self.beta_1)
        if self.learning_rate == 0:
            raise ValueError("`learning_rate` must be above 0. Received: learning_rate=0.")

    def make_optimizer(self) -> keras.optimizers.Optimizer:
        """Return a fresh optimizer."""
        settings: dict[str, Any] = {"learning_rate": self.learning_rate}
        if self.optimizer != "sgd":
            settings["beta_1"] = self.beta_1
        if self.clipnorm:
            settings["clipnorm"] = self.clipnorm
        return OPTIMIZERS[self.optimizer](**settings)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished training: the model with its best weights, and what was measured.

    Attributes:
        model: `LanguageModel` with the weights of the best epoch.
        folder: The RUN folder.
        results: What `results.json` holds.
        history: One dict for each epoch, the rows of `metrics.csv`.
    """

    model: LanguageModel
    folder: Path
    results: dict[str, Any]
    history: list[dict[str, float]]


def train(
    name: str,
    corpus: Corpus | str,
    *,
    output: str | os.PathLike[str],
    seed: int = 0,
    resume: bool = False,
    progress: bool = True,
    **overrides: Any,
) -> Run:
    """Train model `name` of the zoo on `corpus` and keep everything in the folder `output`.

    After each epoch the folder holds `metrics.csv`, `curves.png`, TensorBoard
    scalars, the weights of the best epoch by validation perplexity, and all that
    is needed to go on after the last finished epoch. At the end the best weights
    are evaluated with batch size 1, and `results.json` is written.

    Args:
        name: one of `zoo.list_models()`.
        corpus: `Corpus`, or what `corpora.load` takes.
        output: folder, new or empty unless `resume`.
        seed: int. Of weights and masks.
        resume: bool. Go on with the run in `output`, from its last finished epoch,
            with its own settings and seed; `epochs`, `learning_rate` and `clipnorm`
            may be given anew.
        progress: bool. Show a progress bar and a line per epoch on standard error.
        **overrides: arguments of the builder and of `Recipe`, in place of the card's.

    Raises:
        ValueError: for an unknown model or override, a value out of range, a corpus
            of less than one batch, or a loss that is no longer a number.
        FileExistsError: if `output` holds files and `resume` is False.
        FileNotFoundError: if there is nothing in `output` to resume.
    """
    folder = Path(output)
    card = zoo.card(name, corpus_name(name, corpus))
    if resume:
        used = _resumed_card(folder, name, overrides)
        config, recipe = used["config"], Recipe(**used["recipe"])
    else:
        config, recipe = split_overrides(card, overrides)
    if not isinstance(corpus, Corpus):
        corpus = corpora.load(corpus, lowercase=card.lowercase)
    data = {
        split: corpus.batches(
            split, batch_size=recipe.batch_size, sequence_length=recipe.sequence_length
        )
        for split in ("train", "valid")
    }
    recorder = _Recorder(folder, recipe, progress, data["train"].num_tokens)
    if resume:
        if corpus.sha256 != used["corpus"]["sha256"]:
            raise ValueError(
                "`corpus` must be the one that the run began with, "
                f"{used['corpus']['name']!r}, unchanged. Received: {corpus.name!r} with other "
                "words. Train anew without --resume."
            )
        model = recorder.restore()
        model.optimizer.learning_rate = recipe.learning_rate
        model.optimizer.clipnorm = recipe.clipnorm or None
    else:
        keras.utils.set_random_seed(seed)
        if overrides.get("vocabulary_size") not in (None, len(corpus.vocabulary)):
            raise ValueError(
                f"`vocabulary_size` must be that of the corpus, {len(corpus.vocabulary)}. "
                f"Received: vocabulary_size={overrides['vocabulary_size']!r}. Leave it out, or cut "
                "the vocabulary with corpora.load(..., vocabulary_size=...)."
            )
        config["vocabulary_size"] = len(corpus.vocabulary)
        model = BUILDERS[card.builder](**config, name=name)
        model.vocabulary = corpus.vocabulary
        model.compile(optimizer=recipe.make_optimizer())
        _claim(folder)  # now that nothing is left that could be refused
        used = {
            "name": name,
            "builder": card.builder,
            "paper": card.paper,
            "seed": seed,
            "corpus": {
                "name": corpus.name,
                "source": corpus.source,
                "lowercase": corpus.lowercase,
                "sha256": corpus.sha256,
            },
            "config": config,
            "recipe": dataclasses.asdict(recipe),
        }
        corpus.vocabulary.save(folder / "vocabulary.txt")
    write_whole(folder / "card.toml", tomli_w.dumps(used))
    try:
        model.fit(
            data["train"],
            validation_data=data["valid"],
            epochs=recipe.epochs,
            initial_epoch=len(recorder.history),
            callbacks=[recorder],
            verbose=0,
        )
    finally:
        recorder.close()
    model.load_weights(folder / WEIGHTS)
    results = _results(model, corpus, recorder, seed=used["seed"])
    write_whole(folder / "results.json", json.dumps(results, indent=2) + "\n")
    return Run(model, folder, results, recorder.history)


def load(path: str | os.PathLike[str]) -> LanguageModel:
    """Return the model of a RUN folder (its best weights) or of a `.keras` file.

    The vocabulary comes with it, as `model.vocabulary`.

    Raises:
        FileNotFoundError: if `path` does not exist or is no RUN folder.
    """
    path = Path(path)
    if path.is_dir():
        used = read_card(path)
        if not (path / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"A RUN folder must hold {WEIGHTS}, which is written after the first epoch. "
                f"Received: {str(path)!r}, without it. Train on with --resume, or anew."
            )
        model = BUILDERS[used["builder"]](**used["config"], name=used["name"])
        model.load_weights(path / WEIGHTS)
        lowercase = used["corpus"]["lowercase"]
        model.vocabulary = Vocabulary.load(path / "vocabulary.txt", lowercase=lowercase)
        return model
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be a RUN folder or a .keras file. Received: {str(path)!r}, which does "
            "not exist."
        )
    return keras.models.load_model(path)


def read_card(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the card as used of a RUN folder: name, builder, corpus, seed, config, recipe."""
    file = Path(folder) / "card.toml"
    if not file.is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold card.toml. Received: {str(folder)!r}, without it. Make one "
            "with `dualnet train NAME --corpus CORPUS --output RUN`."
        )
    return tomllib.loads(file.read_text("utf-8"))


def corpus_name(name: str, corpus: Corpus | str) -> str | None:
    """Return the name of `corpus` if model `name` was published for it, else None."""
    known = corpus.name if isinstance(corpus, Corpus) else str(corpus)
    return known if known in zoo.card(name).corpora else None


def split_overrides(card: zoo.Card, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], Recipe]:
    """Return the builder's arguments and the recipe of `card`, each with its `overrides`."""
    arguments = [key for key in zoo.builder_arguments(BUILDERS[card.builder]) if key != "name"]
    fields = [field.name for field in dataclasses.fields(Recipe)]
    for key in overrides:
        if key not in arguments and key not in fields:
            raise ValueError(
                f"`{key}` must be an argument of the builder or of the recipe."
                f"{did_you_mean(key, arguments + fields)} Builder: {', '.join(sorted(arguments))}. "
                f"Recipe: {', '.join(fields)}."
            )
    config = {key: value for key, value in overrides.items() if key in arguments}
    recipe = {key: value for key, value in overrides.items() if key in fields}
    return zoo.resolve(card.config, config), Recipe(**{**card.recipe, **recipe})


def _resumed_card(folder: Path, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card that the run in `folder` goes on with, at most with other `epochs`."""
    if not (folder / "resume.json").is_file():
        raise FileNotFoundError(
            "--resume needs a RUN folder with a finished epoch. Received: "
            f"{str(folder)!r}, which has no resume.json. Train anew, into a new folder."
        )
    used = read_card(folder)
    if used["name"] != name:
        raise ValueError(
            f"`name` must be {used['name']!r}, with which the run in {str(folder)!r} began. "
            f"Received: name={name!r}."
        )
    before = {**used["config"], **used["recipe"]}
    for key, value in overrides.items():
        if key not in RESUMABLE and (key not in before or before[key] != value):
            raise ValueError(
                f"`{key}` must stay as the run began, {before.get(key)!r}. Received: "
                f"{key}={value!r} with --resume. Leave it out, or train anew."
            )
    used["recipe"] |= {key: overrides[key] for key in RESUMABLE if key in overrides}
    done = len(json.loads((folder / "resume.json").read_text("utf-8"))["history"])
    # Without results.json it was stopped in its last evaluation, which is then made.
    if done >= used["recipe"]["epochs"] and (folder / "results.json").is_file():
        raise ValueError(
            f"The run in {str(folder)!r} is finished: it has {done} epochs. Give more to go on, "
            f"e.g. --epochs {done + 1}."
        )
    return used


class _Recorder(keras.callbacks.Callback):
    """Keeps a RUN folder: metrics, curves, best weights, and the state to resume from."""

    def __init__(self, folder: Path, recipe: Recipe, progress: bool, num_tokens: int) -> None:
        super().__init__()
        self.folder = folder
        self.recipe = recipe
        self.progress = progress
        self.num_tokens = num_tokens  # of one epoch
        self.history: list[dict[str, float]] = []
        self.bar: Any = None
        self.events: Any = None

    # --- resuming

    def restore(self) -> LanguageModel:
        """Return the model of the last finished epoch, ready to go on."""
        state = json.loads((self.folder / "resume.json").read_text("utf-8"))
        self.history = state["history"]
        return keras.models.load_model(self.folder / state["model"])

    def _save_state(self, epoch: int) -> None:
        name = f"resume-{epoch}.keras"
        unfinished = self.folder / f"unfinished-{epoch}.keras"
        self.model.save(unfinished)
        os.replace(unfinished, self.folder / name)
        write_whole(
            self.folder / "resume.json", json.dumps({"model": name, "history": self.history})
        )
        for old in self.folder.glob("resume-*.keras"):  # after resume.json names the new one
            if old.name != name:
                old.unlink()

    # --- epochs

    def on_train_begin(self, logs=None):
        if self.progress:
            from tqdm.auto import tqdm

            per_epoch = self.params["steps"]
            self.bar = tqdm(
                total=per_epoch * self.recipe.epochs,
                initial=per_epoch * len(self.history),
                unit="token",
                unit_scale=self.recipe.batch_size * self.recipe.sequence_length,
                disable=None,
                dynamic_ncols=True,
                leave=False,
            )

    def on_epoch_begin(self, epoch, logs=None):
        self.began = self.shown = time.perf_counter()
        if self.bar is not None:
            self.bar.set_description(f"epoch {epoch + 1}/{self.recipe.epochs}")

    def on_train_batch_end(self, batch, logs=None):
        self.steps = batch + 1
        if self.bar is not None:
            self.bar.update(1)
        now = time.perf_counter()
        if now - self.shown > 0.5:  # reading a number waits for the device
            self.shown = now
            self._check_loss(logs, batch + 1)
            if self.bar is not None:
                self.bar.set_postfix_str(f"perplexity {float(logs['perplexity']):.1f}")

    def on_test_begin(self, logs=None):
        self.seconds = time.perf_counter() - self.began

    def on_epoch_end(self, epoch, logs=None):
        self._check_loss(logs, self.steps)
        self._check_loss({"loss": logs["val_perplexity"]}, self.steps)
        row = {
            "epoch": epoch + 1,
            "loss": float(logs["loss"]),
            "perplexity": float(logs["perplexity"]),
            "val_loss": float(logs["val_loss"]),
            "val_perplexity": float(logs["val_perplexity"]),
            "learning_rate": float(self.model.optimizer.learning_rate),
            "seconds": self.seconds,
            "tokens_per_second": self.num_tokens / self.seconds,
        }
        self.history.append(row)
        if row["val_perplexity"] <= min(past["val_perplexity"] for past in self.history):
            unfinished = self.folder / f"unfinished.{WEIGHTS}"
            self.model.save_weights(unfinished)
            os.replace(unfinished, self.folder / WEIGHTS)
        self._save_state(epoch + 1)
        _write_rows(self.folder / "metrics.csv", self.history)
        curves = {
            f"{self.model.name} valid": [past["val_perplexity"] for past in self.history],
            f"{self.model.name} train": [past["perplexity"] for past in self.history],
        }
        plot_curves(curves, self.folder / "curves.png")
        self._write_scalars(row)
        if self.progress:
            self._say(
                f"epoch {epoch + 1}/{self.recipe.epochs}  train perplexity "
                f"{row['perplexity']:.2f}  valid {row['val_perplexity']:.2f}  "
                f"{row['tokens_per_second']:,.0f} tokens/s  {row['seconds']:.0f} s"
            )

    def close(self) -> None:
        for opened in (self.bar, self.events):
            if opened is not None:
                opened.close()

    def _check_loss(self, logs, step: int) -> None:
        if math.isfinite(float(logs["loss"])):
            return
        kept = (
            f"The state after epoch {len(self.history)} is kept in {str(self.folder)!r}: go on "
            "from it with --resume, or start anew"
            if self.history
            else "No epoch was finished; start anew"
        )
        raise ValueError(
            f"The loss is no longer a number, in epoch {len(self.history) + 1} by step {step}. "
            f"{kept} with a smaller learning_rate (it was {self.recipe.learning_rate:g}) or a "
            f"clipnorm (it was {self.recipe.clipnorm:g}; try 1)."
        )

    def _write_scalars(self, row: dict[str, float]) -> None:
        # tensorboard's record writer: its event writer, as Keras's callback, loads TensorFlow.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self.events is None:
            (self.folder / "tensorboard").mkdir(exist_ok=True)
            name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}"
            self.events = (self.folder / "tensorboard" / name).open("wb")
            version = Event(wall_time=time.time(), file_version="brain.Event:2")
            RecordWriter(self.events).write(version.SerializeToString())
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
        event = Event(wall_time=time.time(), step=int(row["epoch"]), summary=Summary(value=values))
        RecordWriter(self.events).write(event.SerializeToString())
        self.events.flush()

    def _say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(line, file=sys.stderr, flush=True)


def _results(model: LanguageModel, corpus: Corpus, recorder: _Recorder, *, seed: int) -> dict:
    history = recorder.history
    found = {split: evaluate(model, corpus.split(split)) for split in ("valid", "test")}
    best = min(history, key=lambda row: row["val_perplexity"])
    steady = history[1:] or history  # the first epoch compiles
    return {
        "name": model.name,
        "parameters": model.count_params(),
        "valid_perplexity": found["valid"].perplexity,
        "test_perplexity": found["test"].perplexity,
        "batch_size": 1,  # of these two perplexities
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in steady),
        "best_epoch": int(best["epoch"]),
        "epochs": len(history),
        "seed": seed,
        "corpus": {
            "name": corpus.name,
            "lowercase": corpus.lowercase,
            "sha256": corpus.sha256,
            "tokens": {split: len(corpus.split(split)) for split in corpora.SPLITS},
        },
        "vocabulary": {"size": len(corpus.vocabulary), "sha256": corpus.vocabulary.sha256},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of all that has a part in the numbers."""
    backend = keras.config.backend()
    found = {"python": platform.python_version(), "backend": backend}
    for package in dict.fromkeys(["dualnet", "keras", backend, "numpy"]):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "not installed"
    return found


def _claim(folder: Path) -> None:
    began = {"card.toml", "vocabulary.txt"}  # all there is of a run stopped in its first epoch
    if folder.is_dir() and not {path.name for path in folder.iterdir()} <= began:
        raise FileExistsError(
            f"`output` must be a new or empty folder. Received: {str(folder)!r}, which holds "
            "files. Choose another, or go on with the run in it with --resume."
        )
    folder.mkdir(parents=True, exist_ok=True)


def _write_rows(path: Path, rows: list[dict[str, float]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())
