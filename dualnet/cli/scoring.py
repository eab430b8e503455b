"""The command `score`, and its format `surprisal`: a row for each token or word."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import textwrap
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, check_choice
from dualnet._settings import check_dynamic, check_temperature
from dualnet.cli.commands import finite, number, texts_of
from dualnet.cli.console import comparison, print_table, printable, quietly, settings_of
from dualnet.cli.early import open_language_model
from dualnet.cli.evaluating import check_known, published_rule, settable
from dualnet.runs import Run


def score(options: argparse.Namespace) -> None:
    check_temperature(options.temperature)
    check_format(options)
    texts = texts_of("--text", options)
    if options.format == "surprisal":
        print_surprisal(options, texts)
        return
    run = open_language_model(options.run_folder)
    quietly("dualnet.evaluation")
    from dualnet.evaluation import comparable, score
    from dualnet.evaluation.arguments import perplexity_of
    from dualnet.text.tokenisation import tokenisation_warning

    model = run.model()
    scores = score(model, texts, temperature=options.temperature)
    tokens = sum(score.tokens for score in scores)
    losses = [-value for score in scores for value in score.log_probabilities.tolist()]
    perplexity = perplexity_of(losses)
    ids = [model.vocabulary.encode(text) for text in texts]
    figures = comparable(model.vocabulary, ids, sum(losses)).figures()
    words = [word for score in scores for word in score.words]
    if warning := tokenisation_warning(words, what="the text"):
        print(warning, file=sys.stderr)
    of_words = model.vocabulary.kind == "words"  # then the tokens are the words
    if options.json:
        fields = ["log_probabilities"]
        fields += [] if of_words else ["whole_words", "whole_word_log_probabilities"]
        result = {
            "perplexity": finite(perplexity),
            "tokens": tokens,
            "texts": [
                {
                    "perplexity": finite(score.perplexity),
                    "tokens": score.tokens,
                    "words": score.words,
                    **{name: _listed(getattr(score, name)) for name in fields},
                }
                for score in scores
            ],
            "temperature": options.temperature,
            **figures,
        }
        print(json.dumps(result, allow_nan=False))
        return
    rows = [
        [number(score.perplexity), f"{score.tokens:,}",
         " ".join(score.words if of_words else score.whole_words)]
        for score in scores
    ]  # fmt: skip
    columns = shutil.get_terminal_size().columns
    print_table(["perplexity", "tokens", "text"], rows, columns=columns)
    print(f"\nperplexity {number(perplexity)} on {tokens:,} tokens of "
          f"{len(scores):,} text{'s' * (len(scores) != 1)}")  # fmt: skip
    print(textwrap.fill(comparison(figures), max(columns, 20)))


def check_format(options: argparse.Namespace) -> None:
    """Refuse options of `score` that do not go together."""
    if options.format is not None:
        check_choice("format", options.format, ["surprisal"])
    needs = {
        "--format surprisal": (
            options.format,
            {"--entropy": options.entropy, "--words": options.words, "--adapt": options.adapt},
        ),
        "--adapt": (options.adapt, {"--rule": options.rule, "--set": options.set}),
    }
    for needed, (there, values) in needs.items():
        for option, value in values.items():
            if value and not there:
                raise ArgumentError(option, f"needs {needed}.")


def print_surprisal(options: argparse.Namespace, texts: list[str]) -> None:
    """Print the surprisal of `texts`: rows with tabs between, as they come, or JSON."""
    settings = settings_of(options.set)
    not_by_text = ("temperature", "sequence_length", "by_sentence")
    known = [name for name in settable(check_dynamic) if name not in not_by_text]
    check_known("--set", settings, known)
    run = open_language_model(options.run_folder)
    if options.rule != "published":
        check_dynamic(**run.learning(options.rule, settings, by_text=True))
    quietly("dualnet.adaptation")
    from dualnet.adaptation.surprisals import records

    names = ("entropy", "words", "temperature", "adapt")
    if options.adapt:
        settings = _rule(options.rule, run, settings)
    model = run.model()
    for name in names:
        settings[name] = getattr(options, name)
    rows = records(model, texts, **settings)
    if options.json:
        print(json.dumps([dict(zip(row, map(finite, row.values()))) for row in rows]))
        return
    first = next(rows, None)  # which is computed, and errors raised, before anything is printed
    print("sentence_id", "token_id", "token", "surprisal", *["entropy"] * options.entropy, sep="\t")
    for row in itertools.chain([first] if first else [], rows):
        print(*map(_cell, row.values()), sep="\t")


def _rule(rule: str | None, run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that --rule stands for, with those in `settings`."""
    if rule == "published":
        settings = {**published_rule(run, run.trained_on.get("name", "")), **settings}
        settings.pop("sequence_length", None)
    else:
        settings = run.learning(rule, settings, by_text=True)
    if settings["rule"] == "rms":
        settings["statistics"] = run.training_text()
    return settings


def _cell(value: Any) -> str:
    """Return a value as a cell of a row: 7 digits; control characters of a token escaped."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")


def _listed(values: Any) -> list[Any]:
    """Return an array, or strings, as a list for JSON."""
    return list(map(finite, values.tolist())) if isinstance(values, np.ndarray) else list(values)
