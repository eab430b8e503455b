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
from dualnet._checks import did_you_mean, is_number
from dualnet._data import folder
from dualnet._toml import KINDS, at_line, line_of, read_toml
from dualnet.tuning.job import KEYS, Job, parse_count
from dualnet.tuning.space import (
    PARAMETER_KEYS,
    RANGE_KEYS,
    SAMPLINGS,
    JobError,
    Parameter,
    conditions_text,
    decided,
    is_among,
)


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


def load_job(name: str | os.PathLike[str]) -> Job:
    """Return the job `name`.

    Args:
        name: one of `list_jobs()`, or the path of a job file of your own, ending in ".toml".

    Raises:
        ValueError: if there is no such job, or the file is not TOML or has a mistake; the
            message has its file and line.
        FileNotFoundError: if there is no such file.

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
    """Return the job in `table`, keys and types checked, values not yet.

    Raises:
        JobError: for an unknown key or a value of the wrong type.
    """
    for key, value in table.items():
        _check_type(key, value)
    fields = {key: table[key] for key in table if key not in ("space", "ours", "parameters")}
    kind, tuner = table.get("kind", "training"), table.get("tuner", "random")
    for key in ("max_hours", "max_hours_per_trial"):
        if key in fields:
            fields[key] = float(fields[key])
    if "parameters" in table:
        with JobError.at("parameters"):
            fields["parameters"] = parse_count(table["parameters"])
    if tuner == "grid":
        fields.setdefault("max_trials", None)
    if tuner == "hyperband" or kind == "evaluation":
        fields.setdefault("early_stopping", "none")
    if "model" in fields and file and zoo.is_file(fields["model"]):
        fields["model"] = os.path.abspath(os.path.join(os.path.dirname(file), fields["model"]))
    for name, value in table.get("fixed", {}).items():
        _check_value(("fixed", name), value)
    space = tuple(_parameter(*item) for item in table.get("space", {}).items())
    if not space:
        raise JobError(("space",), "must have a parameter to search. Received: none.")
    return Job(
        **{"name": stem, **fields}, ours=tuple(table.get("ours", ())), space=space, file=file
    )


def _check_type(key: str, value: Any) -> None:
    expected = KEYS.get(key)
    if expected is None:
        raise JobError(
            (key,),
            f"must be one of {', '.join(KEYS)}.{did_you_mean(key, KEYS)} Settings of the trials "
            "belong in [fixed] and [space].",
        )
    fits = type(value) is expected
    if expected is float:
        fits = is_number(value)
    elif key == "parameters":
        fits = type(value) in (str, int)
    if not fits:
        raise JobError((key,), f"must be {KINDS[expected]}. Received: {key} = {value!r}.")


def _parameter(name: str, entry: Any) -> Parameter:
    """Return parameter `name` from its entry in the table [space].

    Raises:
        JobError: for an unknown key or an invalid value.
    """
    place = ("space", name)
    table = {"values": entry} if isinstance(entry, list) else entry
    if not isinstance(table, dict):
        raise JobError(
            place,
            f"must be a list of values, or a table of {', '.join(PARAMETER_KEYS)}. Received: "
            f"{name} = {entry!r}. Settings that all trials share belong in [fixed].",
        )
    for key in table:
        if key not in PARAMETER_KEYS:
            raise JobError(
                (*place, key),
                f"must be one of {', '.join(PARAMETER_KEYS)}.{did_you_mean(key, PARAMETER_KEYS)}",
            )
    fields = _values(place, table) if "values" in table else _range(place, table)
    when = table.get("when", {})
    if not isinstance(when, dict):
        raise JobError(
            (*place, "when"),
            f"must be a table of other parameters and lists of their values. Received: {when!r}.",
        )
    for parent, values in when.items():
        if not isinstance(values, list) or not values:
            raise JobError(
                (*place, "when"),
                f"must have a list of values for {parent!r}. Received: {parent} = {values!r}.",
            )
    return Parameter(name=name, **fields, when={parent: tuple(when[parent]) for parent in when})


def _values(place: tuple[str, ...], table: Mapping[str, Any]) -> dict[str, Any]:
    values = table["values"]
    for key in RANGE_KEYS:
        if key in table:
            raise JobError((*place, key), "must be left out beside `values`.")
    if not isinstance(values, list) or not values:
        raise JobError((*place, "values"), f"must be a list that is not empty. Received: {values}.")
    for value in values:
        _check_value(place, value)
    if {type(value) for value in values} == {int, float}:
        values = [float(value) for value in values]
    for i, value in enumerate(values):
        if is_among(value, values[:i]):
            raise JobError((*place, "values"), f"must differ. Received: {value!r} twice.")
    return {"values": tuple(values)}


def _range(place: tuple[str, ...], table: Mapping[str, Any]) -> dict[str, Any]:
    def mistake(key: str, message: str) -> JobError:
        return JobError((*place, key), message)

    if not {"min_value", "max_value"} <= {*table}:
        raise JobError(place, "must have `values`, or `min_value` and `max_value`.")
    for key in ("min_value", "max_value", "step"):
        if key in table and (not is_number(table[key]) or not math.isfinite(table[key])):
            raise mistake(key, f"must be a finite number. Received: {table[key]!r}.")
    low, high, step = table["min_value"], table["max_value"], table.get("step")
    sampling = table.get("sampling", "linear")
    if sampling not in SAMPLINGS:
        hint = did_you_mean(sampling, SAMPLINGS)
        raise mistake(
            "sampling", f"must be one of {list(SAMPLINGS)}. Received: {sampling!r}.{hint}"
        )
    if low >= high:
        raise mistake("min_value", f"must be below `max_value`. Received: {low!r} and {high!r}.")
    if sampling != "linear" and low <= 0:
        raise mistake("min_value", f"must be above 0 on a log scale. Received: {low!r}.")
    integers = isinstance(low, int) and isinstance(high, int)
    least = 0 if sampling == "linear" else 1
    if step is not None and (step <= least or (integers and not isinstance(step, int))):
        kind = "an integer" if integers else "a number"
        raise mistake("step", f"must be {kind} above {least}. Received: {step!r}.")
    if not integers:
        low, high = float(low), float(high)
        step = None if step is None else float(step)
    return {"min_value": low, "max_value": high, "step": step, "sampling": sampling}


def _check_value(place: tuple[str, ...], value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _check_value(place, item)
    elif not isinstance(value, (bool, int, str)) and not (
        isinstance(value, float) and math.isfinite(value)
    ):
        raise JobError(
            place,
            "must be a finite number, a string, true or false, or a list of these. "
            f"Received: {value!r}.",
        )


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
        conditions = conditions_text(parameter.when)
        rows.append(
            (parameter.name, _range_text(parameter), conditions, mark(f"space.{parameter.name}"))
        )
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
