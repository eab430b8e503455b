"""Unfinished folders that killed exports leave behind: how they are named, found and removed."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
import time
from pathlib import Path

ABANDONED_AFTER_SECONDS = 24 * 60 * 60


def unfinished_prefix(directory: Path, process: int | None = None) -> str:
    """Return the first part of the name of a folder that is to become `directory`.

    The folder stands beside `directory`, where exports to other paths may be under way, so the
    name tells the path and the process. It begins with a dot: a model server takes a name that
    begins with a digit for a version to serve.
    """
    return f".{directory.name}.unfinished-{_owner(os.getpid() if process is None else process)}."


def remove_leftovers(directory: Path) -> None:
    """Remove folders of exports to `directory` whose process has ended, or that are a day old."""
    prefix = f".{directory.name}.unfinished-"
    for folder in directory.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > ABANDONED_AFTER_SECONDS
            if old or _has_ended(folder.name.removeprefix(prefix).partition(".")[0]):
                shutil.rmtree(folder, ignore_errors=True)


def _owner(process: int) -> str:
    """Return a name for a process of this machine."""
    return f"{platform.node().replace('.', '_')}-{process}"


def _has_ended(owner: str) -> bool:
    """Return whether `owner` names a process of this machine that has ended."""
    process = owner.rpartition("-")[2]
    if os.name != "posix" or not process.isdecimal() or owner != _owner(int(process)):
        return False  # perhaps of another machine
    try:
        os.kill(int(process), 0)  # sends no signal, only checks
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user
        pass
    return False
