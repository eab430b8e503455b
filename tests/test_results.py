"""The figures of docs/results.md and of the cards stand in files of benchmarks/results."""

import re
from pathlib import Path

import pytest

from dualnet import zoo

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?![\d.])|\d+)(?:\.\d+)?")
# In a table every decimal but percentages; in a sentence what looks like a perplexity or BLEU.
IN_TABLE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\d.]| ?%)")
IN_TEXT = re.compile(r"(?<![\w.])(?:[3-9]|\d[\d,]*\d)\.\d\d(?![\d.]| ?%)")
SECTIONS = re.split(r"^(?=#{2,3} )", (ROOT / "docs" / "results.md").read_text("utf-8"), flags=re.M)


def numbers_in(paths):
    return [
        float(number.replace(",", ""))
        for path in paths
        for number in NUMBER.findall(path.read_text("utf-8"))
    ]


def missing(figures, known):
    """Return those of `figures` that no number of `known` rounds to."""
    found = []
    for figure in figures:
        value, decimals = float(figure.replace(",", "")), len(figure.partition(".")[2])
        if not any(abs(number - value) <= 0.5001 * 0.1**decimals for number in known):
            found.append(figure)
    return found


def figures_in(section):
    text = re.sub(r"^```.*?^```", "", section, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    sentences = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    return IN_TABLE.findall("\n".join(rows)) + IN_TEXT.findall(sentences)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_the_figures_of_a_section_are_in_the_files_that_it_names(section):
    paths = [ROOT / name for name in re.findall(r"`(benchmarks/results/[\w.-]+)`", section)]
    if "zoo/pretrained/NAME/results.json" in section:
        paths += (ROOT / "zoo" / "pretrained").glob("*/results.json")
    assert missing(figures_in(section), numbers_in(paths)) == []


@pytest.mark.parametrize("name", zoo.list_models())
def test_what_a_card_says_was_measured_is_in_a_file(name):
    for corpus in zoo.card(name).corpora:
        for measured in zoo.card(name, corpus).measured:
            group = measured["command"].partition("--group ")[2].split(" ")[0]
            paths = [
                *RESULTS.glob("*-recorded.csv"),
                *RESULTS.glob("*-evaluations.csv"),
                *(
                    path
                    for path in RESULTS.glob("*.csv")
                    if f"\n{group}," in path.read_text("utf-8")
                ),
            ]
            pairs = [value for value in measured.values() if isinstance(value, list)]
            figures = [f"{value:.2f}" for pair in pairs for value in pair]
            assert missing(figures, numbers_in(paths)) == [], measured
