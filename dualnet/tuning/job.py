"""A search as data: its space, how it is searched, and within which limits; read from a file."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tomli_w

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath, did_you_mean, whole_number
from dualnet._data import folder, list_tables
from dualnet._fields import Settings, choice, count, field, positive
from dualnet._toml import read_toml
from dualnet.cards import SIZES

if TYPE_CHECKING:
    from keras_tuner import HyperParameters
    from keras_tuner.engine.hyperparameters import HyperParameter

JOB, SEARCH, CORPUS = "job.toml", "search.json", "corpus"  # in the folder of a search
SAMPLINGS = ("linear", "log", "reverse_log")
TUNERS = ("random", "bayesian", "hyperband", "grid")
SOLVE_FOR = ("units", *SIZES)
Conditions = Mapping[str, tuple[object, ...]]  # parameters, and the values they must have
Scalar = bool | int | float | str


class Parameter(Settings):
    """A searched parameter: its values or range, and the conditions under which it is active."""

    name: str  # of the setting
    values: tuple[object, ...] = ()  # numbers, strings, booleans or lists; () for a range
    min_value: float | int | None = None  # if both ends are integers, so are the values
    max_value: float | int | None = None  # inclusive
    step: float | int | None = None  # difference of adjacent values; on a log scale, their ratio
    sampling: str = choice("linear", SAMPLINGS)  # as in KerasTuner
    # Other parameters, and the values they must have for this one to be active.
    when: Conditions = dataclasses.field(default_factory=dict)
    excludes = {"values": ["min_value", "max_value", "step", "sampling"]}

    def check(self) -> None:
        if not self.values and (self.min_value is None or self.max_value is None):
            raise ArgumentError("values", "must be given, or `min_value` and `max_value`.")

    @property
    def is_integer_range(self) -> bool:
        return isinstance(self.min_value, int) and isinstance(self.max_value, int)

    @property
    def is_constant(self) -> bool:
        return len(self.values) == 1

    def encoded(self, value: object) -> object:
        """Return `value` as KerasTuner's space holds it: JSON where KerasTuner cannot hold it.

        KerasTuner has no lists, confuses booleans with integers, and takes values of one type
        only.
        """
        types = set(map(type, self.values))
        return value if len(types) < 2 and types <= {str, int, float} else json.dumps(value)

    def decoded(self, value: Scalar) -> object:
        """Return the value that KerasTuner's space holds as `value`."""
        if self.values:
            return {self.encoded(value): value for value in self.values}[value]
        if self.is_integer_range:
            return int(value)
        # On a log scale, rounding may go past the ends.
        return float(np.clip(float(value), self.min_value, self.max_value))

    def declaration(self, searched: Mapping[str, Parameter]) -> HyperParameter:
        """Return the KerasTuner hyperparameter, with conditions on the `searched` ones."""
        from keras_tuner.engine import hyperparameters
        from keras_tuner.src.engine import conditions

        # `conditional_scope` would refuse two parents side by side.
        parents = [
            conditions.Parent(name, [*map(searched[name].encoded, values)])
            for name, values in self.when.items()
        ]
        if self.values:
            choices = [self.encoded(value) for value in self.values]
            return hyperparameters.Choice(self.name, choices, conditions=parents)
        low, high, step = self.min_value, self.max_value, self.step
        assert low is not None and high is not None
        if self.is_integer_range:
            kind = hyperparameters.Int
        else:
            kind = hyperparameters.Float
            if step is not None and self.sampling == "linear":
                high += 1e-6 * step  # rounding would exclude the last: (0.6 - 0.3) // 0.1 is 2
        # A grid begins with the default, by default `min_value`, which these steps may not reach.
        is_reversed = self.sampling == "reverse_log" and step is not None
        default = high if is_reversed else None
        return kind(self.name, low, high, step, self.sampling, default, conditions=parents)


def holds(when: Conditions, settings: Mapping[str, object]) -> bool:
    """Return True if `settings` meet the conditions `when`."""
    return all(name in settings and settings[name] in values for name, values in when.items())


def parents_first(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Return `parameters`, each after those that its conditions name, unless these form a cycle."""
    left = {parameter.name: parameter for parameter in parameters}
    ordered = []
    while left:
        ready = [name for name, parameter in left.items() if not left.keys() & parameter.when]
        ordered.append(left.pop((ready or [*left])[0]))
    return tuple(ordered)


def decided(parameters: Iterable[Parameter], fixed: Mapping[str, object]) -> list[Parameter]:
    """Return `parameters` with their conditions on fixed and constant settings resolved.

    Parameters that can never be active are left out. Children inherit the conditions of
    their parents.
    """
    known = {name: Parameter(name=name, values=(value,)) for name, value in fixed.items()}
    possible = []
    for parameter in parameters:
        if not parameter.when.keys() <= known.keys():
            continue  # a parent is never active
        conditions = []
        for name, allowed in parameter.when.items():
            conditions += [*known[name].when.items(), (name, allowed)]
        when: dict[str, tuple[object, ...]] = {}
        for name, allowed in conditions:
            options = when.get(name, known[name].values or allowed)
            when[name] = tuple(value for value in options if value in allowed)
        if all(when.values()):
            when = {name: when[name] for name in when if not known[name].is_constant}
            possible.append(dataclasses.replace(parameter, when=when))
            known.setdefault(parameter.name, possible[-1])
    return possible


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
        tuner: "random", "bayesian", "hyperband" or "grid". The trainings of Hyperband go on from
            round to round, without `finetune` and `linear_decay`, which need a last epoch.
        tuner_options: Further arguments of the tuner's oracle in KerasTuner.
        max_trials: Number of trials; None for 100, of a grid for all.
        max_hours: Time limit of the search; None for no limit.
        max_hours_per_trial: Time limit of each trial; None for no limit.
        parameters: Budget: the number of weights that `solve_for` is solved for; None for none.
        solve_for: "units", all sizes alike, or the one size that the budget determines.
        early_stopping: "median" prunes trials behind the median of the others, but not those of
            Hyperband, which ends trials early itself; or "none".
        seed: Seed of the search and of every trial.
        fixed: Arguments that override the card's in all trials.
        space: The parameters with more than one value, parents before children. Parameters
            that can never be active are left out, conditions on fixed settings are resolved,
            and children inherit the conditions of their parents.
        written: The space as in the file, parents before children. A parameter with one value is
            not searched: it has that value where its conditions hold.
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
    kind: str = choice("training", ("training", "gate", "evaluation"))
    model: str = ""
    paper: str = ""
    table: str = ""
    note: str = ""
    ours: tuple[str, ...] = ()
    tuner: str = choice("random", TUNERS)
    tuner_options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    max_trials: int | None = count(None)
    max_hours: float | None = positive(None)
    max_hours_per_trial: float | None = positive(None)
    parameters: int | None = None
    solve_for: str = choice("units", SOLVE_FOR)
    early_stopping: str = choice("median", ("median", "none"))
    seed: int = 0
    fixed: Mapping[str, object] = dataclasses.field(default_factory=dict)
    space: tuple[Parameter, ...] = ()
    written: tuple[Parameter, ...] = ()
    file: str = ""

    def __post_init__(self) -> None:
        written = parents_first(self.written or self.space)
        object.__setattr__(self, "written", written)
        space = tuple(p for p in decided(written, self.fixed) if not p.is_constant)
        object.__setattr__(self, "space", space)
        super().__post_init__()

    def check(self) -> None:
        searched = {parameter.name for parameter in self.written}
        for name in searched & self.fixed.keys():
            raise ArgumentError(name, "must be in [fixed] or in [space], not in both.")
        if self.tuner == "hyperband":
            if self.kind == "evaluation":
                self.refuse("tuner", "must be another for an evaluation, which has no epochs.")
            for name in searched & {"epochs", "finetune", "linear_decay"}:
                raise ArgumentError(name, "must not be searched by 'hyperband', which sets it.")
        known: dict[str, tuple[object, ...]] = {name: (x,) for name, x in self.fixed.items()}
        for parameter in self.written:
            for name, allowed in parameter.when.items():
                choices = {*map(str, known.get(name, ()))}  # of a range, none
                if name not in known or not (len(choices) < 2 or choices >= {*map(str, allowed)}):
                    received = f"Received: {name} = {list(allowed)}."
                    message = f"of {parameter.name!r} must hold other settings with their values."
                    hint = did_you_mean(name, searched)
                    raise ArgumentError("when", f"{message} {received}{hint}")
            known[parameter.name] = parameter.values

    @property
    def solved_sizes(self) -> tuple[str, ...]:
        """The sizes that a budget determines."""
        return SOLVE_FOR if self.solve_for == "units" else (self.solve_for,)

    def declare(self, hp: HyperParameters) -> None:
        """Declare the whole `space` in a `keras_tuner.HyperParameters`.

        Inactive parameters are declared too; those already declared are left alone.
        """
        searched = {parameter.name: parameter for parameter in self.space}
        hp.merge([parameter.declaration(searched) for parameter in self.space], overwrite=False)

    def settings(self, values: Mapping[str, Scalar]) -> dict[str, object]:
        """Return the settings of a trial: the fixed ones and the drawn ones.

        Args:
            values: the trial's `keras_tuner.HyperParameters.values`.
        """
        active = dict(self.fixed)
        for parameter in self.written:
            # KerasTuner's grid search keeps values of parameters that became inactive.
            if not holds(parameter.when, active):
                continue
            if parameter.is_constant:
                active[parameter.name] = parameter.values[0]
            else:
                active[parameter.name] = parameter.decoded(values[parameter.name])
        return active

    def drawn(self, values: Mapping[str, Scalar]) -> dict[str, object]:
        """Return the searched settings that are active in `values`, decoded."""
        active = self.settings(values)
        return {p.name: active[p.name] for p in self.space if p.name in active}

    def with_settings(self, overrides: Mapping[str, object]) -> Self:
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
        possible = {parameter.name for parameter in decided(written.values(), fixed)}
        for name in overrides.keys() & written.keys() - possible:
            raise ArgumentError(
                name,
                f"has an effect only where {dict(written[name].when)}.",
                **{name: overrides[name]},
            )
        space = tuple(written.values())
        return dataclasses.replace(self, parameters=budget, fixed=fixed, space=space, written=space)

    def to_toml(self) -> str:
        """Return the text of a job file that reads back as an equal job, except for `file`."""
        entries = [parameter.changed() for parameter in self.written]
        space = {entry.pop("name"): entry for entry in entries}
        fields = {**self.arguments(), "space": space, "written": (), "file": ""}
        return tomli_w.dumps({key: x for key, x in fields.items() if x or x == 0})


class Searching(Settings):
    """How a job is searched."""

    group = "limits"

    max_trials: int | None = count(None)
    """int. Number of trials; "hyperband" sets its own (default: as in the job)."""

    max_hours: float | None = positive(None, metavar="H")
    """float. Stop after so many hours (default: as in the job). Trials under way are left for
    `resume`, which starts the limit anew."""

    max_hours_per_trial: float | None = positive(None, metavar="H")
    """float. Stop a trial after so many hours and keep its result so far (default: as in the job).
    """

    workers: int = count(1)
    """int. Number of trials at a time on this machine."""

    tuner: str | None = choice(None, TUNERS, group="search")
    """random, bayesian, hyperband or grid (default: as in the job)."""

    seed: int | None = field(None, group="search")
    """int. Seed of the search and of each trial (default: as in the job)."""

    checkpoint_steps: int = count(500, group="search")
    """int. Steps between two checkpoints of a training."""


def parse_count(text: object) -> int:
    """Return the number of weights that `text` states, e.g. "24M", "1.5M", "850k" or 24000000."""
    count = whole_number(str(text))
    if count == 0:
        raise ArgumentError(
            "parameters",
            "must be a whole number of weights, at least 1, e.g. 24M, 850k or 24000000.",
            parameters=text,
        )
    return count


# --- from files


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
            raise ValueError(
                f"Unknown job. Received: name={name!r}.{hint} `dualnet jobs` lists all; the name "
                "of a job file of your own ends in .toml."
            )
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
    if file and zoo.is_file(table.get("model", "")):
        fields["model"] = os.path.abspath(os.path.join(os.path.dirname(file), table["model"]))
    return Job.of(fields, way_out=" Settings of the trials belong in [fixed] and [space].")


def _parameter(name: str, entry: Any) -> Parameter:
    """Return parameter `name` from its entry in the table [space]."""
    if not isinstance(entry, list | dict):
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
