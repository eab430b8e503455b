"""The commands that make RUN folders: `train`, `gate` and `ensemble`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_count, check_rate, is_number
from dualnet._fields import count, field
from dualnet._files import check_new
from dualnet.cards import Card
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Table, check_overrides, comparison, quietly, report, settings_of
from dualnet.cli.options import (
    OfCorpus,
    OfModel,
    OfRun,
    Reading,
    ReadingPairs,
    Resuming,
    check_corpus,
    number_or,
    open_language_model,
)
from dualnet.cli.translating import corpus_or_pairs
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES

COUNTS = ("epochs", "batch_size", "sequence_length")  # settings of at least 1


class Training(OfCorpus, Resuming):
    """Options that `train` and `gate` share."""

    group = "training"

    epochs: int | None = count(None, least=1)
    """Training epochs, not counting fine-tuning (default: as in the card)."""

    devices: str | int | None = field(
        None, type=number_or("all", int, "a number of devices"), metavar="N"
    )
    """Divide batches among so many devices, or 'all' (JAX only)."""

    keep_every: str | None = field(None, metavar="WORDS")
    """Keep the model after so many words that were read, e.g. 1M..10M,10M..100M, each as a RUN of
    its own, RUN/kept/1M, ..."""

    set: list[str] = field([], metavar="KEY=VALUE")
    """Override arguments of the recipe, of its gate and, for `train`, of the builder, e.g.
    learning_rate=0.001."""


class Train(ReadingPairs, Training, OfModel):
    """Options of `train`."""

    group = "models that translate"

    lowercase: bool = False
    """Convert the pairs to lower case first; for --corpus, a card of your own may say lowercase =
    true."""

    card_for: str | None = field(None, metavar="CORPUS", group="training")
    """Use the sizes and the recipe that MODEL has for this corpus, e.g. multi30k (default: those
    for the corpus itself, else the first)."""

    weights: str | None = field(None, metavar="RUN", group="training")
    """Start from the weights of this RUN folder, shipped model or .keras file."""

    dry_run: bool = field(False, group="training")
    """Say how long an epoch takes on this machine, from a few steps, and write nothing."""

    seeds: list[int] | None = field(None, nargs="+", group="training")
    """Train once for each of these seeds, into RUN/seed-N, and show mean and deviation."""

    needs = {"pairs": ["lowercase"]}
    excludes = {"seed": ["seeds"], "dry_run": ["resume", "seeds"]}


class Gate(Training, OfRun):
    """Options of `gate`."""


class Ensemble(Options):
    """Options of `ensemble`."""

    run_folders: list[str] = argument(nargs="+", metavar="RUN")
    """RUN folders of trained models, or names of shipped ones; at least two."""

    output: str = field(metavar="RUN")
    """Folder to write, new or empty."""


def train(options: Train) -> None:
    """Train a model and save it in a RUN folder.

    Examples:
        dualnet train dual_lstm --corpus ptb --output runs/dual
        dualnet train dual_lstm --corpus book.txt --tokenizer bpe:2000 --output runs/book --set units=200
        dualnet train dual_lstm.wikitext-2 --corpus story.txt --output runs/story --epochs 2
        dualnet train runs/dual --corpus new.txt --output runs/dual-2
        dualnet train encdec --pairs multi30k --source en --target de --output runs/en-de
        dualnet train dual_lstm --output runs/dual --resume
    """  # noqa: E501
    model = _model_to_train(options)
    settings = settings_of(options.set)
    if options.weights is not None and not options.resume:
        Run.open(options.weights, name="weights")
    _check_training(options, settings)
    corpus = corpus_or_pairs(options, _card_of_pairs(model, options.pairs))
    read_as = options.reading() if options.pairs is None else {}
    training = quietly("dualnet.training", seeds=True)
    check_overrides(settings, "the builder or the recipe", training.train, "train")
    if options.dry_run:
        keeping = {"keep_every": options.keep_every or ""}
        _tell_time(options, model, corpus, {**keeping, **read_as, **settings})
        return
    own = {"name", "card_for", "dry_run", "lowercase", *ReadingPairs.names()}
    arguments = {**options.arguments_of(*own), **read_as, **settings}
    if options.seeds is None:
        _show_run(options, training.train(model, corpus, **arguments))
        return
    result = training.train_seeds(model, corpus, **arguments)
    columns = {"valid_perplexity": "validation", "test_perplexity": "test",
               "test_bits_per_byte": "test, bits per byte"}  # fmt: skip
    shown = {key: title for key, title in columns.items() if key in result["mean"]}
    digits = {key: 3 if "bits" in key else 2 for key in shown}
    rows = [
        [str(run["seed"]), str(run["best_epoch"]),
         *(f"{run[key]:.{digits[key]}f}" for key in shown)]
        for run in result["runs"]
    ]  # fmt: skip
    summary = (f"{result['mean'][key]:.{digits[key]}f} ± {result['deviation'][key]:.{digits[key]}f}"
               for key in shown)  # fmt: skip
    head = ["seed", "best epoch", *shown.values()]
    report(options, result, Table(head, [*rows, ["mean", "", *summary]]))


def _tell_time(options: Train, model: str | Card, corpus: Any, settings: dict[str, Any]) -> None:
    """Print about how long an epoch takes, and all of them."""
    from dualnet import training
    from dualnet.training.recorder import told_time

    epochs = options.epochs or settings.get("epochs")
    if epochs is None:
        card = model if isinstance(model, Card) else training.card_for(model, corpus)
        epochs = training.split_overrides(card, {})[1].epochs
    seconds = training.epoch_seconds(model, corpus, weights=options.weights, **settings)
    result = {"seconds_per_epoch": seconds, "epochs": epochs}
    report(options, result, f"{told_time(seconds, epochs)} Nothing was written.")


def _model_to_train(options: Train) -> str | Card:
    """Return MODEL, or its card for the corpus of `--card-for`."""
    name, corpus = options.name, options.card_for
    corpora = zoo.card(name).corpora
    if corpus is None:
        return name
    if corpus not in corpora:
        needed = f"must be one of {', '.join(corpora)}, which the card of {name!r} lists"
        if not corpora:
            needed = f"must be left out: the card of {name!r} lists no corpora"
        raise ArgumentError("--card-for", f"{needed}. Received: {corpus!r}.")
    return zoo.card(name, corpus)


def _card_of_pairs(model: str | Card, pairs: str | None) -> Card | None:
    """Return the card whose tokeniser `pairs` get: of `--card-for`, or of the folder's name."""
    if isinstance(model, Card) or pairs is None:
        return model if isinstance(model, Card) else None
    name = Path(pairs).resolve().name
    return zoo.card(model, name) if name in zoo.card(model).corpora else None


def gate(options: Gate) -> None:
    """Train an input-to-output gate on top of the frozen model of a RUN.

    Examples:
        dualnet gate runs/dual --output runs/gated
    """
    settings = settings_of(options.set)
    opened = open_language_model(options.run_folder)
    _check_training(options, settings)
    training = quietly("dualnet.training", seeds=True)
    check_overrides(settings, "the builder or the recipe", training.train, "gate")
    corpus = opened.corpus() if options.corpus is None else options.corpus
    arguments = {**options.arguments_of("run_folder"), **settings}
    _show_run(options, training.train_gate(options.run_folder, corpus, **arguments))


def ensemble(options: Ensemble) -> None:
    """Combine the models of several RUNs in a new RUN.

    Examples:
        dualnet ensemble runs/one runs/two --output runs/both
    """
    way_out = "dualnet translate --ensemble"
    runs = [str(open_language_model(run, use=way_out).path) for run in options.run_folders]
    check_new(Path(options.output), holds="run", may_hold=EARLY_FILES)
    folder = quietly("dualnet.training").combine_runs(runs, options.output)
    result = {"path": folder, "members": runs}
    report(options, result, f"An ensemble of {len(runs)} models in {folder}")


def _check_training(options: Training, settings: Mapping[str, Any]) -> None:
    """Check what needs no Keras: the folder, the corpus, and settings whose names tell enough."""
    for name, value in settings.items():
        if is_number(value) and (name in COUNTS or name.endswith(("units", "_layers"))):
            check_count(name, value, least=1)
        elif is_number(value) and name.endswith("_dropout"):
            check_rate(name, value)
    if not options.resume:
        check_new(Path(options.output), holds="run", may_hold=EARLY_FILES)
    read_as = options.reading() if isinstance(options, Reading) else {}
    check_corpus(options.corpus, read_as, resume=options.resume)


def _show_run(options: Options, run: Any) -> None:
    results = run.results
    protocol = "by sentence" if results["by_sentence"] else "batch size 1"
    valid, test = (comparison(results, f"{split}_") for split in ("valid", "test"))
    no_figures = results["valid_not_comparable"] == results["test_not_comparable"] is not None
    report(
        options,
        results,
        f"{results['name']}: {results['parameters']:,} parameters, "
        f"best epoch {results['best_epoch']}",
        f"perplexity {results['valid_perplexity']:.2f} validation, "
        f"{results['test_perplexity']:.2f} test ({protocol})",
        test if no_figures else f"validation: {valid}\ntest: {test}",
        f"trained at {results['tokens_per_second']:,.0f} tokens per second; "
        f"all files are in {run.folder}",
    )
