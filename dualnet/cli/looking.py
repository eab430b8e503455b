"""The command `look`: a page that shows models reading a text."""

import dataclasses
import os
import sys

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet.cli.command import argument
from dualnet.cli.console import Table, number, quietly, report, texts_of
from dualnet.cli.options import AdaptingOptions, check_file, open_language_model
from dualnet.requests import RULES, DynamicEvaluating, Looking, check_reading
from dualnet.runs.shipped import list_shipped, require_shipped


class Look(AdaptingOptions, Looking):
    """Options of `look`."""

    run_folders: list[str] = argument([], nargs="*", metavar="RUN")
    """RUN folders of trained models, or names of shipped ones, or .keras files (default: the two of
    English); the last one may be a file with the text, '-' for standard input."""

    file: str | None = field(None, hidden=True)
    """The last RUN, if it is a file, or what follows an option."""

    texts: list[str] | None = field(None, flags=["--text"], action="append", metavar="TEXT")
    """Text to read; repeatable, one line each."""

    output: str = field(check=check_file, metavar="HTML")
    """Page to write."""

    adapt: bool = field(False, group="learning while reading")
    """Read the text a second time, learning from each segment after scoring it."""

    rule: str | None = choice(None, RULES, group="learning while reading")
    """Update rule of --adapt: nadam, sgd, or rms with the statistics of the text that the first RUN
    was trained on (default: nadam; shipped models have a rule of their own)."""

    set: list[str] = field([], metavar="KEY=VALUE", group="learning while reading")
    """Override settings of --adapt, e.g. learning_rate=0.001 sequence_length=20."""

    @classmethod
    def by_set(cls) -> dict[str, str]:
        return {name: name for name in super().by_set() if name != "file"}


def look(options: Look) -> None:
    """Write a page that shows models reading a text, word by word.

    Examples:
        dualnet look --text "The ship was built in 1904." --output page.html
        dualnet look runs/lstm runs/dual article.txt --adapt --output page.html
    """
    options = _with_file(options)
    paths = options.run_folders or require_shipped("RUN")
    runs = [open_language_model(path) for path in paths]
    for run in runs if options.adapt else []:
        DynamicEvaluating(**run.learning(options.rule, options.learning()))
    for path in (*(run.path for run in runs), options.file):
        if path and os.path.realpath(path) == os.path.realpath(options.output):
            required = "must not be a file that is read."
            raise ArgumentError("--output", f"{required} Received: {options.output!r}.")
    lines = texts_of(options)
    text = "\n".join(lines) if options.texts else "".join(lines)
    check_reading(text)
    looking = quietly("dualnet.looking")
    settings = Looking.fields_of(options.changed())
    if options.rule == "rms":
        settings["statistics"] = runs[0].training_text()
    page = looking.look([str(run.path) for run in runs], text, **settings)
    page.save(options.output)
    if page.segment is not None and page.units <= page.segment:
        print(f"The text has {page.units} tokens, and the first step comes after {page.segment}: "
              "nothing is learnt. Try --set sequence_length=5.",
              file=sys.stderr)  # fmt: skip
    result = {"output": options.output, "tokens": page.units, "models": page.perplexities}
    head = ["fixed weights", *["learning"] * options.adapt, "model"]
    rows = [
        [*(number(value) for key, value in row.items() if key != "name"), row["name"]]
        for row in page.perplexities
    ]
    tokens = f"{page.units:,} token{'s' * (page.units != 1)}"
    note = f"\nperplexity on {tokens}; the page is {options.output}"
    report(options, result, Table(head, rows), note)


def _with_file(options: Look) -> Look:
    """Treat the last RUN as FILE if it is not a RUN and there is no text."""
    *others, last = options.run_folders or [""]
    if options.texts is None and options.file is None and last:
        is_run = os.path.isdir(last) or last.endswith(".keras") or last in list_shipped()
        if not is_run and (others or last == "-" or os.path.isfile(last)):
            return dataclasses.replace(options, run_folders=others, file=last)
    return options
