"""Writes the table of all models into README.md, as `dualnet list --markdown` prints it.

Usage: python benchmarks/model_table.py
"""

import re
from pathlib import Path

from dualnet import zoo
from dualnet.cli.model_table import model_table

BETWEEN = re.compile("(?<=<!-- models -->\n).*(?=<!-- /models -->)", re.DOTALL)


def main():
    readme = Path(__file__).parents[1] / "README.md"
    table = model_table(zoo.list_models())
    text, places = BETWEEN.subn(lambda _: f"{table}\n", readme.read_text("utf-8"))
    if places != 1:
        raise SystemExit(f"{readme} must have the lines <!-- models --> and <!-- /models --> once.")
    readme.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
