"""Settings: frozen dataclasses whose fields check and document themselves."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np

from dualnet import _checks

Function = TypeVar("Function", bound=Callable[..., Any])


def field(
    default: object = dataclasses.MISSING,
    check: Callable[..., object] | None = None,
    *,
    group: str | None = None,
    **option: object,
) -> Any:
    """Return a field of `Settings`.

    Args:
        default: Its default; without one, it must be given.
        check: Function of the name and a value, which raises `ArgumentError` to refuse it.
        group: Title of a group of options, by default that of its class.
        **option: Arguments of its option on the command line, see `cli.command`.
    """
    metadata = {"check": check, "group": group, "option": option}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def choice(default: str | None, choices: Iterable[str], **option: Any) -> Any:
    """Return a field that is one of `choices`."""
    return field(default, functools.partial(_checks.check_choice, choices=choices), **option)


def count(default: object = dataclasses.MISSING, *, least: int = 1, **option: Any) -> Any:
    """Return a field that is an integer of at least `least`."""
    return field(default, functools.partial(_checks.check_count, least=least), **option)


def positive(default: float | None, **option: Any) -> Any:
    """Return a field that is a finite number above 0."""
    return field(default, _checks.check_positive, **option)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Values that check and document themselves when they are made.

    A subclass is a frozen dataclass. The function that a field was made with checks it: see
    `field`. Any other is checked by its type and name: a bool is a truth value; an int is at least
    0, a size or a number of layers at least 1; a float is at least 0, and a dropout rate if its
    name says so. Where the type allows None, it is not checked.

    `needs` and `excludes` say, for a field, which others may only, or must not, be given with it. A
    field is given if it differs from its default, and from False. `check` has all other rules that
    concern several fields.

    The string under a field documents it, in Python and on the command line, where `group` is the
    title of the options of a class. It is also put in place of `{arguments}` in the docstring.

    Example:

    >>> from dualnet.requests import Scoring
    >>> Scoring.documentation()
    {'temperature': 'float above 0. Divide the logits by it.'}
    >>> Scoring(temperature=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dualnet._checks.ArgumentError: `temperature` must be a finite number above 0, ...
    """

    group: ClassVar[str] = ""

    needs: ClassVar[Mapping[str, Iterable[str]]] = {}
    excludes: ClassVar[Mapping[str, Iterable[str]]] = {}

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls.__doc__ = _with_arguments(cls, [cls])

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic | np.ndarray):  # JSON and TOML have none of NumPy's
                value = value.tolist()
                object.__setattr__(self, field.name, value)
            _check(field, value)
        in_use = [name for name, value in self.changed().items() if value is not False]
        problems = {"needs": "needs", "excludes": "cannot be combined with"}
        for base, table in itertools.product(type(self).__mro__, problems):
            for other, names in vars(base).get(table, {}).items():
                for name in in_use if (other in in_use) == (table == "excludes") else ():
                    if name in names:
                        self.refuse_pair(name, other, problems[table])
        self.check()

    def check(self) -> None:
        """Raise `ArgumentError` for fields that contradict each other."""

    def refuse_pair(self, name: str, other: str, problem: str) -> NoReturn:
        """Raise `ArgumentError` for a field whose `problem` is with the field `other`."""
        is_flag = isinstance(getattr(self, other), bool)
        self.refuse(name, f"{problem} {f'{other}=True' if is_flag else f'`{other}`'}.", other)

    def refuse(self, name: str, message: str, *beside: str, way_out: str = "") -> NoReturn:
        """Raise `ArgumentError` about the field `name`, with its value, and of those `beside` it.

        The `message` says what is required.
        """
        received = {field: getattr(self, field) for field in (name, *beside)}
        raise _checks.ArgumentError(name, message, way_out, **received)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def fields_of(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of `arguments` that are fields."""
        return {name: arguments[name] for name in cls.names() if name in arguments}

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, requirement: str = "", way_out: str = "") -> Self:
        """Return the settings with the values in `arguments`.

        Args:
            arguments: Names and values.
            requirement: What is required of a name; by default that it is one of all.
            way_out: Ends that error where no similar name is known.
        """
        names = cls.names()
        requirement = requirement or f"must be one of {', '.join(names)}."
        for name in sorted(arguments.keys() - {*names}):
            hint = _checks.did_you_mean(name, names) or way_out
            raise _checks.ArgumentError(name, requirement, hint, **{name: arguments[name]})
        return cls(**arguments)

    def arguments(self) -> dict[str, Any]:
        """Return the names and values of all fields."""
        return {name: getattr(self, name) for name in self.names()}

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the fields `names` that are not None."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def changed(self) -> dict[str, Any]:
        """Return the names and values of the fields that differ from their defaults."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != default_of(field)
        }

    @classmethod
    def groups(cls) -> dict[str, dict[str, str]]:
        """Return the documentation of the fields by the titles of their groups, "" for none.

        That of a class replaces that of its bases; the group is that of the first of them.
        """
        titles: dict[str, str] = {}
        texts = {}
        for base in reversed(cls.__mro__[: -len(Settings.__mro__)]):
            for name, text in _texts(base.__module__).get(base.__name__, {}).items():
                texts[name] = text
                titles.setdefault(name, vars(base).get("group", ""))
        groups: dict[str, dict[str, str]] = {"": {}}
        for name in cls.names():
            group = cls.__dataclass_fields__[name].metadata.get("group")
            title = titles.get(name, "") if group is None else group
            groups.setdefault(title, {})[name] = texts.get(name, "")
        return groups

    @classmethod
    def documentation(cls) -> dict[str, str]:
        """Return the documentation of each field."""
        return {name: text for group in cls.groups().values() for name, text in group.items()}


@functools.cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the strings under the fields of each class of a module, from its source."""
    classes = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    return {
        node.name: {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        }
        for node in classes
        if isinstance(node, ast.ClassDef)
    }


def _check(field: dataclasses.Field[object], value: object) -> None:
    name, kind = field.name, kind_of(field)
    if value is None and kind.endswith("| None"):
        return
    kind = kind.removesuffix(" | None")
    if check := field.metadata.get("check"):
        check(name, value)
    elif kind == "bool":
        _checks.check_flag(name, value)
    elif kind == "float":
        (_checks.check_rate if name.endswith("_dropout") else _checks.check_penalty)(name, value)
    elif kind == "int":
        _checks.check_count(name, value, least=int(name.endswith(("units", "_layers"))))
    elif kind.startswith("list[") and not isinstance(value, list):
        raise _checks.ArgumentError(name, "must be a list.", **{name: value})


def kind_of(field: dataclasses.Field[object]) -> str:
    """Return the type of a field as it is written, such as "int | None"."""
    return field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)


def default_of(field: dataclasses.Field[object]) -> object:
    """Return the default of a field, `dataclasses.MISSING` without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def documented(*classes: type[Settings], rest: str = "") -> Callable[[Function], Function]:
    """Decorate a function whose `**arguments` are the fields of `classes`.

    Its signature and help list all fields. The marker `{arguments}` in its docstring is replaced
    by their documentation.

    Args:
        *classes: Subclasses of `Settings`.
        rest: Name under which the signature lists further keyword arguments, if there are any.
    """
    fields = {}
    for settings in classes:
        for name in settings.names():
            field = settings.__dataclass_fields__[name]
            fields[name] = Parameter(
                name, Parameter.KEYWORD_ONLY, default=default_of(field), annotation=field.type
            )
    others = [Parameter(rest, Parameter.VAR_KEYWORD, annotation="Any")] if rest else []

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()  # the last one is `**arguments`
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *fields.values(), *others]
        )
        function.__doc__ = _with_arguments(function, classes)
        return function

    return decorate


def _with_arguments(documented: object, classes: Iterable[type[Settings]]) -> str:
    """Return the docstring with the documentation of all fields in place of `{arguments}`."""
    docstring = inspect.cleandoc(documented.__doc__ or "")
    if "{arguments}" not in docstring:
        return docstring
    return docstring.replace("{arguments}", "\n".join(map(_entries, classes)).strip())


def _entries(settings: type[Settings]) -> str:
    """Return the documentation of all fields as lines of the section "Args" of a function."""
    fill = textwrap.TextWrapper(
        100,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    ).fill
    return "\n".join(fill(f"{name}: {text}") for name, text in settings.documentation().items())
