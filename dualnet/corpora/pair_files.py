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
    languages: tuple[str, str],
    files: Mapping[str, Sequence[StrPath]] | None,
    splits: Sequence[str],
) -> dict[str, Lines]:
    """Return the lines of the `splits` of a folder or of a table, see `load_pairs`."""
    if files is not None:
        if not {*splits} <= {*files} <= {*SPLITS} or any(len(pair) != 2 for pair in files.values()):
            raise ArgumentError(
                "files",
                "must map 'train', 'valid' and 'test' to two paths each, source and target.",
                files=files,
            )
        return {split: _read([root / path for path in files[split]], languages) for split in splits}
    if root.is_file():
        return _divided(root, languages, splits)
    if not root.is_dir():
        hint = did_you_mean(str(root), ["numbers"])
        raise FileNotFoundError(
            "The folder or table of pairs must exist, or be 'numbers'. Received: "
            f"{str(root)!r}.{hint}"
        )
    return {split: _read(_find(root, split, languages), languages) for split in splits}


def _find(folder: Path, split: str, languages: tuple[str, str]) -> list[Path]:
    """Return the paths of source and target of a split, or that of a table."""
    for stem in STEMS[split]:
        sides = [_named(folder, stem, language) for language in languages]
        for name, paths in zip(("source", "target"), sides):
            if len(paths) > 1 and all(sides):
                received = ", ".join(path.name for path in paths)
                example = paths[0].name.partition(".")[2]
                raise ArgumentError(
                    name,
                    f"must name one file of a split. Received: {received}. Give all that follows "
                    f"{stem!r}, e.g. {example!r}.",
                )
        if all(sides):
            return [paths[0] for paths in sides]
    tables = files_named(folder, [f"{stem}.tsv{end}" for stem in STEMS[split] for end in ENDS])
    if not tables:
        required = ", or ".join(
            " and ".join(f"{stem}.{language}" for language in languages) for stem in STEMS[split]
        )
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:12])
        raise FileNotFoundError(
            f"A corpus of pairs must have the split {split!r}, which is {required}, or "
            f"{split}.tsv, where `source` and `target` name the sides. Received: the folder "
            f"{str(folder)!r} with {present}."
        )
    return tables[:1]


def _named(folder: Path, stem: str, side: str) -> list[Path]:
    """Return the files of a side: STEM.SIDE, or else STEM.….SIDE; each may end in .gz."""
    ends = tuple(f".{side}{end}" for end in ENDS)
    if present := files_named(folder, [stem + end for end in ends]):
        return present[:1]
    named = (path for path in folder.glob(f"{stem}.*") if path.name.endswith(ends))
    return sorted(filter(Path.is_file, named))  # reading a pipe would wait


def _read(paths: Sequence[Path], languages: tuple[str, str]) -> Lines:
    """Return the lines of source and target, whose number must be the same; or of a table."""
    if len({*paths}) == 1:
        return _read_table(paths[0], languages)
    source, target = map(read_lines, paths)
    if len(source) != len(target):
        message = "The files of a split must have the same number of lines. Received: "
        received = f"{len(source)} of {str(paths[0])!r} and {len(target)} of {str(paths[1])!r}."
        raise ValueError(message + received)
    return source, target


def _divided(path: Path, languages: tuple[str, str], splits: Sequence[str]) -> dict[str, Lines]:
    """Return the lines of both sides of each split of one table: its first 90 % are train.

    One split alone is all of the table.
    """
    source, target = _read_table(path, languages)
    if len({*splits}) == 1:
        return {splits[0]: (source, target)}
    bounds = [round(len(source) * share) for share in (0, 0.9, 0.95, 1)]
    if len({*bounds}) < 4:
        raise ValueError(
            f"A table of pairs must have at least 20 lines to be divided. Received: {str(path)!r} "
            f"with {len(source)}. Give a folder with train.tsv, valid.tsv and test.tsv."
        )
    parts = zip(SPLITS, map(slice, bounds, bounds[1:]))
    return {split: (source[part], target[part]) for split, part in parts}


def _read_table(path: Path, languages: tuple[str, str]) -> Lines:
    """Return the columns of a table, separated by a tab, whose first line may name `languages`."""
    rows = [line.split("\t") for line in read_lines(path)]
    head, columns, first = rows[0], [0, 1], 1
    missing = [language for language in languages if language not in head]
    if len(missing) == 1:
        raise ValueError(
            f"The first line of a table must name both languages, or none of them. {path} has "
            f"{', '.join(head)}, and not {missing[0]!r}.{did_you_mean(missing[0], head)}"
        )
    if not missing:
        rows, columns, first = rows[1:], [head.index(language) for language in languages], 2
    for number, row in enumerate(rows or [[]], first):
        if len(row) <= max(columns):
            raise ValueError(
                "A table of pairs must have source and target in each line, separated by a tab. "
                f"Received: {str(path)!r}, line {number}."
            )
    return [row[columns[0]] for row in rows], [row[columns[1]] for row in rows]


def read_lines(path: StrPath) -> list[str]:
    """Return the lines of a text file, without their ends; there must be one."""
    texts = [line.text.removesuffix("\n").removesuffix("\r") for line in lines(path)]
    if not texts:
        raise ValueError(f"A text file must not be empty. Received: {os.fspath(path)!r}.")
    return texts
