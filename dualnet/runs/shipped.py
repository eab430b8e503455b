"""The trained models that are shipped with dualnet: RUN folders in `zoo/pretrained/`."""

import os
from pathlib import Path

from dualnet._checks import ArgumentError, StrPath
from dualnet._data import folder, list_tables
from dualnet._files import write_whole

LICENCES = "LICENSES_SOURCES"


def folder_of_shipped() -> Path:
    """Return the folder that holds one RUN folder for each shipped model; it may be absent."""
    return Path(str(folder("zoo"))) / "pretrained"


def list_shipped() -> list[str]:
    """Return the sorted names of the shipped models, e.g. "dual_lstm.wikitext-2"."""
    return sorted(path.parent.name for path in folder_of_shipped().glob("*/card.toml"))


def shipped_of_english() -> list[str]:
    """Return the names of the shipped models of English: plain ones, then their variants."""
    return sorted((name for name in list_shipped() if name.endswith(".english")), key=len)


def find_run(path: StrPath) -> Path:
    """Return `path`, or the folder of the shipped model of that name if nothing is at `path`.

    Example:

    >>> from dualnet.runs.shipped import find_run
    >>> find_run("runs/my-run").parts
    ('runs', 'my-run')
    """
    # `os.path.exists` is False where `Path.exists` raises: for names that are too long, and in
    # folders that one may not enter.
    if not os.path.exists(path) and os.fspath(path) in list_shipped():
        return folder_of_shipped() / path
    return Path(path)


def card_of_run(name: StrPath) -> str:
    """Return the path of the card of a RUN folder or a shipped model, "" if `name` is neither.

    The name of a model of the zoo is never a folder.

    Example:

    >>> from dualnet.runs.shipped import card_of_run
    >>> card_of_run("dual_lstm")
    ''
    """
    card = str(find_run(name) / "card.toml")
    # `os.path.isfile` as above.
    return card if os.fspath(name) not in list_tables("zoo") and os.path.isfile(card) else ""


def source_of(run: StrPath) -> str:
    """Return the name of a shipped model, or the path of another: what a card calls it.

    Example:

    >>> from dualnet.runs.shipped import source_of
    >>> source_of("dual_lstm.wikitext-2")
    'dual_lstm.wikitext-2'
    """
    folder = find_run(run)
    return folder.name if is_shipped(folder) else str(folder.resolve())


def licences_of(*runs: StrPath | None) -> dict[str, str]:
    """Return the licences of the text and weights of `runs` by the name of their file, if any."""
    files = [find_run(run) / LICENCES for run in runs if run]
    texts = dict.fromkeys(file.read_text("utf-8") for file in files if file.is_file())
    return {LICENCES: "\n".join(texts)} if texts else {}


def copy_licences(folder: Path, *runs: StrPath | None) -> None:
    """Write the licences of `runs`, if any, into `folder`, which may be absent."""
    for name, text in licences_of(*runs).items():
        folder.mkdir(exist_ok=True)
        write_whole(folder / name, text)


def names_of_shipped() -> str:
    """Return a sentence with the names of the shipped models."""
    return f"Shipped models: {', '.join(list_shipped())}."


def is_shipped(folder: StrPath) -> bool:
    """Return True for the folder of a shipped model."""
    return Path(folder).resolve().parent == folder_of_shipped().resolve()


def check_own(folder: StrPath, *, name: str = "output") -> None:
    """Raise `ValueError` if `folder`, about to be written to, is that of a shipped model.

    Errors call the argument `name`.
    """
    if is_shipped(find_run(folder)):
        raise ArgumentError(
            name,
            f"must be a folder of your own. Received: {os.fspath(folder)!r}, a shipped model, "
            "which is never written to. Give another folder; to start from its weights, use "
            "--weights, or `weights`.",
        )
