"""The page of claims says what the results in files say, by statistics that are tried by hand."""

import csv
import math
from pathlib import Path

import pytest
from scipy import stats

from benchmarks import claims

ROOT = Path(__file__).parents[1]
GATED = {"label": "gated", "over": ["plain"]}
MEAN = {"label": "mean", "over": ["plain", "dual"]}
GROUPS = {
    "pairs": {
        "corpus": "text",
        "title": "Pairs",
        "settings": {"epochs": 3},
        "runs": [{"model": "lstm"}, GATED, MEAN],
    }
}
COLUMNS = [
    "group", "run", "epoch", "test_perplexity", "evaluation", "parameters", "test_bleu",
    "test_variation",
]  # fmt: skip


@pytest.fixture
def compared(tmp_path):
    """Return a function that compares runs of given ln perplexities."""

    def compare(losses, *pairs, **settings):
        with (tmp_path / "2026-01-01-miniature.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for label, values in losses.items():
                for seed, value in enumerate(values):
                    names = ["pairs", f"{label} seed {seed}", 3]
                    writer.writerow([*names, math.exp(value), "", 12, 10 * value])
        found = [
            claims.Claim(claim="c", where="w", group="pairs", runs=pair, **settings)
            for pair in pairs
        ]
        pools = claims.compare(found, claims.read_runs(tmp_path), GROUPS)
        return found, claims.pooled([*claims.alike(pools["text", found[0].measure]).values()])

    return compare


def test_a_gain_has_the_interval_of_a_pooled_unpaired_comparison(compared):
    losses = {"plain": [4.0, 4.1, 4.2], "dual": [3.8, 3.85], "in no row": [5.0, 6.0]}
    [claim], (deviation, freedom) = compared(losses, ("plain", "dual"))
    assert freedom == 3  # 2 + 1
    assert deviation == pytest.approx(math.sqrt((0.02 + 0.00125) / 3))
    assert claim.gain == pytest.approx(4.1 - 3.825)
    margin = 3.182446 * deviation * math.sqrt(1 / 3 + 1 / 2)  # of tables: t with 3 degrees, 97.5 %
    assert claim.interval() == pytest.approx((claim.gain - margin, claim.gain + margin), rel=1e-6)
    assert claim.seeds == (3, 2)


def test_seeds_are_pooled_over_what_reads_a_text_in_the_same_way(tmp_path, compared):
    by_sentence = {**GROUPS["pairs"], "settings": {"batching": "sentences"}}
    groups = GROUPS | {"sentences": by_sentence}
    compared({"plain": [4.0, 4.1, 4.2], "dual": [3.8, 3.9]}, ("plain", "dual"))
    runs = claims.read_runs(tmp_path)
    for seed, loss in enumerate([3.0, 5.0]):
        row = {"test_perplexity": math.exp(loss), "epoch": 3}
        runs.setdefault(("sentences", "plain", ""), {})[str(seed)] = row
    claim = claims.Claim(claim="c", where="w", group="pairs", runs=("plain", "dual"))
    other = claims.Claim(claim="c", where="w", group="sentences", runs=("plain", "plain"))
    pools = claims.compare([claim, other], runs, groups)
    found = {key: claims.pooled([*samples.values()]) for key, samples in pools.items()}
    assert found["text", "perplexity"] == pytest.approx((math.sqrt(0.025 / 3), 3))
    assert found["text by sentence", "perplexity"] == pytest.approx((math.sqrt(2), 1))


def test_a_model_that_deviates_more_than_the_others_has_its_own_deviation(compared):
    losses = {name: [4.0, 4.01, 4.02] for name in ("plain", "same", "like", "near")}
    losses |= {"wild": [3.0, 3.2, 3.7]}
    pairs = ("plain", "wild"), ("plain", "same"), ("like", "near")
    [claim, other, _], (deviation, freedom) = compared(losses, *pairs)
    assert (deviation, freedom) == (pytest.approx(0.01), 8)
    assert other.deviations == pytest.approx((0.01, 0.01)) and other.freedom == 8
    margin = 4.302653 * math.sqrt(0.0001 / 3 + 0.13 / 3)  # of tables: t with 2 degrees, 97.5 %
    assert claim.interval() == pytest.approx((0.71 - margin, 0.71 + margin), rel=1e-5)


def test_nothing_is_set_aside_for_a_deviation_that_chance_explains(compared):
    losses = {"plain": [4.0, 4.01, 4.02], "dual": [4.0, 4.02, 4.05], "more": [4.0, 4.1]}
    _, (_, freedom) = compared(losses, ("plain", "dual"), ("plain", "more"))
    assert freedom == 5


def test_the_correction_for_many_rows_is_that_of_holm():
    assert claims.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert claims.holm([0.9, 0.6]) == [1.0, 1.0]


def test_a_claim_holds_does_not_hold_or_waits_for_more_seeds(compared):
    losses = {
        "plain": [4.00, 4.01, 4.02],
        "better": [3.90, 3.91, 3.92],
        "same": [4.00, 4.01, 4.021],
        "worse": [4.10, 4.11, 4.12],
    }
    pairs = [("plain", name) for name in ("better", "same", "worse")]
    words = [claim.word for claim in compared(losses, *pairs)[0]]
    assert words[0] == "**holds**" and words[2] == "**does not hold**"
    assert words[1].startswith("undecided")
    found, _ = compared(losses, *pairs, published=("70", "60"))  # half of it is 0.077
    assert [claim.word for claim in found] == ["**holds**", *2 * ["**does not hold**"]]


def test_the_number_of_seeds_is_the_first_that_would_decide(compared):
    losses = {"plain": [4.0, 4.1, 4.2], "dual": [3.95, 4.0, 4.1]}
    [claim], (deviation, _) = compared(losses, ("plain", "dual"))

    def decides(number):  # with the degrees of freedom that so many seeds of both models have
        margin = stats.t.isf(0.025, 2 * (number - 1)) * deviation * math.sqrt(2 / number)
        return claim.gain >= margin

    number = int(claim.word.split()[2])
    assert decides(number) and not decides(number - 1)


def test_a_score_is_the_better_the_higher_it_is(compared):
    losses = {"plain": [4.0, 4.01, 4.02], "dual": [4.1, 4.11, 4.12]}
    [claim], _ = compared(losses, ("plain", "dual"), measure="BLEU", published=("30.5", "31.0"))
    assert claim.gain == pytest.approx(1.0) and claim.word == "**holds**"
    assert "30.5 → 31.0 (0.500)" in claims.line(claim)


def test_how_unequally_experts_are_used_is_compared_apart_from_perplexity(tmp_path, compared):
    losses = {"plain": [4.0, 4.01, 4.02], "dual": [3.0, 3.01, 3.02]}
    compared(losses, ("plain", "dual"))
    with (tmp_path / "2026-01-01-miniature.csv").open("a", newline="") as file:
        for label, values in {"plain": [0.3, 0.4], "dual": [0.2, 0.2]}.items():
            for seed, value in enumerate(values):
                name = f"{label} seed {seed}"
                csv.writer(file).writerow(["pairs", name, 3, "", "experts", "", "", value])
    settings = {"measure": "variation", "evaluations": ("experts", "experts")}
    settings |= {"claim": "c", "where": "w", "group": "pairs", "runs": ("plain", "dual")}
    claim = claims.Claim(published=("0.279", "0.213"), **settings)
    pools = claims.compare([claim], claims.read_runs(tmp_path), GROUPS)
    assert pools.keys() == {("text", "variation")}
    [samples] = pools.values()
    assert claims.pooled([*samples.values()]) == (pytest.approx(0.05), 2)
    assert claim.gain == pytest.approx(0.15) and claim.seeds == (2, 2)
    assert "0.279 → 0.213 (0.066)" in claims.line(claim)


def test_what_stands_on_other_runs_names_them(compared):
    [claim], _ = compared({"plain": [4.0], "gated": [3.9]}, ("plain", "gated"))
    assert "plain (3 epochs, 12 weights)" in claims.line(claim)
    assert "gated (3 epochs after those of plain, 12 weights)" in claims.line(claim)
    [claim], _ = compared({"plain": [4.0], "mean": [3.9]}, ("plain", "mean"))
    assert "mean (plain, dual together, 12 weights)" in claims.line(claim)


def test_models_that_share_weights_are_also_compared_seed_by_seed(compared):
    losses = {"plain": [4.0, 4.2, 4.1], "gated": [3.98, 4.19, 4.08], "dual": [3.9, 4.0, 4.1]}
    [gate, other], (_, freedom) = compared(losses, ("plain", "gated"), ("plain", "dual"))
    assert other.paired is None and "paired" not in claims.line(other)
    mean = 0.05 / 3
    assert freedom == 4  # of the gate's three seeds no more is learnt of how trainings differ
    margin = 4.302653 * math.sqrt(0.0001 / 3) / math.sqrt(3)  # t with 2 degrees, 97.5 %
    assert gate.paired == pytest.approx((mean - margin, mean + margin), rel=1e-6)
    assert "; paired 0.002 to 0.031 |" in claims.line(gate)


def test_without_a_repeated_seed_nothing_is_decided(compared):
    [claim, missing], (_, freedom) = compared(
        {"plain": [4.0], "dual": [3.0]}, ("plain", "dual"), ("plain", "gone")
    )
    assert (claim.word, freedom) == ("undecided", 0)
    assert missing.word == "not tried" and "--group pairs" in claims.line(missing)


def test_two_seeds_decide_nothing_but_say_that_three_may(compared):
    losses = {"plain": [4.0, 4.01], "dual": [3.0, 3.01], "more": [5.0, 5.01, 5.02]}
    [claim, other], (_, freedom) = compared(losses, ("plain", "dual"), ("plain", "more"))
    assert freedom == 4 and claim.interval()[0] > 0.9
    assert claim.word == other.word == "undecided: takes 3 seeds"


def test_the_page_is_what_the_results_say():
    text, _ = claims.tables(ROOT / "benchmarks" / "results")
    page = (ROOT / "docs" / "claims.md").read_text("utf-8")
    assert claims.BETWEEN.search(page)[0] == text, "run `python benchmarks/claims.py`"
