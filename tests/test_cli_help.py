"""The command line tells where to begin, shows help in groups, completes names, draws tables."""

import os
import shlex
import subprocess
import sys

import pytest

from dualnet import cli
from dualnet.cli import console, main
from dualnet.cli.parser import command_names, make_parser

WHERE_TO_BEGIN = (cli.__doc__ or "").strip()


def commands_of(text):
    return [line.strip() for line in text.splitlines() if line.strip().startswith("dualnet ")]


def test_dualnet_alone_shows_where_to_begin(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == WHERE_TO_BEGIN + "\n"


def examples(parser):
    """Yield the examples in the help of each command."""
    for action in parser._subparsers._group_actions if parser._subparsers else []:
        for command in action.choices.values():
            lines = commands_of(command.epilog or "")
            assert lines or command._subparsers, command.prog
            yield from [*lines, *examples(command)]


@pytest.mark.parametrize("line", list(examples(make_parser())))
def test_each_example_of_the_help_is_a_command_that_is_understood(line):
    program, *arguments = shlex.split(line)
    assert program == "dualnet" and make_parser().parse_args(arguments).command == arguments[0]


@pytest.mark.parametrize("line", commands_of(WHERE_TO_BEGIN))
def test_what_one_begins_with_is_understood(line):
    command = line.split("   ")[0]
    if "--help" not in command:
        make_parser().parse_args(shlex.split(command)[1:])


def test_the_help_lists_each_command_once_in_a_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    names = command_names()
    listed = [line.split()[0] for line in out.splitlines() if line[:3].strip() and line[:2] == "  "]
    assert [name for name in listed if not name.startswith("-")] == names
    known = make_parser()._subparsers._group_actions[0].choices
    assert sorted(names) == sorted(known)


def test_an_unknown_command_is_told_in_one_line_with_the_nearest(capsys):
    assert main(["trian", "lstm"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "There is no command 'trian'. Did you mean 'train'?" in err


def completed(line):
    """Return what the shell is offered after `line`."""
    done = subprocess.run(
        [sys.executable, "-c", "from dualnet.cli import main; main()"],
        env={**os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line,
             "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
             "_ARGCOMPLETE_COMP_WORDBREAKS": "", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
def test_an_option_without_a_command_is_refused(capsys):
    assert main(["--versoin"]) == 2
    output, error = capsys.readouterr()
    assert (output, "--versoin. Did you mean '--version'?" in error) == ("", True)


def test_the_shell_completes_commands_models_and_options():
    assert completed("dualnet tr") == ["train", "translate"]
    assert completed("dualnet train mogrifier_r") == ["mogrifier_rlstm"]
    assert completed("dualnet evaluate RUN --dyn") == ["--dynamic"]


def test_a_terminal_gets_a_drawn_table_with_the_same_cells(capsys, monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    console.Table(["model", "perplexity"], [["lstm", "64.91"], ["dual[lstm]\x1b", "9.5"]]).print()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", "perplexity"]
    assert [row.split() for row in rows] == [["lstm", "64.91"], ["dual[lstm]\\x1b", "9.5"]]
    assert rows[1].endswith("  9.5") and rows[0].endswith(" 64.91")
