"""Searches over the jobs in `tuning/`, run by KerasTuner: `search`, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dualnet.tuning.jobs import Job, list_jobs, load_job

if TYPE_CHECKING:
    from dualnet.tuning.hypermodel import HyperModel as HyperModel
    from dualnet.tuning.running import SearchError as SearchError
    from dualnet.tuning.searching import search as search

# Those that need KerasTuner, which comes with the extra "tune".
_NEED_KERAS_TUNER = {"HyperModel": "hypermodel", "SearchError": "running", "search": "searching"}

__all__ = ["Job", "list_jobs", "load_job", *_NEED_KERAS_TUNER]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _NEED_KERAS_TUNER:
        raise AttributeError(f"module 'dualnet.tuning' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"dualnet.tuning.{_NEED_KERAS_TUNER[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("keras_tuner", "rich", "grpc"):
            raise
        raise ImportError(
            "Searches need KerasTuner. Install it with `pip install 'dualnet[tune]'`, or in a "
            "checkout with `pip install '.[tune]'`."
        ) from error
