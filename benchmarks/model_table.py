"""Writes the table of all models into docs/zoo.md, as `dualnet list --markdown` prints it.

Usage: python benchmarks/model_table.py
"""

import re
from pathlib import Path

from dualnet import zoo
from dualnet.cli.listing import model_table

BETWEEN = re.compile("(?<=<!-- models -->\n).*(?=<!-- /models -->)", re.DOTALL)


def main():
    page = Path(__file__).parents[1] / "docs" / "zoo.md"
    table = model_table(zoo.list_models())
    text, count = BETWEEN.subn(lambda _: f"{table}\n", page.read_text("utf-8"))
    if count != 1:
        raise SystemExit(f"{page} must have the lines <!-- models --> and <!-- /models --> once.")
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
