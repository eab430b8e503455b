"""Small texts and models that the tests share, and what JAX and PyTorch leave out."""

import gc
import re

import keras
import numpy as np
import pytest
from hypothesis import settings

import dualnet
from dualnet import corpora, zoo
from dualnet._files import write_whole
from dualnet.builders import LanguageModel
from dualnet.training import reporting
from tests.checks import NO_DROPOUT, sentences
from tests.commands import CommandLine

# The first example compiles; no test asserts a time.
settings.register_profile("dualnet", deadline=None, max_examples=8, derandomize=True)
settings.load_profile("dualnet")

# A refusal, and what a manual says, is the same on each backend.
SAME_ON_EACH = re.compile(r"refused|_(is|are)_told|_cannot_be|_manual")


def pytest_collection_modifyitems(config, items):
    """Leave the tests that run with TensorFlow alone to it."""
    if keras.config.backend() != "tensorflow":
        runs = {True: [], False: []}
        for item in items:
            once = item.get_closest_marker("once") or SAME_ON_EACH.search(item.originalname)
            runs[not once].append(item)
        config.hook.pytest_deselected(items=runs[False])
        items[:] = runs[True]


if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    # To optimise a graph takes a fifth of its first call, and most graphs are called a few times.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
# A traced model is many objects that live on, which the collector would count again and again.
gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a small corpus, whose rare words are `<unk>` already."""
    path = tmp_path_factory.mktemp("text") / "animals"
    path.mkdir()
    for seed, (split, count) in enumerate({"train": 60, "valid": 12, "test": 12}.items()):
        (path / f"{split}.txt").write_text(sentences(count, seed).replace("cat", "<unk>", 1))
    return path


@pytest.fixture(scope="session")
def corpus(folder):
    return corpora.load(folder)


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory):
    """A folder with a few pairs of the corpus "numbers"."""
    numbers = corpora.load_pairs("numbers")
    path = tmp_path_factory.mktemp("pairs") / "numbers"
    path.mkdir()
    for split in corpora.SPLITS:
        pairs = numbers.split(split)
        for side, lines in (("digits", pairs.source_lines), ("words", pairs.target_lines)):
            (path / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines[:24]))
    return path


@pytest.fixture(scope="session")
def translator_run(pairs_folder, tmp_path_factory):
    """A RUN folder of a small translator, trained on `pairs_folder`."""
    pairs = corpora.load_pairs(pairs_folder, source="digits", target="words", tokenizer="words")
    output = tmp_path_factory.mktemp("translator") / "RUN"
    settings = {"units": 8, "depth": 1, "batch_size": 24, "epochs": 1, "progress": False}
    dualnet.train("attention_gru", pairs, output=output, **settings)
    return output


@pytest.fixture
def cli(capsys):
    return CommandLine(capsys)


@pytest.fixture(scope="session", autouse=True)
def curves_of_training_are_drawn_once(tmp_path_factory):
    """Let trainings write one picture of curves: drawing takes a fifth of a small one's time."""
    draw, picture = reporting.plot_curves, tmp_path_factory.mktemp("curves") / "curves.png"

    def draw_once(curves, path, **settings):
        if not picture.exists():
            draw(curves, picture, **settings)
        write_whole(path, picture.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "plot_curves", draw_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def steps_of_learners_are_not_compiled():
    """A step of a shipped model takes less time than its compilation, which notebooks show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualnet.adaptation.adapted_copy.LEAST_WEIGHTS", 10**9)
        yield


@pytest.fixture
def pictures(monkeypatch):
    """The figures that are saved."""
    from dualnet import plots

    saved, save = [], plots._save
    monkeypatch.setattr(plots, "_save", lambda *args: saved.append(args[0]) or save(*args))
    return saved


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_seed():
    keras.utils.set_random_seed(7)


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_module_are_freed():
    """Drop what JAX compiled: each program holds maps of memory, of which a process has 65,530."""
    yield
    if keras.config.backend() == "jax":
        import jax

        jax.clear_caches()


@pytest.fixture(scope="module")
def without_tracing():
    """Compile nothing: each model takes a few steps alone."""
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
        yield
        tf.config.run_functions_eagerly(False)
    else:
        yield


@pytest.fixture(scope="module")
def short_fits_are_not_traced():
    """Let `fit` take its steps alone on TensorFlow, where a dozen takes less than one trace."""
    fit = LanguageModel.fit

    def short(self, x=None, *arguments, **keywords):
        steps = keywords.get("steps_per_epoch") or (len(x) if hasattr(x, "__len__") else 99)
        self.run_eagerly = steps <= 6 and keras.config.backend() == "tensorflow"
        return fit(self, x, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "fit", short)
        yield


@pytest.fixture
def build(corpus):
    """Build a model of the zoo with the vocabulary of the small corpus."""

    def build(name="dual_lstm", **overrides):
        sizes = {"vocabulary_size": len(corpus.vocabulary), "units": 8}
        if "mdlstm" in name:
            sizes |= {"rounds": 3, "rank": 2, "mogrifier_dropout": 0.0}
        return zoo.build(name, **{**NO_DROPOUT, **sizes, **overrides})

    return build
