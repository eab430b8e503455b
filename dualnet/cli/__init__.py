"""The command `dualnet`: parse, call, print. Results go to standard output, progress to error."""

from __future__ import annotations

import logging
import os
import re
import sys

from dualnet.cli.parser import make_parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code: 0, or 2 for bad input and after Ctrl-C.

    141, as after SIGPIPE, if the reader of standard output leaves early, as `head` does.
    """
    # INFO lines of TensorFlow, such as "Memory patch applied", say nothing to a user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow adds up three gradients in the order in which they come. One operation at a time,
    # itself on all cores, makes that the same order in every run.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings of retracing
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if len(rest) == 1 and getattr(options, "file", "") is None and not re.match("-.", rest[0]):
        options.file = rest.pop()  # argparse of Python 3.11 loses a FILE that follows an option
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is written on leaving
        return 141
    except (ValueError, OSError, ImportError) as error:
        print(f"dualnet {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"dualnet {options.command}: {stopped or 'Stopped.'}", file=sys.stderr)
        return 2
    return 0
