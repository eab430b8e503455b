"""A command: a settings class, whose fields are its options, and a function that returns a result.

`COMMANDS` lists them all; their modules are imported when they are used.
"""

import argparse
import dataclasses
import difflib
import importlib
import inspect
import re
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from dualnet._checks import ArgumentError, did_you_mean, is_number
from dualnet._fields import Settings, default_of, field, kind_of

if TYPE_CHECKING:
    from dualnet.cli.console import Result

# In groups, in the order of the help.
COMMANDS = {
    "look around": {
        "list": "listing.list_models",
        "card": "listing.card",
        "data": "listing.data",
        "tokenizer train": "listing.train_tokenizer",
        "tokenizer show": "listing.show_tokenizer",
        "demo": "using.demo",
    },
    "train": {
        "train": "training.train",
        "gate": "training.gate",
        "ensemble": "training.ensemble",
        "jobs": "tuning.jobs",
        "tune": "tuning.tune",
    },
    "evaluate": {
        "look": "using.look",
        "evaluate": "evaluating.evaluate",
        "adapt": "evaluating.adapt",
        "compare": "evaluating.compare",
        "score": "scoring.score",
        "minimal-pairs": "scoring.minimal_pairs",
        "analyse gates": "analysing.gates",
        "analyse experts": "analysing.experts",
        "analyse rank": "analysing.rank",
        "analyse curves": "analysing.curves",
    },
    "use": {
        "generate": "using.generate",
        "complete": "using.complete",
        "translate": "using.translate",
        "rescore": "rescoring.rescore",
        "export": "using.export",
    },
}
FUNCTIONS = {name: place for group in COMMANDS.values() for name, place in group.items()}


class Options(Settings):
    """Options of every command."""

    takes_others: ClassVar[bool] = False

    json: bool = False
    """Print the result as JSON."""

    def refuse_pair(self, name: str, other: str, problem: str) -> NoReturn:
        beside = f"{self.flag(other)} {self.option(other).get('metavar', '')}".rstrip()
        self.refuse(name, f"{problem} {beside}.")

    @classmethod
    def option(cls, name: str) -> Mapping[str, Any]:
        """Return the description of the option of a field: arguments of argparse, and others."""
        return cls.__dataclass_fields__[name].metadata.get("option", {})

    @classmethod
    def flag(cls, name: str) -> str:
        """Return the option of a field, such as "--top-k", or "--set decay" without one."""
        option = cls.option(name)
        if option.get("positional"):
            return option["metavar"]
        dashes = f"--set {name}" if option.get("hidden") else f"--{name.replace('_', '-')}"
        return option.get("flags", [dashes])[0]

    @classmethod
    def set_fields(cls, pairs: Iterable[str]) -> dict[str, Any]:
        """Return the values of the fields that the pairs of `--set` name.

        Other settings are the value of the field `set`, of a class that `takes_others`.
        """
        fields = {re.sub("--(set )?", "", cls.flag(n)).replace("-", "_"): n for n in cls.names()}
        values, others = {}, {}
        for key, value in settings_of(pairs).items():
            if key in fields:
                values[fields[key]] = value
            elif cls.takes_others:
                others[key] = value
            else:
                required = f"must be one of {', '.join(fields)}.{did_you_mean(key, fields)}"
                raise ArgumentError(key, f"{required} Received: --set {key}={value}.")
        return {**values, "set": others or None}


def argument(default: object = dataclasses.MISSING, **option: Any) -> Any:
    """Return a field that is a positional argument of a command."""
    return field(default, positional=True, **option)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, to be reported in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message[0].upper()}{message[1:]}. `{self.prog} --help` says more.")


def function_of(command: str) -> Callable[[Any], "Result | None"]:
    """Return the function of a command, whose module is imported."""
    module, _, name = FUNCTIONS[command].partition(".")
    return getattr(importlib.import_module(f"dualnet.cli.{module}"), name)


def options_of(command: str) -> type[Options]:
    """Return the settings class of a command."""
    return typing.get_type_hints(function_of(command))["options"]


def text_of(command: str) -> tuple[str, str]:
    """Return the description of a command, and its examples."""
    text, _, examples = (inspect.getdoc(function_of(command)) or "").partition("\n\nExamples:\n")
    return " ".join(text.split()), textwrap.dedent(examples)


def parser_of(command: str) -> Parser:
    """Return the parser of a command, with an option for each field of its settings."""
    text, examples = text_of(command)
    parser = Parser(
        prog=f"dualnet {command}",
        description=textwrap.fill(text),
        epilog=f"examples:\n{textwrap.indent(examples, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options = options_of(command)
    for title, texts in options.groups().items():
        group = parser.add_argument_group(title) if title else parser
        for name, help in texts.items():
            if not options.option(name).get("hidden"):
                _add_option(group, options, name, help)
    return parser


def _add_option(
    group: argparse._ActionsContainer, options: type[Options], name: str, text: str
) -> None:
    """Add the option of a field to a parser, or to a group of its options."""
    stated, field = options.option(name), options.__dataclass_fields__[name]
    type, default = kind_of(field).removesuffix(" | None"), default_of(field)
    option: dict[str, Any] = {"default": None if default is dataclasses.MISSING else default}
    if type == "bool":
        option["action"] = "store_true" if default is False else argparse.BooleanOptionalAction
    elif type.startswith(("list[", "Sequence[")) and not stated.keys() & {"action", "nargs"}:
        option |= {"action": "extend", "nargs": "+"}
    if "int" in type or "float" in type:
        option |= {"type": {"int": int, "float": float}.get(type, value_of), "metavar": "N"}
    option |= stated
    completer, names = option.pop("completer", None), option.pop("flags", [options.flag(name)])
    if option.pop("positional", False):
        names = [name]
    else:
        option |= {"dest": name, "required": default is dataclasses.MISSING}
        if (is_number(default) or isinstance(default, str)) and "(default" not in text:
            text = f"{text.removesuffix('.')} (default: {default})"
    added = group.add_argument(*names, help=_help(options, text), **option)
    added.completer = completer  # type: ignore[attr-defined]  # for argcomplete


def _help(options: type[Options], text: str) -> str:
    """Return the text of a field as the help of its option, with options for names of fields."""
    flags = {f"`{name}`": options.flag(name) for name in options.names()}
    text = re.sub("`[^`]+`", lambda match: flags.get(match[0], match[0]), text)
    text = re.sub("^(bool|int|str or list of str)[.] ", "", text)  # the kind of value, for Python
    return text.removesuffix(".").replace("%", "%%")


def command_of(words: Sequence[str]) -> str:
    """Return the command that `words` begin with, of one word or two, or ""."""
    names = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in names if name in FUNCTIONS), "")


def parse(command: str, words: Sequence[str]) -> Options:
    """Return the options of a command, checked, that the words after its name give."""
    parser, options = parser_of(command), options_of(command)
    arguments, rest = parser.parse_known_intermixed_args(words)
    if rest:
        raise ValueError(_unrecognized(parser, options, rest))
    values = vars(arguments)
    if "set" in values:
        values |= options.set_fields(values["set"] or [])
    return options(**values)


def as_typed(command: str, message: str) -> str:
    """Return an error message with the options of a command in place of the names of fields."""
    options = options_of(command)
    message = message.replace("`path` must be a RUN", "`RUN` must be a RUN")
    for name in options.names():
        flag = options.flag(name)
        message = message.replace(f"`{name}`", f"`{flag}`").replace(f" {name}=", f" {flag}=")
    return message


def complete() -> None:
    """Tell the shell what may come next, if it asks."""
    import argcomplete

    parser = argparse.ArgumentParser()
    groups = {"": parser.add_subparsers()}
    for command in FUNCTIONS:
        group, _, name = command.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group).add_subparsers()
        groups[group].add_parser(name, parents=[parser_of(command)], add_help=False)
    argcomplete.autocomplete(parser)


def _unrecognized(parser: Parser, options: type[Options], rest: Sequence[str]) -> str:
    """Return an error message for the arguments `rest`, which no option takes."""
    option, _, value = rest[0].partition("=")
    flags, setting = parser._option_string_actions, option.removeprefix("--").replace("-", "_")
    near = [flag for flag in flags if option[:2] == "--" and flag.startswith(option)]
    near = near or difflib.get_close_matches(option, flags, n=1, cutoff=0.8)
    way_out = f"`{parser.prog} --help` shows the options."
    texts = [name for name in ("corpus", "pairs") if f"--{name}" in flags]
    if near:
        way_out = f"Did you mean {near[0]!r}?"
    elif hint := did_you_mean(setting, texts, most=2):
        way_out = hint.strip()
    elif setting == "pairs":
        way_out = "Pairs are for models that translate: see `dualnet train --help`."
    elif texts and option[:1] != "-" and not value:
        way_out = f"A text is given with --{texts[0]} {option}."
    elif "--set" in flags and (options.takes_others or setting in options.names()):
        value = value or "".join(rest[1:2]) or "VALUE"
        way_out = f"Settings are given with --set {setting}={value}."
    return f"Arguments must be known. Received: {' '.join(rest)}. {way_out}"


def value_of(text: str) -> Any:
    """Return the value that `text` is in TOML; any other text is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or thousands of digits or brackets
        is_short = re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE)
        return float(text) if is_short else text  # .01 and 1. are no TOML


def settings_of(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Return the settings of an option that takes KEY=VALUE."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ArgumentError(option, f"takes KEY=VALUE, as --help shows. Received: {pair!r}.")
        settings[key] = value_of(value)
    return settings


def grouped(commands: Mapping[str, Iterable[str]]) -> str:
    """Return the help of commands in groups: what each does."""
    lines = []
    for title, names in commands.items():
        lines.append(f"{title}:")
        for name in names:
            first, *rest = textwrap.wrap(text_of(name)[0], 62)
            lines += [f"  {name:<15}  {first}", *(f"{'':<19}{line}" for line in rest)]
        lines.append("")
    return "\n".join([*lines, "'dualnet COMMAND --help' shows the options of a command."])
