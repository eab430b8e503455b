"""The command `rescore`: n-best lists in, the same lists or their best hypotheses out."""

import dataclasses
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._fields import choice, count, field
from dualnet._files import written_beside
from dualnet.cli.command import argument
from dualnet.cli.console import Result, Table, printable, quietly
from dualnet.cli.evaluating import little_gain
from dualnet.cli.options import Setting, check_file
from dualnet.extras import rescoring
from dualnet.extras.rescoring import BracketF1, Hypothesis, NBest
from dualnet.extras.rescoring.formats import FORMATS, check_name, keyed_lines, lines_of, write_nbest
from dualnet.extras.rescoring.lists import numbered, weighted
from dualnet.extras.rescoring.metrics import METRICS, metric_of
from dualnet.extras.rescoring.tuning import checked_lists, statistics_of
from dualnet.requests import MISSING, RULES, Rescoring
from dualnet.runs import Run
from dualnet.text import Vocabulary


class Rescore(Setting, Rescoring):
    """Options of `rescore`."""

    group = "output and weights"

    run_folders: list[str] = argument(nargs="+", metavar="RUN", group="")
    """RUN folders or .keras files: language models, or with --input models that translate."""

    nbest: str = argument(metavar="NBEST", group="")
    """File of n-best lists."""

    format: str = choice("moses", FORMATS, group="")
    """moses ('id ||| words ||| features ||| score'), kaldi ('utterance-n words'), jsonl (objects
    with id and text) or trees (in brackets, a blank line between sentences) (default: jsonl for a
    file with that suffix, else moses)."""

    scores: list[str] = field([], metavar="FILE", group="")
    """Scores of Kaldi lists, 'utterance-n number': a feature for each FILE."""

    input: str | None = field(None, metavar="SOURCE", group="")
    """The source texts, a line for each list."""

    feature_weights: str | None = field(None, metavar="FILE", group="")
    """Weights of the features, as --save-weights writes them (default: 1 for each RUN, 0 for other
    features)."""

    best: bool = False
    """Write only the best hypothesis of each list."""

    output: str | None = field(None, check_file, metavar="FILE")
    """File to write (default: standard output)."""

    tune: str | None = field(None, metavar="REFERENCES")
    """Learn the weights that are best for these references (a line for each list)."""

    compare: str | None = field(None, metavar="REFERENCES")
    """Show what the weights are worth, measured on these references."""

    metric: str | None = choice(None, METRICS)
    """Metric of --tune and --compare: bleu, wer or f1 (default: f1 for trees, else bleu)."""

    save_weights: str | None = field(None, check_file, metavar="FILE")
    """Write the weights of --tune, as TOML."""

    seed: int | None = count(None)
    """Random seed of --tune and of the intervals."""

    missing: str = choice("zero", MISSING, group="")
    """What a feature counts in a hypothesis that lacks it: zero, which is more than any
    log-probability, or the lowest of its list. A note says which, where one is missing."""

    carry: bool = field(False, group="state and learning")
    """Read each list in the state that the best hypothesis of the list before left."""

    adapt: bool = field(False, group="state and learning")
    """Learn from the best hypothesis of a list before scoring the next list."""

    rule: str | None = choice(None, RULES, group="state and learning")
    """Update rule of --adapt: nadam, sgd or rms (default: nadam, or that of the first RUN if it is
    shipped)."""

    needs = {"tune": ["save_weights"]}
    excludes = {"compare": ["tune"], "feature_weights": ["tune"]}

    def check(self) -> None:
        super().check()
        if self.format == "moses" and self.nbest.lower().endswith(".jsonl"):
            object.__setattr__(self, "format", "jsonl")
        table = self.tune or self.compare
        changed = self.changed()
        for name in ("metric", "seed", "json") if not table else ():
            if name in changed:
                raise ArgumentError(f"--{name}", "needs --tune or --compare.")
        if self.best and table and self.output is None:
            raise ArgumentError("--best", "needs --output FILE beside the table of --tune.")
        if self.format == "kaldi" and self.output is None and not (self.best or table):
            required = "must be given for lists of Kaldi, which are several files, or --best."
            raise ArgumentError("--output", required)


def rescore(options: Rescore) -> Result | None:
    """Score the hypotheses of n-best lists with RUNs, and choose the best.

    Examples:
        dualnet rescore runs/dual dev.nbest --tune dev.txt --metric wer --save-weights weights.toml
        dualnet rescore runs/dual test.nbest --feature-weights weights.toml --best
    """
    runs = [Run.open(path) for path in options.run_folders]
    request = Rescoring(carry=options.carry, missing=options.missing)
    if options.adapt:
        learning = runs[0].learning(options.rule, options.learning(), by_text=True)
        learnt = Rescoring.fields_of({**learning, "adapt_weights": options.adapt_weights})
        request = dataclasses.replace(request, adapt=True, **learnt)
    names = _check_runs(options, runs)
    weights = rescoring.load_weights(options.feature_weights) if options.feature_weights else None
    metric = metric_of(_metric_name(options)) if options.tune or options.compare else None
    ids, note = _check_lists(options, names, weights)
    sources = references = None
    if options.input is not None:
        format = "jsonl" if options.format == "trees" else options.format
        sources = keyed_lines(options.input, ids, format=format, name="--input")
    if metric is not None:
        option, path = "--tune" if options.tune else "--compare", options.tune or options.compare
        references = keyed_lines(path or "", ids, format=options.format, name=option)
        for nbest, reference in zip(_lists(options), references):
            # Tells of malformed ones before hours of scoring. Trees alone can differ in words.
            most = None if isinstance(metric, BracketF1) else 1
            statistics_of(NBest(nbest.id, nbest.hypotheses[:most]), reference, metric)
    print(printable(note), end="", file=sys.stderr)
    quietly("dualnet.extras.rescoring.rescoring")
    from dualnet.extras.rescoring.rescoring import rescored

    readers = {name: run for name, run in zip(names, runs) if not run.translates}
    statistics = None
    if options.rule == "rms":
        statistics = {name: run.training_text() for name, run in readers.items()}
    models = {name: run.model() for name, run in zip(names, runs)}
    _check_words(options, models)
    lists = rescored(models, _lists(options), request, weights, sources, statistics)
    adapted: list[Hypothesis] = []  # the best one of each list, with its features
    if options.adapt:
        lists = _with_best(lists, adapted)
    result = None
    if metric is None or references is None:
        _write(options, lists)
    else:
        result = _tune(options, list(lists), references, weights or dict.fromkeys(names, 1.0))
    if adapted:
        models = {name: models[name] for name in readers}
        texts = [NBest(i, (Hypothesis(best.text),)) for i, best in enumerate(adapted)]
        fixed = rescored(models, texts, Rescoring(carry=options.carry))
        pairs = [(one.best.numbers(), best.numbers()) for one, best in zip(fixed, adapted)]
        for name, model in models.items():
            tokens = sum(len(model.vocabulary.encode(best.text)) + 1 for best in adapted)
            before, after = (sum(numbers[name] for numbers in side) for side in zip(*pairs))
            if line := little_gain(1 - math.exp(min(0, before - after) / tokens)):
                print(f"{name}: {line}", file=sys.stderr)
    return result


def _with_best(lists: Iterable[NBest], best: list[Hypothesis]) -> Iterator[NBest]:
    """Yield `lists`, and add the best hypothesis of each to `best`."""
    for nbest in lists:
        best.append(nbest.best)
        yield nbest


def _check_words(options: Rescore, models: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` for a word that a model without `<unk>` cannot read."""
    closed = {
        name: vocabulary
        for name, model in models.items()
        for vocabulary in [model.vocabulary]
        if isinstance(vocabulary, Vocabulary) and vocabulary.unk_id is None
    }
    for nbest in _lists(options) if closed else ():
        for (name, vocabulary), item in itertools.product(closed.items(), nbest.hypotheses):
            try:
                vocabulary.encode(item.text)
            except ArgumentError as error:
                required = f"must hold words of {name!r}, which has no <unk>."
                received = f"Received: list {nbest.id!r}, {item.text!r}."
                way_out = "Leave its hypotheses out, or train a model with <unk>."
                raise ArgumentError("NBEST", f"{required} {received} {way_out}") from error


def _tune(
    options: Rescore, lists: list[NBest], references: list[str], weights: Mapping[str, float]
) -> Result:
    """Learn weights, print what they are worth, and write them and the lists."""
    name = _metric_name(options)
    settings: dict[str, Any] = {"metric": name, "missing": options.missing}
    if options.seed is not None:
        settings["seed"] = options.seed
    if options.tune:
        weights = rescoring.tune(lists, references, **settings)
    figures = dataclasses.asdict(rescoring.compare(lists, references, weights, **settings))
    about = {"metric": name, "lists": len(lists), "missing": options.missing}
    if options.save_weights is not None:
        rescoring.save_weights(options.save_weights, weights, **about, **figures["rescored"])
    if options.output is not None:
        _write(options, (weighted(nbest, weights, options.missing) for nbest in lists))
    result = {**about, **figures, "weights": weights}
    rows = [
        [what, f"{figure['value']:.2f}", f"{figure['low']:.2f} to {figure['high']:.2f}"]
        for what, figure in figures.items()
    ]
    features = [[name, f"{weight:.6g}"] for name, weight in weights.items()]
    table = Table([f"{len(lists):,} lists", name.upper(), "95% interval"], rows)
    return Result(result, table, Table(["feature", "weight"], features))


def _write(options: Rescore, lists: Iterable[NBest]) -> None:
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
    with written_beside(options.output) as temporary, temporary.open("wb") as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _best_line(nbest: NBest, format: str) -> str:
    best = nbest.best
    if format == "trees":
        return str(best.rest)
    line = re.sub("\r\n|[\r\n]", " ", best.text)
    return f"{nbest.id} {line}".rstrip(" ") if format == "kaldi" else line


def _metric_name(options: Rescore) -> str:
    return options.metric or ("f1" if options.format == "trees" else "bleu")


def _name(run: Run) -> str:
    """Return the name of the feature of a RUN: that of its folder or file."""
    path = run.path.resolve()
    return check_name(path.stem if path.suffix == ".keras" else path.name, argument="RUN")


def _check_runs(options: Rescore, runs: Sequence[Run]) -> list[str]:
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


def _lists(options: Rescore) -> Iterator[NBest]:
    return rescoring.read_nbest(options.nbest, format=options.format, scores=options.scores)


def _check_lists(
    options: Rescore, names: Sequence[str], weights: Mapping[str, float] | None
) -> tuple[list[str | int], str]:
    """Read all lists, to tell of mistakes before anything is scored.

    Returns:
        The id of each list, and what to say of features that hypotheses lack.
    """
    writes = not options.best and (options.output or not (options.tune or options.compare))
    ids: list[str | int] = []
    lacking: set[str] = set()
    for nbest in checked_lists(_lists(options), names, weights):
        ids.append(nbest.id)
        rows = [hypothesis.numbers() for hypothesis in nbest.hypotheses]
        lacking |= set().union(*rows) - set(rows[0]).intersection(*rows)
        for _ in lines_of(nbest, options.format) if writes else ():
            pass
    if not ids:
        received = f"Received: {options.nbest!r}, which is empty."
        raise ArgumentError("NBEST", f"must hold n-best lists. {received}")
    if not options.tune:
        lacking &= {name for name, weight in (weights or {}).items() if weight}
    if not lacking:
        return ids, ""
    counts = "0" if options.missing == "zero" else "the lowest of its list"
    note = f"Some hypotheses lack a feature, such as {min(lacking)!r}: it counts {counts}"
    return ids, f"{note} (--missing {options.missing}).\n"
