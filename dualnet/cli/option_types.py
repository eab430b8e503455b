"""Types and actions of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


class Version(argparse.Action):
    """Prints the version, which is looked up only when asked for."""

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        from importlib import metadata

        try:
            print(f"dualnet {metadata.version('dualnet')}")
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            print("dualnet, not installed: run from a checkout")
        parser.exit()


def run_path(text: str) -> str:
    """Return the path of a RUN, that of a shipped model for its name."""
    from dualnet.runs.shipped import find_run

    return str(find_run(text)) if text else text


def number(text: str) -> float:
    """Return the number in `text`; argparse names this function if there is none."""
    value = float(text)
    return int(value) if value.is_integer() else value


def number_or(word: str, number: type, what: str) -> Callable[[str], Any]:
    """Return a function that parses a `number`, or the `word` allowed in its place."""

    def parse(text: str) -> Any:
        try:
            return text if text == word else number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be {what}, or {word}. Received: {text!r}."
            ) from None

    return parse
