"""Commands, written as on a terminal, and run in this process."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from dualnet.cli import main

REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))


def run(line):
    """Run the command `dualnet LINE`; return its exit code."""
    return main(shlex.split(line))


class CommandLine:
    """Runs commands and returns what they print; the fixture `cli` is one."""

    def __init__(self, capsys):
        self.capsys = capsys

    def call(self, line):
        """Return the exit code, and what is written to standard output and to standard error."""
        code = run(line)
        return code, *self.capsys.readouterr()

    def __call__(self, line):
        """Return what a command prints that must succeed."""
        code, out, err = self.call(line)
        assert code == 0, err
        return out

    def json(self, line):
        """Return what a command prints with `--json`, which must be JSON to the letter."""
        return json.loads(self(f"{line} --json"), parse_constant=pytest.fail)

    def refused(self, line):
        """Return the one sentence with which a command refuses its input."""
        code, out, err = self.call(line)
        assert code == 2 and out == "" and err.count("\n") == 1, err
        return err
