"""Trains models at their published size, slice by slice, and compares them with the papers.

Usage: DUALNET_DATA=FOLDER_WITH_ptb python benchmarks/published.py OUTPUT [--group NAME]

The queue is benchmarks/published.toml. The runs of a group take turns of a few epochs, so
that they stay at equal epochs. After each slice, OUTPUT holds `published.csv`, one row per
epoch and run, and `GROUP.png`, the validation perplexities with the published figures as
lines. Ctrl-C or SIGTERM finishes the step under way, saves and stops; the same command
resumes, also after a kill.
"""

import argparse
import csv
import io
import json
import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # a resumed run is then bit-equal

from dualnet import plots, training, zoo
from dualnet._files import write_whole

QUEUE = Path(__file__).with_suffix(".toml")
COLUMNS = ["group", "run", "epoch", "perplexity", "val_perplexity", "seconds"]
RESULT_COLUMNS = ["valid_perplexity", "test_perplexity", "published_valid", "published_test"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of the queue.

    Attributes:
        model: Name of the model in the zoo.
        seed: Random seed of weights and dropout masks.
        settings: Arguments of the builder or the recipe that override the card.
        label: Name of the run in its group; default `model`.
    """

    group: "Group"
    model: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.label or self.model} seed {self.seed}"

    @property
    def published(self) -> list[float] | None:
        """The published static perplexities, validation and test, if the run has that size."""
        return None if self.settings else self.card.published["static"]

    @property
    def card(self) -> zoo.Card:
        return zoo.card(self.model, self.group.corpus)

    def folder(self, output: Path) -> Path:
        return output / self.group.name / self.name.replace(" ", "-")

    def history(self, output: Path) -> list[dict[str, str]]:
        """Return the rows of metrics.csv, one per epoch."""
        try:
            with (self.folder(output) / "metrics.csv").open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except FileNotFoundError:
            return []

    def results(self, output: Path) -> dict[str, Any]:
        """Return results.json of a finished run, else {}."""
        file = self.folder(output) / "results.json"
        return json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def train(self, output: Path, epochs: int) -> None:
        """Train up to `epochs` epochs, and evaluate after the last epoch of the group."""
        folder = self.folder(output)
        folder.parent.mkdir(parents=True, exist_ok=True)
        resume = (folder / "card.toml").is_file()
        settings = {} if resume else {**self.group.settings, **self.settings}
        training.train(
            self.model,
            self.group.corpus,
            output=folder,
            seed=self.seed,
            resume=resume,
            epochs=epochs,
            evaluate=epochs == self.group.epochs,
            **settings,
        )


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are compared with each other, at equal numbers of epochs."""

    name: str
    title: str
    corpus: str
    epochs: int
    epochs_per_slice: int
    settings: dict[str, Any]
    runs: tuple[Run, ...] = ()

    def next_slice(self, output: Path) -> tuple[Run, int] | None:
        """Return the run that is furthest behind and its next epoch count, or None at the end."""
        unfinished = [run for run in self.runs if not run.results(output)]
        if not unfinished:
            return None
        run = min(unfinished, key=lambda run: len(run.history(output)) // self.epochs_per_slice)
        slices = len(run.history(output)) // self.epochs_per_slice
        return run, min(self.epochs, (slices + 1) * self.epochs_per_slice)


def read_queue() -> list[Group]:
    groups = []
    for table in tomllib.loads(QUEUE.read_text("utf-8"))["groups"]:
        runs = table.pop("runs")
        group = Group(**table)
        object.__setattr__(group, "runs", tuple(Run(group=group, **run) for run in runs))
        groups.append(group)
    return groups


def write_table(groups: list[Group], output: Path) -> None:
    """Write published.csv: a row per epoch, and one with the test figures of a finished run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS + RESULT_COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for group in groups:
        for run in group.runs:
            names = {"group": group.name, "run": run.name}
            for row in run.history(output):
                writer.writerow(row | names)
            if results := run.results(output):
                valid, test = run.published or ("", "")
                published = {"published_valid": valid, "published_test": test}
                writer.writerow(results | names | published | {"epoch": results["epochs"]})
    write_whole(output / "published.csv", text.getvalue())


def draw(group: Group, output: Path) -> None:
    """Draw the validation perplexities of a group, with the published figures as lines."""
    curves, lines = {}, {}
    for run in group.runs:
        if rows := run.history(output):
            curves[f"{run.name} valid"] = [float(row["val_perplexity"]) for row in rows]
        if run.published:
            epochs = run.card.recipe["epochs"]
            lines[f"{run.model} published, after {epochs} epochs"] = run.published[0]
    plots.plot_curves(
        curves, output / f"{group.name}.png", title=group.title, cut=True, lines=lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--group", help="train only this group")
    options = parser.parse_args()
    groups = [group for group in read_queue() if options.group in (None, group.name)]
    if not groups:
        parser.error(f"--group must be one of {[group.name for group in read_queue()]}")
    options.output.mkdir(parents=True, exist_ok=True)
    for group in groups:
        while (step := group.next_slice(options.output)) is not None:
            run, epochs = step
            print(f"{group.name}: {run.name} to epoch {epochs}", file=sys.stderr, flush=True)
            run.train(options.output, epochs)
            write_table(groups, options.output)
            draw(group, options.output)


if __name__ == "__main__":
    main()
