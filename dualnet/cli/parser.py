"""The argument parser, and the table of all commands."""

import argparse
import importlib

from dualnet.cli.command import Actions, Function, add_command, grouped

# The functions of the commands, in groups, in the order of the help. Their modules are imported
# when they are used.
COMMANDS: dict[str, dict[str, str | Actions]] = {
    "look around": {
        "list": "listing.list_models",
        "card": "listing.card",
        "data": "commands.data",
        "tokenizer": Actions(
            "Train a tokeniser, or show how one reads a text.",
            "ACTION",
            {"train": "commands.learn_units", "show": "commands.show_units"},
        ),
        "demo": "commands.demo",
    },
    "train": {
        "train": "training.train",
        "gate": "training.gate",
        "ensemble": "training.ensemble",
        "jobs": "tuning.jobs",
        "tune": "tuning.tune",
    },
    "evaluate": {
        "look": "looking.look",
        "evaluate": "evaluating.evaluate",
        "score": "scoring.score",
        "minimal-pairs": "scoring.minimal_pairs",
        "analyse": Actions(
            "Analyse RUNs: gates, experts, rank or learning curves.",
            "ANALYSIS",
            {name: f"analysing.{name}" for name in ("gates", "experts", "rank", "curves")},
        ),
    },
    "use": {
        "generate": "commands.generate",
        "translate": "translating.translate",
        "rescore": "rescoring.rescore",
        "export": "commands.export",
    },
}


def command_names() -> list[str]:
    """Return the names of all commands."""
    return [name for commands in COMMANDS.values() for name in commands]


def _function(place: str) -> Function:
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f"dualnet.cli.{module}"), name)


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line, of one `command` alone if it is given."""
    parser = argparse.ArgumentParser(
        prog="dualnet",
        usage="dualnet [--help] [--version] COMMAND ...",
        description="Recurrent language models: train, adapt at test time, generate and serve.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)  # that of the command, if there is one
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="dualnet", help=argparse.SUPPRESS
    )
    for name in [command] if command else command_names():
        place = next(commands[name] for commands in COMMANDS.values() if name in commands)
        if isinstance(place, str):
            add_command(subparsers, name, _function(place))
            continue
        group = subparsers.add_parser(name, help=place.text, description=place.text)
        actions = group.add_subparsers(dest="action", required=True, metavar=place.metavar)
        for action, place_of_action in place.functions.items():
            add_command(actions, action, _function(place_of_action))
    if not command:
        texts = {name: str(each.description) for name, each in subparsers.choices.items()}
        parser.epilog = grouped(COMMANDS, texts)
    return parser
