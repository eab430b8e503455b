"""Job files: `list_jobs`, `load_job`, and `describe`, which prints a job for people."""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import checked, is_number
from dualnet._data import folder
from dualnet._toml import OTHERS, Kind, at_line, check_keys, line_of, read_toml
from dualnet.tuning.job import SCHEMA, Job, parse_count
from dualnet.tuning.space import (
    JobError,
    Parameter,
    conditions_text,
    decided,
)


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_value, value))
    return isinstance(value, (bool, int, str)) or (is_number(value) and math.isfinite(value))


VALUE = Kind("a finite number, a string, true or false, or a list of these", _is_value)
FINITE = Kind("a finite number", lambda value: is_number(value) and math.isfinite(value))
# What the table of a parameter may hold.
PARAMETER = {
    "values": list, "min_value": FINITE, "max_value": FINITE, "step": FINITE, "sampling": str,
    "when": {OTHERS: list},
}  # fmt: skip


@checked
def list_jobs(pattern: str = "*") -> list[str]:
    """Return the sorted names of dualnet's jobs that match `pattern`.

    Example:

    >>> from dualnet.tuning import list_jobs
    >>> list_jobs("doc_*")
    ['doc_experts', 'doc_latent_dropout', 'doc_penalty']
    """
    names = [path.name for path in folder("tuning").iterdir() if path.name.endswith(".toml")]
    stems = [name.removesuffix(".toml") for name in names]
    return sorted(fnmatch.filter(stems, pattern))


@checked
def load_job(name: str | os.PathLike[str]) -> Job:
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
        text = Path(file).read_text("utf-8")
    elif name in list_jobs():
        where, file = f"tuning/{name}.toml", ""
        text = (folder("tuning") / f"{name}.toml").read_text("utf-8")
        table = tomllib.loads(text)
    else:
        near = difflib.get_close_matches(str(name), list_jobs(), n=3, cutoff=0.4)
        hint = f" Did you mean one of {near}?" if near else ""
        raise ValueError(
            f"Unknown job. Received: name={name!r}.{hint} `dualnet jobs` lists all jobs; the name "
            "of a job file of your own ends in .toml."
        )
    try:
        job = _job(table, Path(name).stem, file)
        if file:  # dualnet's own jobs are checked by its tests: showing them needs no Keras
            from dualnet.tuning.job_checks import check_job

            check_job(job)
    except JobError as error:
        raise ValueError(f"{at_line(where, _line(text, error.place))}: {error}") from None
    return job


def _line(text: str, place: Sequence[str]) -> int:
    """Return the line of the innermost key of `place` that has one, 0 if none has."""
    keys = [(place[i], ".".join(place[:i])) for i in reversed(range(len(place)))]
    keys.insert(-1, (place[:2][-1], ""))  # a table may also be written as dotted keys
    return next(filter(None, (line_of(text, key, table=table) for key, table in keys)), 0)


def _job(table: Mapping[str, Any], stem: str, file: str) -> Job:
    """Return the job in `table`, keys and types checked, values not yet."""
    way_out = " Settings of the trials belong in [fixed] and [space]."
    with JobError.at():
        check_keys(table, SCHEMA, way_out=way_out)
    fields = {"name": stem, **table, "ours": tuple(table.get("ours", ())), "file": file}
    kind, tuner = table.get("kind", "training"), table.get("tuner", "random")
    if "parameters" in table:
        with JobError.at():
            fields["parameters"] = parse_count(table["parameters"])
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
    JobError.unless(
        isinstance(table, dict),
        place,
        f"must be a list of values, or a table of {', '.join(PARAMETER)}. Received: {name} = "
        f"{entry!r}. Settings that all trials share belong in [fixed].",
    )
    with JobError.at(*place):
        check_keys(table, PARAMETER)
    fields = {**table, "when": {key: tuple(v) for key, v in table.get("when", {}).items()}}
    with JobError.at("space"):
        for value in table.get("values", ()):
            check_keys({name: value}, {OTHERS: VALUE})
    if values := table.get("values"):
        numbers = {type(value) for value in values} == {int, float}
        fields["values"] = tuple(map(float, values) if numbers else values)
    elif float in map(type, (table.get("min_value"), table.get("max_value"))):
        ends = {"min_value", "max_value", "step"} & fields.keys()
        fields |= {key: float(table[key]) for key in ends}
    with JobError.at(*place):
        return Parameter(name=name, **fields)


# --- for people


def describe(job: Job) -> str:
    """Return `job` as text: its source, its limits, and what it fixes and searches."""
    subjects = {"training": f"of {job.model}", "gate": "of a gate on a RUN"}
    subject = subjects.get(job.kind, "of the evaluation settings of a RUN")
    lines = [f"{job.name}, a search {subject}"]
    lines += [text for text in (job.file, job.paper, job.table, job.note) if text]
    limits = {
        "tuner": job.tuner,
        **job.tuner_options,
        "max_trials": None if job.tuner == "hyperband" else job.max_trials,
        "max_hours": job.max_hours,
        "max_hours_per_trial": job.max_hours_per_trial,
        "parameters": job.parameters,
        "solve_for": None if job.parameters is None else job.solve_for,
        "early_stopping": job.early_stopping,
        "seed": job.seed,
    }

    def mark(key: str) -> str:
        return "  (our choice, at least in part)" if key in job.ours else ""

    lines.append("")
    lines += [f"{k} = {json.dumps(v)}{mark(k)}" for k, v in limits.items() if v is not None]
    fixed = [(key, json.dumps(job.fixed[key]), "", mark(f"fixed.{key}")) for key in job.fixed]
    searched: list[tuple[str, str, str, str]] = []
    for parameter in decided(job.written, job.fixed):
        rows = fixed if parameter.is_constant else searched
        name, conditions = parameter.name, conditions_text(parameter.when)
        rows.append((name, _range_text(parameter), conditions, mark(f"space.{name}")))
    for title, rows in (("[fixed]", fixed), ("[space]", searched)):
        if not rows:
            continue
        lines += ["", title]
        widths = [max(map(len, cells)) for cells in list(zip(*rows))[:3]]
        for *cells, mark_text in rows:
            padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths) if width]
            lines.append("  ".join(padded).rstrip() + mark_text)
    return "\n".join(lines)


def _range_text(parameter: Parameter) -> str:
    if parameter.values:
        return " ".join(json.dumps(value) for value in parameter.values)
    step = "" if parameter.step is None else f", step {parameter.step}"
    sampling = "" if parameter.sampling == "linear" else f", {parameter.sampling}"
    return f"{parameter.min_value} to {parameter.max_value}{step}{sampling}"
