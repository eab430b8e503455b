"""The files of a corpus of pairs: two for each split, line by line, or a table of two columns."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet.corpora.sources import SPLITS, files_named
from dualnet.text.files import lines

STEMS = {
    "train": ("train",),
    "valid": ("valid", "val"),
    "test": ("test", "test_2016", "test_2016_flickr"),
}
ENDS = ("", ".gz")
Lines = tuple[list[str], list[str]]  # of source and target


def read_splits(
    root: Path,
    source: str,
    target: str,
    files: Mapping[str, Sequence[StrPath]] | None,
    splits: Sequence[str],
) -> dict[str, Lines]:
    """Return the lines of the `splits` of a folder or of a table, see `load_pairs`."""
    languages = (source, target)
    if files is not None:
        if not {*splits} <= {*files} <= {*SPLITS} or any(len(pair) != 2 for pair in files.values()):
            required = "must map 'train', 'valid' and 'test' to two paths each, source and target."
            raise ArgumentError("files", required, files=files)
        given = {split: (root / files[split][0], root / files[split][1]) for split in splits}
        return {split: read(*paths, languages) for split, paths in given.items()}
    if root.is_file():
        return divided(root, languages, splits)
    if not root.is_dir():
        hint = did_you_mean(str(root), ["numbers"])
        message = "The folder or table of pairs must exist, or be 'numbers'."
        raise FileNotFoundError(f"{message} Received: {str(root)!r}.{hint}")
    return {split: read(*find(root, split, source, target), languages) for split in splits}


def find(folder: Path, split: str, source: str, target: str) -> tuple[Path, Path]:
    """Return the paths of source and target of a split; of a table, it is one path."""
    for stem in STEMS[split]:
        sides = {side: _named(folder, stem, side) for side in (source, target)}
        for name, paths in zip(("source", "target"), sides.values()):
            if len(paths) > 1 and all(sides.values()):
                names = [path.name for path in paths]
                message = f"must name one file of a split. Received: {', '.join(names)}. "
                way_out = f"Give all that follows {stem!r}, e.g. {names[0].partition('.')[2]!r}."
                raise ArgumentError(name, message + way_out)
        if all(sides.values()):
            return sides[source][0], sides[target][0]
    tables = files_named(folder, [f"{s}.tsv{end}" for s in STEMS[split] for end in ENDS])
    if not tables:
        required = ", or ".join(f"{s}.{source} and {s}.{target}" for s in STEMS[split])
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:12])
        raise FileNotFoundError(
            f"A corpus of pairs must have the split {split!r}, which is {required}, or "
            f"{split}.tsv, where `source` and `target` name the sides. Received: the folder "
            f"{str(folder)!r} with {present}."
        )
    return tables[0], tables[0]


def _named(folder: Path, stem: str, side: str) -> list[Path]:
    """Return the files of a side: STEM.SIDE, or else STEM.….SIDE; each may end in .gz."""
    if present := files_named(folder, [f"{stem}.{side}{end}" for end in ENDS]):
        return present[:1]
    ends = tuple(f".{side}{end}" for end in ENDS)
    named = (path for path in folder.glob(f"{stem}.*") if path.name.endswith(ends))
    return sorted(filter(Path.is_file, named))  # reading a pipe would wait


def read(source: Path, target: Path, languages: tuple[str, str]) -> Lines:
    """Return the lines of both files, whose number must be the same.

    One file for both is a table: source and target, separated by a tab. If its first line names
    the `languages`, it says which column is which.
    """
    if source == target:
        return _read_table(source, languages)
    sides = read_lines(source), read_lines(target)
    counts = [*map(len, sides)]
    if counts[0] != counts[1]:
        message = "The files of a split must have the same number of lines. Received: "
        received = f"{counts[0]} of {str(source)!r} and {counts[1]} of {str(target)!r}."
        raise ValueError(message + received)
    return sides


def divided(path: Path, languages: tuple[str, str], splits: Sequence[str]) -> dict[str, Lines]:
    """Return the lines of both sides of each split of one table: its first 90 % are train.

    One split alone is all of the table.
    """
    source, target = _read_table(path, languages)
    if len({*splits}) == 1:
        return {splits[0]: (source, target)}
    ends = [round(len(source) * share) for share in (0.9, 0.95, 1)]
    if len({0, *ends}) < 4:
        message = "A table of pairs must have at least 20 lines to be divided."
        way_out = "Give a folder with train.tsv, valid.tsv and test.tsv."
        raise ValueError(f"{message} Received: {str(path)!r} with {len(source)}. {way_out}")
    parts = dict(zip(SPLITS, map(slice, [0, *ends[:2]], ends)))
    return {split: (source[parts[split]], target[parts[split]]) for split in splits}


def _read_table(path: Path, languages: tuple[str, str]) -> Lines:
    rows = [line.split("\t") for line in read_lines(path)]
    columns = [0, 1]
    missing = [language for language in languages if language not in rows[0]]
    if not missing:
        columns = [rows[0].index(language) for language in languages]
        del rows[0]
    elif len(missing) == 1:
        message = f"The first line of a table must name both languages, or none of them. {path} has"
        received = f"{', '.join(rows[0])}, and not {missing[0]!r}."
        raise ValueError(f"{message} {received}{did_you_mean(missing[0], rows[0])}")
    start = 1 + (not missing)
    wrong = next((i for i, row in enumerate(rows, start) if len(row) <= max(columns)), None)
    if wrong is not None or not rows:
        message = "A table of pairs must have source and target in each line, separated by a tab."
        raise ValueError(f"{message} Received: {str(path)!r}, line {wrong or start}.")
    source, target = ([row[column] for row in rows] for column in columns)
    return source, target


def read_lines(path: StrPath) -> list[str]:
    """Return the lines of a text file, without their ends; there must be one."""
    texts = [line.text.removesuffix("\n").removesuffix("\r") for line in lines(path)]
    if not texts:
        raise ValueError(f"A text file must not be empty. Received: {os.fspath(path)!r}.")
    return texts
