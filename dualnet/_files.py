"""Writes files and folders so that a reader never sees them half written."""

import contextlib
import csv
import errno
import glob
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from dualnet._checks import ArgumentError, StrPath

UNFINISHED = ".unfinished-"  # in the name of what a killed process may leave behind
LOCK = ".lock"
UMASK = os.umask(0o022)  # it can be read only by setting it
os.umask(UMASK)


class NotARegularFileError(OSError):
    """A path leads to a device, a pipe or a socket, which reading could wait on for ever."""


class DamagedError(ValueError):
    """A file is missing, or has changed since it was written."""


@contextlib.contextmanager
def open_regular(path: StrPath) -> Iterator[BinaryIO]:
    """Open the regular file `path` to read its bytes.

    Never waits: a pipe is opened without a writer, and refused.
    """

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotARegularFileError(f"{os.fspath(path)!r} is a device or a pipe.")
        yield file


def read_regular(path: StrPath) -> bytes:
    """Return the bytes of the regular file `path`."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: StrPath) -> Any:
    """Return the contents of the regular JSON file `path`."""
    try:
        return json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"A file of JSON must be intact. Received: {os.fspath(path)!r}: {error}."
        ) from None


def write_whole(path: StrPath, data: bytes | str) -> None:
    """Write a file under a temporary name, then rename it: it is written whole or not at all."""
    with written_beside(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: StrPath, data: object) -> None:
    """Write `data` as a file of JSON, whole or not at all, as `write_whole`."""
    write_whole(path, json.dumps(data, indent=2) + "\n")


def write_csv(path: StrPath, rows: Iterable[Iterable[object]]) -> None:
    """Write a table whole or not at all, as `write_whole`."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    write_whole(path, text.getvalue())


@contextlib.contextmanager
def written_beside(path: StrPath) -> Iterator[Path]:
    """Yield the path of an empty file, of the same name, that takes the place of `path` on success.

    On an error the file is removed and `path` is left untouched. Into a device or a pipe, the file
    is copied in the end.
    """
    path = Path(path)
    is_special = path.exists() and not path.is_file()
    if path.is_symlink() and not is_special:
        path = Path(os.path.realpath(path))  # the link stays
    try:
        place = Path(tempfile.gettempdir(), path.name) if is_special else path
        with workplace_beside(place) as workplace:
            temporary = workplace / path.name
            temporary.touch()
            yield temporary
            if is_special:
                path.write_bytes(temporary.read_bytes())
                return
            temporary.chmod(path.stat().st_mode if path.is_file() else 0o666 & ~UMASK)
            flush(temporary)
            temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise type(error)(
            f"{str(path)!r} could not be written ({reason}); any earlier version is kept."
        ) from None


def is_full(error: Exception) -> bool:
    """Recognise the error of a full disk, or a full share of it."""
    # By the text: shutil, h5py and TensorFlow raise errors without the number.
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))


@contextlib.contextmanager
def workplace_beside(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path` for unfinished files; remove those of killed processes.

    Its name has a leading dot: a model server takes one that begins with a digit for a version to
    serve. A process that is under way holds the lock in its folder.
    """
    prefix = f".{path.name[:58]}{UNFINISHED}"  # a name has at most 255 bytes
    for folder in path.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), filelock.FileLock(folder / LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
        lock = filelock.FileLock(folder / LOCK)
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # taken for a leftover
            lock.acquire()
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


@contextlib.contextmanager
def folder_beside(path: StrPath) -> Iterator[Path]:
    """Yield an empty folder beside `path` that takes its place on success.

    On an error the folder is removed and `path` is left untouched.
    """
    path = Path(path)
    with workplace_beside(path) as workplace:
        new = workplace / path.name
        new.mkdir(mode=0o777 & ~UMASK)
        yield new
        if path.exists():
            shutil.rmtree(path)
        os.replace(new, path)


@contextlib.contextmanager
def claim(folder: Path, *, resume: bool, may_hold: Collection[str] = ()) -> Iterator[None]:
    """Reserve the folder `output` for this process. The system releases the lock when it ends.

    The folder is created if absent, and removed again on an error if nothing was written to it.
    Unless `resume`, it may hold only files named in `may_hold`.
    """
    created = not folder.exists()
    make_folder("output", folder)
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ArgumentError(
            "output",
            f"must be a folder that no other process uses. Received: {str(folder)!r}, which is in "
            "use. Wait for the other process, or choose another folder.",
        ) from None
    try:
        if not resume:
            check_new(folder, may_hold=may_hold)
        yield
    except BaseException:
        if created and {path.name for path in folder.iterdir()} <= {LOCK}:
            lock.release()
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
        raise
    finally:
        lock.release()


def check_new(folder: Path, *, may_hold: Collection[str] = (), name: str = "output") -> None:
    """Raise `FileExistsError` unless the folder `name` is new or holds unfinished files alone."""
    if folder.exists() and (not folder.is_dir() or is_used(folder, may_hold=may_hold)):
        raise FileExistsError(
            f"`{name}` must be a new or empty folder. Received: {str(folder)!r}, which is not. "
            "Choose another folder, or resume what is in it with --resume."
        )


def is_used(folder: Path, *, may_hold: Collection[str] = ()) -> bool:
    """Return True if `folder` holds files, except those in `may_hold` and unfinished ones."""
    names = {path.name for path in folder.iterdir()} - {LOCK, *may_hold}
    return any(UNFINISHED not in name for name in names)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left unfinished in `folder`."""
    for path in folder.glob(f"*{UNFINISHED}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_folder(name: str, folder: Path) -> None:
    """Create the folder given as argument `name`, and its parents; check it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(
            f"`{name}` must be a folder that can be written to. Received: {str(folder)!r} "
            f"({error.strerror or error}). Choose another."
        ) from None


def check_output_file(name: str, path: StrPath) -> None:
    """Raise `ArgumentError` unless a file can be written at `path`, given as argument `name`."""
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise ArgumentError(
            name,
            f"must be a file in an existing folder. Received: {os.fspath(path)!r}, which is a "
            "folder, or whose folder does not exist.",
        )


def seal(folder: Path, name: str, body: Mapping[str, object]) -> None:
    """Write `body` into `folder` as JSON, with checksums of it and of all other files there."""
    sums = {}
    for path in sorted(folder.iterdir()):
        flush(path)
        sums[path.name] = sha256_of(path)
    body = {**body, "files": sums}
    write_whole(folder / name, json.dumps({**body, "sha256": sha256_of_data(body)}))


def unseal(folder: Path, name: str) -> dict[str, Any]:
    """Return the body that `seal` wrote; raise `DamagedError`, with a file, unless all match."""
    file = name
    try:
        body = read_json(folder / file) if (folder / file).is_file() else {}
        if body.pop("sha256") != sha256_of_data(body):
            raise ValueError
        for file, expected in body.pop("files").items():
            if not (folder / file).is_file() or sha256_of(folder / file) != expected:
                raise ValueError
    except (ValueError, KeyError, AttributeError, TypeError):
        raise DamagedError(f"{file} is missing, or has changed since it was written") from None
    return body


def flush(path: StrPath) -> None:
    """Wait until the file `path`, or the names in the folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: StrPath) -> str:
    """Return the SHA-256 of the file `path` as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_data(data: object) -> str:
    """Return the SHA-256 of `data` as JSON, whatever the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
