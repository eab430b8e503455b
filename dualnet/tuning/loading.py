"""Reads jobs: those of `tuning/`, and files of one's own."""

import fnmatch
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet._data import folder, list_tables
from dualnet._toml import read_toml
from dualnet.tuning.job import Job, Parameter, parse_count


def list_jobs(pattern: str = "*") -> list[str]:
    """Return the sorted names of dualnet's jobs that match `pattern`.

    Example:

    >>> from dualnet.tuning import list_jobs
    >>> list_jobs("doc_*")
    ['doc_experts', 'doc_latent_dropout', 'doc_penalty']
    """
    return fnmatch.filter(list_tables("tuning"), pattern)


def load_job(name: StrPath) -> Job:
    """Return the job `name`.

    Args:
        name: one of `list_jobs()`, or the path of a job file of your own, ending in ".toml".

    Raises:
        ValueError: if there is no such job, or the file has a mistake; the message says where.

    Example:

    >>> from dualnet.tuning import load_job
    >>> load_job("krause_dynamic").kind
    'evaluation'
    """
    if not zoo.is_file(name):
        if name not in list_jobs():
            hint = did_you_mean(name, list_jobs(), most=3)
            way_out = "`dualnet jobs` lists all; the name of a job file of your own ends in .toml."
            raise ValueError(f"Unknown job. Received: name={name!r}.{hint} {way_out}")
        return _job(tomllib.loads(text_of(name)), os.fspath(name), "")
    file = os.fspath(name)
    try:
        return _job(read_toml(file, what="A job"), Path(name).stem, file)
    except (ArgumentError, AttributeError, TypeError) as error:  # a value of another kind
        raise ValueError(f"{file}: {error}") from None


def text_of(name: StrPath) -> str:
    """Return the text of the file of job `name`, its comments included."""
    file = Path(name) if zoo.is_file(name) else folder("tuning") / f"{os.fspath(name)}.toml"
    return file.read_text("utf-8-sig")


def _job(table: Mapping[str, Any], stem: str, file: str) -> Job:
    """Return the job in `table`, of a file of this name."""
    fields = {"name": stem, **table, "file": file, "ours": tuple(table.get("ours", ()))}
    fields["space"] = tuple(_parameter(*entry) for entry in table.get("space", {}).items())
    if not fields["space"]:
        raise ArgumentError("space", "must have a parameter to search.")
    if "parameters" in table:
        fields["parameters"] = parse_count(table["parameters"])
    if table.get("tuner") == "grid":
        fields.setdefault("max_trials", None)
    if table.get("tuner") == "hyperband" or table.get("kind") == "evaluation":
        fields.setdefault("early_stopping", "none")
    if file and zoo.is_file(table.get("model", "")):
        fields["model"] = os.path.abspath(os.path.join(os.path.dirname(file), table["model"]))
    return Job.of(fields, way_out=" Settings of the trials belong in [fixed] and [space].")


def _parameter(name: str, entry: Any) -> Parameter:
    """Return parameter `name` from its entry in the table [space]."""
    if not isinstance(entry, (list, dict)):
        way_out = " A setting that all trials share belongs in [fixed]."
        raise ArgumentError(name, "must be a list of values, or a table.", way_out, **{name: entry})
    fields: dict[str, Any] = {"values": entry} if isinstance(entry, list) else entry
    fields = {**fields, "name": name, "values": tuple(fields.get("values", ()))}
    fields["when"] = {key: tuple(values) for key, values in fields.get("when", {}).items()}
    if {int, float} == set(map(type, fields["values"])):  # KerasTuner takes one kind only
        fields["values"] = tuple(map(float, fields["values"]))
    try:
        return Parameter.of(fields)
    except ArgumentError as error:
        raise ArgumentError(name, f"of [space]: {error}") from None
