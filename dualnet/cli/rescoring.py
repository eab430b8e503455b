"""The command `rescore`: n-best lists in, the same lists or their best hypotheses out."""

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet._files import check_output_file, written_beside
from dualnet.cli.command import argument
from dualnet.cli.console import Result, Table, printable, quietly
from dualnet.cli.options import Setting
from dualnet.extras import rescoring
from dualnet.extras.rescoring import NBest
from dualnet.extras.rescoring.formats import FORMATS, keyed_lines, lines_of, write_nbest
from dualnet.extras.rescoring.lists import numbered, weighted
from dualnet.extras.rescoring.metrics import METRICS, metric_of
from dualnet.extras.rescoring.tuning import check_lists, statistics_of
from dualnet.requests import Rescoring
from dualnet.runs import Run


class Rescore(Setting, Rescoring):
    """Options of `rescore`."""

    run_folders: list[str] = argument(nargs="+", metavar="RUN")
    """RUN folders or .keras files: language models, or with --input models that translate."""

    nbest: str = argument(metavar="NBEST")
    """File of n-best lists."""

    format: str = choice("moses", FORMATS)
    """moses ('id ||| words ||| features ||| score'), kaldi ('utterance-n words'), jsonl (objects
    with id and text) or trees (in brackets, a blank line between sentences) (default: jsonl for a
    file with that suffix, else moses)."""

    scores: list[str] = field([], metavar="FILE")
    """Scores of Kaldi lists, 'utterance-n number': a feature for each FILE."""

    input: str | None = field(None, metavar="SOURCE")
    """The source texts, a line for each list."""

    feature_weights: str | None = field(None, metavar="FILE")
    """Weights of the features, as --save-weights writes them (default: 1 for each RUN, 0 for other
    features)."""

    best: bool = False
    """Write only the best hypothesis of each list."""

    output: str | None = field(None, check_output_file, metavar="FILE")
    """File to write (default: standard output)."""

    tune: str | None = field(None, metavar="REFERENCES")
    """Learn the weights that are best for these references (a line for each list)."""

    compare: str | None = field(None, metavar="REFERENCES")
    """Show what the weights are worth, measured on these references."""

    metric: str | None = choice(None, METRICS)
    """Metric of --tune and --compare: bleu, wer or f1 (default: f1 for trees, else bleu)."""

    save_weights: str | None = field(None, check_output_file, metavar="FILE")
    """Write the weights of --tune, as TOML."""

    seed: int | None = None
    """Random seed of --tune and of the intervals."""

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
            option = "--tune" if self.tune else "--compare"
            raise ArgumentError("--best", f"needs --output FILE beside the table of {option}.")
        if self.format == "kaldi" and self.output is None and not (self.best or table):
            raise ArgumentError(
                "--output", "must be given for lists of Kaldi, which are several files, or --best."
            )


def rescore(options: Rescore) -> Result | None:
    """Score the hypotheses of n-best lists with RUNs, and choose the best.

    Examples:
        dualnet rescore runs/dual dev.nbest --tune dev.txt --metric wer --save-weights weights.toml
        dualnet rescore runs/dual test.nbest --feature-weights weights.toml --best
    """
    runs = [*map(Run.open, options.run_folders)]
    names = _names(options, runs)
    request = Rescoring(**Rescoring.fields_of(options.arguments()))
    weights = rescoring.load_weights(options.feature_weights) if options.feature_weights else None
    lists = list(rescoring.read_nbest(options.nbest, format=options.format, scores=options.scores))
    # Mistakes are reported before anything is scored.
    if not lists:
        raise ArgumentError(
            "NBEST", f"must hold n-best lists. Received: {options.nbest!r}, which is empty."
        )
    check_lists(lists, names, weights)
    ids = [nbest.id for nbest in lists]
    sources = None
    if options.input is not None:
        format = "jsonl" if options.format == "trees" else options.format
        sources = keyed_lines(options.input, ids, format=format, name="--input")
    references = None
    if path := options.tune or options.compare:
        option = "--tune" if options.tune else "--compare"
        references = keyed_lines(path, ids, format=options.format, name=option)
        statistics_of(lists, references, metric_of(_metric(options)))
    print(printable(_note(options, lists, weights)), end="", file=sys.stderr)
    quietly("dualnet.extras.rescoring.rescoring")
    from dualnet.extras.rescoring.rescoring import rescored

    models = {name: run.model() for name, run in zip(names, runs)}
    scored = rescored(models, lists, request, weights, sources)
    if references is None:
        _write(options, scored)
        return None
    return _tune(options, list(scored), references, weights or dict.fromkeys(names, 1.0))


def _names(options: Rescore, runs: Sequence[Run]) -> list[str]:
    """Return the names of the features of the RUNs, those of their folders or files."""
    translators = [run for run in runs if run.translates]
    if translators and options.input is None:
        name = str(translators[0].path)
        raise ArgumentError("--input", f"must be given for {name!r}, which translates.")
    if options.input is not None and not translators:
        raise ArgumentError("--input", "needs a RUN that translates.")
    paths = [run.path.resolve() for run in runs]
    names = [path.stem if path.suffix == ".keras" else path.name for path in paths]
    for name in names:
        if not re.fullmatch(r"[^\s=|/]+", name):
            required = "must have a name without spaces, '=' and '|', since its feature bears it."
            raise ArgumentError("RUN", f"{required} Received: {name!r}.")
    return numbered(names)


def _note(options: Rescore, lists: list[NBest], weights: Mapping[str, float] | None) -> str:
    """Return a note about features that hypotheses lack."""
    lacking = set()
    for nbest in lists:
        rows = [hypothesis.numbers().keys() for hypothesis in nbest.hypotheses]
        lacking |= set().union(*rows) - set(rows[0]).intersection(*rows)
    if not options.tune:
        lacking &= {name for name, weight in (weights or {}).items() if weight}
    if not lacking:
        return ""
    counts = "0" if options.missing == "zero" else "the lowest of its list"
    note = f"Some hypotheses lack a feature, such as {min(lacking)!r}: it counts {counts}"
    return f"{note} (--missing {options.missing}).\n"


def _metric(options: Rescore) -> str:
    return options.metric or ("f1" if options.format == "trees" else "bleu")


def _tune(
    options: Rescore, lists: list[NBest], references: list[str], weights: Mapping[str, float]
) -> Result:
    """Learn weights, print what they are worth, and write them and the lists."""
    name, missing = _metric(options), options.missing
    settings: dict[str, Any] = {"metric": name, "missing": missing, "seed": options.seed or 0}
    if options.tune:
        weights = rescoring.tune(lists, references, **settings)
    figures = dataclasses.asdict(rescoring.compare(lists, references, weights, **settings))
    about = {"metric": name, "lists": len(lists), "missing": missing}
    if options.save_weights is not None:
        rescoring.save_weights(options.save_weights, weights, **about, **figures["rescored"])
    if options.output is not None:
        _write(options, (weighted(nbest, weights, missing) for nbest in lists))
    rows = [
        [label, f"{figure['value']:.2f}", f"{figure['low']:.2f} to {figure['high']:.2f}"]
        for label, figure in figures.items()
    ]
    features = [[name, f"{weight:.6g}"] for name, weight in weights.items()]
    table = Table([f"{len(lists):,} lists", name.upper(), "95% interval"], rows)
    result = {**about, **figures, "weights": weights}
    return Result(result, table, Table(["feature", "weight"], features))


def _write(options: Rescore, lists: Iterable[NBest]) -> None:
    """Write lists, or the best of each, into --output or to standard output."""
    if options.output is not None and not options.best:
        write_nbest(options.output, lists, format=options.format)
        return
    of_list = _best_lines if options.best else lines_of
    lines = (line for nbest in lists for line in of_list(nbest, options.format))
    if options.output is None:
        for line in lines:
            print(printable(line))
        return
    with written_beside(options.output) as temporary, temporary.open("wb") as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _best_lines(nbest: NBest, format: str) -> list[str]:
    if format == "trees":
        return [str(nbest.best.rest)]
    line = re.sub("\r\n|[\r\n]", " ", nbest.best.text)
    return [f"{nbest.id} {line}".rstrip(" ") if format == "kaldi" else line]
