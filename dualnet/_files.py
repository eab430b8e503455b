"""Writes files that are never half there."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file under another name beside `path`, then rename it: whole or not at all."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.chmod(temporary, 0o644)  # mkstemp hides it from others
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
