"""The command line tells where to begin, shows help in groups, and completes names."""

import os
import shlex
import subprocess
import sys

import pytest

from dualnet import cli
from dualnet.cli import main
from dualnet.cli.command import FUNCTIONS, command_of, options_of, parse, text_of
from tests.checks import once

pytestmark = once

WHERE_TO_BEGIN = (cli.__doc__ or "").strip()


def commands_of(text):
    lines = [line.strip().split("   ")[0] for line in text.splitlines()]
    return [line for line in lines if line.startswith("dualnet ") and "--help" not in line]


def check_understood(line):
    """Parse a command as it is written on a terminal."""
    program, *words = shlex.split(line)
    command = command_of(words)
    assert program == "dualnet"
    assert isinstance(parse(command, words[len(command.split()) :]), options_of(command))


def test_dualnet_alone_shows_where_to_begin(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == WHERE_TO_BEGIN + "\n"


@pytest.mark.parametrize("command", FUNCTIONS)
def test_each_example_of_the_help_is_a_command_that_is_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = commands_of(text_of(command)[1])
    assert examples
    for line in examples:
        check_understood(line)


@pytest.mark.parametrize("line", commands_of(WHERE_TO_BEGIN))
def test_what_one_begins_with_is_understood(line):
    check_understood(line)


@pytest.mark.parametrize("command", FUNCTIONS)
def test_the_help_of_a_command_is_plain_and_has_all_its_options(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    out, err = capsys.readouterr()
    assert (stopped.value.code, err) == (None, "") or (stopped.value.code, err) == (0, "")
    assert "\x1b" not in out and "examples:\n  dualnet " in out
    options = options_of(command)
    for name in options.names():
        assert options.option(name).get("hidden") or options.flag(name) in out


def test_the_help_lists_each_command_once_in_a_group(capsys):
    assert main(["--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:3].strip()]
    listed = [line[2:].split("  ")[0] for line in lines if line[:2] == "  "]
    assert listed == list(FUNCTIONS)
    assert main(["analyse", "--help"]) == 0
    assert "analyse rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian lstm", "There is no command 'trian'. Did you mean 'train'?"),
        ("analyse", "analyse needs one of gates, experts, rank, curves."),
        ("card", "The following arguments are required: MODEL. `dualnet card --help`"),
        ("generate RUN --beam x", "Argument --beam: invalid int value: 'x'"),
        ("generate RUN --prompt -x", "Argument --prompt: expected one argument"),
        ("score RUN --txet FILE", "Did you mean '--text'?"),
        ("score RUN -x", "Arguments must be known. Received: -x."),
        ("train lstm story.txt --output RUN", "A text is given with --corpus story.txt."),
        ("train lstm --output RUN units=9", "Settings are given with --set units=9."),
    ],
)
def test_a_line_that_is_not_understood_is_told_in_one_line(cli, line, message):
    assert message in cli.refused(line)


def test_arguments_may_stand_anywhere_and_values_may_be_negative():
    options = parse("score", ["--temperature", "2", "RUN", "--json", "-"])
    assert (options.run_folder, options.file, options.temperature) == ("RUN", "-", 2.0)
    assert parse("generate", ["RUN", "--prompt=-x"]).texts == ["-x"]
    words = ["--output", "R", "--set", "a=1", "b=-2", "c=-1e-3", "seed=4", "--", "lstm"]
    train = parse("train", words)
    assert train.settings == {"a": 1, "b": -2, "c": -1e-3} and train.seed == 4


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


def test_the_shell_completes_commands_models_and_options():
    assert completed("dualnet tr") == ["train", "translate"]
    assert completed("dualnet train mogrifier_r") == ["mogrifier_rlstm"]
    assert completed("dualnet evaluate RUN --dyn") == ["--dynamic"]
    assert completed("dualnet analyse ra") == ["rank"]
