"""One model trained once for each of several seeds, and what its results vary by."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._files import check_new, write_whole
from dualnet.cards import Card
from dualnet.corpora import Corpus
from dualnet.runs.folder import CARD, RESULTS, read_card
from dualnet.training.loop import train
from dualnet.training.resuming import FinishedError, check_seed

SEEDS = "seeds.json"
PERPLEXITIES = ("valid_perplexity", "test_perplexity")
FIGURES = tuple(  # of a tokeniser that loses nothing
    f"{split}_{figure}"
    for figure in ("bits_per_byte", "bits_per_character", "perplexity_per_word")
    for split in ("valid", "test")
)


def train_seeds(
    name: str | Card,
    corpus: Corpus | str,
    *,
    seeds: Sequence[int],
    output: str | os.PathLike[str],
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Train model `name` once for each of `seeds`; return the results, their mean and deviation.

    The run of seed n is the RUN folder `output/seed-n`, as if trained alone. What is returned is
    also written to `output/seeds.json`.

    Args:
        name, corpus, progress: As for `train`.
        seeds: ints, at least two, all different.
        output: folder, new or empty unless `resume`.
        resume: bool. Continue: finished runs are kept, the one under way is resumed, and those
            that are left start with the settings of the others. More seeds may be added.
        **settings: Other arguments of `train`.

    Returns:
        dict with `name`, `seeds`, `runs` (one dict per seed: `seed`, `path`, `best_epoch`,
        `valid_perplexity`, `test_perplexity`), and `mean` and `deviation` of both perplexities.
        The deviation is that of a sample: its squares are divided by the number of seeds less 1.

    Raises:
        ValueError: for fewer than two seeds, or the same one twice; and as for `train`.
        FileExistsError: if `output` holds files and `resume` is False.

    Example:

    >>> import dataclasses, tempfile
    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> splits = {split: corpus.split(split)[:60] for split in corpora.SPLITS}
    >>> corpus = dataclasses.replace(corpus, **splits)
    >>> small = {"units": 4, "batch_size": 4, "epochs": 1, "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = training.train_seeds("lstm", corpus, seeds=(1, 2), output=folder, **small)
    >>> [run["seed"] for run in result["runs"]], sorted(result["mean"])
    ([1, 2], ['test_perplexity', 'valid_perplexity'])
    """
    seeds = [check_seed(seed) for seed in seeds]
    if len(seeds) < 2 or len({*seeds}) < len(seeds):
        raise ArgumentError(
            "seeds", f"must be at least two integers, all different. Received: seeds={seeds}."
        )
    folders = {seed: Path(output) / f"seed-{seed}" for seed in seeds}
    begun = [folder for folder in folders.values() if (folder / CARD).is_file()]
    if not resume:
        check_new(Path(output), holds="run")
    elif begun:
        card = read_card(begun[0])
        for_new = {"name": dataclasses.replace(card, seed=None), "weights": card.weights or None}
    runs = []
    for seed, folder in folders.items():
        if progress:
            print(f"Seed {seed}:", file=sys.stderr, flush=True)
        arguments = {"name": name, **settings, "output": folder, "progress": progress}
        if resume and folder in begun:
            arguments["resume"] = True
        elif begun and resume:
            arguments |= for_new
        try:
            results = train(corpus=corpus, seed=seed, **arguments).results
        except FinishedError:
            results = json.loads((folder / RESULTS).read_text("utf-8"))
        kept = {key: results[key] for key in ("best_epoch", *PERPLEXITIES)}
        kept |= {key: results[key] for key in FIGURES if results.get(key) is not None}
        runs.append({"seed": seed, "path": str(folder), **kept})
    shared = [key for key in (*PERPLEXITIES, *FIGURES) if all(key in run for run in runs)]
    columns = {key: [run[key] for run in runs] for key in shared}
    result = {
        "name": results["name"],
        "seeds": seeds,
        "runs": runs,
        "mean": {key: statistics.mean(values) for key, values in columns.items()},
        "deviation": {key: statistics.stdev(values) for key, values in columns.items()},
    }
    write_whole(Path(output) / SEEDS, json.dumps(result, indent=2) + "\n")
    return result
