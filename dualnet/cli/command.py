"""A command: its options, which are the fields of a settings class, its examples, its function."""

import argparse
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from dualnet._checks import ArgumentError, is_number
from dualnet._fields import Settings, default_of, field, kind_of

Function = Callable[[Any], None]  # of the options; its docstring has a text, and "Examples:"
TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": int, "metavar": "N"},
    "float": {"type": float, "metavar": "X"},
}
KIND = re.compile(r"(?:ints?|floats?|bool|str)\b[^.]*\.(?: |$)")  # begins the text of a field


class Options(Settings):
    """Options of every command."""

    json: bool = False
    """Print the result as JSON."""

    def refuse_pair(self, name: str, other: str, problem: str) -> NoReturn:
        metavar = option_of(self.fields()[other]).get("metavar", "")
        message = f"{problem} {f'{self.flag(other)} {metavar}'.rstrip()}."
        raise ArgumentError(self.flag(name), f"{message} Received: {getattr(self, name)}.")

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields by name."""
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def flag(cls, name: str) -> str:
        """Return the option of a field, such as "--top-k", or "--set decay" without one."""
        return flags_of(cls.fields()[name])[0]

    @classmethod
    def by_set(cls) -> dict[str, str]:
        """Return the fields that `--set` sets, by their names there: those without an option."""
        return {name: name for name, each in cls.fields().items() if option_of(each).get("hidden")}


class Actions(NamedTuple):
    """A command that has further commands, its actions."""

    text: str
    metavar: str
    functions: dict[str, str]


def argument(default: Any = dataclasses.MISSING, **option: Any) -> Any:
    """Return a field that is a positional argument of a command."""
    return field(default, positional=True, **option)


def add_command(subparsers: Any, name: str, function: Function) -> None:
    """Add the command `name`, with an option for each field of the options of `function`."""
    text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    command = subparsers.add_parser(
        name,
        help=text,
        description=textwrap.fill(text),
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples), '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options: type[Options] = typing.get_type_hints(function)["options"]
    command.set_defaults(function=function, options=options, parser=command)
    fields = options.fields()
    for title, texts in options.groups().items():
        group = command.add_argument_group(title) if title else command
        for field_name, text in texts.items():
            field = fields[field_name]
            if option_of(field).get("hidden"):
                command.set_defaults(**{field_name: default_of(field)})
            else:
                _add_option(group, field, _help(text, fields))


def option_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the arguments of argparse for the option of `field`, `hidden` and others."""
    return dict(field.metadata.get("option", {}))


def flags_of(field: dataclasses.Field[Any]) -> list[str]:
    """Return the names of the option of a field, such as "--top-k"; "--set decay" without one."""
    option = option_of(field)
    if option.get("positional"):
        return [option["metavar"]]
    dashes = "--set " + field.name if option.get("hidden") else f"--{field.name.replace('_', '-')}"
    return option.get("flags", [dashes])


def _add_option(group: Any, field: dataclasses.Field[Any], text: str) -> None:
    """Add the option of a field to a parser or a group of options."""
    own, default = option_of(field), default_of(field)
    kind = kind_of(field).removesuffix(" | None")
    option: dict[str, Any] = {"default": None if default is dataclasses.MISSING else default}
    items = re.match(r"(?:list|Sequence)\[(\w+)\]", kind)
    option |= TYPES.get(items[1] if items else kind, {})
    if kind == "bool":
        option["action"] = "store_true" if default is False else argparse.BooleanOptionalAction
    elif items and not own.keys() & {"action", "nargs"}:
        option |= {"action": "extend", "nargs": "+"}
    option |= own
    completer, positional = option.pop("completer", None), option.pop("positional", False)
    names = option.pop("flags", flags_of(field))
    if positional:
        names = [field.name]
    else:
        option |= {"dest": field.name, "required": default is dataclasses.MISSING}
        if isinstance(default, (int, float, str)) and kind != "bool" and "(default" not in text:
            text += f" (default: {default:g})" if is_number(default) else f" (default: {default})"
    added = group.add_argument(*names, help=text.replace("%", "%%"), **option)
    added.completer = completer


def _help(text: str, fields: dict[str, dataclasses.Field[Any]]) -> str:
    """Return the documentation of a field as the help of its option."""

    def named(match: re.Match[str]) -> str:
        name = match[1]
        if name in fields and not option_of(fields[name]).get("hidden"):
            return flags_of(fields[name])[0]
        return name

    text = re.sub("`([^`]+)`", named, KIND.sub("", text, count=1) if KIND.match(text) else text)
    text = text.removesuffix(".")
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def grouped(commands: Mapping[str, Iterable[str]], texts: dict[str, str]) -> str:
    """Return the commands in their groups, each with its text."""
    lines = []
    for title, names in commands.items():
        lines.append(f"{title}:")
        for name in names:
            first, *rest = textwrap.wrap(" ".join(texts[name].split()), 62)
            lines += [f"  {name:<14}  {first}", *(f"{'':<18}{line}" for line in rest)]
        lines.append("")
    return "\n".join([*lines, "'dualnet COMMAND --help' shows the options of a command."])
