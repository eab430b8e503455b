"""The files of a corpus of pairs: two for each split, line by line, or a table of two columns."""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet.corpora.sources import SPLITS, files_named
from dualnet.text.files import lines

STEMS = {
    "train": ("train",),
    "valid": ("valid", "val"),
    "test": ("test", "test_2016", "test_2016_flickr"),
}
GZIP, TABLE = ".gz", ".tsv"


def find(
    folder: Path,
    source: str,
    target: str,
    files: Mapping[str, Sequence[StrPath]] | None,
    splits: Sequence[str],
) -> dict[str, tuple[Path, Path]]:
    """Return the paths of source and target of each of the `splits`, see `load_pairs`."""
    if not folder.is_dir():
        hint = did_you_mean(str(folder), ["numbers"])
        message = "The folder or table of pairs must exist, or be 'numbers'."
        raise FileNotFoundError(f"{message} Received: {str(folder)!r}.{hint}")
    if files is not None:
        return _given(folder, files, splits)
    stems = [*itertools.chain(*STEMS.values())]
    of_sides = {side: [_named(folder, stem, side) for stem in stems] for side in (source, target)}
    if not any(itertools.chain(*of_sides.values())):
        tables = {split: _tables(folder, split) for split in splits}
        if lacking := [split for split, paths in tables.items() if not paths]:
            if len(lacking) < len(splits):
                _lacks(folder, lacking[0], [f"{stem}{TABLE}" for stem in STEMS[lacking[0]]])
        else:
            return {split: (paths[0], paths[0]) for split, paths in tables.items()}
    names = [path.name.removesuffix(GZIP) for stem in stems for path in folder.glob(f"{stem}.*")]
    languages = sorted({name.partition(".")[2] for name in names})
    for side, language, other in (("source", source, target), ("target", target, source)):
        if not any(of_sides[language]):
            known = ", ".join(languages) or "none"
            required = f"must be a language of the folder {str(folder)!r}, which has {known}."
            hint = did_you_mean(language, [each for each in languages if each != other])
            raise ArgumentError(side, required, hint, **{side: language})
    paths = {}
    for split in splits:
        pairs = [[_named(folder, stem, side) for side in (source, target)] for stem in STEMS[split]]
        present = next(filter(all, pairs), None)
        if present is None:
            _lacks(folder, split, [f"{s}.{source} and {s}.{target}" for s in STEMS[split]])
        for side, found in zip(("source", "target"), present):
            if len(found) > 1:
                names = [path.name for path in found]
                message = f"must name one file of a split. Received: {', '.join(names)}. "
                way_out = f"Give all that follows {split!r}, e.g. {names[0].partition('.')[2]!r}."
                raise ArgumentError(side, message + way_out)
        paths[split] = (present[0][0], present[1][0])
    return paths


def _lacks(folder: Path, split: str, names: list[str]) -> NoReturn:
    received = f"Folder {str(folder)!r} lacks {', or '.join(names)}."
    raise FileNotFoundError(f"A corpus of pairs must have the split {split!r}. {received}")


def _named(folder: Path, stem: str, side: str) -> list[Path]:
    """Return the files of a side: STEM.SIDE, or else STEM.….SIDE; each may end in .gz."""
    if present := files_named(folder, [f"{stem}.{side}{end}" for end in ("", GZIP)]):
        return present[:1]
    ends = (f".{side}", f".{side}{GZIP}")
    named = (path for path in folder.glob(f"{stem}.*") if path.name.endswith(ends))
    return sorted(filter(Path.is_file, named))  # reading a pipe would wait


def _tables(folder: Path, split: str) -> list[Path]:
    ends = [TABLE, TABLE + GZIP]
    return files_named(folder, [f"{stem}{end}" for stem in STEMS[split] for end in ends])


def _given(
    folder: Path, files: Mapping[str, Sequence[StrPath]], splits: Sequence[str]
) -> dict[str, tuple[Path, Path]]:
    named = {*splits} <= {*files} <= {*SPLITS}
    if not named or any(len(pair) != 2 for pair in files.values()):
        required = "must map 'train', 'valid' and 'test' to two paths each, source and target."
        raise ArgumentError("files", required, files=files)
    paths = {split: (folder / files[split][0], folder / files[split][1]) for split in splits}
    for path in (path for pair in paths.values() for path in pair):
        if not path.is_file():
            raise FileNotFoundError(f"`files` must name existing files. Received: {str(path)!r}.")
    return paths


def read(source: Path, target: Path, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Return the lines of both files, whose number must be the same.

    One file for both is a table: source and target, separated by a tab. If its first line names
    the `languages`, it says which column is which.
    """
    if source == target:
        return _read_table(source, languages)
    sides = read_lines(source), read_lines(target)
    counts = tuple(map(len, sides))
    if counts[0] != counts[1]:
        longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
        message = "The files of a split must have the same number of lines. Received: "
        received = f"{str(longer)!r} with {max(counts)} lines and {str(shorter)!r}, which ends "
        raise ValueError(f"{message}{received}after line {min(counts)}.")
    return sides


def divided(
    path: Path, languages: tuple[str, str], splits: Sequence[str]
) -> dict[str, tuple[list[str], list[str]]]:
    """Return the lines of both sides of each split of one table: its first 90 % are train.

    One split alone is all of the table.
    """
    source, target = _read_table(path, languages)
    if len(splits) == 1:
        return {splits[0]: (source, target)}
    ends = [round(len(source) * share) for share in (0.9, 0.95, 1)]
    if len({0, *ends}) < 4:
        message = "A table of pairs must have at least 20 lines to be divided."
        way_out = "Give a folder with train.tsv, valid.tsv and test.tsv."
        raise ValueError(f"{message} Received: {str(path)!r} with {len(source)}. {way_out}")
    parts = map(slice, [0, *ends[:2]], ends)
    divided = {split: (source[part], target[part]) for split, part in zip(SPLITS, parts)}
    return {split: divided[split] for split in splits}


def _read_table(path: Path, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in read_lines(path)]
    columns = [0, 1]
    named = [language for language in languages if language in rows[0]]
    if has_header := len(named) == len(languages):
        columns = [rows[0].index(language) for language in languages]
        del rows[0]
    elif named:
        other = languages[not languages.index(named[0])]
        which = f"columns of {str(path)!r}, whose first line has {', '.join(rows[0])}"
        way_out = "Name both columns, or, if that line is a pair, give the sides other names."
        raise ValueError(
            f"The languages of a table of pairs must both be {which}. "
            f"Received: {other!r}.{did_you_mean(other, rows[0])} {way_out}"
        )
    start = 1 + has_header
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
