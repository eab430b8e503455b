"""Several RUN folders that belong together: of several seeds, a gate over one, an ensemble."""

import dataclasses
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualnet import builders, zoo
from dualnet._checks import ArgumentError, StrPath, check_choice, is_number
from dualnet._files import check_new, write_json
from dualnet.builders.wrapping_stations import GATES, Gate
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import load, read_card
from dualnet.runs.folder import CARD, READ_AS
from dualnet.runs.run import Run as RunFolder
from dualnet.runs.shipped import source_of
from dualnet.runs.writing import write_run
from dualnet.training.initial_weights import is_gated
from dualnet.training.loop import Run, train
from dualnet.training.start import FinishedError, has_begun

SEEDS = "seeds.json"
FIGURES = ("valid_", "test_")  # begin the names of those that are compared
GATED = "zaremba_medium_iog"  # provides the recipe and the gate of Takase et al.


def train_gate(run: StrPath, corpus: Corpus | str, *, output: StrPath, **settings: Any) -> Run:
    """Train an input-to-output gate on the logits of the model in the RUN folder `run`.

    The model itself is frozen. Recipe and gate are those of Takase et al.

    Args:
        run: RUN folder of a model without a gate, or of an ensemble.
        corpus: `Corpus`, or what `corpora.load` takes.
        output: folder, new or empty unless `resume`.
        **settings: other arguments of `train`, and arguments of the gate and of `Recipe` that
            replace the published ones: `gate`, `gate_units`, `gate_dropout`, `epochs`, ...

    Raises:
        ValueError: if the model has a gate, or `gate` is "none"; and as for `train`.

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907

    Example:

    >>> import dataclasses, tempfile
    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> splits = {split: corpus.split(split)[:60] for split in corpora.SPLITS}
    >>> corpus = dataclasses.replace(corpus, **splits)
    >>> small = {"batch_size": 4, "epochs": 1, "evaluate": False, "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = training.train("lstm", corpus, output=f"{folder}/RUN", units=4, **small)
    ...     gated = training.train_gate(run.folder, corpus, output=f"{folder}/GATED", **small)
    >>> gated.model.gated
    True
    """
    card = RunFolder.open_folder(run).check_language_model().card
    if is_gated(card.config):
        raise ArgumentError(
            "run",
            f"must be of a model without a gate. Received: {os.fspath(run)!r}, which has "
            f"gate={card.config['gate']!r}. Continue its training with --resume.",
        )
    check_choice("gate", settings.get("gate", "input"), GATES[1:])  # not "none"
    resumes = settings.get("resume") and has_begun(Path(output))
    if not resumes:  # a resumed run keeps the settings that it started with
        published = zoo.card(GATED)
        config = {**card.config, **Gate.fields_of(published.config)}
        recipe = {**published.recipe, "batching": card.recipe.get("batching", "streams")}
        # A card instead of overrides, some of which share their name with an argument of a cell.
        card = dataclasses.replace(card, config=config, recipe=recipe, seed=None)
    try:
        return train(card, corpus, output=output, weights=None if resumes else run, **settings)
    except ArgumentError as error:
        if error.argument != "weights":
            raise
        required = f"must leave the model below the gate, {os.fspath(run)!r}, as it is."
        way_out = " Leave out all but those of the gate and of the training."
        received = {key: value for key, value in settings.items() if key != "progress"}
        raise ArgumentError("settings", required, way_out, **received) from None


def combine_runs(runs: Sequence[StrPath], output: StrPath) -> Path:
    """Write a RUN folder of the ensemble of the models in the RUN folders `runs`.

    Returns:
        The folder, `output` as a `Path`.

    Raises:
        ValueError: if there are fewer than two runs, or their vocabularies differ.
        FileExistsError: if `output` holds files.

    Example:

    >>> import dataclasses, tempfile
    >>> import dualnet
    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> splits = {split: corpus.split(split)[:60] for split in corpora.SPLITS}
    >>> corpus = dataclasses.replace(corpus, **splits)
    >>> small = {"units": 4, "batch_size": 4, "epochs": 1, "evaluate": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = training.train("lstm", corpus, output=f"{folder}/RUN", progress=False, **small)
    ...     path = training.combine_runs([run.folder, run.folder], f"{folder}/ENSEMBLE")
    ...     dualnet.load(path).count_params() == 2 * run.model.count_params()
    True
    """
    if len(runs := list(runs)) < 2:
        raise ArgumentError(
            "runs", f"must be at least two RUN folders. Received: {[*map(str, runs)]}."
        )
    first, *others = [read_card(run) for run in runs]
    recipe = first.recipe  # with the batches that all have, or else streams, which all can read
    if len({card.recipe.get("batching", "streams") for card in (first, *others)}) > 1:
        recipe = {**recipe, "batching": "streams", "group_by_length": False}
    model = builders.ensemble([load(run) for run in runs])
    card = Card(
        name=model.name,
        builder=model.builder,
        note="Members: " + ", ".join(map(source_of, runs)),
        seed=0,
        trained_on=first.trained_on,
        config=model.arguments,
        recipe=recipe,
    )
    write_run(Path(output), model, card, sources=runs)
    return Path(output)


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
    runs = []
    for seed, folder in folders.items():
        if progress:
            print(f"Seed {seed}:", file=sys.stderr, flush=True)
        is_begun = (folder / CARD).is_file()
        arguments = {"name": name, "corpus": corpus, **settings, "resume": is_begun}
        if first is not None and not is_begun:
            card = read_card(first)
            if not isinstance(corpus, Corpus | PairCorpus):
                corpus = RunFolder.open_folder(first).corpus()
            card = dataclasses.replace(card, seed=None)
            arguments |= {"name": card, "corpus": corpus, "weights": card.weights or None}
            arguments |= dict.fromkeys(READ_AS)
        first = first or folder
        try:
            arguments |= {"seed": seed, "output": folder, "progress": progress, "evaluate": True}
            results = train(**arguments).results
        except FinishedError:
            results = RunFolder.open_folder(folder).results
        row = {"seed": seed, "path": str(folder), "best_epoch": results["best_epoch"]}
        runs.append(
            row | {k: v for k, v in results.items() if k.startswith(FIGURES) and is_number(v)}
        )
    figures = {key: [run[key] for run in runs] for key in runs[0] if key.startswith(FIGURES)}
    result = {
        "name": results["name"],
        "seeds": seeds,
        "runs": runs,
        "mean": {key: statistics.mean(values) for key, values in figures.items()},
        "deviation": {key: statistics.stdev(values) for key, values in figures.items()},
    }
    write_json(Path(output) / SEEDS, result)
    return result
