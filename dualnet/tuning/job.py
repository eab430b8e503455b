"""A search as data: what is searched, how, and within which limits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import tomli_w

from dualnet._checks import ArgumentError, checked
from dualnet._fields import Settings, choice, count, positive
from dualnet._toml import Kind
from dualnet.cards import SIZES
from dualnet.tuning.space import Parameter, conditions_text, decided, holds

# What a job file may hold.
SCHEMA: dict[str, Any] = {
    "name": str, "kind": str, "model": str, "paper": str, "table": str, "note": str, "ours": [str],
    "tuner": str, "max_trials": int, "max_hours": float, "max_hours_per_trial": float,
    "parameters": Kind("text or an integer", lambda value: type(value) in (str, int)),
    "solve_for": str, "early_stopping": str, "seed": int,
    "tuner_options": dict, "fixed": dict, "space": dict,
}  # fmt: skip
JOB, SEARCH, CORPUS = "job.toml", "search.json", "corpus"  # in the folder of a search
JOB_KINDS = ("training", "gate", "evaluation")


class _Bayesian(Settings):
    num_initial_points: int | None = count(None, least=1)
    alpha: float | None = positive(None)
    beta: float | None = positive(None)


class _Hyperband(Settings):
    factor: int | None = count(None, least=2)
    hyperband_iterations: int | None = count(None, least=1)


# Each tuner with the arguments that only its oracle in KerasTuner takes.
TUNERS: dict[str, type[Settings]] = {
    "random": Settings, "bayesian": _Bayesian, "hyperband": _Hyperband, "grid": Settings,
}  # fmt: skip
EARLY_STOPPING = ("median", "none")
SOLVE_FOR = ("units", *SIZES)
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class Job(Settings):
    """A search: its space, its tuner and its limits.

    Attributes:
        name: Name of the job, as in `load_job(name)`.
        kind: "training"; "gate", an input-to-output gate on a trained RUN; or "evaluation",
            the evaluation settings of a trained RUN.
        model: For a training: a model of the zoo, or the path of a card.
        paper: Author, year and address of the source.
        table: Where the paper states the ranges.
        note: What else a reader should know.
        ours: Keys that the source does not state and we chose, e.g. "space.rank".
        tuner: "random", "bayesian", "hyperband" or "grid".
        tuner_options: Further arguments of the tuner's oracle in KerasTuner.
        max_trials: Number of trials; None for the whole grid.
        max_hours: Time limit of the search; None for no limit.
        max_hours_per_trial: Time limit of each trial; None for no limit.
        parameters: Budget: the number of weights that `solve_for` is solved for; None for none.
        solve_for: "units", all sizes alike, or the one size that the budget determines.
        early_stopping: "median" prunes trials behind the median of the others; or "none".
        seed: Seed of the search and of every trial.
        fixed: Arguments that override the card's in all trials.
        space: The parameters with more than one value, parents before children. Parameters
            that can never be active are left out, conditions on fixed settings are resolved,
            and children inherit the conditions of their parents.
        written: The space as in the file. A parameter with one value is not searched: it has
            that value where its conditions hold.
        file: Path of a job file of your own; "" for a job of dualnet.

    Example:

    >>> from dualnet.tuning import Job, load_job
    >>> job = load_job("doc_penalty")
    >>> job.model, job.tuner
    ('awd_lstm_doc', 'grid')
    >>> [parameter.values for parameter in job.space]
    [(0.0, 0.0001, 0.001, 0.01)]
    >>> job.with_settings({"balance_regularization": 0.0}).space
    ()
    """

    name: str
    kind: str = choice("training", JOB_KINDS)
    model: str = ""
    paper: str = ""
    table: str = ""
    note: str = ""
    ours: tuple[str, ...] = ()
    tuner: str = choice("random", TUNERS)
    tuner_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_trials: int | None = count(100, least=1)
    max_hours: float | None = positive(None)
    max_hours_per_trial: float | None = positive(None)
    parameters: int | None = None
    solve_for: str = choice("units", SOLVE_FOR)
    early_stopping: str = choice("median", EARLY_STOPPING)
    seed: int = 0
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    space: tuple[Parameter, ...] = ()
    written: tuple[Parameter, ...] = ()
    file: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        written = tuple(self.written or self.space)
        space = tuple(p for p in decided(written, self.fixed) if not p.is_constant)
        object.__setattr__(self, "written", written)
        object.__setattr__(self, "space", space)

    def check(self) -> None:
        options = TUNERS[self.tuner]
        takes = ", ".join(options.names()) or "none"
        what = f"must be an option of the tuner {self.tuner!r}, which takes {takes}."
        options.of(self.tuner_options, what=what)

    @property
    def solved_sizes(self) -> tuple[str, ...]:
        """The sizes that a budget determines."""
        return SOLVE_FOR if self.solve_for == "units" else (self.solve_for,)

    def declare(self, hp: Any) -> None:
        """Declare the whole `space` in a `keras_tuner.HyperParameters`.

        Inactive parameters are declared too; those already declared are left alone.
        """
        searched = {parameter.name: parameter for parameter in self.space}
        declarations = []
        for parameter in self.space:
            conditions = parameter.when.items()
            when = {n: [searched[n].encoded(value) for value in values] for n, values in conditions}
            declarations.append(parameter.declaration(when))
        hp.merge(declarations, overwrite=False)

    @checked
    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial: the fixed ones and the drawn ones.

        Args:
            values: the trial's `keras_tuner.HyperParameters.values`.
        """
        return {**self.fixed, **self._active(values)}

    @checked
    def drawn(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched settings that are active in `values`, decoded."""
        active = self._active(values)
        return {p.name: active[p.name] for p in self.space if p.name in active}

    def _active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        active: dict[str, Any] = {}
        for parameter in decided(self.written, self.fixed):
            # KerasTuner's grid search keeps values of parameters that became inactive.
            if not holds(parameter.when, active):
                continue
            if parameter.is_constant:
                active[parameter.name] = parameter.values[0]
            elif parameter.name in values:
                active[parameter.name] = parameter.decoded(values[parameter.name])
            else:
                received = f"none for {parameter.name!r}. Declare the space of the job first."
                raise ArgumentError("values", f"must hold all active ones. Received: {received}")
        return active

    @checked
    def with_settings(self, overrides: Mapping[str, Any]) -> Job:
        """Return a copy with these values fixed instead of searched, as `--set` does.

        A parameter with conditions has its value where they hold. `parameters` sets the
        budget: the sizes that it determines are neither searched nor fixed. `units` replaces
        all sizes except those given beside it. `search` checks names and values.

        Raises:
            ValueError: if a value can never take effect.
        """
        overrides, budget = dict(overrides), self.parameters
        replaced: set[str] = set()
        if "parameters" in overrides:
            budget = parse_count(overrides.pop("parameters"))
            replaced.update(self.solved_sizes)
        if "units" in overrides:
            replaced.update({*SIZES} - {*overrides})
        written = {p.name: p for p in self.written if p.name not in replaced}
        fixed = {name: value for name, value in self.fixed.items() if name not in replaced}
        for name, value in overrides.items():
            if name in written and written[name].when:
                written[name] = Parameter(name=name, values=(value,), when=written[name].when)
            else:
                written.pop(name, None)
                fixed[name] = value
        possible = {parameter.name: parameter for parameter in decided([*written.values()], fixed)}
        for name in [name for name in overrides if name in written]:
            if name not in possible:
                raise ArgumentError(
                    name,
                    f"must be left out: it has an effect only {conditions_text(written[name].when)}"
                    f", which other settings rule out. Received: {name}={overrides[name]!r}.",
                )
            if not possible[name].when:
                fixed[name] = written.pop(name).values[0]
        unchanged = {*written, *fixed} - {*overrides}
        ours = [key for key in self.ours if "." not in key or key.partition(".")[2] in unchanged]
        space = tuple(written.values())
        return dataclasses.replace(
            self, parameters=budget, fixed=fixed, space=space, written=space, ours=tuple(ours)
        )

    def to_toml(self) -> str:
        """Return the text of a job file that reads back as an equal job, except for `file`."""
        table: dict[str, Any] = {}
        for key in SCHEMA:
            value = getattr(self, key)
            if key == "space":
                table[key] = {parameter.name: parameter.entry() for parameter in self.written}
            elif value not in (None, "", (), {}):
                table[key] = list(value) if key == "ours" else value
        return tomli_w.dumps(table)


def parse_count(text: str | int) -> int:
    """Return the number of weights that `text` states, e.g. "24M", "1.5M", "850k" or 24000000."""
    match = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([kMG]?)\s*", str(text))
    count = Fraction(match[1]) * SUFFIXES[match[2]] if match else Fraction(0)
    if isinstance(text, bool) or count < 1 or count.denominator != 1:
        raise ArgumentError(
            "parameters",
            "must be a whole number of weights, at least 1, e.g. 24M, 850k or 24000000. "
            f"Received: parameters={text!r}.",
        )
    return int(count)
