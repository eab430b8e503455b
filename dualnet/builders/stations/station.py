"""What all stations share: checked fields, and their documentation."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from dualnet._checks import check_choice, check_count, check_flag, check_penalty, check_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Station:
    """One choice in the making of a model. A subclass owns its fields, which are builder arguments.

    A field `x` is the argument `x` of the builders; its documentation is the entry in the
    section "Args" of the class, from which `help` of a builder is made. Its type and name say
    what values it takes: a float is a dropout rate if the name says so, else a number of at
    least 0; an int is at least 0, a size or a number of layers at least 1.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "bool":
                check_flag(name, value)
            elif field.type == "float":
                check = check_rate if name.endswith("_dropout") else check_penalty
                check(name, value)
            elif field.type == "int" or (field.type == "int | None" and value is not None):
                check_count(name, value, least=int(name.endswith(("units", "_layers"))))
            elif "choices" in field.metadata:
                check_choice(name, value, field.metadata["choices"])

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def fields_of(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of `arguments` that are fields of this station."""
        return {name: arguments[name] for name in cls.names() if name in arguments}

    def arguments(self) -> dict[str, Any]:
        """Return the builder arguments that make this station."""
        return {name: getattr(self, name) for name in self.names()}


def choice(default: str, choices: Iterable[str]) -> Any:
    """Return the field of a station that is one of `choices`."""
    return dataclasses.field(default=default, metadata={"choices": choices})


def documented(stations: Iterable[type[Station]], *, rest: str = ""):
    """Decorate a builder that takes `**arguments`: its signature and help list all fields.

    The marker `{arguments}` in its docstring is replaced by the documentation of the fields.

    Args:
        stations: classes whose fields the builder takes.
        rest: name under which the signature lists further keyword arguments, if there are any.
    """
    stations = list(stations)
    fields = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for station in stations
        for field in dataclasses.fields(station)
        if field.name in station.names()
    ]
    others = (
        [inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD, annotation="Any")] if rest else []
    )

    def decorate(builder):
        signature = inspect.signature(builder)
        *own, _ = signature.parameters.values()  # the last one is `**arguments`
        required = [parameter for parameter in own if parameter.default is parameter.empty]
        optional = [parameter for parameter in own if parameter not in required]
        builder.__signature__ = signature.replace(
            parameters=[*required, *fields, *optional, *others]
        )
        text = "\n".join(_arguments_of(station) for station in stations)
        builder.__doc__ = inspect.cleandoc(builder.__doc__).replace("{arguments}", text)
        return builder

    return decorate


def _arguments_of(station: type[Station]) -> str:
    """Return the entries of the section "Args" of a station's docstring."""
    text = inspect.getdoc(station) or ""
    return text.split("Args:\n", 1)[1].split("\n\n", 1)[0].rstrip()


def state_inputs(sizes: Sequence[int], *, after: int) -> list[Any]:
    """Return a symbolic input per state, `(batch, size)`, numbered from `after` + 1."""
    return [
        keras.Input((size,), dtype="float32", name=f"state_{number}")
        for number, size in enumerate(sizes, start=after + 1)
    ]
