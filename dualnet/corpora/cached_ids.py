"""Keeps the ids of a large text on disk, so that neither text nor ids need fit into memory.

The ids of a text lie in one folder of the cache, `ids/KEY`: one array for each
split, the words, and a description with the checksum of each. KEY is a hash of
the text and of all that the ids depend on besides. A folder appears whole or
not at all; whatever is wrong with it is answered by making it anew.
"""

import contextlib
import hashlib
import io
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._files import sha256_of
from dualnet.corpora.encoding import Encoded, InMemory, Settings, Text, encode
from dualnet.corpora.sources import SPLITS, cache_folder
from dualnet.text import Vocabulary

LARGE_BYTES = 16 << 20  # a text of more than this has its ids on disk
CHUNK_TOKENS = 1 << 21
LEFTOVER_SECONDS = 24 * 60 * 60
FORMAT = 1  # goes up when the same text would get other ids
DESCRIPTION, WORDS = "ids.json", "vocabulary.txt"


def is_large(text: Text) -> bool:
    """Return whether the ids of `text` belong on disk."""
    return bool(text.files) and sum(f.stat().st_size for f in text.files.values()) > LARGE_BYTES


def cached(text: Text, settings: Settings) -> Encoded:
    """Return `encode(text, settings)` with arrays that are read-only memory maps.

    Where the cache cannot be written they are plain arrays.

    Raises:
        ValueError: if `encode` does, or a file changes while it is read.
    """
    before = _stamps(text)
    sources = {split: sha256_of(text.files[split]) for split in SPLITS}
    key = _sha256_of({"format": FORMAT, "sources": sources, "settings": _as_data(settings)})
    home = cache_folder() / "ids"
    found = _open(home / key, settings)
    if found is None:
        try:
            found = _build(home, key, sources, text, settings)
        except OSError:  # read-only, or the disk is full
            found = encode(text, settings, InMemory())
        if _stamps(text) != before:
            shutil.rmtree(home / key, ignore_errors=True)  # it bears the hash of another text
            raise ValueError(
                "A text file must not change while it is read. Received: one of "
                f"{[str(path) for path in text.files.values()]} did. Load the corpus again."
            )
    return found


def release_pages(tokens: np.ndarray) -> None:
    """Let the memory go that `tokens` has taken up, if it is a read-only memory map.

    What was read of a map counts as memory of the process until it is let go;
    it is read again where it is needed again. Other arrays stay as they are.
    """
    base: Any = tokens
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        with memoryview(base) as view:
            read_only = view.readonly  # what was written to a private map would be lost
        if read_only:
            base.madvise(mmap.MADV_DONTNEED)


class _OnDisk:
    """A `Store` of files in a folder; writes the arrays and keeps their checksums."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.arrays: dict[str, dict[str, Any]] = {}  # what the description says of each

    def append(self, split: str, numbers: np.ndarray) -> None:
        with open(self._folder / f"{split}.numbers", "ab") as file:
            file.write(numbers.data)

    def chunks(self, split: str) -> Iterator[np.ndarray]:
        with open(self._folder / f"{split}.numbers", "rb") as file:
            while data := file.read(CHUNK_TOKENS * 4):
                yield np.frombuffer(data, "int32")

    def finish(self, split: str, ids: np.ndarray) -> np.ndarray:
        num_tokens = (self._folder / f"{split}.numbers").stat().st_size // 4
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": ids.dtype.str, "fortran_order": False, "shape": (num_tokens,)}
        )
        digest = hashlib.sha256(header.getvalue())
        with open(self._folder / f"{split}.npy", "wb") as file:
            file.write(header.getvalue())
            for numbers in self.chunks(split):
                part = ids[numbers]
                digest.update(part.data)
                file.write(part.data)
        (self._folder / f"{split}.numbers").unlink()
        self.arrays[split] = {"sha256": digest.hexdigest(), "tokens": num_tokens}
        return _map(self._folder / f"{split}.npy")


def _build(
    home: Path, key: str, sources: dict[str, str], text: Text, settings: Settings
) -> Encoded:
    """Make the folder of `key` and return its ids, or those of who was there first."""
    home.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(home)
    temporary = Path(tempfile.mkdtemp(prefix=f".{key[:16]}.", dir=home))
    try:
        _write(temporary, sources, text, settings)
        for _ in range(3):  # others may be at it, too
            with contextlib.suppress(OSError):
                os.rename(temporary, home / key)
            if found := _open(home / key, settings):
                return found
            with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=temporary) as aside:
                os.rename(home / key, Path(aside) / "damaged")
        raise OSError(f"{home / key} cannot be replaced")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, sources: dict[str, str], text: Text, settings: Settings) -> None:
    store = _OnDisk(folder)
    encoded = encode(text, settings, store)
    encoded.vocabulary.save(folder / WORDS)
    description = {
        "format": FORMAT,
        "sources": sources,
        "settings": _as_data(settings),
        "arrays": store.arrays,
        "vocabulary_sha256": encoded.vocabulary.sha256,
        "sha256": encoded.sha256,
    }
    description["checksum"] = _sha256_of(description)
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), "utf-8")


def _open(folder: Path, settings: Settings) -> Encoded | None:
    """Return the ids in `folder`, None unless every checksum is right."""
    try:
        description = json.loads((folder / DESCRIPTION).read_bytes())
        if description.pop("checksum") != _sha256_of(description):
            return None
        for split in SPLITS:
            if sha256_of(folder / f"{split}.npy") != description["arrays"][split]["sha256"]:
                return None
        words = (folder / WORDS).read_bytes()
        if hashlib.sha256(words).hexdigest() != description["vocabulary_sha256"]:
            return None
        vocabulary = settings.vocabulary or Vocabulary(
            tuple(words.decode().split("\n")[:-1]), lowercase=settings.lowercase
        )
        splits = {split: _map(folder / f"{split}.npy") for split in SPLITS}
        return Encoded(splits, vocabulary, description["sha256"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _map(path: Path) -> np.ndarray:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array)  # a plain array: slices of a np.memmap are slow


def _as_data(settings: Settings) -> dict[str, Any]:
    given = settings.vocabulary
    return {
        "lowercase": settings.lowercase,
        "vocabulary_size": settings.vocabulary_size,
        "min_count": settings.min_count,
        "vocabulary": None if given is None else given.sha256,
    }


def _stamps(text: Text) -> list[tuple[int, int]]:
    found = [path.stat() for path in text.files.values()]
    return [(file.st_size, file.st_mtime_ns) for file in found]


def _sha256_of(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _remove_leftovers(home: Path) -> None:
    """Remove what killed builds have left; a running one is younger."""
    for path in home.glob(".*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
