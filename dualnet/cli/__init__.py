"""The command `dualnet`: parses, calls the library, prints.

Results go to standard output, progress to standard error.
"""

from __future__ import annotations

import logging
import os
import re
import sys

from dualnet.cli.parser import make_parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success; 2 is bad input or Ctrl-C; 141 is a reader of standard output that closed it
    early, as `head` does.

    Args:
        arguments: of the command line; default `sys.argv[1:]`.

    Example:
        >>> from dualnet.cli import main
        >>> main(["list", "dual_l*", "--json"])
        ["dual_lstm"]
        0
    """
    # Hides TensorFlow's INFO lines, such as "Memory patch applied".
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow sums gradients in the order in which they arrive. Running one operation at a
    # time, each on all cores, makes that order the same in every run.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # hides warnings about retracing
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if len(rest) == 1 and getattr(options, "file", "") is None and not re.match("-.", rest[0]):
        options.file = rest.pop()  # Python 3.11's argparse loses a FILE after an option
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for output written at exit
        return 141
    except (ValueError, OSError, ImportError) as error:
        print(f"dualnet {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"dualnet {options.command}: {interrupt or 'Stopped.'}", file=sys.stderr)
        return 2
    return 0
