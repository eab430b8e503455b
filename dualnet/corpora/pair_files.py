"""The files of a corpus of pairs: two for each split, with the same number of lines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dualnet._checks import ArgumentError, did_you_mean
from dualnet.corpora.sources import SPLITS
from dualnet.text.plain_text import text_of

STEMS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "test_2016")}


def find(
    folder: Path,
    source: str,
    target: str,
    files: Mapping[str, Sequence[str | os.PathLike[str]]] | None,
) -> dict[str, tuple[Path, Path]]:
    """Return the paths of source and target of each split, see `load_pairs`."""
    if not folder.is_dir():
        raise FileNotFoundError(
            "The folder of pairs must exist, or be 'numbers'. Received: "
            f"{str(folder)!r}." + did_you_mean(str(folder), ["numbers"])
        )
    if files is not None:
        return _given(folder, files)
    languages = sorted(path.name.removeprefix("train.") for path in folder.glob("train.*"))
    for side, language, other in (("source", source, target), ("target", target, source)):
        if language not in languages:
            raise ArgumentError(
                side,
                f"must be a language of the folder {str(folder)!r}, which has "
                f"{', '.join(languages) or 'none'}. Received: {side}={language!r}."
                + did_you_mean(language, [each for each in languages if each != other]),
            )
    paths = {}
    for split in SPLITS:
        pairs = [[f"{stem}.{side}" for side in (source, target)] for stem in STEMS[split]]
        present = [pair for pair in pairs if all((folder / name).is_file() for name in pair)]
        if not present:
            raise FileNotFoundError(
                f"A corpus of pairs must have the split {split!r}. Folder {str(folder)!r} lacks "
                f"{', or '.join(' and '.join(pair) for pair in pairs)}."
            )
        paths[split] = (folder / present[0][0], folder / present[0][1])
    return paths


def _given(
    folder: Path, files: Mapping[str, Sequence[str | os.PathLike[str]]]
) -> dict[str, tuple[Path, Path]]:
    valid = isinstance(files, Mapping) and set(files) == set(SPLITS)
    if not valid or any(isinstance(pair, str) or len(pair) != 2 for pair in files.values()):
        raise ArgumentError(
            "files",
            "must map 'train', 'valid' and 'test' to two paths each, source and target. "
            f"Received: files={files!r}.",
        )
    paths = {split: (folder / files[split][0], folder / files[split][1]) for split in SPLITS}
    for path in (path for pair in paths.values() for path in pair):
        if not path.is_file():
            raise FileNotFoundError(f"`files` must name existing files. Received: {str(path)!r}.")
    return paths


def read(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the lines of both files, whose number must be the same."""
    lines = read_lines(source), read_lines(target)
    counts = tuple(map(len, lines))
    if counts[0] != counts[1]:
        longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
        raise ValueError(
            "The files of a split must have the same number of lines. Received: "
            f"{str(longer)!r} with {max(counts)} lines and {str(shorter)!r}, which ends after "
            f"line {min(counts)}."
        )
    return lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, which must not be empty."""
    text = text_of(path.read_bytes(), str(path))
    if not text:
        raise ValueError(f"A text file must not be empty. Received: {str(path)!r}.")
    lines = text.split("\n")  # nothing else ends a line
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
