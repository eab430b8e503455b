"""Formats of `dualnet.export` that rooms above it add, and what they add to `dualnet.serving`."""

from collections.abc import Callable
from typing import Any, NamedTuple

# Of the name of a file, it returns the bytes of each file by what follows that name, or it writes
# into a folder, which is empty.
Writer = Callable[..., Any]


class Format(NamedTuple):
    """A format of `export`.

    Attributes:
        suffix: of its file; "" for a folder.
        prepare: function of a model and an `Exporting` that returns the `Writer`. It raises
            `ValueError` for a model that the format cannot hold.
    """

    suffix: str
    prepare: Callable[[Any, Any], Writer]


ADDED: dict[str, Format] = {}
NAMES: dict[str, str] = {}  # public names of `serving`, and the modules that hold them
