"""A search as data: its space, how it is searched, and within which limits; and its files."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import tomli_w

from dualnet._checks import ArgumentError, is_number, whole_number
from dualnet._fields import Settings, choice, count, positive
from dualnet._toml import OTHERS, Kind, Schema
from dualnet.cards import SIZES

MOST_VALUES = 10**6  # of a range with steps
SAMPLINGS = ("linear", "log", "reverse_log")


class JobError(ValueError):
    """A mistake in a job at `place`: the keys that lead to it, e.g. `("space", "rank", "step")`.

    The message says what is required and what was received; the last keys are put before it.
    """

    def __init__(self, place: Sequence[str], message: str) -> None:
        names = place[:0:-1] if len(place) == 3 else place[-1:]
        super().__init__(f"{' of '.join(f'`{name}`' for name in names)} {message}")
        self.place = tuple(place)

    @classmethod
    def unless(cls, fits: bool, place: Sequence[str], message: str) -> None:
        """Raise a mistake at `place` unless `fits`."""
        if not fits:
            raise cls(place, message)

    @staticmethod
    @contextlib.contextmanager
    def at(*place: str) -> Iterator[None]:
        """Turn an `ArgumentError` about a key of the table at `place` into a `JobError`."""
        try:
            yield
        except ArgumentError as error:
            message = str(error).removeprefix(f"`{error.argument}` ")
            raise JobError((*place, error.argument), message) from None


class Parameter(Settings):
    """A searched parameter: its values or range, and the conditions under which it is active."""

    name: str  # of the setting
    values: tuple[Any, ...] = ()  # the choices: numbers, strings, booleans or lists; () for a range
    min_value: float | int | None = None  # if both ends are integers, so are the values
    max_value: float | int | None = None  # inclusive
    step: float | int | None = None  # difference of adjacent values; on a log scale, their ratio
    sampling: str = choice("linear", SAMPLINGS)  # as in KerasTuner
    # Other parameters, and the values they must have for this one to be active.
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    excludes = {"values": ["min_value", "max_value", "step", "sampling"]}

    def check(self) -> None:
        low, high, step = self.min_value, self.max_value, self.step
        if self.values:
            for i, value in enumerate(self.values):
                if is_among(value, self.values[:i]):
                    raise ArgumentError("values", f"must differ. Received: {value!r} twice.")
        elif low is None or high is None:
            raise ArgumentError("values", "must be given, or `min_value` and `max_value`.")
        elif low >= high:
            self.refuse("min_value", "must be below `max_value`.", "max_value")
        elif self.sampling != "linear" and low <= 0:
            self.refuse("min_value", "must be above 0 on a log scale.")
        elif step is not None:
            least = 0 if self.sampling == "linear" else 1
            kind, fits = "a number", step > least
            if self.is_integer_range:
                kind, fits = "an integer", fits and isinstance(step, int)
            if not fits:
                self.refuse("step", f"must be {kind} above {least}.")
            values = (high - low) / step if least == 0 else math.log(high / low) / math.log(step)
            if values > MOST_VALUES:
                message = f"must leave at most {MOST_VALUES:,} values."
                self.refuse("step", message, "min_value", "max_value")

    @property
    def is_integer_range(self) -> bool:
        return isinstance(self.min_value, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values, or both ends of the range."""
        return self.values or (self.min_value, self.max_value)

    @property
    def is_constant(self) -> bool:
        return len(self.values) == 1

    def allows(self, value: Any) -> bool:
        """Return True for one of the values, or an integer of the range."""
        if self.values:
            return is_among(value, self.values)
        low: Any = self.min_value
        high: Any = self.max_value
        step = int(self.step or 1) if self.sampling == "linear" else 1
        return self.is_integer_range and type(value) is int and value in range(low, high + 1, step)

    def encoded(self, value: Any) -> Any:
        """Return `value` as KerasTuner's space holds it: JSON where KerasTuner cannot hold it.

        KerasTuner has no lists, confuses booleans with integers, and takes values of one type
        only.
        """
        types = {type(own) for own in self.values}
        return value if len(types) < 2 and types <= {str, int, float} else json.dumps(value)

    def decoded(self, value: Any) -> Any:
        """Return the value that KerasTuner's space holds as `value`."""
        for own in self.values:
            if self.encoded(own) == value:
                return own
        if self.values:
            message = f"must be one of {list(self.values)}. Received: {value!r}."
            way_out = "The job has changed since this trial was drawn: start a new search."
            raise ArgumentError(self.name, f"{message} {way_out}")
        if self.is_integer_range:
            return int(value)
        # On a log scale, rounding may go past the ends.
        return float(np.clip(value, self.min_value, self.max_value))

    def declaration(self, searched: Mapping[str, "Parameter"]) -> Any:
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
        kind = hyperparameters.Int if self.is_integer_range else hyperparameters.Float
        high: Any = self.max_value
        if self.step is not None and not self.is_integer_range and self.sampling == "linear":
            high += 1e-6 * self.step  # rounding would exclude the last: (0.6 - 0.3) // 0.1 is 2
        scale = (self.min_value, high, self.step, self.sampling)
        # A grid begins with the default, by default `min_value`, which these steps may not reach.
        is_reversed = self.sampling == "reverse_log" and self.step is not None
        default = high + self.min_value - self.min_value if is_reversed else None
        return kind(self.name, *scale, default=default, conditions=parents)


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Return True if `value` is one of `values`; unlike in Python, true and 1 differ."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in values
    )


def holds(when: Mapping[str, tuple[Any, ...]], settings: Mapping[str, Any]) -> bool:
    """Return True if `settings` meet the conditions `when`."""
    return all(
        name in settings and is_among(settings[name], values) for name, values in when.items()
    )


def conditions_text(when: Mapping[str, tuple[Any, ...]]) -> str:
    """Return conditions as text, e.g. "where rounds is 2 or 4 and rank is 50"; "" for none."""
    conditions = [f"{name} is {' or '.join(map(json.dumps, v))}" for name, v in when.items()]
    return f"where {' and '.join(conditions)}" if conditions else ""


def in_order(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return `parameters` with parents before children; raise `JobError` for a cycle."""
    ordered: list[Parameter] = []
    left = {parameter.name: parameter for parameter in parameters}
    while left:
        ready = [name for name, parameter in left.items() if not left.keys() & parameter.when]
        if not ready:
            path = [next(iter(left))]
            while path[-1] not in path[:-1]:
                path.append(next(parent for parent in left[path[-1]].when if parent in left))
            cycle = path[path.index(path[-1]) :]
            message = f"must not lead back to it. Received: {' where '.join(cycle)}."
            raise JobError(("space", cycle[0], "when"), message)
        ordered.append(left.pop(ready[0]))
    return ordered


def decided(parameters: Iterable[Parameter], fixed: Mapping[str, Any]) -> list[Parameter]:
    """Return `parameters` with their conditions on fixed and constant settings resolved.

    Parameters that can never be active are left out. Children inherit the conditions of
    their parents.
    """
    known = {name: Parameter(name=name, values=(value,)) for name, value in fixed.items()}
    possible: list[Parameter] = []
    for parameter in in_order(parameters):
        conditions: list[tuple[str, tuple[Any, ...]]] = []
        for name, allowed in parameter.when.items():
            conditions += [*(known[name].when.items() if name in known else ()), (name, allowed)]
        when: dict[str, tuple[Any, ...]] = {}
        for name, allowed in conditions:
            options = known[name].values or allowed if name in known else ()
            when[name] = tuple(v for v in when.get(name, options) if is_among(v, allowed))
        if all(when.values()):
            when = {name: when[name] for name in when if not known[name].is_constant}
            possible.append(dataclasses.replace(parameter, when=when))
            known.setdefault(parameter.name, possible[-1])
    return possible


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_value, value))
    return isinstance(value, (bool, int, str)) or (is_number(value) and math.isfinite(value))


VALUE = Kind("a finite number, a string, true or false, or a list of these", _is_value)
FINITE = Kind("a finite number", lambda value: is_number(value) and math.isfinite(value))
# What the table of a parameter may hold.
PARAMETER: Schema = {
    "values": list, "min_value": FINITE, "max_value": FINITE, "step": FINITE, "sampling": str,
    "when": {OTHERS: list},
}  # fmt: skip
# What a job file may hold.
SCHEMA: Schema = {
    "name": str, "kind": str, "model": str, "paper": str, "table": str, "note": str, "ours": [str],
    "tuner": str, "max_trials": int, "max_hours": float, "max_hours_per_trial": float,
    "parameters": Kind("text or an integer", lambda value: type(value) in (str, int)),
    "solve_for": str, "early_stopping": str, "seed": int,
    "tuner_options": dict, "fixed": dict, "space": dict,
}  # fmt: skip
EMPTY: tuple[Any, ...] = (None, "", (), {})
JOB, SEARCH, CORPUS = "job.toml", "search.json", "corpus"  # in the folder of a search


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
SOLVE_FOR = ("units", *SIZES)


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
    kind: str = choice("training", ("training", "gate", "evaluation"))
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
    early_stopping: str = choice("median", ("median", "none"))
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
        if not 0 <= self.seed < 2**32:
            self.refuse("seed", "must be from 0 to 2**32 - 1.")
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
        hp.merge([parameter.declaration(searched) for parameter in self.space], overwrite=False)

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial: the fixed ones and the drawn ones.

        Args:
            values: the trial's `keras_tuner.HyperParameters.values`.
        """
        active = dict(self.fixed)
        for parameter in in_order(self.written):
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

    def drawn(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched settings that are active in `values`, decoded."""
        active = self.settings(values)
        return {p.name: active[p.name] for p in self.space if p.name in active}

    def with_settings(self, overrides: Mapping[str, Any]) -> Self:
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
                effect = f"it has an effect only {conditions_text(written[name].when)}"
                message = f"must be left out: {effect}, which other settings rule out."
                raise ArgumentError(name, message, **{name: overrides[name]})
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
        entries = [parameter.changed() for parameter in self.written]
        space = {entry.pop("name"): entry for entry in entries}
        table = {key: getattr(self, key) for key in SCHEMA} | {"space": space}
        return tomli_w.dumps({key: table[key] for key in table if table[key] not in EMPTY})


class Searching(Settings):
    """How a job is searched."""

    group = "limits"

    max_trials: int | None = count(None, least=1)
    """int. Number of trials; "hyperband" sets its own (default: as in the job)."""

    max_hours: float | None = positive(None, metavar="H")
    """float. Stop after so many hours (default: as in the job). Trials under way are left for
    `resume`, which starts the limit anew."""

    max_hours_per_trial: float | None = positive(None, metavar="H")
    """float. Stop a trial after so many hours and keep its result so far (default: as in the job).
    """

    workers: int = count(1, least=1)
    """int. Number of trials at a time on this machine."""

    tuner: str | None = choice(None, TUNERS, group="search")
    """random, bayesian, hyperband or grid (default: as in the job)."""

    seed: int | None = count(None, group="search")
    """int. Seed of the search and of each trial (default: as in the job)."""

    checkpoint_steps: int = count(500, least=1, group="search")
    """int. Steps between two checkpoints of a training."""


def parse_count(text: str | int) -> int:
    """Return the number of weights that `text` states, e.g. "24M", "1.5M", "850k" or 24000000."""
    count = 0 if isinstance(text, bool) else whole_number(str(text))
    if count == 0:
        message = "must be a whole number of weights, at least 1, e.g. 24M, 850k or 24000000."
        raise ArgumentError("parameters", message, parameters=text)
    return count
