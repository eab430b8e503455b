"""Writes files that are never half there."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file under another name beside `path`, then rename it: whole or not at all."""
    with written_beside(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of an empty file beside `path`, which takes its place if all goes well.

    It has the ending of `path`, begins with a dot, and is removed on an error.

    Raises:
        OSError: if it cannot be written; `path` is then as it was.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=".unfinished-", suffix=path.name, dir=path.parent)
    except OSError as error:
        raise _not_written(path, error) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o644)  # mkstemp hides it from others
        flush(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise _not_written(path, error) from None
        raise


def _not_written(path: Path, error: OSError) -> OSError:
    reason = error.strerror or str(error).splitlines()[0]
    return type(error)(f"{str(path)!r} could not be written ({reason}); it is as it was before.")


def make_folder(name: str, folder: Path) -> None:
    """Make `folder`, the argument `name`, and its parents, unless it is there.

    Raises:
        FileExistsError: if it is a file.
        OSError: if it cannot be made, or nothing can be written into it.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(
            f"`{name}` must be a folder. Received: {str(folder)!r}, which is a file."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            f"`{name}` must be a folder that can be written to. Received: {str(folder)!r} "
            f"({error.strerror or error}). Choose another."
        ) from None


def flush(path: str | os.PathLike[str]) -> None:
    """Wait until the file `path` is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the file `path`, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
