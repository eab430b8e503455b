"""The files of a corpus: a local folder, or else a download with known checksums."""

import contextlib
import functools
import hashlib
import io
import itertools
import os
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._files import write_whole
from dualnet.text.files import blocks
from dualnet.text.plain_text import BLANKS, END

SPLITS = ("train", "valid", "test")
FILE_NAMES = ("{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens")
TIMEOUT_SECONDS = 30
# What zipfile raises for a damaged archive.
ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, RuntimeError)
FILES = "train.txt, valid.txt and test.txt"


DOWNLOADS = tomllib.loads(
    (resources.files("dualnet.corpora") / "downloads.toml").read_text("utf-8")
)


def cache_folder() -> Path:
    """Return the cache folder: `dualnet` in XDG_CACHE_HOME, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dualnet"


@dataclass(frozen=True)
class Part:
    """A file of a split, or the part of one from byte `start` to `end`."""

    path: Path
    start: int = 0
    end: int | None = None


Files = dict[str, tuple[Part, ...]]  # of each split, in reading order


def split_files(folder: Path) -> Files:
    """Return the text files of each split in `folder`: a file, or a folder of .txt files."""
    if not folder.is_dir():
        raise FileNotFoundError(f"The folder of a corpus must exist. Received: {str(folder)!r}.")
    files = {}
    for split in SPLITS:
        names = [name.format(split=split) for name in FILE_NAMES]
        paths = files_named(folder, names)[:1] or _text_files(folder / split)
        if not paths:
            raise FileNotFoundError(
                f"A corpus must have the split {split!r}. Folder {str(folder)!r} holds none of "
                f"{', '.join(names)}, nor a folder {split} with .txt files; add {names[0]}, or "
                "give a single file, which is divided. --pairs and corpora.load_pairs read pairs."
            )
        files[split] = tuple(map(Part, paths))
    return files


def files_named(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of `folder` that have one of `names`, in capitals or not."""
    present = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    return [present[name.lower()] for name in names if name.lower() in present]


def _text_files(folder: Path) -> list[Path]:
    """Return the .txt files of a split's folder; warn of all else but hidden files."""
    entries = sorted(folder.glob("[!.]*"))
    paths = [path for path in entries if path.suffix.lower() == ".txt" and path.is_file()]
    others = [path.name for path in entries if path not in paths]
    if others:
        left_out = f"Left out of {str(folder)!r}: {', '.join(others[:5])}"
        warnings.warn(f"Of a split, only .txt files are read. {left_out}.", stacklevel=2)
    return paths


def divided(path: Path, fractions: Sequence[float], documents: str = "line") -> Files:
    """Return the parts of the file at `path`: its first lines are train, its last ones test.

    A document that blank lines end is not cut: it belongs to the split in which it begins, and one
    that begins where a split does to the split before.
    """
    if len(fractions) != 3 or min(fractions) <= 0:
        raise ArgumentError(
            "fractions",
            "must be three numbers above 0, the shares of train, valid and test.",
            " Give, e.g., (90, 5, 5).",
            fractions=fractions,
        )
    with open(path, "rb") as file:
        total = sum(1 for _ in file)
    train, valid, _ = (round(total * share) for share in np.cumsum(fractions) / np.sum(fractions))
    inner = [_end_of_line(path, lines, documents) for lines in (train, valid)]
    bounds = [0, *inner, path.stat().st_size]
    files: Files = {}
    for split, start, end in zip(SPLITS, bounds, bounds[1:]):
        files[split] = (Part(path, start, end),)
        text = blocks(path, start=start, end=end) if start < end else ()
        if not any(block.replace(END, " ").strip() for block in text):
            way_out = f"Choose a larger share for {split}"
            if documents == "blank-line":
                way_out = "Give more or shorter documents, with a blank line between them"
            raise ArgumentError(
                "fractions",
                f"must leave text in each split. Received: fractions={tuple(fractions)}, which "
                f"leave none in {split}, of the {total} lines of {str(path)!r}. {way_out}, or "
                f"give a folder with {FILES}.",
            )
    return files


def _end_of_line(path: Path, line: int, documents: str) -> int:
    """Return the place after `line` lines and, if blank lines end them, the rest of a document."""
    with open(path, "rb") as file:
        place = sum(map(len, itertools.islice(file, line)))
        blank = False
        for data in file if documents == "blank-line" else ():
            if blank and data.strip(BLANKS):
                break
            blank = not data.strip(BLANKS)
            place += len(data)
    return place


def find(name: str, path: StrPath | None, download: bool) -> Path:
    """Return the folder of corpus `name`: `path`, $DUALNET_DATA, the cache, or a download."""
    if path is not None:
        return Path(path).expanduser()
    if data := os.environ.get("DUALNET_DATA"):
        parent = Path(data).expanduser()
        if not parent.is_dir():
            raise FileNotFoundError(
                "The environment variable DUALNET_DATA must name an existing folder. Received: "
                f"{data!r}."
            )
        if (parent / name).is_dir():
            return parent / name
    cache = cache_folder() / name
    with contextlib.suppress(FileNotFoundError):
        split_files(cache)  # also what was placed there by hand, under other names
        return cache
    if name not in DOWNLOADS or not download:
        raise _missing(name, "may not be downloaded" if name in DOWNLOADS else "has no download")
    missing = [split for split in SPLITS if not (cache / f"{split}.txt").is_file()]
    _download(name, missing, cache)
    return cache


def _missing(name: str, reason: str) -> FileNotFoundError:
    way_out = f"Give the folder that holds {FILES} as `path`, or set the environment variable "
    way_out += f"DUALNET_DATA to a folder that contains {name}/."
    return FileNotFoundError(f"Corpus {name!r} is not on this machine and {reason}. {way_out}")


def _download(name: str, missing: Sequence[str], folder: Path) -> None:
    """Fetch the missing splits into `folder`, each from the first mirror with the correct file."""
    reasons = []
    fetch = functools.cache(_fetched)  # one archive may hold all splits
    for mirror in DOWNLOADS[name]["mirrors"]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for split in missing:
                address, _, member = mirror.format(split=split).partition("#")
                data = fetch(address)
                if member:
                    data = zipfile.ZipFile(io.BytesIO(data)).read(member)
                if hashlib.sha256(data).hexdigest() != DOWNLOADS[name]["sha256"][split]:
                    raise ValueError("the file does not match the known hash")
                write_whole(folder / f"{split}.txt", data)
            return
        except (OSError, ValueError, *ARCHIVE_ERRORS) as error:
            # The other files would fail there, too. An error without a network is a nest of others.
            reasons.append(f"{mirror} ({str(error).partition(': ')[0]})")
    raise FileNotFoundError(
        f"{_missing(name, 'could not be downloaded')} Tried: {', '.join(reasons)}."
    )


def _fetched(address: str) -> bytes:
    import requests  # here: text on this machine needs none

    # Some mirrors refuse the user agents of libraries.
    answer = requests.get(address, headers={"User-Agent": "dualnet"}, timeout=TIMEOUT_SECONDS)
    answer.raise_for_status()
    return answer.content
