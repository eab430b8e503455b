"""The command `look`: a page that shows models reading a text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._files import check_output_file
from dualnet._settings import check_dynamic, check_reading, check_temperature
from dualnet.cli.commands import finite, number, texts_of
from dualnet.cli.console import print_table, quietly, settings_of
from dualnet.cli.early import open_language_model
from dualnet.cli.evaluating import check_known, settable
from dualnet.cli.option_types import run_path
from dualnet.runs import Run
from dualnet.runs.shipped import require_shipped


def look(options: argparse.Namespace) -> None:
    _find_runs(options)
    check_temperature(options.temperature)
    runs = [open_language_model(path) for path in options.run_folders]
    settings = _settings(options, runs)
    check_output_file("--output", options.output)
    for path in (*options.run_folders, options.file):
        if path and os.path.realpath(path) == os.path.realpath(options.output):
            raise ArgumentError(
                "--output", f"must not be a file that is read. Received: {options.output!r}."
            )
    lines = texts_of("--text", options)
    text = "\n".join(lines) if options.texts else "".join(lines)
    check_reading(text)
    looking = quietly("dualnet.looking")
    if options.rule == "rms":
        settings["statistics"] = runs[0].training_text()
    page = looking.look(options.run_folders, text, temperature=options.temperature, **settings)
    page.save(options.output)
    if page.segment is not None and page.units <= page.segment:
        print(f"The text has {page.units} tokens, and the first step comes after {page.segment}: "
              "nothing is learnt. Try --set sequence_length=5.",
              file=sys.stderr)  # fmt: skip
    if options.json:
        models = [{key: finite(value) for key, value in row.items()} for row in page.perplexities]
        print(json.dumps({"output": options.output, "tokens": page.units, "models": models}))
        return
    head = ["fixed weights", *["learning"] * options.adapt, "model"]
    rows = [
        [*(number(value) for key, value in row.items() if key != "name"), row["name"]]
        for row in page.perplexities
    ]
    print_table(head, rows)
    tokens = f"{page.units:,} token{'s' * (page.units != 1)}"
    print(f"\nperplexity on {tokens}; the page is {options.output}")


def _find_runs(options: argparse.Namespace) -> None:
    """Take the last RUN as FILE where it is none and there is no text; use the shipped models
    where no RUN is left."""
    *others, last = options.run_folders or [""]
    if options.texts is None and options.file is None and last:
        is_run = os.path.isdir(last) or last.endswith(".keras")
        if not is_run and (others or last == "-" or os.path.isfile(last)):
            options.run_folders, options.file = others, last
    options.run_folders = options.run_folders or [run_path(name) for name in require_shipped("RUN")]


def _settings(options: argparse.Namespace, runs: list[Run]) -> dict[str, Any]:
    """Return the arguments of `dualnet.look` about learning, checked."""
    settings = settings_of(options.set)
    if not options.adapt:
        for option, value in {"--rule": options.rule, "--set": options.set}.items():
            if value:
                raise ArgumentError(option, "needs --adapt.")
        return {}
    known = [name for name in settable(check_dynamic) if name not in ("temperature", "by_sentence")]
    check_known("--set", settings, known)
    for run in runs:
        check_dynamic(**run.learning(options.rule, settings))
    return {**settings, "adapt": True, "rule": options.rule}
