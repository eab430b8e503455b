"""The command `analyse`: gates, experts, rank and learning curves of RUNs."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dualnet
from dualnet._checks import ArgumentError, check_count
from dualnet._fields import choice, field
from dualnet._files import check_output_file
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table, quietly
from dualnet.cli.options import (
    OfRuns,
    OfSplit,
    check_split,
    corpus_of,
    open_language_model,
)
from dualnet.corpora import SPLITS
from dualnet.runs import Run

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel


class Plotting(Options):
    """What all analyses have."""

    output: str | None = field(None, check_output_file, metavar="PNG")
    """Plot the result into this file."""


class Curves(Plotting, OfRuns):
    """Options of `analyse curves`."""


class Experts(Plotting, OfSplit):
    """Options of `analyse experts`."""

    run_folders: list[str] = argument(nargs=1, metavar="RUN")
    """RUN folder of a trained model, or the name of one that is shipped, or a .keras file."""


class Gates(Experts):
    """Options of `analyse gates`."""

    split: str | None = choice(None, SPLITS)
    """train, valid or test (default: train; a file that is not the RUN's own is read whole, unless
    --fractions divides it)."""

    words: list[str] = field(metavar="WORD")
    """The preceding words."""

    count: int = field(5, check_count)
    """Favoured words to show after each."""

    least_occurrences: int = 100
    """Leave out words that are rarer in the split."""


class Rank(OfRuns, Experts):
    """Options of `analyse rank`."""

    rows: int | None = field(None, check_count)
    """Use the first N contexts (default: all)."""

    tolerance: float | None = None
    """Count singular values up to X as zero (default: by float32 rounding)."""


def _opened(
    options: Experts, *, split: str = "test", translates: bool = False
) -> Iterator[tuple[Run, "LanguageModel", Any]]:
    """Yield each RUN, its model and the text to read, by default `split`.

    All RUNs are opened before Keras starts; they may be of models that translate if `translates`.
    """
    runs = [(Run.open if translates else open_language_model)(run) for run in options.run_folders]
    if options.corpus is not None and runs[0].translates:
        raise ArgumentError("--corpus", "is for language models. Received: a RUN that translates.")
    for run in runs:
        check_split(options, run)
    quietly("dualnet.analysis")
    for run in runs:
        model = run.model()
        yield run, model, corpus_of(options, run, model).split(options.split or split)


def _shown(
    options: Plotting,
    plot: Callable[[Any, str], None],
    analysis: Any,
    result: dict[str, Any],
    table: Table,
) -> Result:
    """Return the result of an analysis, and plot what it `found` into `--output`."""
    if options.output is None:
        return Result(result, table)
    plot(analysis, options.output)
    return Result({**result, "output": options.output}, table, f"\nplotted in {options.output}")


def gates(options: Gates) -> Result:
    """Show the words that the gate of a RUN favours after given words.

    Examples:
        dualnet analyse gates runs/gated --words great the
    """
    [(_, model, tokens)] = _opened(options, split="train")
    favoured = dualnet.analysis.favoured_words(
        model,
        options.words,
        corpus_tokens=tokens,
        count=options.count,
        least_occurrences=options.least_occurrences,
    )
    rows = [
        [_quoted(word), ", ".join(f"{_quoted(after)} {value:.3f}" for after, value in pairs)]
        for word, pairs in favoured.items()
    ]
    table = Table(["after", "favoured words and gate values"], rows)
    plot = dualnet.analysis.plot_favoured_words
    return _shown(options, plot, favoured, {"words": favoured}, table)


def _quoted(token: str) -> str:
    """Return a word as it is, and a token with white space, such as " the", in quotation marks."""
    return token if token.split() == [token] else repr(token)


def experts(options: Experts) -> Result:
    """Show how much the mixture of a RUN uses each of its experts.

    Examples:
        dualnet analyse experts runs/doc
    """
    [(_, model, tokens)] = _opened(options, translates=True)
    used = dualnet.analysis.expert_shares(model, tokens)
    shares = zip(used.shares, used.layers)
    rows = [[i, f"{share:.4f}", layer] for i, (share, layer) in enumerate(shares, start=1)]
    rows.append(["", f"{used.coefficient_of_variation:.4f}", "coefficient of variation"])
    table = Table(["expert", "share", "layer"], rows)
    return _shown(options, dualnet.analysis.plot_expert_shares, used, vars(used), table)


def rank(options: Rank) -> Result:
    """Compute the rank of the log-probabilities of RUNs.

    Examples:
        dualnet analyse rank runs/one runs/two
    """
    analysis = dualnet.analysis
    ranks = {
        str(run.path): analysis.rank(model, tokens, rows=options.rows, tolerance=options.tolerance)
        for run, model, tokens in _opened(options)
    }
    rows = [
        [*map("{:,}".format, (of_run.rank, *of_run.shape)), f"{of_run.tolerance:.3g}", run]
        for run, of_run in ranks.items()
    ]
    table = Table(["rank", "contexts", "words", "tolerance", "run"], rows)
    result = {"ranks": {run: vars(of_run) for run, of_run in ranks.items()}}
    return _shown(options, analysis.plot_singular_values, ranks, result, table)


def curves(options: Curves) -> Result:
    """Show the perplexity per epoch of RUNs.

    Examples:
        dualnet analyse curves runs/one runs/two --output curves.png
    """
    paths = [str(Run.open(run).path) for run in options.run_folders]
    quietly("dualnet.analysis")
    runs = dict(zip(paths, paths))
    figures = {
        split: dualnet.analysis.learning_curves(runs, split=key)
        for split, key in (("train", "train"), ("valid", "val"))
    }
    result = {run: {split: of[run].tolist() for split, of in figures.items()} for run in runs}
    rows = [
        [epoch, f"{train:.2f}", f"{valid:.2f}", run]
        for run, values in result.items()
        for epoch, (train, valid) in enumerate(zip(*values.values()), start=1)
    ]
    table = Table(["epoch", "train", "validation", "run"], rows)
    plot = functools.partial(dualnet.analysis.plot_learning_curves, split="both")
    return _shown(options, plot, runs, {"curves": result}, table)
