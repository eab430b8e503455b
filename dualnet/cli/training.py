"""The commands that make RUN folders: `train`, `gate` and `ensemble`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_choice, check_count, check_rate, is_number
from dualnet._fields import count, field
from dualnet._files import check_new
from dualnet.cards import Card
from dualnet.cli.console import Result, Table, comparison, quietly
from dualnet.cli.options import (
    OfModel,
    OfRun,
    OfRuns,
    Reading,
    ReadingPairs,
    Resuming,
    check_corpus,
    open_language_model,
)
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES, tokenizer_file
from dualnet.runs.shipped import card_of_run

if TYPE_CHECKING:
    from dualnet import training

SEEDS = {
    "valid_perplexity": "validation",
    "test_perplexity": "test",
    "test_bits_per_byte": "test, bits per byte",
}


class Training(Resuming):
    """Options that `train` and `gate` share."""

    group = "training"

    epochs: int | None = count(None)
    """Training epochs, not counting fine-tuning (default: as in the card)."""

    devices: str | int | None = field(None, metavar="N")
    """Divide batches among so many devices, or 'all' (JAX only)."""

    keep_every: str | None = field(None, metavar="WORDS")
    """Keep the model after so many words that were read, e.g. 1M..10M,10M..100M, each as a RUN of
    its own, RUN/kept/1M, ..."""


class Train(ReadingPairs, Training, OfModel):
    """Options of `train`."""

    group = "training"

    card_for: str | None = field(None, metavar="CORPUS")
    """Use the sizes and the recipe that MODEL has for this corpus, e.g. multi30k (default: those
    for the corpus itself, else the first)."""

    weights: str | None = field(None, metavar="RUN")
    """Start from the weights of this RUN folder, shipped model or .keras file."""

    dry_run: bool = False
    """Say how long an epoch takes on this machine, from a few steps, and write nothing."""

    seeds: list[int] | None = None
    """Train once for each of these seeds, into RUN/seed-N, and show mean and deviation."""

    needs = {"pairs": ["lowercase"]}
    excludes = {"seed": ["seeds"], "dry_run": ["resume", "seeds"]}


class Gate(Training, OfRun):
    """Options of `gate`."""


class Ensemble(OfRuns):
    """Options of `ensemble`."""

    output: str = field(metavar="RUN")
    """Folder to write, new or empty."""


def train(options: Train) -> Result:
    """Train a model and save it in a RUN folder.

    Examples:
        dualnet train dual_lstm --corpus ptb --output runs/dual
        dualnet train dual_lstm --corpus book.txt --tokenizer bpe:2000 --output runs/book --set units=200
        dualnet train dual_lstm.wikitext-2 --corpus story.txt --output runs/story --epochs 2
        dualnet train runs/dual --corpus new.txt --output runs/dual-2
        dualnet train encdec --pairs multi30k --source en --target de --output runs/en-de
        dualnet train dual_lstm --output runs/dual --resume
    """  # noqa: E501
    card = zoo.card(options.name)
    if options.card_for is not None:
        check_choice("--card-for", options.card_for, card.corpora)
        card = zoo.card(options.name, options.card_for)
    model = options.name if options.card_for is None else card
    if options.weights is not None and not options.resume:
        Run.open(options.weights, name="weights")
    _check_training(options)
    corpus = _corpus_or_pairs(options, card)
    training = quietly("dualnet.training", seeds=True)
    read_as = options.reading() if options.pairs is None else {}
    if options.dry_run:
        return _dry_run(options, model, corpus, read_as | options.settings)
    of_command = {"name", "card_for", "dry_run", *ReadingPairs.names()}
    settings = options.arguments_of(*of_command) | read_as
    if options.seeds is None:
        return _result(training.train(model, corpus, **settings))
    result = training.train_seeds(model, corpus, **settings)
    mean, deviation = result["mean"], result["deviation"]
    digits = {key: 3 if "bits" in key else 2 for key in SEEDS if key in mean}
    rows = [
        [run["seed"], run["best_epoch"], *(f"{run[k]:.{n}f}" for k, n in digits.items())]
        for run in result["runs"]
    ]
    means = (f"{mean[k]:.{n}f} ± {deviation[k]:.{n}f}" for k, n in digits.items())
    rows.append(["mean", "", *means])
    return Result(result, Table(["seed", "best epoch", *(SEEDS[key] for key in digits)], rows))


def _dry_run(
    options: Train, model: str | Card, corpus: str | Corpus | PairCorpus, settings: dict[str, Any]
) -> Result:
    """Return about how long an epoch takes, and all; also of a new model with half the units."""
    from dualnet import training
    from dualnet.training.reporting import told_time

    settings["keep_every"] = options.keep_every or ""
    epochs = options.epochs
    card = model if isinstance(model, Card) else training.card_for(model, corpus)
    if epochs is None:
        epochs = training.split_overrides(card, {})[1].epochs
    seconds = training.epoch_seconds(model, corpus, weights=options.weights, **settings)
    result = {"seconds_per_epoch": seconds, "epochs": epochs}
    lines = [f"{told_time(seconds, epochs)} Nothing was written."]
    config = {**card.config, **settings}
    sizes = [n for key, n in config.items() if key.endswith("units") and is_number(n)]
    units = settings.get("units") or max(sizes, default=0)
    if units > 1 and not (options.weights or card_of_run(options.name)):
        settings = {key: n for key, n in settings.items() if not key.endswith("units")}
        with contextlib.suppress(ValueError):  # of a cell that cannot have so many units
            half = training.epoch_seconds(model, corpus, **{**settings, "units": units // 2})
            lines.append(f"With --set units={units // 2}: {told_time(half, epochs)}")
            result["seconds_with_half_the_units"] = half
    return Result(result, *lines)


def _corpus_or_pairs(options: Train, card: Card) -> str | Corpus | PairCorpus:
    """Return the corpus of `train`, or what names it; of `--pairs`, or of the run to resume.

    Pairs have the tokenisers of the RUN to go on from, if there is one. By default, those that
    `card` lists have as many tokens as it says.
    """
    seeds = [Path(options.output, f"seed-{seed}") for seed in options.seeds or ()]
    folder = next(filter(card_of_run, seeds), Path(options.output))
    if options.pairs is None:
        if options.corpus is None and not options.resume:
            raise ArgumentError(
                "--corpus", "must be given, or --pairs for a model that translates. Received: none."
            )
        return options.corpus or Run.open_folder(folder).corpus()
    settings = {"tokenizer": options.asked_tokenizers()}
    # Resolved, for a folder with the name of a model of the zoo.
    start = folder.resolve() if options.resume else options.weights or options.name
    run = Run.open_folder(start) if card_of_run(start) else None
    name = options.card_for or Path(options.pairs).resolve().name
    is_open = options.resume or settings["tokenizer"] is None
    if run is not None and tokenizer_file(run.path) and is_open:
        settings["tokenizer"] = run.source_vocabulary, run.vocabulary
        if options.resume:
            most = run.trained_on.get("pairs", {}).get("max_tokens")
            settings["max_tokens"] = options.max_tokens or most
    elif settings["tokenizer"] is None and name in card.corpora:
        size = zoo.card(options.name, name).config.get("vocabulary_size")
        settings["tokenizer"] = size and f"bpe:{size}"
    return options.read_pairs(**settings)


def gate(options: Gate) -> Result:
    """Train an input-to-output gate on top of the frozen model of a RUN.

    Examples:
        dualnet gate runs/dual --output runs/gated
    """
    run = open_language_model(options.run_folder)
    if not run.is_folder:
        raise ArgumentError(
            "RUN",
            "must be the RUN folder of the model, whose card the gate takes over. Received: "
            f"{options.run_folder!r}.",
        )
    _check_training(options)
    training = quietly("dualnet.training", seeds=True)
    corpus = run.corpus() if options.corpus is None else options.corpus
    settings = options.arguments_of("run_folder")
    return _result(training.train_gate(options.run_folder, corpus, **settings))


def ensemble(options: Ensemble) -> Result:
    """Combine the models of several RUNs in a new RUN.

    Examples:
        dualnet ensemble runs/one runs/two --output runs/both
    """
    way_out = "dualnet translate --ensemble"
    runs = [str(open_language_model(run, use=way_out).path) for run in options.run_folders]
    check_new(Path(options.output), may_hold=EARLY_FILES)
    folder = quietly("dualnet.training").combine_runs(runs, options.output)
    result = {"path": folder, "members": runs}
    return Result(result, f"An ensemble of {len(runs)} models in {folder}")


def _check_training(options: Training) -> None:
    """Check what needs no Keras: the folder, the corpus, and settings whose names tell enough."""
    for name, value in options.settings.items():
        if is_number(value) and name.endswith("_dropout"):
            check_rate(name, value)
        elif is_number(value) and name.endswith(("units", "_layers", "batch_size", "_length")):
            check_count(name, value)
    if not options.resume:
        check_new(Path(options.output), may_hold=EARLY_FILES)
    read_as = options.reading() if isinstance(options, Reading) else {}
    check_corpus(options.corpus, read_as, resume=options.resume)


def _result(run: "training.Run") -> Result:
    results = run.results
    protocol = "by sentence" if results["by_sentence"] else "batch size 1"
    valid, test = (comparison(results, f"{split}_") for split in ("valid", "test"))
    no_figures = results["valid_not_comparable"] == results["test_not_comparable"] is not None
    return Result(
        results,
        f"{results['name']}: {results['parameters']:,} parameters, "
        f"best epoch {results['best_epoch']}",
        f"perplexity {results['valid_perplexity']:.2f} validation, "
        f"{results['test_perplexity']:.2f} test ({protocol})",
        test if no_figures else f"validation: {valid}\ntest: {test}",
        f"trained at {results['tokens_per_second']:,.0f} tokens per second; "
        f"all files are in {run.folder}",
    )
