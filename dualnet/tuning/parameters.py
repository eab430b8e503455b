"""The parameters of a search: their values, and the conditions under which they are drawn."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError, did_you_mean, is_number

KEYS = ("values", "min_value", "max_value", "step", "sampling", "when")
SAMPLINGS = ("linear", "log", "reverse_log")


class JobError(ValueError):
    """A mistake in a job, with the table and the key that it is about."""

    def __init__(self, message: str, table: str, key: str, inner: str = ""):
        super().__init__(message)
        self.table, self.key, self.inner = table, key, inner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One searched parameter: its values or its range, and where it is drawn at all.

    Attributes:
        name: Name of the setting that it is.
        values: What is drawn from: numbers, texts, truth values or lists. () for a range.
        min_value: Least value of a range. Both ends integers: integers are drawn.
        max_value: Largest value, which can be drawn, too.
        step: Between two values; with a log scale the factor between them.
        sampling: "linear", "log" or "reverse_log", as KerasTuner says.
        when: The parameter is drawn only where each of these other ones has one of the
            values that stand here.
    """

    name: str
    values: tuple[Any, ...] = ()
    min_value: float | int | None = None
    max_value: float | int | None = None
    step: float | int | None = None
    sampling: str = "linear"
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether it is a range of integers."""
        return isinstance(self.min_value, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values, or both ends of the range."""
        return self.values or (self.min_value, self.max_value)

    def can_have(self, value: Any) -> bool:
        """Return whether `value` is one of its values, or of the integers of its range."""
        if self.values:
            return is_among(value, self.values)
        return type(value) is int and value in self._integers()

    def _integers(self) -> Iterable[int]:
        low: Any = self.min_value
        high: Any = self.max_value
        if not self.whole:
            return ()
        if self.sampling == "linear" or self.step is None:
            return range(low, high + 1, int(self.step or 1))
        factors = [self.step**i for i in range(round(math.log(high / low, self.step)) + 1)]
        if self.sampling == "log":
            return [low * factor for factor in factors]
        return [high + low - low * factor for factor in factors]

    def encoded(self, value: Any) -> Any:
        """Return `value` as it stands in KerasTuner's space, which knows no lists.

        It takes truth values for integers, and all values must be of one kind: others than
        integers, numbers or texts alone are JSON.
        """
        kinds = {type(each) for each in self.values}
        return value if len(kinds) < 2 and kinds <= {str, int, float} else json.dumps(value)

    def decoded(self, value: Any) -> Any:
        """Return the value that stands as `value` in KerasTuner's space.

        Raises:
            ValueError: if it is none of the parameter's.
        """
        if self.values:
            for each in self.values:
                if self.encoded(each) == value:
                    return each
            raise ArgumentError(
                self.name,
                f"must be one of {list(self.values)}. Received: {value!r}. Search "
                "anew: the job was another when this was drawn.",
            )
        if self.whole:
            return int(value)
        # Rounding takes a log scale beyond its ends.
        low: Any = self.min_value
        high: Any = self.max_value
        return float(min(max(value, low), high))

    def declaration(self) -> Any:
        """Return it as one of KerasTuner's hyperparameters, with its conditions.

        The parents' values must stand in `when` as they are encoded.
        """
        from keras_tuner.engine import hyperparameters

        if self.values:
            made = hyperparameters.Choice(self.name, [self.encoded(each) for each in self.values])
        else:
            kind = hyperparameters.Int if self.whole else hyperparameters.Float
            high: Any = self.max_value
            if self.step is not None and not self.whole:
                # Rounding would keep the last step out: (0.6 - 0.3) // 0.1 is 2.
                high += 1e-6 * self.step if self.sampling == "linear" else 0.0
            made = kind(self.name, self.min_value, high, self.step, self.sampling)
        # Not by `conditional_scope`, which refuses two parents side by side.
        conditions = [
            {"class_name": "Parent", "config": {"name": parent, "values": list(values)}}
            for parent, values in self.when.items()
        ]
        return type(made).from_config({**made.get_config(), "conditions": conditions})


def parameter_of(name: str, entry: Any) -> Parameter:
    """Return the parameter `name` of a job from its entry in the table [space].

    Raises:
        JobError: for an unknown key, or a value that cannot be.
    """

    def mistake(text: str, key: str = "") -> JobError:
        return JobError(text, "space", name, key)

    table = {"values": entry} if isinstance(entry, list) else entry
    if not isinstance(table, dict):
        raise mistake(
            f"`{name}` must be a list of values, or a table of {', '.join(KEYS)}. Received: "
            f"{name} = {entry!r}. What is the same in all trials stands in [fixed]."
        )
    for key in table:
        if key not in KEYS:
            raise mistake(
                f"`{key}` of `{name}` must be one of {', '.join(KEYS)}.{did_you_mean(key, KEYS)}",
                key,
            )
    made = _values(table, name, mistake) if "values" in table else _range(table, name, mistake)
    when = table.get("when", {})
    if not isinstance(when, dict):
        raise mistake(
            f"`when` of `{name}` must be a table of other parameters and lists of their values. "
            f"Received: {when!r}.",
            "when",
        )
    for parent, values in when.items():
        if not isinstance(values, list) or not values:
            raise mistake(
                f"`when` of `{name}` must have a list of values for {parent!r}. Received: "
                f"{parent} = {values!r}.",
                "when",
            )
    return dataclasses.replace(
        made, when={parent: tuple(values) for parent, values in when.items()}
    )


def _values(table: Mapping[str, Any], name: str, mistake: Any) -> Parameter:
    values = table["values"]
    for key in ("min_value", "max_value", "step", "sampling"):
        if key in table:
            raise mistake(f"`{key}` of `{name}` must be left out beside `values`.", key)
    if not isinstance(values, list) or not values:
        raise mistake(f"`values` of `{name}` must be a list that is not empty.", "values")
    for value in values:
        check_value(name, value, mistake)
    if {type(value) for value in values} == {int, float}:
        values = [float(value) for value in values]
    for i, value in enumerate(values):
        if is_among(value, values[:i]):
            raise mistake(f"`values` of `{name}` must differ. Received: {value!r} twice.", "values")
    return Parameter(name=name, values=tuple(values))


def _range(table: Mapping[str, Any], name: str, mistake: Any) -> Parameter:
    if not {"min_value", "max_value"} <= {*table}:
        raise mistake(f"`{name}` must have `values`, or `min_value` and `max_value`.")
    for key in ("min_value", "max_value", "step"):
        if key in table and (not is_number(table[key]) or not math.isfinite(table[key])):
            raise mistake(
                f"`{key}` of `{name}` must be a finite number. Received: {table[key]!r}.", key
            )
    low, high, step = table["min_value"], table["max_value"], table.get("step")
    sampling = table.get("sampling", "linear")
    if sampling not in SAMPLINGS:
        raise mistake(
            f"`sampling` of `{name}` must be one of {list(SAMPLINGS)}. Received: {sampling!r}."
            + did_you_mean(sampling, SAMPLINGS),
            "sampling",
        )
    if low >= high:
        raise mistake(
            f"`min_value` of `{name}` must be below `max_value`. Received: {low!r} and {high!r}.",
            "min_value",
        )
    if sampling != "linear" and low <= 0:
        raise mistake(
            f"`min_value` of `{name}` must be above 0 on a log scale. Received: {low!r}.",
            "min_value",
        )
    whole = isinstance(low, int) and isinstance(high, int)
    if step is not None:
        least = 0 if sampling == "linear" else 1
        if step <= least or (whole and not isinstance(step, int)):
            kind = "an integer" if whole else "a number"
            raise mistake(
                f"`step` of `{name}` must be {kind} above {least}. Received: {step!r}.", "step"
            )
    if not whole:
        low, high = float(low), float(high)
        step = None if step is None else float(step)
    return Parameter(name=name, min_value=low, max_value=high, step=step, sampling=sampling)


def check_value(name: str, value: Any, mistake: Any) -> None:
    """Raise the `mistake` if `value` is no text, finite number, truth value or list of them."""
    if isinstance(value, list):
        for each in value:
            check_value(name, each, mistake)
    elif not isinstance(value, (bool, int, str)) and not (
        isinstance(value, float) and math.isfinite(value)
    ):
        raise mistake(
            f"`{name}` must be a finite number, a text, true or false, or a list of these. "
            f"Received: {value!r}."
        )


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Return whether `value` is one of `values`; true is not 1."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def in_order(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return `parameters`, those that stand in a `when` before those that have it.

    Raises:
        JobError: if one waits for itself, or two for one another.
    """
    names = {each.name for each in parameters}
    ordered: list[Parameter] = []
    left = list(parameters)
    while left:
        placed = {each.name for each in ordered}
        for each in left:
            if all(parent in placed or parent not in names for parent in each.when):
                break
        else:
            circle = _circle({each.name: [*each.when] for each in left})
            raise JobError(
                f"`when` of `{circle[0]}` must not lead back to it. Received: "
                f"{' where '.join(circle)}.",
                "space",
                circle[0],
                "when",
            )
        ordered.append(each)
        left.remove(each)
    return ordered


def _circle(parents: Mapping[str, list[str]]) -> list[str]:
    """Return names each of which has the next as a parent, the last the same as the first."""
    path = [next(iter(parents))]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in parents[path[-1]] if name in parents))
    return path[path.index(path[-1]) :]


def decided(parameters: Sequence[Parameter], fixed: Mapping[str, Any]) -> list[Parameter]:
    """Return `parameters` with their conditions on what is `fixed`, or has one value, decided.

    Those that can never be drawn are left out. The conditions of parents are added to those
    of their children.
    """
    made: dict[str, Parameter] = {}
    for each in in_order(parameters):
        when: dict[str, tuple[Any, ...]] | None = {}
        for name, allowed in each.when.items():
            if name in fixed:
                when = when if is_among(fixed[name], allowed) else None
            elif name not in made:
                when = None
            else:
                parent = made[name]
                when = _narrowed(when, parent.when)
                if len(parent.ends) > 1:
                    own = [each for each in parent.values or allowed if is_among(each, allowed)]
                    when = _narrowed(when, {name: tuple(own)})
                elif not is_among(parent.values[0], allowed):
                    when = None
            if when is None:
                break
        if when is not None:
            made[each.name] = dataclasses.replace(each, when=when)
    return list(made.values())


def _narrowed(
    when: Mapping[str, tuple[Any, ...]] | None, more: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]] | None:
    """Return the conditions that hold where `when` and `more` do, None if none can."""
    if when is None:
        return None
    found = dict(when)
    for name, allowed in more.items():
        found[name] = tuple(value for value in found.get(name, allowed) if is_among(value, allowed))
    return found if all(found.values()) else None
