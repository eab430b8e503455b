"""RUN folders: what a training run leaves behind, and how to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualnet.runs.folder import read_card

if TYPE_CHECKING:
    from dualnet.runs.loading import corpus_of_run as corpus_of_run
    from dualnet.runs.loading import load as load

_NEED_KERAS = ("corpus_of_run", "load")  # a path that is no RUN is refused without it

__all__ = ["corpus_of_run", "load", "read_card"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _NEED_KERAS:
        raise AttributeError(f"module 'dualnet.runs' has no attribute {name!r}")
    from dualnet.runs import loading

    return getattr(loading, name)
