"""All models and corpora, and their results, as a Markdown table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dualnet import zoo

# What is published, in the columns of the table.
COLUMNS = {
    "static": "static",
    "finetuned": "fine-tuned",
    "samples": "samples",
    "cache": "cache",
    "dynamic": "dynamic",
}


def model_table(names: Iterable[str]) -> str:
    """Return a Markdown table with a row for each corpus of each model in `names`."""
    head = ["model", "corpus", "parameters", *COLUMNS.values(), "measured"]
    rows = [_row(zoo.card(name, corpus)) for name in names for corpus in zoo.card(name).corpora]
    rule = ["---", "---", "---:", *["---"] * (len(COLUMNS) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _row(card: zoo.Card) -> list[str]:
    cells = [f"`{card.name}`", card.corpus, f"{card.parameters:,}"]
    for key in COLUMNS:
        cells.append(_pair(card.published.get(key, ())))
    if "refinetuned" in card.published:
        cells[3 + list(COLUMNS).index("finetuned")] += (
            f"; until no gain {_pair(card.published['refinetuned'])}"
        )
    return [*cells, "; ".join(map(_measured, card.measured))]


def _measured(result: Mapping[str, Any]) -> str:
    """Return settings, parameters and perplexities of one of our own results."""
    parts = [result["settings"].replace("|", "\\|")] if "settings" in result else []
    if "parameters" in result:
        parts.append(f"{result['parameters']:,} parameters")
    found = [
        f"{key.replace('_', ' ')} {_pair(value)}"
        for key, value in result.items()
        if isinstance(value, list)
    ]
    return ": ".join(", ".join(each) for each in (parts, found) if each)


def _pair(values: Iterable[float]) -> str:
    """Return validation and test perplexity, "-" where there is none."""
    return "/".join("-" if math.isnan(x) else f"{x:.2f}".removesuffix("0") for x in values)
