"""The command `minimal-pairs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dualnet.cli.command import argument
from dualnet.cli.console import Table, quietly, report
from dualnet.cli.options import OfRun, open_language_model
from dualnet.corpora.sentence_pairs import read_pairs

if TYPE_CHECKING:
    from dualnet.evaluation import Accuracy

WARNING_PAIRS = 1000  # that decide whether to warn of untokenised text


class Pairs(OfRun):
    """Options of `minimal-pairs`.

    Args:
        files: File with one JSON object per line: sentence_good, sentence_bad and, optionally,
            UID and field.
    """

    files: list[str] = argument(nargs="+", metavar="FILE")


def minimal_pairs(options: Pairs) -> None:
    """Compute how often a RUN prefers the acceptable one of two sentences (BLiMP).

    Examples:
        dualnet minimal-pairs runs/dual blimp/*.jsonl
    """
    run = open_language_model(options.run_folder)
    pairs = read_pairs(options.files)
    evaluation = quietly("dualnet.evaluation")
    from dualnet.text.plain_text import tokenisation_warning

    model = run.model()
    result = evaluation.minimal_pairs(model, pairs)
    words = [
        model.vocabulary.words[i]
        for pair in pairs[:WARNING_PAIRS]
        for i in model.vocabulary.encode(pair.good)
    ]
    if warning := tokenisation_warning(words, what="the sentences"):
        print(warning, file=sys.stderr)
    as_json = {
        **_as_json(result.overall),
        "mean_accuracy": result.mean_accuracy,
        "unknown": result.unknown,
        "UID": {name: _as_json(each) for name, each in result.by_uid.items()},
        "field": {name: _as_json(each) for name, each in result.by_field.items()},
        "model": model.name,
    }
    groups = {"UID": result.by_uid, "field": result.by_field, "overall": {"": result.overall}}
    rows = []
    for kind, group in groups.items():
        for name, each in group.items():
            low, high = each.interval
            interval = f"{100 * low:.1f} to {100 * high:.1f}"
            rows.append([kind, name, f"{each.accuracy:.1%}", interval, str(each.pairs),
                         str(each.ties)])  # fmt: skip
    table = Table(["", "", "accuracy", "95% interval", "pairs", "ties"], rows)
    overall = result.overall
    note = (f"\naccuracy {overall.accuracy:.1%} on {overall.pairs:,} pairs, mean of the UIDs "
            f"{result.mean_accuracy:.1%}; a tie counts as wrong")  # fmt: skip
    report(options, as_json, table, note)


def _as_json(result: Accuracy) -> dict[str, Any]:
    names = ("accuracy", "interval", "pairs", "correct", "ties")
    return {name: getattr(result, name) for name in names}
