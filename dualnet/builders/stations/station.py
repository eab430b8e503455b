"""What all stations share: checked fields, and their documentation."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Station:
    """One choice in the making of a model. A subclass owns its fields, which are builder arguments.

    A field `x` is the argument `x` of the builders; its documentation is the entry in the
    section "Args" of the class, from which `help` of a builder is made.
    """

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in dataclasses.fields(cls)]

    def arguments(self) -> dict[str, Any]:
        """Return the builder arguments that make this station."""
        return {name: getattr(self, name) for name in self.names()}


def documented(stations: Iterable[type[Station]], *, first: Iterable[inspect.Parameter], **names):
    """Decorate a builder with keyword arguments: its signature and help list all fields.

    The marker `{arguments}` in its docstring is replaced by the documentation of the fields.

    Args:
        stations: classes whose fields the builder takes.
        first: parameters before them.
        **names: parameters behind them, name to `inspect.Parameter`.
    """
    stations = list(stations)
    parameters = list(first)
    for station in stations:
        fields = {field.name: field for field in dataclasses.fields(station)}
        parameters += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=fields[name].default,
                annotation=fields[name].type,
            )
            for name in station.names()
        ]
    parameters += names.values()

    def decorate(builder):
        builder.__signature__ = inspect.Signature(
            parameters, return_annotation=builder.__annotations__.get("return", None)
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
