"""RUN folders: what a training run leaves behind, and how to read it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dualnet.cards import Card
from dualnet.runs.run import Run

if TYPE_CHECKING:
    from dualnet.runs.loading import corpus_of_run as corpus_of_run
    from dualnet.runs.loading import load as load

_NEED_KERAS = ("corpus_of_run", "load")  # a path that is no RUN is refused without it

__all__ = ["corpus_of_run", "load", "read_card"]


def read_card(folder: str | os.PathLike[str]) -> Card:
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


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _NEED_KERAS:
        raise AttributeError(f"module 'dualnet.runs' has no attribute {name!r}")
    from dualnet.runs import loading

    return getattr(loading, name)
