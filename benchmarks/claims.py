"""Writes the tables of docs/claims.md, and docs/images/claims.png: which claims of the papers hold.

Usage: python benchmarks/claims.py

Reads benchmarks/claims.toml, and what benchmarks/published.py measured: RESULTS, of which a later
file replaces the runs of an earlier one. A gain is the difference between the means over seeds of
ln perplexity or of a score such as BLEU on the test text, above 0 where the claim is right. The
standard deviation of a seed is pooled over all models of a corpus.
"""

import csv
import math
import re
import statistics
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

ROOT = Path(__file__).parents[1]
RESULTS = "*-miniature*.csv", "*-translation.csv"
BETWEEN = re.compile("(?<=<!-- claims -->\n).*(?=<!-- /claims -->)", re.DOTALL)
LEVEL = 0.05
SEEDS = 3  # of each model, to decide
HEAD = """\
| claim | where | published | compared | seeds | gain, 95 % interval | |
|---|---|---|---|---|---|---|"""


@dataclass(kw_only=True)
class Claim:
    """One claim of a paper, and what was found.

    Attributes:
        claim: The claim in our words.
        where: Where the paper makes it.
        published: The paper's figures, without and with what the claim is about.
        measure: "perplexity", compared by its logarithm, or a score.
        group: Group of benchmarks/published.toml that tries it.
        runs: Labels of its runs, without and with what the claim is about.
        evaluations: How each is evaluated; "" is static.
        why: Why it is not tried; else what was compared.
        gain, error: Difference of means and its standard error, which needs a repeated seed.
        freedom: Degrees of freedom of the error.
    """

    claim: str
    where: str
    published: tuple[str, ...] = ()
    measure: str = "perplexity"
    group: str = ""
    runs: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ("", "")
    why: str = ""
    seeds: tuple[int, ...] = ()
    gain: float | None = None
    error: float | None = None
    freedom: int = 0
    word: str = "not tried"

    @property
    def published_gain(self) -> float | None:
        scores = [score(float(value), self.measure) for value in self.published]
        return scores[1] - scores[0] if scores else None

    @property
    def distance_to_half(self) -> float:
        """How far the gain is below half of the paper's own; 0 or less if it is not."""
        return -math.inf if self.published_gain is None else self.published_gain / 2 - self.gain

    def p_value(self, distance: float) -> float:
        """Return the two-sided p-value of a `distance` from the gain."""
        return 2 * stats.t.sf(max(distance, 0) / self.error, self.freedom)

    def interval(self) -> tuple[float, float]:
        margin = stats.t.ppf(1 - LEVEL / 2, self.freedom) * self.error
        return self.gain - margin, self.gain + margin

    def seeds_to_decide(self, deviation: float, level: float) -> int:
        """Return the seeds of each model with which this gain would be told from 0 or from half."""
        distance = max(abs(self.gain), self.distance_to_half)
        margin = stats.t.isf(level / 2, self.freedom) * deviation
        return max(SEEDS, math.ceil(2 * (margin / distance) ** 2))


def score(value: float, measure: str) -> float:
    """Return what is higher the better."""
    return -math.log(value) if measure == "perplexity" else value


def read_runs(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the test results by group, label and evaluation, and then by seed."""
    runs: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(path for pattern in RESULTS for path in folder.glob(pattern)):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                label, _, seed = row["run"].rpartition(" seed ")
                if row["test_perplexity"]:
                    key = row["group"], label, row.get("evaluation", "")
                    runs.setdefault(key, {})[seed] = row
    return runs


def scores(runs: dict[str, Any], measure: str) -> list[float]:
    return [score(float(row[f"test_{measure.lower()}"]), measure) for row in runs.values()]


def pooled(samples: list[list[float]]) -> tuple[float, int]:
    """Return the standard deviation within `samples` and its degrees of freedom."""
    freedom = sum(len(sample) - 1 for sample in samples)
    squares = sum(statistics.pvariance(sample) * len(sample) for sample in samples)
    return math.sqrt(squares / freedom) if freedom else math.nan, freedom


def holm(p_values: list[float]) -> list[float]:
    """Return p-values corrected for their number."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(highest, 1.0)
    return corrected


def compare(claims: list[Claim], runs: dict, groups: dict[str, Any]) -> dict[str, tuple]:
    """Fill in what was found of `claims`; return deviation and degrees of freedom by corpus."""
    pools = {}
    for claim in claims:
        cases = [
            runs.get((claim.group, *case), {})
            for case in zip(claim.runs, claim.evaluations, strict=False)
        ]
        if not cases or not all(cases):
            claim.why = claim.why or f"not trained yet: `--group {claim.group}`"
            continue
        corpus = groups[claim.group]["corpus"]
        if corpus not in pools:
            pools[corpus] = pooled(
                [
                    scores(seeds, claim.measure)
                    for (group, _, evaluation), seeds in runs.items()
                    if groups[group]["corpus"] == corpus and not evaluation
                ]
            )
        deviation, claim.freedom = pools[corpus]
        without, gained = [scores(case, claim.measure) for case in cases]
        claim.seeds = len(without), len(gained)
        claim.gain = statistics.mean(gained) - statistics.mean(without)
        claim.error = deviation * math.sqrt(1 / len(without) + 1 / len(gained))
        claim.word, claim.why = "undecided", described(claim, runs)
    tested = [claim for claim in claims if min(claim.seeds, default=0) >= SEEDS]
    zero = holm([claim.p_value(abs(claim.gain)) for claim in tested])
    half = holm([claim.p_value(claim.distance_to_half) for claim in tested])
    for claim, from_zero, from_half in zip(tested, zero, half):
        if from_zero <= LEVEL and claim.gain > 0:
            claim.word = "**holds**"
        elif from_zero <= LEVEL or from_half <= LEVEL:
            claim.word = "**does not hold**"
        else:
            pool = pools[groups[claim.group]["corpus"]]
            number = claim.seeds_to_decide(pool[0], LEVEL / len(tested))
            claim.word = f"undecided: takes {number:,} seeds"
    return pools


def described(claim: Claim, runs: dict) -> str:
    """Return what was compared: runs, how they were evaluated, weights, epochs."""
    parts = []
    for label, evaluation in zip(claim.runs, claim.evaluations, strict=True):
        row = next(iter(runs[claim.group, label, ""].values()))
        details = [evaluation, f"{row['epoch']} epochs"]
        if row.get("parameters"):
            details.append(f"{int(row['parameters']):,} weights")
        parts.append(f"{label} ({', '.join(filter(None, details))})")
    return f"`{claim.group}`: {' and '.join(parts)}"


def line(claim: Claim) -> str:
    """Return the row of a claim in the page's table, a line."""
    published = " → ".join(claim.published)
    if claim.published and claim.measure == "perplexity":
        published += f" ({claim.published_gain:.3f})"
    gain = "" if claim.gain is None else f"{claim.gain:.3f}"
    if claim.freedom:
        gain += ", {:.3f} to {:.3f}".format(*claim.interval())
    seeds = " and ".join(map(str, claim.seeds))
    cells = claim.claim, claim.where, published, claim.why, seeds, gain, claim.word
    return f"| {' | '.join(cells)} |\n"


def plot(claims: list[Claim], path: Path) -> None:
    """Draw the gains with their intervals, and the papers' own."""
    import matplotlib.pyplot as plt

    rows = Counter(claim.measure for claim in claims)
    figure, axes = plt.subplots(
        len(rows),
        figsize=(9, 1.5 + 0.3 * len(claims)),
        height_ratios=[count + 1 for count in rows.values()],
        squeeze=False,
        layout="constrained",
    )
    for axis, measure in zip(axes.flat, rows, strict=True):
        panel = [claim for claim in claims if claim.measure == measure]
        for place, claim in enumerate(panel):
            axis.plot(claim.gain, place, "o", color="tab:blue")
            if claim.freedom:
                axis.plot(claim.interval(), [place, place], color="tab:blue")
            if claim.published_gain is not None:
                axis.plot(claim.published_gain, place, "d", color="tab:orange")
        axis.set_yticks(range(len(panel)), [claim.claim for claim in panel])
        axis.set_ylim(len(panel) - 0.5, -0.5)
        axis.axvline(0, color="grey")
        axis.set_xlabel(f"gain in {measure.replace('perplexity', 'ln perplexity')}")
    figure.suptitle("Gains here with 95 % intervals (blue) and in the papers (orange)")
    figure.savefig(path)


def tables(folder: Path) -> tuple[str, list[Claim]]:
    """Return the tables of the page and the claims that were tried, by the results in `folder`."""
    benchmarks = ROOT / "benchmarks"
    queue = tomllib.loads((benchmarks / "published.toml").read_text("utf-8"))["groups"]
    papers = tomllib.loads((benchmarks / "claims.toml").read_text("utf-8"))["papers"]
    for paper in papers:
        paper["claims"] = [Claim(**claim) for claim in paper["claims"]]
    claims = [claim for paper in papers for claim in paper["claims"]]
    groups = {group["name"]: group for group in queue}
    pools = compare(claims, read_runs(folder), groups)
    tried = [claim for claim in claims if claim.gain is not None]
    text = f"**{len(tried)} of {len(claims)} claims were tried**: see the last column.\n\n"
    for corpus, (spread, freedom) in pools.items():
        if freedom:
            text += (
                f"- `{corpus}`: a seed deviates by {spread:.4f}, {freedom} degrees of freedom.\n"
            )
    for name in dict.fromkeys(claim.group for claim in claims if claim.group):
        text += f"- `{name}`: {groups[name]['title']}.\n"
    for paper in papers:
        text += f"\n## {paper['title']}\n\n{paper['source']}\n\n{HEAD}\n"
        text += "".join(map(line, paper["claims"]))
    return text, tried


def main() -> None:
    page = ROOT / "docs" / "claims.md"
    text, tried = tables(ROOT / "benchmarks" / "results")
    page.write_text(BETWEEN.sub(lambda _: text, page.read_text("utf-8")), "utf-8")
    plot(tried, ROOT / "docs" / "images" / "claims.png")


if __name__ == "__main__":
    main()
