"""The command `analyse`: gates, experts, rank and learning curves of RUNs."""

from __future__ import annotations

import json
from typing import Any

import dualnet
from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet.cli.command import Options, argument
from dualnet.cli.console import print_table, quietly
from dualnet.cli.options import OfCorpus, check_corpus, open_language_model
from dualnet.corpora import SPLITS
from dualnet.runs import Run


class Plotting(Options):
    """What all analyses have.

    Args:
        output: Plot the result into this file.
    """

    output: str | None = field(None, metavar="PNG")


class Curves(Plotting):
    """Options of `analyse curves`.

    Args:
        run_folders: RUN folders of trained models, or names of shipped ones.
    """

    run_folders: list[str] = argument(nargs="+", metavar="RUN")


class Experts(Plotting, OfCorpus):
    """Options of `analyse experts`.

    Args:
        run_folders: RUN folder of a trained model, or the name of one that is shipped, or a .keras
            file.
        split: train, valid or test.
    """

    run_folders: list[str] = argument(nargs=1, metavar="RUN")
    split: str = choice("test", SPLITS)


class Gates(Experts):
    """Options of `analyse gates`.

    Args:
        words: The preceding words.
        count: Favoured words to show after each.
        least_occurrences: Leave out words that are rarer in the split.
    """

    split: str = choice("train", SPLITS)
    words: list[str] = field(metavar="WORD")
    count: int = 5
    least_occurrences: int = 100


class Rank(Experts):
    """Options of `analyse rank`.

    Args:
        rows: Use the first N contexts (default: all).
        tolerance: Count singular values up to X as zero (default: by float32 rounding).
    """

    run_folders: list[str] = argument(nargs="+", metavar="RUN")
    rows: int | None = None
    tolerance: float | None = None


def _opened(options: Experts, *, translates: bool = False) -> list[Run]:
    """Open the RUNs, which may be of models that translate if `translates`, and start Keras."""
    runs = [(Run.open if translates else open_language_model)(run) for run in options.run_folders]
    if options.corpus is not None and runs[0].translates:
        raise ArgumentError("--corpus", "is for language models. Received: a RUN that translates.")
    check_corpus(options.corpus)
    quietly("dualnet.analysis")
    return runs


def _print(options: Plotting, result: dict[str, Any], head: list[str], rows: list[Any]) -> None:
    if options.output is not None:
        result["output"] = options.output
    if options.json:
        print(json.dumps(result))
        return
    print_table(head, rows)
    if options.output is not None:
        print(f"\nplotted in {options.output}")


def gates(options: Gates) -> None:
    """Show the words that the gate of a RUN favours after given words.

    Examples:
        dualnet analyse gates runs/gated --words great the
    """
    run, *_ = _opened(options)
    model, corpus = _read(options, run)
    favoured = dualnet.analysis.favoured_words(
        model,
        options.words,
        count=options.count,
        corpus_tokens=corpus.split(options.split),
        least_occurrences=options.least_occurrences,
    )
    if options.output is not None:
        dualnet.analysis.plot_favoured_words(favoured, options.output)
    rows = [
        [_shown(word), ", ".join(f"{_shown(next_word)} {value:.3f}" for next_word, value in pairs)]
        for word, pairs in favoured.items()
    ]
    _print(options, {"words": favoured}, ["after", "favoured words and gate values"], rows)


def _shown(unit: str) -> str:
    """Return a word as it is, and a unit with white space, such as " the", in quotation marks."""
    return unit if unit.split() == [unit] else repr(unit)


def experts(options: Experts) -> None:
    """Show how much the mixture of a RUN uses each of its experts.

    Examples:
        dualnet analyse experts runs/doc
    """
    run, *_ = _opened(options, translates=True)
    model, corpus = _read(options, run)
    used = dualnet.analysis.expert_shares(model, corpus.split(options.split))
    if options.output is not None:
        dualnet.analysis.plot_expert_shares(used, options.output)
    result = {
        "shares": used.shares.tolist(),
        "coefficient_of_variation": used.coefficient_of_variation,
        "layers": list(used.layers),
        "tokens": used.tokens,
    }
    rows = [
        [str(i), f"{share:.4f}", layer]
        for i, (share, layer) in enumerate(zip(used.shares, used.layers), start=1)
    ]
    rows.append(["", f"{used.coefficient_of_variation:.4f}", "coefficient of variation"])
    _print(options, result, ["expert", "share", "layer"], rows)


def rank(options: Rank) -> None:
    """Compute the rank of the log-probabilities of RUNs.

    Examples:
        dualnet analyse rank runs/one runs/two
    """
    ranks = {}
    for run in _opened(options):
        model, corpus = _read(options, run)
        tokens = corpus.split(options.split)
        ranks[str(run.path)] = dualnet.analysis.rank(
            model, tokens, rows=options.rows, tolerance=options.tolerance
        )
    if options.output is not None:
        dualnet.analysis.plot_singular_values(ranks, options.output)
    result = {
        run: {
            "rank": measured.rank,
            "tolerance": measured.tolerance,
            "shape": list(measured.shape),
            "singular_values": measured.singular_values.tolist(),
        }
        for run, measured in ranks.items()
    }
    rows = [
        [
            f"{measured.rank:,}",
            *(f"{size:,}" for size in measured.shape),
            f"{measured.tolerance:.3g}",
            run,
        ]
        for run, measured in ranks.items()
    ]
    _print(options, {"ranks": result}, ["rank", "contexts", "words", "tolerance", "run"], rows)


def curves(options: Curves) -> None:
    """Show the perplexity per epoch of RUNs.

    Examples:
        dualnet analyse curves runs/one runs/two --output curves.png
    """
    paths = [str(Run.open(run).path) for run in options.run_folders]
    quietly("dualnet.analysis")
    runs = {path: path for path in paths}
    perplexities = {
        split: dualnet.analysis.learning_curves(runs, split=key)
        for split, key in (("train", "train"), ("valid", "val"))
    }
    if options.output is not None:
        dualnet.analysis.plot_learning_curves(runs, options.output, split="both")
    result = {
        run: {split: perplexities[split][run].tolist() for split in perplexities} for run in runs
    }
    rows = [
        [str(epoch), f"{train:.2f}", f"{valid:.2f}", run]
        for run, values in result.items()
        for epoch, (train, valid) in enumerate(zip(*values.values()), start=1)
    ]
    _print(options, {"curves": result}, ["epoch", "train", "validation", "run"], rows)


def _read(options: Experts, run: Run) -> tuple[Any, Any]:
    """Return the model of a RUN, and the corpus to read: that of the RUN, or of --corpus."""
    from dualnet import corpora

    model = run.model()
    if options.corpus is None:
        if not run.is_folder:
            message = "must be given for a .keras file, which records no corpus."
            raise ArgumentError("--corpus", message)
        return model, run.corpus()
    words = model.vocabulary
    lowercase = words is not None and words.lowercase
    return model, corpora.load(options.corpus, lowercase=lowercase, vocabulary=words)
