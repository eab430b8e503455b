"""Trains a RUN five epochs more in one of two ways that its paper leaves open.

Usage: python benchmarks/published_ends.py RUN OUTPUT {to-zero,mean}

`to-zero` continues a copy of RUN and lowers the learning rate in equal steps: 0.9, 0.7, 0.5,
0.3 and 0.1 of what it was. `mean` starts from the best weights of RUN, keeps the rate, and
averages the weights over all steps. OUTPUT, a RUN folder too, holds `metrics.csv` and the static
perplexities in `results.json`; the same command resumes.
"""

import argparse
import csv
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # a resumed run is then bit-equal

from dualnet import runs, training
from dualnet._files import folder_beside

SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)  # of the learning rate, in the five epochs


def lower_to_zero(run: Path, output: Path) -> None:
    card = runs.read_card(run)
    epochs = epochs_of(run)
    if not output.exists():
        with folder_beside(output) as unfinished:
            shutil.copytree(run, unfinished, dirs_exist_ok=True)
            (unfinished / "results.json").unlink(missing_ok=True)
    for number, share in enumerate(SHARES, start=1):
        if epochs_of(output) < epochs + number or number == len(SHARES):
            training.train(
                card,
                runs.corpus_of_run(run),
                output=output,
                resume=True,
                epochs=epochs + number,
                learning_rate=card.recipe["learning_rate"] * share,
                evaluate=number == len(SHARES),
            )


def average(run: Path, output: Path) -> None:
    card = runs.read_card(run)
    resume = (output / "card.toml").is_file()
    begin = {"weights": run, "epochs": len(SHARES), "averaging": "mean", "average_from": 1}
    corpus = runs.corpus_of_run(run)
    training.train(card, corpus, output=output, resume=resume, **({} if resume else begin))


def epochs_of(run: Path) -> int:
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return len(list(csv.DictReader(file)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    ends = {"to-zero": lower_to_zero, "mean": average}
    parser.add_argument("end", choices=ends)
    options = parser.parse_args()
    ends[options.end](options.run, options.output)


if __name__ == "__main__":
    main()
