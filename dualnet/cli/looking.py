"""The command `look`: a page that shows models reading a text."""

import os
import sys

from dualnet._checks import ArgumentError
from dualnet._fields import field
from dualnet.cli.command import argument
from dualnet.cli.console import Result, Table, number, quietly
from dualnet.cli.options import OfRuns, Setting, Texts, check_file, open_language_model
from dualnet.requests import DynamicEvaluating, Looking, check_reading
from dualnet.runs.shipped import list_shipped, require_shipped


class ReadByRuns(Texts, OfRuns):
    """RUNs and the texts that they read."""

    run_folders: list[str] = argument([], nargs="*", metavar="RUN")
    """RUN folders of trained models, or names of shipped ones, or .keras files (default: the two of
    English); the last one may be a file with the text, '-' for standard input."""

    def __post_init__(self) -> None:
        """Take the last RUN as FILE if it is not a RUN and there is no text."""
        *others, last = self.run_folders or [""]
        is_run = os.path.isdir(last) or last.endswith(".keras") or last in list_shipped()
        may_be_file = bool(others) or last == "-" or os.path.isfile(last)
        if self.texts is None and last and may_be_file and not is_run:
            object.__setattr__(self, "run_folders", others)
            object.__setattr__(self, "file", last)
        super().__post_init__()


class Look(ReadByRuns, Setting, Looking):
    """Options of `look`."""

    output: str = field(check=check_file, metavar="HTML")
    """Page to write."""


def look(options: Look) -> Result:
    """Write a page that shows models reading a text, word by word.

    Examples:
        dualnet look --text "The ship was built in 1904." --output page.html
        dualnet look runs/lstm runs/dual article.txt --adapt --output page.html
    """
    runs = [open_language_model(run) for run in options.run_folders or require_shipped("RUN")]
    for run in runs if options.adapt else []:
        DynamicEvaluating(**run.learning(options.rule, options.learning()))
    for path in (*(run.path for run in runs), options.file):
        if path and os.path.realpath(path) == os.path.realpath(options.output):
            required = "must not be a file that is read."
            raise ArgumentError("--output", f"{required} Received: {options.output!r}.")
    text = ("\n" if options.texts else "").join(options.lines())
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
    head = ["fixed weights", *["learning"] * options.adapt, "model"]
    rows = [
        [*(number(value) for key, value in row.items() if key != "name"), row["name"]]
        for row in page.perplexities
    ]
    tokens = f"{page.units:,} token{'s' * (page.units != 1)}"
    return Result(
        {"output": options.output, "tokens": page.units, "models": page.perplexities},
        Table(head, rows),
        f"\nperplexity on {tokens}; the page is {options.output}",
    )
