"""Searches for settings: `search` runs a job of `tuning/`, or one of your own, with KerasTuner.

`job` says what is searched; `search_run` begins or resumes a search, and runs it to its end; its
processes share `search_folder`; `trial` is one of its trials, done by `trial_process`; `report` is
what it leaves and shows. `engine/` stands in for KerasTuner's gaps: oracles, tuner, processes,
chief.
"""

from typing import TYPE_CHECKING

from dualnet._checks import extra
from dualnet.tuning.job import Job, list_jobs, load_job

if TYPE_CHECKING:
    from dualnet.tuning.hypermodel import HyperModel as HyperModel
    from dualnet.tuning.search_run import SearchError as SearchError
    from dualnet.tuning.search_run import search as search

# These import KerasTuner, which the extra "tune" installs.
_NEED_KERAS_TUNER = ("HyperModel", "SearchError", "search")

__all__ = ["Job", "list_jobs", "load_job", *_NEED_KERAS_TUNER]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _NEED_KERAS_TUNER:
        raise AttributeError(f"module 'dualnet.tuning' has no attribute {name!r}")
    with extra("tune", "Searches need KerasTuner"):
        from dualnet.tuning import search_run
    return getattr(search_run, name)
