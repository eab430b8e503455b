"""The command `rescore`: n-best lists in, the same lists or their best hypotheses out."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet._files import check_output_file, written_beside
from dualnet._settings import check_dynamic
from dualnet.cli.console import print_table, printable, quietly, settings_of
from dualnet.cli.evaluating import check_known, settable
from dualnet.rescoring.formats import (
    FORMATS,
    check_name,
    keyed_lines,
    lines_of,
    read_nbest,
    write_nbest,
)
from dualnet.rescoring.lists import NBest, numbered, weighted, with_scores
from dualnet.rescoring.metrics import METRICS, Metric, metric_of
from dualnet.rescoring.tuning import check_features, compare, load_weights, save_weights, tune
from dualnet.runs import Run
from dualnet.text import Vocabulary


def rescore(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    runs = [Run.open(path) for path in options.run_folders]
    _check_options(options, runs, settings)
    names = _check_runs(options, runs)
    weights = load_weights(options.feature_weights) if options.feature_weights else None
    metric = metric_of(_metric_name(options)) if options.tune or options.compare else None
    ids, firsts = _check_lists(options, names, weights)
    sources = references = None
    if options.input is not None:
        format = "jsonl" if options.format == "trees" else options.format
        sources = keyed_lines(options.input, ids, format=format, name="--input")
    if metric is not None:
        option, path = ("--tune", options.tune) if options.tune else ("--compare", options.compare)
        references = keyed_lines(path, ids, format=options.format, name=option)
        for text, reference in zip(firsts, references):
            metric.statistics(text, reference)  # tells of a malformed one before hours of scoring
    quietly("dualnet.rescoring.rescoring")
    from dualnet.rescoring.rescoring import rescored

    if options.adapt:
        settings = runs[0].learning(options.rule, settings, by_text=True)
        if options.rule == "rms":
            settings["statistics"] = {
                name: run.training_text() for name, run in zip(names, runs) if not run.translates
            }
    models = {name: run.model() for name, run in zip(names, runs)}
    _check_words(options, models)
    lists = rescored(
        models,
        read_nbest(options.nbest, format=options.format, scores=options.scores),
        weights=weights,
        sources=sources,
        carry=options.carry,
        adapt=options.adapt,
        **settings,
    )
    if metric is None or references is None:
        _write(options, lists)
    else:
        weights = weights or dict.fromkeys(names, 1.0)
        _tune(options, list(lists), references, metric, weights)


def _check_words(options: argparse.Namespace, models: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` for a word that a model without `<unk>` cannot read."""
    tokenizers = {name: model.vocabulary for name, model in models.items()}
    closed = {
        name: words
        for name, words in tokenizers.items()
        if isinstance(words, Vocabulary) and words.unk_id is None
    }
    if not closed:
        return
    for nbest in read_nbest(options.nbest, format=options.format, scores=options.scores):
        for name, vocabulary in closed.items():
            for hypothesis in nbest.hypotheses:
                try:
                    vocabulary.encode(hypothesis.text)
                except ArgumentError as error:
                    raise ArgumentError(
                        "NBEST",
                        f"must hold words of {name!r}, which has no <unk>. Received: list "
                        f"{nbest.id!r}, {hypothesis.text!r}. Leave its hypotheses out, or train "
                        "a model with <unk>.",
                    ) from error


def _tune(
    options: argparse.Namespace,
    lists: Sequence[NBest],
    references: Sequence[str],
    metric: Metric,
    weights: Mapping[str, float],
) -> None:
    """Learn weights, print what they are worth, and write them and the lists."""
    seed = {} if options.seed is None else {"seed": options.seed}
    if options.tune:
        weights = tune(lists, references, metric=metric, **seed)
    figures = dataclasses.asdict(compare(lists, references, weights, metric=metric, **seed))
    name = _metric_name(options)
    if options.save_weights is not None:
        about = {"metric": name, "lists": len(lists), **figures["rescored"]}
        save_weights(options.save_weights, weights, **about)
    if options.output is not None:
        _write(options, (weighted(nbest, weights) for nbest in lists))
    if options.json:
        print(json.dumps({"metric": name, "lists": len(lists), **figures, "weights": weights}))
        return
    rows = [
        [what, f"{figure['value']:.2f}", f"{figure['low']:.2f} to {figure['high']:.2f}"]
        for what, figure in figures.items()
    ]
    print_table([f"{len(lists):,} lists", name.upper(), "95% interval"], rows)
    print()
    print_table(
        ["feature", "weight"], [[name, f"{weight:.6g}"] for name, weight in weights.items()]
    )


def _write(options: argparse.Namespace, lists: Iterable[NBest]) -> None:
    """Write lists, or the best of each, into --output or to standard output."""
    if options.output is not None and not options.best:
        write_nbest(options.output, lists, format=options.format)
        return
    lines: Iterator[str]
    if options.best:
        lines = (_best_line(nbest, options.format) for nbest in lists)
    else:
        lines = itertools.chain.from_iterable(lines_of(nbest, options.format) for nbest in lists)
    if options.output is None:
        for line in lines:
            print(printable(line))
        return
    with (
        written_beside(options.output) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(f"{line}\n" for line in lines)


def _best_line(nbest: NBest, format: str) -> str:
    best = nbest.best
    if format == "trees":
        return str(best.rest)
    line = " ".join(best.text.splitlines())
    return f"{nbest.id} {line}".rstrip(" ") if format == "kaldi" else line


def _check_options(
    options: argparse.Namespace, runs: Sequence[Run], settings: Mapping[str, Any]
) -> None:
    """Check what needs no file but those of --output and --save-weights."""
    check_choice("format", options.format, FORMATS)
    if options.metric is not None:
        check_choice("metric", options.metric, METRICS)
    if options.seed is not None:
        check_count("seed", options.seed, least=0)
    table = options.tune or options.compare
    needs: dict[str, tuple[Any, dict[str, Any]]] = {
        "--adapt": (options.adapt, {"--rule": options.rule, "--set": options.set}),
        "--tune": (options.tune, {"--save-weights": options.save_weights}),
        "--tune or --compare": (
            table,
            {"--metric": options.metric, "--seed": options.seed, "--json": options.json},
        ),
    }
    for needed, (there, values) in needs.items():
        for option, value in values.items():
            if value is not None and value is not False and value != [] and not there:
                raise ArgumentError(option, f"needs {needed}.")
    if options.tune and (options.compare or options.feature_weights):
        other = "--compare" if options.compare else "--feature-weights"
        raise ArgumentError("--tune", f"learns weights, and cannot be combined with {other}.")
    if options.best and table and options.output is None:
        raise ArgumentError("--best", "needs --output FILE beside the table of --tune.")
    if options.format == "kaldi" and options.output is None and not (options.best or table):
        raise ArgumentError(
            "--output", "must be given for lists of Kaldi, which are several files, or --best."
        )
    if options.adapt:
        not_by_text = ("temperature", "sequence_length", "by_sentence")
        known = [name for name in settable(check_dynamic) if name not in not_by_text]
        check_known("--set", settings, known)
        check_dynamic(**runs[0].learning(options.rule, settings, by_text=True))
    for option in ("output", "save_weights"):
        path = getattr(options, option)
        if path is not None:
            check_output_file(f"--{option.replace('_', '-')}", path)


def _metric_name(options: argparse.Namespace) -> str:
    return options.metric or ("f1" if options.format == "trees" else "bleu")


def _name(run: Run) -> str:
    """Return the name of the feature of a RUN: that of its folder or file."""
    path = run.path.resolve()
    return check_name(path.stem if path.suffix == ".keras" else path.name, "RUN")


def _check_runs(options: argparse.Namespace, runs: Sequence[Run]) -> list[str]:
    """Return the names of the features of the RUNs."""
    translators = [run for run in runs if run.translates]
    if translators and options.input is None:
        name = str(translators[0].path)
        raise ArgumentError("--input", f"must be given for {name!r}, which translates.")
    if options.input is not None and not translators and all(run.is_folder for run in runs):
        raise ArgumentError("--input", "is for models that translate. Received: no RUN of one.")
    for option in ("adapt", "carry"):
        if getattr(options, option) and len(translators) == len(runs):
            raise ArgumentError(f"--{option}", "needs a RUN of a language model.")
    return numbered(map(_name, runs))


def _check_lists(
    options: argparse.Namespace, names: Sequence[str], weights: Mapping[str, float] | None
) -> tuple[list[str | int], list[str]]:
    """Read all lists, to tell of mistakes before anything is scored.

    Returns:
        The id and the first text of each list.
    """
    ids, firsts = [], []
    for nbest in read_nbest(options.nbest, format=options.format, scores=options.scores):
        first = NBest(nbest.id, nbest.hypotheses[:1])
        first = with_scores(first, {name: iter([0.0]) for name in names})
        if weights is not None:
            check_features(weights, first)
        ids.append(nbest.id)
        firsts.append(nbest.hypotheses[0].text)
    if not ids:
        raise ArgumentError(
            "NBEST", f"must hold n-best lists. Received: {options.nbest!r}, which is empty."
        )
    return ids, firsts
