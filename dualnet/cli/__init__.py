"""dualnet: recurrent language models that one can train, adapt, compare and serve.

Where to begin:
  dualnet look --text "The ship was built in 1904." --output page.html
                                    a page of two trained models reading your text
  dualnet generate dual_lstm.wikitext-2 --prompt "The ship was"
  dualnet demo                      train and compare two small models, in about two minutes
  dualnet list "dual_*"             models of the zoo
  dualnet train dual_lstm --corpus FILE --tokenizer bpe:2000 --output runs/dual
                                    train on your text
  dualnet evaluate runs/dual --dynamic
                                    let it learn while it is scored
  dualnet generate runs/dual --prompt "The"

dualnet --help lists all commands, dualnet COMMAND --help the options of one.
"""

# `dualnet` alone prints the docstring. Results go to standard output, progress to standard error.

import argparse
import difflib
import inspect
import logging
import os
import re
import sys
import warnings
from typing import Any

from dualnet._checks import did_you_mean
from dualnet.cli.command import Options
from dualnet.cli.console import check_known, open_streams, printable, settings_of
from dualnet.cli.parser import command_names, make_parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success; 2 is bad input or Ctrl-C; 141 is a reader of standard output that closed it
    early, as `head` does. Where an option is missing or no value of its type, argparse raises
    `SystemExit`.

    Args:
        arguments: of the command line; default `sys.argv[1:]`.

    Example:
        >>> from dualnet.cli import main
        >>> main(["list", "dual_l*", "--json"])
        ["dual_lstm"]
        0
    """
    before, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    finally:
        warnings.formatwarning = before


def _run(arguments: list[str]) -> int:
    open_streams()
    # TensorFlow sums gradients in the order in which they arrive. Running one operation at a
    # time, each on all cores, makes that order the same in every run.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings are for programmers
    commands, command = command_names(), arguments[0] if arguments else "-"
    if not command.startswith("-") and command not in commands:
        hint = f"There is no command {command!r}.{did_you_mean(command, commands)}"
        print(f"dualnet: {printable(hint)} `dualnet --help` lists the commands.", file=sys.stderr)
        return 2
    parser = make_parser(command if command in commands else "")
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may come next
        import argcomplete

        argcomplete.autocomplete(parser)
    options, rest = parser.parse_known_args(arguments)
    if len(rest) == 1 and not re.match("-.", rest[0]):
        if getattr(options, "file", "") is None:  # argparse loses a FILE after an option
            options.file = rest.pop()
        elif hasattr(options, "nbest"):  # or takes a RUN for it
            options.run_folders.append(options.nbest)
            options.nbest = rest.pop()
    name = " ".join(filter(None, ["dualnet", options.command]))
    try:
        if rest:
            raise ValueError(_unrecognized(options, rest, name))
        if options.command is None:
            print(_version() if options.version else inspect.cleandoc(__doc__ or ""))
        else:
            options.function(_settings(options))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for output written at exit
        return 141
    except (ValueError, OSError, ImportError) as error:
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        name = f"\x1b[1;31m{name}:\x1b[0m" if colours else f"{name}:"
        print(name, printable(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"{name}: {str(interrupt) or 'Stopped.'}", file=sys.stderr)
        return 2
    return 0


def _warning(message: Any, *_: Any, **__: Any) -> str:
    """Return the line of a warning, without the place in the code, which is for programmers."""
    return f"Warning: {printable(str(message))}\n"


def _version() -> str:
    from importlib import metadata

    try:
        return f"dualnet {metadata.version('dualnet')}"
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "dualnet, not installed: run from a checkout"


def _settings(options: argparse.Namespace) -> Options:
    """Return the settings of a command, checked, with those of --set that it takes."""
    values = {name: getattr(options, name) for name in options.options.names()}
    if known := options.options.by_set():
        settings = settings_of(options.set)
        check_known("--set", settings, known)
        values |= {known[name]: value for name, value in settings.items()}
    return options.options(**values)


def _unrecognized(options: argparse.Namespace, rest: list[str], name: str) -> str:
    """Return an error message for the arguments `rest`, which no option of `name` takes."""
    option, _, value = rest[0].partition("=")
    known = re.findall(r"--[\w-]+", options.parser.format_usage())
    near = [name for name in known if name.startswith(option)]
    near = near or difflib.get_close_matches(option, known, n=1, cutoff=0.8)
    setting = option[2:].replace("-", "_")
    takes_it = option.startswith("--") and hasattr(options, "set")
    takes_it = takes_it and setting in (options.options.by_set() or [setting])  # none: any
    if near:
        way_out = f" Did you mean {near[0]!r}?"
    elif takes_it:
        value = value or (rest[1] if len(rest) > 1 else "VALUE")
        way_out = f" Settings are given with --set {setting}={value}."
    else:
        way_out = f" `{name} --help` shows the options."
    return f"Arguments must be known. Received: {' '.join(rest)}.{way_out}"
