"""Writes the table of all models into docs/zoo.md, with the results of every card.

Usage: python benchmarks/model_table.py
"""

import re
from pathlib import Path

from dualnet import zoo
from dualnet.cli.listing import listed_figures, printed_pair, translation_results

COLUMNS = ("static", "finetuned", "samples", "cache", "dynamic")  # published results
BETWEEN = re.compile("(?<=<!-- models -->\n).*(?=<!-- /models -->)", re.DOTALL)


def model_table(names):
    """Return a Markdown table with a row per corpus of each model in `names`."""
    columns = [key.replace("finetuned", "fine-tuned") for key in COLUMNS]
    head = ["model", "corpus", "parameters", *columns, "measured"]
    rows = [row_of(zoo.card(name, corpus)) for name in names for corpus in zoo.card(name).corpora]
    rule = ["---", "---", "---:", *["---"] * (len(COLUMNS) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def row_of(card):
    results = {key: printed_pair(card, key) if key in card.published else "" for key in COLUMNS}
    results["static"] = results["static"] or translation_results(card)
    if "refinetuned" in card.published:
        results["finetuned"] += f"; {printed_pair(card, 'refinetuned')}"
    of_its_size = [result for result in card.measured if "parameters" not in result]
    statics = [result["static"] for result in of_its_size if "static" in result]
    measured = listed_figures(min(statics, default=()))  # the best on validation text
    return [f"`{card.name}`", card.corpus, f"{card.parameters:,}", *results.values(), measured]


def main():
    page = Path(__file__).parents[1] / "docs" / "zoo.md"
    table = model_table(zoo.list_models())
    page.write_text(BETWEEN.sub(lambda _: f"{table}\n", page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
