"""The command `analyse`: gates, experts, rank and learning curves of RUNs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from dualnet._checks import ArgumentError, check_choice
from dualnet.cli.console import print_table, quietly
from dualnet.cli.early import check_corpus, open_language_model
from dualnet.corpora import SPLITS
from dualnet.runs import Run


def analyse(options: argparse.Namespace) -> None:
    any_kind = options.analysis in ("curves", "experts")
    options.runs = [(Run.open if any_kind else open_language_model)(p) for p in options.run_folders]
    if options.analysis != "curves":
        check_choice("split", options.split, SPLITS)
        if options.corpus is not None and options.runs[0].translates:
            raise ArgumentError(
                "--corpus", "is for language models. Received: a RUN that translates."
            )
        check_corpus(options.corpus)
    analysis = quietly("dualnet.analysis")
    result, table = options.analysis_of(options, analysis)
    if options.output is not None:
        result["output"] = options.output
    if options.json:
        print(json.dumps(result))
        return
    print_table(*table)
    if options.output is not None:
        print(f"\nplotted in {options.output}")


Result = tuple[dict[str, Any], tuple[list[str], list[list[str]]]]  # JSON; head and rows of a table


def gates(options: argparse.Namespace, analysis: Any) -> Result:
    model, corpus = _read(options, options.runs[0])
    favoured = analysis.favoured_words(
        model,
        options.words,
        count=options.count,
        corpus_tokens=corpus.split(options.split),
        least_occurrences=options.least_occurrences,
    )
    if options.output is not None:
        analysis.plot_favoured_words(favoured, options.output)
    rows = [
        [_shown(word), ", ".join(f"{_shown(next_word)} {value:.3f}" for next_word, value in pairs)]
        for word, pairs in favoured.items()
    ]
    return {"words": favoured}, (["after", "favoured words and gate values"], rows)


def _shown(unit: str) -> str:
    """Return a word as it is, and a unit with white space, such as " the", in quotation marks."""
    return unit if unit.split() == [unit] else repr(unit)


def experts(options: argparse.Namespace, analysis: Any) -> Result:
    model, corpus = _read(options, options.runs[0])
    used = analysis.expert_shares(model, corpus.split(options.split))
    if options.output is not None:
        analysis.plot_expert_shares(used, options.output)
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
    return result, (["expert", "share", "layer"], rows)


def rank(options: argparse.Namespace, analysis: Any) -> Result:
    ranks = {}
    for opened in options.runs:
        run = str(opened.path)
        model, corpus = _read(options, opened)
        tokens = corpus.split(options.split)
        ranks[run] = analysis.rank(model, tokens, rows=options.rows, tolerance=options.tolerance)
    if options.output is not None:
        analysis.plot_singular_values(ranks, options.output)
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
    return {"ranks": result}, (["rank", "contexts", "words", "tolerance", "run"], rows)


def curves(options: argparse.Namespace, analysis: Any) -> Result:
    runs = {run: run for run in options.run_folders}
    perplexities = {
        split: analysis.learning_curves(runs, split=key)
        for split, key in (("train", "train"), ("valid", "val"))
    }
    if options.output is not None:
        analysis.plot_learning_curves(runs, options.output, split="both")
    result = {
        run: {split: perplexities[split][run].tolist() for split in perplexities} for run in runs
    }
    rows = [
        [str(epoch), f"{train:.2f}", f"{valid:.2f}", run]
        for run, values in result.items()
        for epoch, (train, valid) in enumerate(zip(*values.values()), start=1)
    ]
    return {"curves": result}, (["epoch", "train", "validation", "run"], rows)


ANALYSES: dict[str, tuple[Callable[..., Result], str]] = {
    "gates": (gates, "Show the words that the gate of a RUN favours after given words."),
    "experts": (experts, "Show how much the mixture of a RUN uses each of its experts."),
    "rank": (rank, "Compute the rank of the log-probabilities of RUNs."),
    "curves": (curves, "Show the perplexity per epoch of RUNs."),
}


def _read(options: argparse.Namespace, run: Run) -> tuple[Any, Any]:
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
