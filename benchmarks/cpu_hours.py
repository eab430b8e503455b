"""What does an hour of a CPU buy? Perplexities of the models that were trained here, by core-hours.

Usage: python benchmarks/cpu_hours.py OUTPUT

From what the queue (benchmarks/published.py) has recorded in benchmarks/results. The hours are
those of processor time where it was recorded; else the epochs times the wall time of the fastest,
in one process on one core, since other work made some epochs longer. Writes OUTPUT.csv and
OUTPUT.png, and prints the table.
"""

import csv
import io
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator
from options import options_of

from dualnet._files import write_whole

RESULTS = Path(__file__).parent / "results"
XEON, EPYC = "Xeon with AMX", "EPYC (Zen 4)"
RECORDS = [  # file, groups, corpus, machine, precision
    ("2026-11-24-claims.csv", ["claims"], "PTB", XEON, "float32"),
    ("2026-11-25-claims.csv", ["claims"], "PTB", XEON, "bfloat16"),
    ("2026-11-25-headline.csv", ["headline"], "PTB", XEON, "bfloat16"),
    ("2026-11-27-rewired.csv", ["rewired"], "PTB", EPYC, "bfloat16"),
    ("2026-11-27-english.csv", ["english"], "English", EPYC, "bfloat16"),
]
SIZES = {
    "claims": "200 units", "rewired": "200 units", "headline": "600 units", "english": "512 units",
}  # fmt: skip
COLUMNS = [
    "corpus", "model", "size", "epochs", "core_hours", "valid_perplexity", "test_perplexity",
    "machine", "precision",
]  # fmt: skip
Row = dict[str, Any]


def runs_of(path: Path, groups: list[str]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Return the rows of each run of the groups in a file of the queue."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["group"] in groups:
                runs.setdefault((row["group"], row["run"]), []).append(row)
    return runs


def read() -> tuple[list[Row], dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]]:
    """Return a row of the table for each run, and its curve by corpus and name."""
    table, curves = [], {}
    for name, groups, corpus, machine, precision in RECORDS:
        for (group, run), rows in runs_of(RESULTS / name, groups).items():
            epochs = [row for row in rows if row["val_perplexity"]]
            ends = [row for row in rows if row["test_perplexity"]]
            if not ends:
                continue
            hours = len(epochs) * min(float(row["seconds"]) for row in epochs) / 3600
            if known := ends[-1].get("core_hours"):
                hours = float(known)
            about = {"corpus": corpus, "machine": machine, "precision": precision}
            model, size = run.removesuffix(" seed 1"), SIZES[group]
            figures = {key: float(ends[-1][key]) for key in ("valid_perplexity", "test_perplexity")}
            table.append({**about, **figures, "model": model, "size": size,
                          "epochs": len(epochs), "core_hours": hours})  # fmt: skip
            perplexities = np.array([float(row["val_perplexity"]) for row in epochs])
            at = hours * np.arange(1, len(epochs) + 1) / len(epochs)
            label = f"{model}, {size}, {precision}"
            curves.setdefault(corpus, {})[label] = (at, perplexities)
    return sorted(table, key=lambda row: (row["corpus"], row["core_hours"])), curves


def draw(path: Path, curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> None:
    figure, grid = plt.subplots(
        len(curves), figsize=(10, 5.5 * len(curves)), layout="constrained", squeeze=False
    )
    for axes, (corpus, runs) in zip(grid[:, 0], curves.items()):
        for i, (label, (hours, perplexities)) in enumerate(runs.items()):
            style = ("-", "--", ":")[i // 10] if len(hours) > 1 else "o"
            axes.plot(hours, perplexities, style, color=f"C{i % 10}", label=label)
        lowest = min(perplexities.min() for _, perplexities in runs.values())
        axes.set(xscale="log", yscale="log", ylim=(0.95 * lowest, 3 * lowest), title=corpus)
        ticks = np.unique(np.round(lowest * np.geomspace(1, 3, 7), -1 if lowest > 50 else 0))
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_yticks([], minor=True)
        all_hours = np.concatenate([hours for hours, _ in runs.values()])
        axes.set_xlim(0.7 * all_hours.min(), 1.4 * all_hours.max())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xticks([], minor=True)
        axes.set(xlabel="core-hours", ylabel="validation perplexity (log scale)")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    options = options_of(__doc__, "output")
    table, curves = read()
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_whole(options.output.with_suffix(".csv"), text.getvalue())
    draw(options.output.with_suffix(".png"), curves)
    print("| " + " | ".join(COLUMNS).replace("_", " ") + " |")
    print("|---" * len(COLUMNS) + "|")
    for row in table:
        cells = [f"{row[key]:.2f}" if isinstance(row[key], float) else row[key] for key in COLUMNS]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
