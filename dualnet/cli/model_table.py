"""A Markdown table of models, corpora and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dualnet import zoo

# Published results by column.
COLUMNS = {
    "static": "static",
    "finetuned": "fine-tuned",
    "samples": "samples",
    "cache": "cache",
    "dynamic": "dynamic",
}


def model_table(names: Iterable[str]) -> str:
    """Return a Markdown table with a row per corpus of each model in `names`."""
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
    """Return the settings, parameters and perplexities of one of our own results."""
    setup = [result["settings"].replace("|", "\\|")] if "settings" in result else []
    if "parameters" in result:
        setup.append(f"{result['parameters']:,} parameters")
    perplexities = [
        f"{key.replace('_', ' ')} {_pair(value)}"
        for key, value in result.items()
        if isinstance(value, list)
    ]
    return ": ".join(", ".join(parts) for parts in (setup, perplexities) if parts)


def _pair(values: Iterable[float]) -> str:
    """Return "validation/test", with "-" for a missing perplexity."""
    return "/".join("-" if math.isnan(x) else f"{x:.2f}".removesuffix("0") for x in values)
