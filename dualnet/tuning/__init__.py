"""Searches for settings: `search` runs a job of `tuning/`, or one of your own, with KerasTuner.

The room has three parts:

- the search, here: `job` says what is searched, and `job_checks` checks it; `begin`
  begins or resumes a search, whose processes share `search_folder`;
  `search_run` runs it to its end; `trial` is one of its trials, done by `trial_process`;
- `engine`, what stands in for KerasTuner's gaps: oracles, tuner, processes, chief;
- `report`, what a search shows and leaves: tables, plots, TensorBoard's HParams.
"""

from typing import TYPE_CHECKING, Any

from dualnet._checks import extra
from dualnet.tuning.job import Job, list_jobs, load_job

if TYPE_CHECKING:
    from dualnet.tuning.begin import search as search
    from dualnet.tuning.hypermodel import HyperModel as HyperModel
    from dualnet.tuning.search_run import SearchError as SearchError

# These import KerasTuner, which the extra "tune" installs.
_NEED_KERAS_TUNER = {"HyperModel": "hypermodel", "SearchError": "search_run", "search": "begin"}

__all__ = ["Job", "list_jobs", "load_job", *_NEED_KERAS_TUNER]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _NEED_KERAS_TUNER:
        raise AttributeError(f"module 'dualnet.tuning' has no attribute {name!r}")
    with extra("tune", "Searches need KerasTuner"):
        return getattr(importlib.import_module(f"dualnet.tuning.{_NEED_KERAS_TUNER[name]}"), name)
