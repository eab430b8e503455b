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
from dualnet.runs.shipped import card_of_run
from dualnet.training.initial_weights import load_with
from dualnet.training.loop import train
from dualnet.training.start import FinishedError, card_for, check_seed

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
    seeds = [check_seed(seed) for seed in seeds]
    if len(seeds) < 2 or len({*seeds}) < len(seeds):
        raise ArgumentError("seeds", "must be at least two integers, all different.", seeds=seeds)
    if not settings.get("evaluate", True):
        required = "must be True: seeds are compared by their perplexities."
        raise ArgumentError("evaluate", required, evaluate=settings["evaluate"])
    if not isinstance(name, Card) and not card_of_run(name):
        name = card_for(name, corpus)
    folders = {seed: Path(output) / f"seed-{seed}" for seed in seeds}
    begun = [folder for folder in folders.values() if (folder / CARD).is_file()]
    if not resume:
        check_new(Path(output), holds="run")
    elif begun:
        card = read_card(begun[0])
        for_new = {"name": dataclasses.replace(card, seed=None), "weights": card.weights or None}
    first = begun[0] if begun else None  # the run that has the tokeniser of all
    read: Corpus | PairCorpus | None = None  # the corpus, with this tokeniser
    runs = []
    for seed, folder in folders.items():
        if progress:
            print(f"Seed {seed}:", file=sys.stderr, flush=True)
        arguments = {"name": name, "corpus": corpus, **settings}
        if resume and folder in begun:
            arguments["resume"] = True
        elif first is not None:
            read = read or _corpus_of(first, corpus)
            arguments |= {"corpus": read, **dict.fromkeys(READ_AS)}
            arguments |= for_new if begun else {}
        first = first or folder
        try:
            results = train(seed=seed, output=folder, progress=progress, **arguments).results
        except FinishedError:
            results = Run.open_folder(folder).results
        row = {"seed": seed, "path": str(folder), "best_epoch": results["best_epoch"]}
        for key, value in results.items():
            if key.startswith(FIGURES) and is_number(value):
                row[key] = value
        runs.append(row)
    shared = [key for key in row if key.startswith(FIGURES) and all(key in run for run in runs)]
    columns = {key: [run[key] for run in runs] for key in shared}
    result = {"name": results["name"], "seeds": seeds, "runs": runs}
    for name, figure in (("mean", statistics.mean), ("deviation", statistics.stdev)):
        result[name] = {key: figure(values) for key, values in columns.items()}
    write_whole(Path(output) / SEEDS, json.dumps(result, indent=2) + "\n")
    return result


def _corpus_of(folder: Path, corpus: Corpus | PairCorpus | str) -> Corpus | PairCorpus:
    """Return `corpus` as the run in `folder` reads it, with the tokeniser that it learnt."""
    if isinstance(corpus, (Corpus, PairCorpus)):
        return corpus
    run = Run.open_folder(folder)
    corpus = load_with(run.vocabulary, corpus, run.read_as)
    return dataclasses.replace(corpus, **{key: run.read_as[key] for key in LEARNT})
