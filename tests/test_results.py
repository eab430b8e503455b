"""The figures of the pages and of the cards stand in files of benchmarks/results."""

import csv
import re
import statistics
from pathlib import Path

import pytest

from dualnet import zoo

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?![\d.])|\d+)(?:\.\d+)?")
# In a table every decimal but percentages; in a sentence what looks like a perplexity or BLEU.
IN_TABLE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\d.]| ?%| million| and [\d.]+ million)")
IN_TEXT = re.compile(r"(?<![\w.])(?:[3-9]|\d[\d,]*\d)\.\d\d(?![\d.]| ?%)")
EPOCHS = {"one": "1", "four": "4"}
COUNTINGS = (77_130 / 73_760, 86_191 / 82_430)  # from two markers a line to one: docs/papers.md
NAMING = ["docs/results.md", "docs/speed.md"]  # their sections name the files
# Others may also quote the results and the cards. rescoring.md has F1 of the papers alone.
QUOTING = ["README.md", "docs/claims.md", "docs/papers.md"] + [
    f"docs/guides/{path.name}"
    for path in sorted((ROOT / "docs" / "guides").glob("*.md"))
    if path.name != "rescoring.md"
]


def text_of(path, section):
    """Return a file; of one with epochs, the results, means over seeds, and epochs of `section`."""
    text = path.read_text("utf-8")
    if not text.startswith("group,run,epoch,"):
        return text
    rows = list(csv.DictReader(text.splitlines()))
    epochs = [EPOCHS.get(word, word) for word in re.findall(r"after (\w+)\s+epoch", section)]
    kept = [row["val_perplexity"] for row in rows if row["epoch"] in epochs]
    seeds = {}
    for row in (row for row in rows if not row["perplexity"]):
        kept += [value for name, value in row.items() if not name.startswith("published")]
        for split in ("valid_perplexity", "test_perplexity"):
            run = row["group"], row["run"].partition(" seed ")[0], row.get("evaluation"), split
            seeds.setdefault(run, []).append(float(row[split] or "nan"))
    return " ".join([*kept, *(str(statistics.geometric_mean(each)) for each in seeds.values())])


def values(figures):
    return [float(figure.replace(",", "")) for figure in figures]


def numbers_in(paths, section=""):
    return [n for path in paths for n in values(NUMBER.findall(text_of(path, section)))]


def missing(figures, known):
    """Return those of `figures` that no number of `known` rounds to."""
    found = []
    for figure in figures:
        value, decimals = float(figure.replace(",", "")), len(figure.partition(".")[2])
        if not any(abs(number - value) <= 0.5001 * 0.1**decimals for number in known):
            found.append(figure)
    return found


def sections_of(page):
    """Return the sections of a page, each with the files that it names and without code."""
    text = (ROOT / page).read_text("utf-8")
    text = re.sub(r"^```.*?^```|<!-- claims -->.*<!-- /claims -->", "", text, flags=re.M | re.S)
    for section in re.split(r"^(?=#{2,3} )", text, flags=re.M):
        named = re.findall(r"`(benchmarks/results/[\w.-]+)`(?!\s+at\s+commit)", section)
        paths = [ROOT / name for name in named]
        if "zoo/pretrained/NAME/results.json" in section:
            paths += (ROOT / "zoo" / "pretrained").glob("*/results.json")
        yield re.sub(r"`[^`\n]*`|\]\([^)]*\)|Python 3[\d., to]+", "", section), paths


@pytest.mark.parametrize("page", NAMING + QUOTING)
def test_the_figures_of_a_section_are_in_the_files_that_it_names(page):
    cards = [ROOT / "docs" / "results.md", *(ROOT / "zoo").glob("*.toml")]
    quoted = numbers_in(cards) if page in QUOTING else []
    for section, paths in sections_of(page):
        if "| case |" in section:  # its table is compared below
            continue
        rows = "\n".join(re.findall(r"^\|.*", section, flags=re.M))
        sentences = re.sub(r"^\|.*", "", section, flags=re.M)
        figures = IN_TABLE.findall(rows) + IN_TEXT.findall(sentences)
        known = numbers_in(paths, section)
        if page == "docs/papers.md":
            known += [n**power for n in known + values(figures) for power in COUNTINGS]
        assert missing(figures, quoted + known) == [], section.partition("\n")[0]


def test_the_table_of_speed_is_made_from_the_newest_files(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from peers import report

    assert report.summary(RESULTS) in (ROOT / "docs" / "speed.md").read_text("utf-8")


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
