"""Searches as data: `list_jobs`, `load_job` and `describe` over the files in `tuning/`.

A job of your own, a `.toml` file, stands wherever the name of a job does.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import json
import os
import re
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import tomli_w

from dualnet import zoo
from dualnet._checks import ArgumentError, did_you_mean, is_number
from dualnet._data import folder
from dualnet._toml import KINDS, at_line, line_of, read_toml
from dualnet.tuning.parameters import (
    JobError,
    Parameter,
    check_value,
    decided,
    is_among,
    parameter_of,
)

# What a job may hold, and of what kind.
KEYS: dict[str, type] = {
    "name": str, "kind": str, "model": str, "paper": str, "table": str, "note": str, "ours": list,
    "tuner": str, "max_trials": int, "max_hours": float, "max_hours_per_trial": float,
    "parameters": str, "solve_for": str, "early_stopping": str, "seed": int,
    "tuner_options": dict, "fixed": dict, "space": dict,
}  # fmt: skip
JOB_KINDS = ("training", "gate", "evaluation")
# The tuners, and the arguments of KerasTuner's oracles that are theirs alone.
TUNERS: dict[str, tuple[str, ...]] = {
    "random": (),
    "bayesian": ("num_initial_points", "alpha", "beta"),
    "hyperband": ("factor", "hyperband_iterations"),
    "grid": (),
}
EARLY_STOPPING = ("median", "none")
SOLVE_FOR = ("units", *zoo.SIZES)
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One search: what is searched, how, and within which limits.

    Attributes:
        name: Name of the job, as in `load_job(name)`.
        kind: "training"; "gate", an input-to-output gate over a trained RUN; or
            "evaluation", the settings of evaluation over a trained RUN.
        model: Of a training: name of the zoo, or path of a card.
        paper: Author, year and address of the source.
        table: Where in the paper the ranges stand.
        note: What a reader should know beside them.
        ours: Keys of the job where the source is silent and we chose, e.g. "space.rank".
        tuner: "random", "bayesian", "hyperband" or "grid".
        tuner_options: Other arguments of its oracle in KerasTuner.
        max_trials: Number of trials; None for the whole grid.
        max_hours: Of the whole search; None for no limit.
        max_hours_per_trial: Of each trial; None for no limit.
        parameters: Budget of weights, for which `solve_for` is solved; None for none.
        solve_for: "units", all sizes alike, or the size that the budget decides.
        early_stopping: "median", trials without hope are ended, or "none".
        seed: Of the search and of every trial.
        fixed: Arguments in place of the card's, the same in all trials.
        space: What is searched, parents before children: the parameters with more than
            one value, those left out that can never be drawn. Conditions on what is fixed
            are decided, and those of a parent are also its children's.
        written: The space as the file has it, of which `space` is made. A parameter of one
            value is fixed where its conditions hold, and not searched.
        file: The path of a job of your own; "" for one of ours.
    """

    name: str
    kind: str = "training"
    model: str = ""
    paper: str = ""
    table: str = ""
    note: str = ""
    ours: tuple[str, ...] = ()
    tuner: str = "random"
    tuner_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_trials: int | None = 100
    max_hours: float | None = None
    max_hours_per_trial: float | None = None
    parameters: int | None = None
    solve_for: str = "units"
    early_stopping: str = "median"
    seed: int = 0
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    space: tuple[Parameter, ...] = ()
    written: tuple[Parameter, ...] = ()
    file: str = ""

    def __post_init__(self) -> None:
        written = self.written or self.space
        space = [each for each in decided(written, self.fixed) if len(each.ends) > 1]
        object.__setattr__(self, "written", tuple(written))
        object.__setattr__(self, "space", tuple(space))

    def declare(self, hp: Any) -> None:
        """Declare all of `space`, with its conditions, in a `keras_tuner.HyperParameters`.

        Whatever is active, all of it stands in `hp.space` afterwards. What stands there
        already is left alone.
        """
        found = {each.name: each for each in self.space}
        made = []
        for each in self.space:
            when = {
                name: tuple(found[name].encoded(value) for value in values)
                for name, values in each.when.items()
            }
            made.append(dataclasses.replace(each, when=when).declaration())
        hp.merge(made, overwrite=False)

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial: what is fixed, and what was drawn.

        Args:
            values: as `keras_tuner.HyperParameters.values`.
        """
        return {**self.fixed, **self._active(values)}

    def drawn(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return of `values`, as `settings` takes them, the searched and active ones, decoded."""
        active = self._active(values)
        return {each.name: active[each.name] for each in self.space if each.name in active}

    def _active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in decided(self.written, self.fixed):
            # KerasTuner's grid keeps values of parameters that are no longer active.
            if not all(
                name in found and is_among(found[name], allowed)
                for name, allowed in each.when.items()
            ):
                continue
            if len(each.ends) == 1:
                found[each.name] = each.values[0]
            elif each.name in values:
                found[each.name] = each.decoded(values[each.name])
            else:
                raise ArgumentError(
                    "values",
                    "must hold all parameters that are active. Received: none for "
                    f"{each.name!r}. Declare the space of the job first.",
                )
        return found

    def with_settings(self, overrides: Mapping[str, Any]) -> Job:
        """Return the job with these values fixed instead of searched: what `--set` gives.

        A parameter that is searched under conditions has its value where they hold.
        `parameters` is the budget of weights; the sizes that it decides are then neither
        searched nor fixed. Nor are any with `units`, but those named beside it.

        Raises:
            ValueError: for what is no setting of the job, a value out of range, or one
                without effect.
        """
        from dualnet.tuning import checks

        given = dict(overrides)
        changes: dict[str, Any] = {}
        written = {each.name: each for each in self.written}
        fixed = dict(self.fixed)
        if "parameters" in given:
            changes["parameters"] = parse_count(given.pop("parameters"))
            for name in SOLVE_FOR if self.solve_for == "units" else (self.solve_for,):
                written.pop(name, None)
                fixed.pop(name, None)
        for name in zoo.SIZES if "units" in given else ():  # which replaces them all
            if name not in given:
                written.pop(name, None)
                fixed.pop(name, None)
        known = checks.known_settings(self)
        for name, value in given.items():
            if name not in known:
                raise ValueError(
                    f"`--set` must name a setting of the job {self.name!r}. Received: {name}="
                    f"{value!r}.{did_you_mean(name, [*known, 'parameters'])} `dualnet jobs "
                    f"{self.name}` shows what it searches."
                )
            if name in written and written[name].when:
                written[name] = Parameter(name=name, values=(value,), when=written[name].when)
            else:
                written.pop(name, None)
                fixed[name] = value
        left = {each.name: each for each in decided([*written.values()], fixed)}
        for name in [name for name in given if name in written]:
            if name not in left:
                conditions = _conditions(written[name].when)
                raise ValueError(
                    f"`--set` must give {name} a value where it has an effect, {conditions}. "
                    f"Received: {name}={given[name]!r}, and other settings that rule this out."
                )
            if not left[name].when:
                fixed[name] = written.pop(name).values[0]
        space = tuple(written.values())
        kept = ({*written} | {*fixed}) - {*given}
        job = dataclasses.replace(
            self,
            **changes,
            fixed=fixed,
            space=space,
            written=space,
            ours=tuple(key for key in self.ours if "." not in key or key.partition(".")[2] in kept),
        )
        checks.check_job(job)
        return job

    def to_toml(self) -> str:
        """Return the job as the text of a file, which reads as an equal job, but for `file`."""
        table: dict[str, Any] = {}
        for key in KEYS:
            value = getattr(self, key)
            if key == "space":
                table[key] = {each.name: _entry(each) for each in self.written}
            elif value not in (None, "", (), {}):
                table[key] = list(value) if key == "ours" else value
        return tomli_w.dumps(table)


def list_jobs(pattern: str = "*") -> list[str]:
    """Return the sorted names of the jobs that match `pattern`, e.g. "dual_*"."""
    names = [path.name for path in folder("tuning").iterdir() if path.name.endswith(".toml")]
    stems = [name.removesuffix(".toml") for name in names]
    return sorted(name for name in stems if fnmatch.fnmatchcase(name, pattern))


def load_job(name: str | os.PathLike[str]) -> Job:
    """Return the job `name`.

    Args:
        name: one of `list_jobs()`, or the path of a job, which ends in ".toml".

    Raises:
        ValueError: if there is no such job; or with file, key and line, if it is not TOML
            or something in it cannot be.
        FileNotFoundError: if there is no such file.
    """
    if zoo.is_file(name):
        path = os.fspath(name)
        table = read_toml(path, what="A job")
        text = Path(path).read_text("utf-8")
        where, file = path, path
    else:
        if name not in list_jobs():
            near = difflib.get_close_matches(str(name), list_jobs(), n=3, cutoff=0.4)
            hint = f" Did you mean one of {near}?" if near else ""
            raise ValueError(
                f"Unknown job. Received: name={name!r}.{hint} `dualnet jobs` shows all; a file of "
                "your own ends in .toml."
            )
        text = (folder("tuning") / f"{name}.toml").read_text("utf-8")
        table, where, file = tomllib.loads(text), f"tuning/{name}.toml", ""
    try:
        job = _job(table, Path(name).stem, file)
        if file:  # ours are checked by the tests: showing them needs no Keras
            from dualnet.tuning import checks

            checks.check_job(job)
    except JobError as error:
        line = error.inner and line_of(text, error.inner, table=f"{error.table}.{error.key}")
        line = line or (error.table and line_of(text, error.key, table=error.table))
        line = line or line_of(text, error.key) or line_of(text, error.table)
        raise ValueError(f"{at_line(where, line)}: {error}") from None
    return job


def parse_count(text: str | int) -> int:
    """Return the number of weights that `text` says, e.g. "24M", "1.5M", "850k" or 24000000.

    Raises:
        ValueError: if it is no such number, or below 1.
    """
    found = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([kMG]?)\s*", str(text))
    exact = Fraction(found[1]) * SUFFIXES[found[2]] if found else Fraction(0)
    if isinstance(text, bool) or exact < 1 or exact.denominator != 1:
        raise ArgumentError(
            "parameters",
            "must be a whole number of weights, at least 1, e.g. 24M, 850k or "
            f"24000000. Received: {text!r}.",
        )
    return int(exact)


def describe(job: Job) -> str:
    """Return `job` as a text for people: its source, its limits, what is fixed and searched."""
    of = {"training": f"of {job.model}", "gate": "of a gate over a RUN"}
    lines = [f"{job.name}, a search {of.get(job.kind, 'of how a RUN is evaluated')}"]
    lines += [job.file] if job.file else []
    lines += [text for text in (job.paper, job.table, job.note) if text]
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
    lines.append("")
    for key, value in limits.items():
        if value is not None:
            lines.append(f"{key} = {json.dumps(value)}{_mark(job, key)}")
    fixed = [
        (key, json.dumps(value), "", _mark(job, f"fixed.{key}")) for key, value in job.fixed.items()
    ]
    searched: list[tuple[str, str, str, str]] = []
    for each in decided(job.written, job.fixed):
        mark = _mark(job, f"space.{each.name}")
        row = (each.name, _range(each), _conditions(each.when), mark)
        (searched if len(each.ends) > 1 else fixed).append(row)
    for title, rows in (("[fixed]", fixed), ("[space]", searched)):
        if rows:
            lines += ["", title, *_aligned(rows)]
    return "\n".join(lines)


def _aligned(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """Return a line for each row of name, value, condition and mark."""
    widths = [max(map(len, cells)) for cells in list(zip(*rows))[:3]]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths) if width).rstrip() + row[3]
        for row in rows
    ]


def _mark(job: Job, key: str) -> str:
    return "  (our choice, at least in part)" if key in job.ours else ""


def _range(parameter: Parameter) -> str:
    if parameter.values:
        return " ".join(json.dumps(value) for value in parameter.values)
    text = f"{parameter.min_value} to {parameter.max_value}"
    if parameter.step is not None:
        text += f", step {parameter.step}"
    return text if parameter.sampling == "linear" else f"{text}, {parameter.sampling}"


def _conditions(when: Mapping[str, tuple[Any, ...]]) -> str:
    return "".join(
        f"{' and ' if i else 'where '}{name} is {' or '.join(map(json.dumps, values))}"
        for i, (name, values) in enumerate(when.items())
    )


def _entry(parameter: Parameter) -> dict[str, Any]:
    """Return the table that stands in [space] for `parameter`; lists alone would lose its place."""
    entry: dict[str, Any] = {"values": list(parameter.values)}
    if not parameter.values:
        keys = ("min_value", "max_value", "step", "sampling")
        given = {key: getattr(parameter, key) for key in keys}
        entry = {key: value for key, value in given.items() if value is not None}
    if parameter.when:
        entry["when"] = {name: list(values) for name, values in parameter.when.items()}
    return entry


def _job(table: Mapping[str, Any], stem: str, file: str) -> Job:
    """Return the job that `table` says; what it says of values is yet to be checked.

    Raises:
        JobError: for an unknown key, or a value of another kind.
    """
    for key, value in table.items():
        _check_kind(key, value)
    given = {key: table[key] for key in table if key not in ("space", "ours", "parameters")}
    kind, tuner = table.get("kind", "training"), table.get("tuner", "random")
    for key in ("max_hours", "max_hours_per_trial"):
        if key in given:
            given[key] = float(given[key])
    if "parameters" in table:
        try:
            given["parameters"] = parse_count(table["parameters"])
        except ValueError as error:
            raise JobError(str(error), "", "parameters") from None
    if tuner == "grid":
        given.setdefault("max_trials", None)
    if tuner == "hyperband" or kind == "evaluation":
        given.setdefault("early_stopping", "none")
    if "model" in given and file and zoo.is_file(given["model"]):
        given["model"] = os.path.abspath(os.path.join(os.path.dirname(file), given["model"]))
    for name, value in table.get("fixed", {}).items():
        check_value(name, value, lambda text, name=name: JobError(text, "fixed", name))
    written = tuple(parameter_of(*item) for item in table.get("space", {}).items())
    if not written:
        raise JobError("`space` must have a parameter to search. Received: none.", "", "space")
    return Job(
        **{"name": stem, **given},
        ours=tuple(table.get("ours", ())),
        space=written,
        written=written,
        file=file,
    )


def _check_kind(key: str, value: Any) -> None:
    expected = KEYS.get(key)
    if expected is None:
        raise JobError(
            f"`{key}` must be one of {', '.join(KEYS)}.{did_you_mean(key, KEYS)} Settings of the "
            "trials stand in [fixed] and [space].",
            "", key,
        )  # fmt: skip
    fits = type(value) is expected
    if expected is float:
        fits = is_number(value)
    elif key == "parameters":
        fits = type(value) in (str, int)
    if not fits:
        raise JobError(f"`{key}` must be {KINDS[expected]}. Received: {key} = {value!r}.", "", key)
