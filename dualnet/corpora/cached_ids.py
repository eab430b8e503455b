"""The cache of ids on disk, so that neither a large text nor its ids need fit into memory.

The ids of a text are one folder of the cache, `ids/KEY`: an array for each split, the words,
and a description with the checksum of each. KEY is a hash of the text and of everything else
that the ids depend on. A folder appears as a whole or not at all, and a damaged one is rebuilt.
"""

import contextlib
import mmap
import shutil
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from dualnet._files import folder_beside, remove_unfinished, seal, sha256_of, sha256_of_data, unseal
from dualnet.corpora.encoding import Encoded, Settings, Text, encode, mapped
from dualnet.corpora.sources import SPLITS, cache_folder
from dualnet.text import Tokenizer, load_tokenizer

LARGE_BYTES = 16 << 20  # the ids of larger texts are on disk
FORMAT = 6  # increases when the ids of a text change, or the files that hold them
DESCRIPTION = "ids.json"


def encoded(text: Text, settings: Settings) -> Encoded:
    """Return `encode(text, settings)`, of a large text with arrays that are read-only memory maps.

    If the cache cannot be written, they are ordinary arrays. A file must not change while it
    is read.
    """
    stamps = _stamps(text)
    if sum(size for size, _ in stamps) <= LARGE_BYTES:
        return encode(text, settings)
    sums = {path: sha256_of(path) for path in text.paths()}
    key = {
        **vars(settings),
        "format": FORMAT,
        "documents": text.documents,
        "lowercase": text.lowercase,
        "sources": {
            split: [(sums[part.path], part.start, part.end) for part in parts]
            for split, parts in text.files.items()
        },
    }
    if (vocabulary := settings.vocabulary) is not None:
        key["vocabulary"] = f"{vocabulary.kind} {vocabulary.sha256}"
    folder = cache_folder() / "ids" / sha256_of_data(key)
    whole = _open(folder, text, vocabulary)
    if whole is None:
        with contextlib.suppress(OSError):  # read-only, or the disk is full
            _build(folder, text, settings)
        whole = _open(folder, text, vocabulary) or encode(text, settings)
        if _stamps(text) != stamps:
            shutil.rmtree(folder, ignore_errors=True)  # its key is the hash of another text
            raise ValueError(
                f"A text file must not change while it is read. Received: {text.source!r}, which "
                "did. Load the corpus again."
            )
    return whole


def release_pages(tokens: np.ndarray) -> None:
    """Release the memory of `tokens` if it is a read-only memory map.

    Pages that were read count as memory of the process until they are released. They are
    read again when needed. Other arrays are left untouched.
    """
    base: Any = tokens
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        with memoryview(base) as view:
            read_only = view.readonly  # changes to a private map would be lost
        if read_only:
            base.madvise(mmap.MADV_DONTNEED)


def _build(folder: Path, text: Text, settings: Settings) -> None:
    """Write the ids to `folder`, one process at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.parent.with_suffix(".lock")):
        if _open(folder, text, settings.vocabulary) is not None:
            return  # another process was faster
        remove_unfinished(folder.parent)  # of killed processes
        with folder_beside(folder) as temporary:
            encoded = encode(text, settings, temporary)
            words = encoded.vocabulary.file_name
            encoded.vocabulary.save(temporary / words)
            seal(temporary, DESCRIPTION, {"vocabulary": words, "text_sha256": encoded.sha256})


def _open(folder: Path, text: Text, vocabulary: Tokenizer | None) -> Encoded | None:
    """Return the ids in `folder`, or None if a checksum is wrong or missing."""
    try:
        description = unseal(folder, DESCRIPTION)
        vocabulary = vocabulary or load_tokenizer(
            folder / description["vocabulary"], documents=text.documents, lowercase=text.lowercase
        )
        splits = {split: mapped(folder / f"{split}.npy") for split in SPLITS}
        return Encoded(splits, vocabulary, description["text_sha256"])
    except (OSError, ValueError):
        return None


def _stamps(text: Text) -> list[tuple[int, int]]:
    return [(stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, text.paths())]
