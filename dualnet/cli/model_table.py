"""A Markdown table of models, corpora and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dualnet import zoo
from dualnet._checks import is_number

COLUMNS = ("static", "finetuned", "samples", "cache", "dynamic")  # published results


def model_table(names: Iterable[str]) -> str:
    """Return a Markdown table with a row per corpus of each model in `names`."""
    columns = [key.replace("finetuned", "fine-tuned") for key in COLUMNS]
    head = ["model", "corpus", "parameters", *columns, "measured"]
    rows = [_row(zoo.card(name, corpus)) for name in names for corpus in zoo.card(name).corpora]
    rule = ["---", "---", "---:", *["---"] * (len(COLUMNS) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _row(card: zoo.Card) -> list[str]:
    results = {key: _pair(card.published.get(key, ())) for key in COLUMNS}
    results["static"] = results["static"] or translation_results(card)
    if "refinetuned" in card.published:
        results["finetuned"] += f"; until no gain {_pair(card.published['refinetuned'])}"
    measured = "; ".join(map(measured_result, card.measured)).replace("|", "\\|")
    return [f"`{card.name}`", card.corpus, f"{card.parameters:,}", *results.values(), measured]


def translation_results(card: zoo.Card) -> str:
    """Return the published BLEU or ROUGE of a model that translates, or ""."""
    if "bleu" in card.published:
        return f"BLEU {_pair(card.published['bleu'][1:])}"
    if "rouge_1" in card.published:
        figures = (card.published[name][1:] for name in ("rouge_1", "rouge_2", "rouge_l"))
        return f"ROUGE-1/2/L {'/'.join(map(_pair, figures))}"
    return ""


def measured_result(result: Mapping[str, Any]) -> str:
    """Return the settings, parameters and figures of one of our own results."""
    setup, figures = [], []
    for key, value in result.items():
        if isinstance(value, list) and all(map(is_number, value)):
            figures.append(f"{key.replace('_', ' ')} {_pair(value)}")
        elif key == "parameters" and is_number(value):
            setup.append(f"{value:,} parameters")
        elif key != "command":
            setup.append(str(value) if key == "settings" else f"{key} {value}")
    return ": ".join(", ".join(parts) for parts in (setup, figures) if parts)


def _pair(values: Iterable[float]) -> str:
    """Return "validation/test", with "-" for a missing perplexity."""
    return "/".join("-" if math.isnan(x) else f"{x:.2f}".removesuffix("0") for x in values)
