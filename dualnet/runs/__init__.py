"""RUN folders: what a training run leaves behind, and how to read it."""

from typing import TYPE_CHECKING

from dualnet._checks import StrPath
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs.run import Run

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

__all__ = ["corpus_of_run", "load", "read_card"]


def read_card(folder: StrPath) -> Card:
    """Return the card of a RUN folder: the model, its settings, and what it was trained on.

    `folder` may also be the name of a shipped model.

    `config` and `recipe` hold every setting of the run, overrides included. `seed`, `weights`
    and `trained_on` are set, and `corpus` is the name of the corpus.

    Raises:
        FileNotFoundError: if `folder` holds no card.
        ValueError: if the card lacks a key or has a value of the wrong type.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet import runs
    >>> text = '''
    ... name = "lstm"
    ... builder = "language_model"
    ... seed = 3
    ... corpus = {name = "ptb", source = "/data/ptb", lowercase = false, sha256 = "5e1f"}
    ... config = {vocabulary_size = 10000, units = 200}
    ... recipe = {optimizer = "nadam", epochs = 40}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "card.toml").write_text(text)
    ...     card = runs.read_card(folder)
    >>> card.name, card.corpus, card.seed, card.recipe["epochs"]
    ('lstm', 'ptb', 3, 40)
    """
    return Run.open_folder(folder).card


def load(path: StrPath) -> "LanguageModel":
    """Load the model of a RUN folder, with its best weights, or of a `.keras` file.

    `path` may also be one of `zoo.list_models(pretrained=True)`, e.g. "dual_lstm.wikitext-2",
    unless a file or folder has that name.

    The vocabulary comes with it, as `model.vocabulary`. Loading executes no code from the
    files: they hold numbers, words and the arguments of a builder.

    Raises:
        FileNotFoundError: if `path` does not exist or is not a RUN folder.
        ValueError: if a file is damaged, altered, or holds another kind of model.

    Example:

    >>> import tempfile
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.keras")
    ...     loaded = dualnet.load(f"{folder}/model.keras")
    >>> loaded.count_params() == model.count_params()
    True
    """
    return Run.open(path).model()


def corpus_of_run(folder: StrPath) -> Corpus | PairCorpus:
    """Load the corpus that the model of a RUN folder was trained on, with its vocabulary.

    Raises:
        FileNotFoundError: if `folder` is not a RUN folder, or its corpus no longer exists.
        ValueError: if the corpus has changed since the run, or a file of the folder is
            damaged or altered.

    Example:

    >>> import dataclasses, pathlib, tempfile
    >>> from dualnet import corpora, runs, zoo
    >>> corpus = corpora.load("python-reference")
    >>> keys = ("name", "source", "lowercase", "sha256")
    >>> trained_on = {key: getattr(corpus, key) for key in keys}
    >>> card = dataclasses.replace(zoo.card("lstm"), seed=0, trained_on=trained_on)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = pathlib.Path(name)
    ...     runs.folder.write_card(folder, card)
    ...     runs.folder.write_vocabularies(folder, corpus)
    ...     runs.corpus_of_run(folder).sha256 == corpus.sha256
    True
    """
    return Run.open_folder(folder).corpus()
