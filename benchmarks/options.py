"""The command line of a script of this folder, from its docstring and the defaults of options."""

import argparse
from pathlib import Path


def options_of(doc, *paths, **defaults):
    """Return the options that a script was called with.

    Args:
        doc: The docstring of the script, which says what they mean.
        *paths: Names of its positional arguments; "..." at the end of one takes several, and "*"
            any number of words that are no paths.
        **defaults: Default of each option; False is that of a switch, a type stands for none, and
            a tuple holds the choices, the default first.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in paths:
        number = {"...": "+", "*": "*"}.get(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
        parser.add_argument(name.rstrip(".*"), type=str if number == "*" else Path, nargs=number)
    for name, default in defaults.items():
        if default is False:
            settings = {"action": "store_true"}
        elif isinstance(default, type):
            settings = {"type": default}
        elif isinstance(default, tuple):
            settings = {"choices": default, "default": default[0]}
        elif isinstance(default, list):
            settings = {"nargs": "+", "default": default}
        else:
            settings = {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()
