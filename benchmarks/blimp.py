"""How often do the shipped models prefer the acceptable sentence of a pair of BLiMP?

Usage: python benchmarks/blimp.py FOLDER PUBLISHED OUTPUT [--models NAME ...]

FOLDER has the 67 files of BLiMP (Warstadt et al., 2020), PUBLISHED its accuracies of four other
models, one JSON object for each file. Writes OUTPUT.csv, the accuracies for each file, and
OUTPUT.png, their means by phenomenon; prints these means as a table. NAME is that of a shipped
model, or a RUN.
"""

import csv
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from options import options_of

import dualnet
from dualnet._files import write_whole

PUBLISHED = {"ngram": "5-gram", "lstm": "LSTM", "txl": "Transformer-XL", "gpt2": "GPT-2"}
MODELS = ["lstm.english", "dual_lstm.english"]
Accuracies = dict[str, list[float]]  # by model, those of the files in their order


def write_csv(path: Path, rows: list[dict[str, str]], accuracies: Accuracies) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["uid", "phenomenon", *accuracies])
    for row, *values in zip(rows, *accuracies.values()):
        writer.writerow([row["UID"], row["linguistics_term"], *(f"{x:.3f}" for x in values)])
    write_whole(path, text.getvalue())


def by_phenomenon(rows: list[dict[str, str]], accuracies: Accuracies) -> dict[str, list[float]]:
    """Return the mean of each model for each phenomenon, in percent, and last for all files."""
    terms = np.array([row["linguistics_term"] for row in rows])
    values = 100 * np.array([*accuracies.values()])
    means = {term: values[:, terms == term].mean(axis=1).tolist() for term in sorted({*terms})}
    return {**means, "all 67 files": values.mean(axis=1).tolist()}


def draw(path: Path, means: dict[str, list[float]], models: list[str]) -> None:
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    places = np.arange(len(means))[::-1]
    for i, (model, marker) in enumerate(zip(models, "osD^v<>ph*X")):
        is_published = model in PUBLISHED.values()
        axes.plot(
            [values[i] for values in means.values()], places, marker, label=model, markersize=8,
            color=f"C{i}", markerfacecolor="none" if is_published else f"C{i}",
        )  # fmt: skip
    axes.axvline(50, color="grey", linewidth=1, linestyle=":")
    axes.set_yticks(places, [name.replace("_", " ") for name in means])
    axes.set_xlabel("accuracy in percent; hollow: published")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    options = options_of(__doc__, "folder", "published", "output", models=MODELS)
    rows = [json.loads(line) for line in options.published.read_text("utf-8").splitlines()]
    accuracies: Accuracies = {name: [row[key] for row in rows] for key, name in PUBLISHED.items()}
    files = [options.folder / f"{row['UID']}.jsonl" for row in rows]
    for name in options.models:
        found = dualnet.minimal_pairs(dualnet.load(name), files).by_uid
        accuracies[name] = [found[row["UID"]].accuracy for row in rows]
    write_csv(options.output.with_suffix(".csv"), rows, accuracies)
    means = by_phenomenon(rows, accuracies)
    draw(options.output.with_suffix(".png"), means, [*accuracies])
    print("| phenomenon |", " | ".join(accuracies), "|")
    print("|---" * (1 + len(accuracies)) + "|")
    for name, values in means.items():
        print(f"| {name.replace('_', ' ')} |", " | ".join(f"{x:.1f}" for x in values), "|")


if __name__ == "__main__":
    main()
