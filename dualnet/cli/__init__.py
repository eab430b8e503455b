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

import codecs
import inspect
import io
import logging
import os
import sys
import warnings

from dualnet._checks import did_you_mean
from dualnet.cli.command import (
    COMMANDS,
    FUNCTIONS,
    as_typed,
    command_of,
    complete,
    function_of,
    grouped,
    parse,
)
from dualnet.cli.console import printable, show


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success; 2 is bad input or Ctrl-C; 141 is a reader of standard output that closed it
    early, as `head` does. With `--help`, argparse raises `SystemExit`.

    Args:
        arguments: of the command line; default `sys.argv[1:]`.

    Example:
        >>> from dualnet.cli import main
        >>> main(["list", "dual_l*", "--json"])
        ["dual_lstm"]
        0
    """
    before, warnings.formatwarning = warnings.formatwarning, _warning
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="escaped")
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    finally:
        warnings.formatwarning = before


def _run(words: list[str]) -> int:
    # TensorFlow sums gradients in the order in which they arrive. Running one operation at a
    # time, each on all cores, makes that order the same in every run.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings are for programmers
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may come next
        complete()
    command = command_of(words)
    name = f"dualnet {command}".rstrip()
    try:
        if command:
            options = parse(command, words[len(command.split()) :])
            show(function_of(command)(options), as_json=options.json)
        else:
            print(_about(words))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for output written at exit
        return 141
    except (ValueError, OSError, ImportError) as error:
        colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        name = f"\x1b[1;31m{name}:\x1b[0m" if colours else f"{name}:"
        message = str(error)
        if command and ".toml: " not in message:  # else of the keys of a file
            message = as_typed(command, message)
        print(name, printable(message), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"{name}: {str(interrupt) or 'Stopped.'}", file=sys.stderr)
        return 2
    return 0


def _about(words: list[str]) -> str:
    """Return the text without a command: where to begin, the version, or the list of commands."""
    first, *rest = words or [""]
    actions = [name for name in FUNCTIONS if first and name.startswith(f"{first} ")]
    if not first:
        return inspect.cleandoc(__doc__ or "")
    if first == "--version":
        return _version()
    if first in ("-h", "--help"):
        return f"usage: dualnet [--help] [--version] COMMAND ...\n\n{grouped(COMMANDS)}"
    if actions and {"-h", "--help"} & {*rest}:
        return grouped({first: actions})
    if actions:
        named = ", ".join(name.split()[1] for name in actions)
        raise ValueError(f"{first} needs one of {named}. `dualnet {first} --help` says more.")
    hint = did_you_mean(first, [*FUNCTIONS, "--version", "--help"])
    raise ValueError(f"There is no command {first!r}.{hint} `dualnet --help` lists the commands.")


def _warning(message: object, *_: object, **__: object) -> str:
    """Return the line of a warning, without the place in the code, which is for programmers."""
    return f"Warning: {printable(str(message))}\n"


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Escape characters that standard output cannot hold, and say so once."""
    warnings.warn(
        "Standard output cannot hold all characters. PYTHONIOENCODING=utf-8 writes them.",
        stacklevel=1,
    )
    return codecs.backslashreplace_errors(error)


codecs.register_error("escaped", _escaped)


def _version() -> str:
    from importlib import metadata

    try:
        return f"dualnet {metadata.version('dualnet')}"
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "dualnet, not installed: run from a checkout"
