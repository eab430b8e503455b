"""Searches for hyperparameters: jobs as data, over KerasTuner."""

from dualnet.tuning.jobs import Job, list_jobs, load_job

__all__ = ["Job", "list_jobs", "load_job"]
