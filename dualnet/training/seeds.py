"""One model trained once for each of several seeds, and what its results vary by."""

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError, StrPath, is_number
from dualnet._files import check_new, write_whole
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import Run, read_card
from dualnet.runs.folder import CARD, LEARNT, READ_AS
from dualnet.training.initial_weights import load_with
from dualnet.training.loop import train
from dualnet.training.resuming import FinishedError

SEEDS = "seeds.json"
FIGURES = ("valid_", "test_")  # begin the names of those that are compared


def train_seeds(
    name: StrPath | Card,
    corpus: Corpus | PairCorpus | str,
    *,
    seeds: Sequence[int],
    output: StrPath,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Train model `name` once for each of `seeds`; return the results, their mean and deviation.

    The run of seed n is the RUN folder `output/seed-n`, as if trained alone; all have the
    tokeniser of the first. What is returned is also written to `output/seeds.json`.

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
    seeds = [int(seed) for seed in seeds]
    if len({*seeds}) < max(2, len(seeds)):
        raise ArgumentError("seeds", "must be at least two integers, all different.", seeds=seeds)
    if not resume:
        check_new(Path(output))
    folders = {seed: Path(output) / f"seed-{seed}" for seed in seeds}
    # The run that has the tokeniser and the settings of all.
    first = next((folder for folder in folders.values() if (folder / CARD).is_file()), None)
    read: Corpus | PairCorpus | None = None  # the corpus, with this tokeniser
    runs = []
    for seed, folder in folders.items():
        if progress:
            print(f"Seed {seed}:", file=sys.stderr, flush=True)
        is_begun = (folder / CARD).is_file()
        arguments = {"name": name, "corpus": corpus, **settings}
        arguments |= {"resume": is_begun, "evaluate": True}
        if first is not None and not is_begun:
            read, card = read or _corpus_of(first, corpus), read_card(first)
            arguments |= {"corpus": read, **dict.fromkeys(READ_AS)}
            arguments |= {"name": dataclasses.replace(card, seed=None)}
            arguments |= {"weights": card.weights or None}
        first = first or folder
        try:
            results = train(seed=seed, output=folder, progress=progress, **arguments).results
        except FinishedError:
            results = Run.open_folder(folder).results
        row = {"seed": seed, "path": str(folder), "best_epoch": results["best_epoch"]}
        runs.append(
            row | {k: v for k, v in results.items() if k.startswith(FIGURES) and is_number(v)}
        )
    shared = [key for key in runs[0] if key.startswith(FIGURES) and all(key in run for run in runs)]
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


def _corpus_of(folder: Path, corpus: Corpus | PairCorpus | str) -> Corpus | PairCorpus:
    """Return `corpus` as the run in `folder` reads it, with the tokeniser that it learnt."""
    if isinstance(corpus, (Corpus, PairCorpus)):
        return corpus
    run = Run.open_folder(folder)
    corpus = load_with(run.vocabulary, corpus, run.read_as)
    return dataclasses.replace(corpus, **{key: run.read_as[key] for key in LEARNT})
