"""The space of a search: its parameters, and the conditions among them."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._fields import Settings, choice

RANGE_KEYS = ("min_value", "max_value", "step", "sampling")
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

    def check(self) -> None:
        low, high, step = self.min_value, self.max_value, self.step
        if self.values:
            for name in [name for name in RANGE_KEYS if name in self.changed()]:
                raise ArgumentError(name, "must be left out beside `values`.")
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
        if not self.is_integer_range or type(value) is not int:
            return False
        if self.sampling == "linear" or self.step is None:
            return value in range(low, high + 1, int(self.step or 1))
        powers = (low * int(self.step) ** i for i in itertools.count())
        allowed = list(itertools.takewhile(lambda power: power <= high, powers))
        return (value if self.sampling == "log" else high + low - value) in allowed

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

    def declaration(self, when: Mapping[str, Sequence[Any]]) -> Any:
        """Return the KerasTuner hyperparameter, active under the encoded conditions `when`."""
        from keras_tuner.engine import hyperparameters
        from keras_tuner.src.engine import conditions

        # `conditional_scope` would refuse two parents side by side.
        parents = [conditions.Parent(parent, list(values)) for parent, values in when.items()]
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

    def entry(self) -> dict[str, Any]:
        """Return the table of this parameter in [space]."""
        return {name: value for name, value in self.changed().items() if name != "name"}


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
