"""Writes the tables of docs/claims.md, and docs/images/claims.png: which claims of the papers hold.

Usage: python benchmarks/claims.py

Reads benchmarks/claims.toml, and what benchmarks/published.py measured: RESULTS, of which a later
file replaces the runs of an earlier one. A gain is the difference between the means over seeds of
ln perplexity or of a score such as BLEU on the test text, above 0 where the claim is right. The
standard deviation of a seed is pooled over the models in rows of a corpus that is read in the same
way, without gates and ensembles, which have the weights of the models that they stand on. A model
that deviates more than the others is set aside, and has its own.
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
ASIDE = 0.01  # level at which a model is set aside
STATIC = "", "experts"  # evaluations of a model as it was trained, the second of its experts alone
SEEDS, MOST_SEEDS = 3, 9999  # of each model, to decide
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
        measure: "perplexity", compared by its logarithm, "variation", the coefficient of it in the
            use of experts, or a score.
        group: Group of benchmarks/published.toml that tries it.
        runs: Labels of its runs, without and with what the claim is about.
        evaluations: How each is evaluated; "" is static.
        why: Why it is not tried; else what was compared.
        gain: Difference of means.
        deviations: How a seed of each deviates.
        freedom: The degrees of freedom of that, the fewer of both, 0 if no seed is repeated.
        paired: Interval of the gain by its differences seed by seed, if both share weights.
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
    deviations: tuple[float, ...] = ()
    freedom: int = 0
    paired: tuple[float, float] | None = None
    word: str = "not tried"

    @property
    def published_gain(self) -> float | None:
        scores = [score(float(value), self.measure) for value in self.published]
        return scores[1] - scores[0] if scores else None

    @property
    def distance_to_half(self) -> float:
        """How far the gain is below half of the paper's own; 0 or less if it is not."""
        return -math.inf if self.published_gain is None else self.published_gain / 2 - self.gain

    @property
    def error(self) -> float:
        """The standard error of the gain."""
        return math.hypot(*(d / math.sqrt(n) for d, n in zip(self.deviations, self.seeds)))

    def p_value(self, distance: float) -> float:
        """Return the two-sided p-value of a `distance` from the gain."""
        return 2 * stats.t.sf(max(distance, 0) / self.error, self.freedom)

    def interval(self) -> tuple[float, float]:
        margin = stats.t.ppf(1 - LEVEL / 2, self.freedom) * self.error
        return self.gain - margin, self.gain + margin

    def seeds_to_decide(self, level: float) -> int:
        """Return the seeds of each model with which this gain would be told from 0 or from half."""
        distance = max(abs(self.gain), self.distance_to_half)
        for number in range(max(SEEDS, min(self.seeds) + 1), MOST_SEEDS):
            freedom = self.freedom + 2 * number - sum(self.seeds)  # they tell of the deviation, too
            if len({*self.deviations}) > 1:  # of a model that was set aside, its own alone
                freedom = number - 1
            error = math.hypot(*self.deviations) / math.sqrt(number)
            if stats.t.isf(level / 2, freedom) * error <= distance:
                return number
        return MOST_SEEDS


def score(value: float, measure: str) -> float:
    """Return what is higher the better."""
    if measure == "variation":
        return -value
    return -math.log(value) if measure == "perplexity" else value


def name_of(measure: str) -> str:
    """Return what a gain is measured in."""
    return {"perplexity": "ln perplexity", "variation": "√β"}.get(measure, measure)


def read_runs(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the test results by group, label and evaluation, and then by seed."""
    runs: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(path for pattern in RESULTS for path in folder.glob(pattern)):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                label, _, seed = row["run"].rpartition(" seed ")
                evaluation = row.get("evaluation", "")
                if row["test_perplexity"] or evaluation:
                    key = row["group"], label, evaluation
                    runs.setdefault(key, {})[seed] = row
    return runs


def scores(runs: dict[str, Any], measure: str) -> list[float]:
    values = (row.get(f"test_{measure.lower()}") for row in runs.values())
    return [score(float(value), measure) for value in values if value]


def pooled(samples: list[list[float]]) -> tuple[float, int]:
    """Return the standard deviation within `samples` and its degrees of freedom."""
    freedom = sum(len(sample) - 1 for sample in samples)
    squares = sum(statistics.pvariance(sample) * len(sample) for sample in samples)
    return math.sqrt(squares / freedom) if freedom else math.nan, freedom


def alike(samples: dict[Any, list[float]]) -> dict[Any, list[float]]:
    """Return `samples` without those that deviate more than the others.

    The one that deviates most is set aside, and then the next, as long as an F test tells it from
    the rest after correction for their number: Cochran's test, for samples of unequal size.
    """

    def p_value(key: Any) -> float:
        others = [sample for name, sample in samples.items() if name != key]
        (own, few), (rest, many) = pooled([samples[key]]), pooled(others)
        return stats.f.sf((own / rest) ** 2, few, many) if few and rest else 1.0

    widest = min(samples, key=p_value)
    if p_value(widest) * len(samples) <= ASIDE:
        return alike({key: sample for key, sample in samples.items() if key != widest})
    return samples


def paired_interval(cases: list[dict[str, Any]], measure: str) -> tuple[float, float] | None:
    """Return the interval of the gain by the differences of equal seeds, if there are two."""
    seeds = sorted(cases[0].keys() & cases[1].keys())
    without, gained = [scores({s: case[s] for s in seeds}, measure) for case in cases]
    if len(seeds) < 2:
        return None
    return tuple(stats.ttest_rel(gained, without).confidence_interval(1 - LEVEL))


def holm(p_values: list[float]) -> list[float]:
    """Return p-values corrected for their number."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, (len(p_values) - rank) * p_values[index])
        corrected[index] = min(highest, 1.0)
    return corrected


def text_of(group: dict[str, Any]) -> str:
    """Return the corpus of a group and how it is read."""
    by_sentence = group["settings"].get("batching") == "sentences"
    return group["corpus"] + " by sentence" * by_sentence


def compare(claims: list[Claim], runs: dict, groups: dict[str, Any]) -> dict[tuple, list]:
    """Fill in what was found of `claims`; return what is pooled by text and measure."""
    pools = {}
    below = {  # the labels of the runs that a run stands on
        (name, run.get("label")): run["over"]
        for name, group in groups.items()
        for run in group["runs"]
        if "over" in run
    }
    compared = {(claim.group, label) for claim in claims for label in claim.runs} - below.keys()
    for claim in claims:
        cases = [runs.get((claim.group, *case), {}) for case in zip(claim.runs, claim.evaluations)]
        if not cases or not all(cases):
            claim.why = claim.why or f"not run yet: `--group {claim.group}`"
            continue
        text = text_of(groups[claim.group])
        pools[text, claim.measure] = samples = {
            (group, label): sample
            for (group, label, evaluation), seeds in runs.items()
            if text_of(groups[group]) == text
            if evaluation in STATIC and (group, label) in compared
            if (sample := scores(seeds, claim.measure))
        }
        kept = alike(samples)
        without, gained = sides = [scores(case, claim.measure) for case in cases]
        members = [below.get((claim.group, label), ()) for label in claim.runs]
        first, second = parts = [{label, *own} for label, own in zip(claim.runs, members)]
        aside = {label for group, label in samples.keys() - kept if group == claim.group}
        claim.seeds = len(without), len(gained)
        claim.gain = statistics.mean(gained) - statistics.mean(without)
        claim.deviations, freedoms = zip(
            *(
                pooled([side] if aside & labels else [*kept.values()])
                for side, labels in zip(sides, parts)
            )
        )
        claim.freedom = min(freedoms)
        if first & second:
            claim.paired = paired_interval(cases, claim.measure)
        claim.word, claim.why = "undecided", described(claim, runs, members)
    tested = [claim for claim in claims if min(claim.seeds, default=0) >= SEEDS]
    zero = holm([claim.p_value(abs(claim.gain)) for claim in tested])
    half = holm([claim.p_value(claim.distance_to_half) for claim in tested])
    for claim, from_zero, from_half in zip(tested, zero, half):
        if from_zero <= LEVEL and claim.gain > 0:
            claim.word = "**holds**"
        elif from_zero <= LEVEL or from_half <= LEVEL:
            claim.word = "**does not hold**"
    waiting = [claim for claim in claims if claim.word == "undecided" and claim.freedom]
    for claim in waiting:
        number = claim.seeds_to_decide(LEVEL / len(waiting))
        claim.word = f"undecided: takes {number:,} seeds"
    return pools


def described(claim: Claim, runs: dict, below: list[Any]) -> str:
    """Return what was compared: runs, how they were evaluated, weights, epochs.

    `below` has, for each of the two, the labels of the runs that it stands on.
    """
    parts = []
    for label, evaluation, members in zip(claim.runs, claim.evaluations, below):
        row = next(iter(runs[claim.group, label, ""].values()))
        epochs = " after those of ".join([f"{row['epoch']} epochs", *members])
        details = [evaluation, f"{', '.join(members)} together" if len(members) > 1 else epochs]
        if row.get("parameters"):
            details.append(f"{int(row['parameters']):,} weights")
        parts.append(f"{label} ({', '.join(filter(None, details))})")
    return f"`{claim.group}`: {' and '.join(parts)}"


def line(claim: Claim) -> str:
    """Return the row of a claim in the page's table, a line."""
    published = " → ".join(claim.published)
    if claim.published:
        published += f" ({claim.published_gain:.3f})"
    gain = "" if claim.gain is None else f"{claim.gain:z.3f}"
    if claim.freedom:
        low, high = claim.interval()
        gain += f", {low:z.3f} to {high:z.3f}"
    if claim.paired:
        low, high = claim.paired
        gain += f"; paired {low:z.3f} to {high:z.3f}"
    seeds = " and ".join(map(str, claim.seeds))
    cells = claim.claim, claim.where, published, claim.why, seeds, gain, claim.word
    return f"| {' | '.join(cells)} |\n"


def plot(papers: list[dict[str, Any]], path: Path) -> None:
    """Draw the gains with their intervals beside the papers' own, where any claim was tried."""
    import matplotlib.pyplot as plt

    panels: dict[tuple[str, str], list[Claim]] = {}
    for paper in papers:
        tried = {claim.measure for claim in paper["claims"] if claim.gain is not None}
        for claim in paper["claims"]:
            if claim.measure in tried and (claim.published or claim.gain is not None):
                panels.setdefault((paper["title"], claim.measure), []).append(claim)
    figure, axes = plt.subplots(
        len(panels),
        figsize=(11, 1.5 + 0.22 * sum(map(len, panels.values()))),
        height_ratios=[len(panel) + 2 for panel in panels.values()],
        layout="constrained",
    )
    for axis, ((title, measure), panel) in zip(axes, panels.items()):
        for place, claim in enumerate(panel):
            if claim.gain is not None:
                face = "white" if claim.word.startswith("undecided") else "tab:blue"
                axis.plot(claim.gain, place, "o", color="tab:blue", markerfacecolor=face, zorder=3)
            if claim.freedom:
                axis.plot(claim.interval(), [place, place], color="tab:blue")
            if claim.published_gain is not None:
                axis.plot(claim.published_gain, place, "d", color="tab:orange")
        axis.set_yticks(range(len(panel)), [claim.claim for claim in panel], size=8)
        axis.invert_yaxis()
        axis.axvline(0, color="grey")
        axis.set_title(f"{title}: gain in {name_of(measure)}", size=9)
    figure.suptitle(
        "Gains here with 95 % intervals (blue; hollow: undecided) and in the papers (orange)"
    )
    figure.savefig(path)


def tables(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the tables of the page by the results in `folder`, and the papers with claims."""
    benchmarks = ROOT / "benchmarks"
    queue = tomllib.loads((benchmarks / "published.toml").read_text("utf-8"))["groups"]
    papers = tomllib.loads((benchmarks / "claims.toml").read_text("utf-8"))["papers"]
    for paper in papers:
        paper["claims"] = [Claim(**claim) for claim in paper["claims"]]
    claims = [claim for paper in papers for claim in paper["claims"]]
    groups = {group["name"]: group for group in queue}
    pools = compare(claims, read_runs(folder), groups)
    words = Counter(claim.word.split(":")[0].strip("*") for claim in claims)
    counts = ", ".join(f"{number} *{word}*" for word, number in words.items())
    text = f"Of {len(claims)} rows: {counts}.\n\n"
    for (corpus, measure), samples in pools.items():
        kept = alike(samples)
        spread, freedom = pooled([*kept.values()])
        if freedom:
            own = [statistics.stdev(sample) for sample in kept.values() if len(sample) > 1]
            text += f"- Corpus {corpus}: a seed deviates by {spread:.4f} in {name_of(measure)}, "
            text += f"{min(own):.4f} to {max(own):.4f} by model, {freedom} degrees of freedom.\n"
            for (group, label), seeds in samples.items():
                if (group, label) not in kept:
                    text += f"  Set aside: `{label}` of `{group}`, {statistics.stdev(seeds):.4f}.\n"
    for name in dict.fromkeys(claim.group for claim in claims if claim.group):
        text += f"- `{name}`: {groups[name]['title']}.\n"
    for paper in papers:
        text += f"\n## {paper['title']}\n\n{paper['source']}\n\n{HEAD}\n"
        text += "".join(map(line, paper["claims"]))
    return text, papers


def main() -> None:
    page = ROOT / "docs/claims.md"
    text, papers = tables(ROOT / "benchmarks/results")
    page.write_text(BETWEEN.sub(lambda _: text, page.read_text("utf-8")), "utf-8")
    plot(papers, ROOT / "docs/images/claims.png")


if __name__ == "__main__":
    main()
