"""Reads jobs: those of `tuning/`, and files of one's own."""

import fnmatch
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import StrPath, did_you_mean
from dualnet._data import folder, list_tables
from dualnet._toml import OTHERS, check_keys, read_toml
from dualnet.tuning.job import PARAMETER, SCHEMA, VALUE, Job, JobError, Parameter, parse_count


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
    if zoo.is_file(name):
        where = file = os.fspath(name)
        table = read_toml(file, what="A job")
    elif name in list_jobs():
        where, file = f"tuning/{name}.toml", ""
        table = tomllib.loads(text_of(name))
    else:
        hint = did_you_mean(name, list_jobs(), most=3)
        way_out = "`dualnet jobs` lists all jobs; the name of a job file of your own ends in .toml."
        raise ValueError(f"Unknown job. Received: name={name!r}.{hint} {way_out}")
    try:
        job = _job(table, Path(name).stem, file)
        if file:  # dualnet's own jobs are checked by its tests: showing them needs no Keras
            from dualnet.tuning.job_checks import check_job

            check_job(job)
    except JobError as error:
        raise ValueError(f"{where}: {error}") from None
    return job


def text_of(name: StrPath) -> str:
    """Return the text of the file of job `name`, its comments included."""
    file = Path(name) if zoo.is_file(name) else folder("tuning") / f"{os.fspath(name)}.toml"
    return file.read_text("utf-8-sig")


def _job(table: Mapping[str, Any], stem: str, file: str) -> Job:
    """Return the job in `table`, keys and types checked, values not yet."""
    way_out = " Settings of the trials belong in [fixed] and [space]."
    with JobError.at():
        check_keys(table, SCHEMA, way_out=way_out)
        parameters = parse_count(table["parameters"]) if "parameters" in table else None
    own = {"ours": tuple(table.get("ours", ())), "file": file, "parameters": parameters}
    fields: dict[str, Any] = {"name": stem, **table, **own}
    kind, tuner = table.get("kind", "training"), table.get("tuner", "random")
    if tuner == "grid":
        fields.setdefault("max_trials", None)
    if tuner == "hyperband" or kind == "evaluation":
        fields.setdefault("early_stopping", "none")
    if "model" in fields and file and zoo.is_file(fields["model"]):
        fields["model"] = os.path.abspath(os.path.join(os.path.dirname(file), fields["model"]))
    with JobError.at("fixed"):
        check_keys(table.get("fixed", {}), {OTHERS: VALUE})
    fields["space"] = tuple(_parameter(*item) for item in table.get("space", {}).items())
    message = "must have a parameter to search. Received: none."
    JobError.unless(bool(fields["space"]), ("space",), message)
    with JobError.at():
        return Job(**fields)


def _parameter(name: str, entry: Any) -> Parameter:
    """Return parameter `name` from its entry in the table [space]."""
    place = ("space", name)
    table: Any = {"values": entry} if isinstance(entry, list) else entry
    if not isinstance(table, dict):
        message = f"must be a list of values, or a table of {', '.join(PARAMETER)}. Received: "
        way_out = "Settings that all trials share belong in [fixed]."
        raise JobError(place, f"{message}{name} = {entry!r}. {way_out}")
    with JobError.at(*place):
        check_keys(table, PARAMETER)
        with JobError.at("space"):
            for value in table.get("values", ()):
                check_keys({name: value}, {OTHERS: VALUE})
        fields = {**table, "when": {key: tuple(v) for key, v in table.get("when", {}).items()}}
        if values := table.get("values"):
            numbers = {type(value) for value in values} == {int, float}
            fields["values"] = tuple(map(float, values) if numbers else values)
        elif float in map(type, (table.get("min_value"), table.get("max_value"))):
            ends = {"min_value", "max_value", "step"} & fields.keys()
            fields |= {key: float(table[key]) for key in ends}
        return Parameter(name=name, **fields)
