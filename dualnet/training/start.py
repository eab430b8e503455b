"""Prepares a run for training: a new one with `begin`, an interrupted one with `resume`."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath, check_count
from dualnet._contexts import dtype_policy
from dualnet._files import claim, is_used, read_json, remove_unfinished, sha256_of_data
from dualnet.builders import BUILDERS, LanguageModel, Transfer
from dualnet.builders.parts import with_names
from dualnet.cards import Card, with_members, with_vocabulary_size
from dualnet.corpora import NAMES, Corpus, PairCorpus
from dualnet.devices import check_rows
from dualnet.evaluation.translations import check_packages
from dualnet.runs import Run
from dualnet.runs import folder as run_folder
from dualnet.runs.shipped import card_of_run, check_own, copy_licences, source_of
from dualnet.training import checkpoints, initial_weights, kept
from dualnet.training.checkpoints import Progress
from dualnet.training.recipe import Recipe, plain, recipe_of, split_overrides
from dualnet.training.schedule import is_round, plan

AnyCorpus = Corpus | PairCorpus
NO_LIMIT = 2**31 - 1
PAIRS_OF_ONES_OWN = "multi30k"  # whose card suits any pairs
MOST_POSITIONS = 2**14  # of a batch of pairs to validate on, where the recipe has no limit
RANDOM = ("length_deviation", "longest_length", "partial_shuffle")  # of training batches only
RESUMABLE = (  # settings of the recipe that may change on resuming
    "epochs", "learning_rate", "clipnorm", "global_clipnorm", "finetune", "finetune_epochs",
    "finetune_learning_rate", "patience", "keep_every",
)  # fmt: skip


class FinishedError(ValueError):
    """A run to resume is finished: nothing is left to do."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `train` that describe a run."""

    folder: Path
    name: StrPath | Card
    corpus: Corpus | PairCorpus | str
    seed: int | None
    weights: str  # an absolute path, the name of a shipped model, or ""
    overrides: Mapping[str, Any]
    read_as: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # see `corpora.load`

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", check_seed(self.seed))

    @property
    def goes_on(self) -> bool:
        """Whether the model is that of a RUN, whose weights and tokeniser it begins with."""
        return not self.weights and not isinstance(self.name, Card) and bool(card_of_run(self.name))


def request_of(
    output: StrPath, name: StrPath | Card, corpus: AnyCorpus | str, seed: int | None,
    weights: StrPath | None, settings: Mapping[str, Any],
) -> Request:  # fmt: skip
    """Return the request of these arguments of `train`."""
    read_as, overrides = initial_weights.reading(corpus, settings)
    source = "" if weights is None else source_of(weights)
    return Request(Path(output), name, corpus, seed, source, overrides, read_as)


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer from 0 to 2**32 - 1, else raise `ValueError`."""
    seed = check_count("seed", seed, least=0)
    if seed >= 2**32:
        raise ArgumentError("seed", "must be below 2**32.", seed=seed)
    return seed


@dataclasses.dataclass
class Start:
    """A run ready to train: everything is checked, and its folder is claimed."""

    folder: Path
    card: Card
    recipe: Recipe
    corpus: AnyCorpus
    model: LanguageModel  # compiled
    train_batches: Any
    valid_batches: Any
    progress: Progress
    transferred: Transfer | None  # what was copied from the model to start from
    words: int  # of the training text; 0 if nothing is to be kept after some


@contextlib.contextmanager
def begin(request: Request) -> Iterator[Start]:
    """Yield a new run. Its folder is claimed and written to once nothing is left to refuse."""
    name, overrides, seed = request.name, request.overrides, request.seed
    check_own(request.folder)
    weights = source_of(str(name)) if request.goes_on else request.weights
    published = name if isinstance(name, Card) else card_for(name, request.corpus)
    with zoo.located(published, overrides):
        config, recipe = split_overrides(published, overrides)
        seed = check_seed(published.seed or 0) if seed is None else seed
    _check_model(published, config, request.corpus)
    source = initial_weights.load_source(weights, config, resume=False)
    read_as = request.read_as
    if weights and isinstance(request.corpus, (str, Path)):  # its own text is divided alike
        read_as = {**Run.open(weights).own_reading(request.corpus), **read_as}
    corpus = initial_weights.load_corpus(
        request.corpus, source, lowercase=published.lowercase, read_as=read_as,
        match_words=not request.goes_on and not initial_weights.is_gated(config),
    )  # fmt: skip
    with zoo.located(published, overrides):
        units = config.get("vocabulary_size")
        config = fit_to_corpus(config, recipe, corpus, overrides)
        is_published = isinstance(corpus, PairCorpus) and published.corpus == corpus.name
        if is_published and config["vocabulary_size"] != units:
            message = f"The card of {published.name!r} for {corpus.name!r} has {units} units, and "
            message += f"the tokeniser of these pairs {config['vocabulary_size']}: the model is "
            message += f"another one. To have as many, give the tokeniser bpe:{units}."
            warnings.warn(message, stacklevel=2)
    card = dataclasses.replace(
        published, note="", seed=seed, weights=weights, corpus=corpus.name,
        lowercase=corpus.lowercase, trained_on=run_folder.corpus_table(corpus), config=config,
        recipe={**dataclasses.asdict(recipe), "dtype_policy": policy_of(recipe)},
    )  # fmt: skip
    start = _prepare(request, card, recipe, corpus, source)
    del source  # frees its memory
    with claim(start.folder, holds="run", resume=False, may_hold=run_folder.EARLY_FILES):
        remove_unfinished(start.folder)
        run_folder.write_vocabularies(start.folder, corpus)
        run_folder.write_card(start.folder, card)
        copy_licences(start.folder, filter(None, [weights]))
        yield start


@contextlib.contextmanager
def resume(request: Request, *, may_be_finished: bool) -> Iterator[Start]:
    """Yield the run in the folder of `request`, restored from its last checkpoint."""
    folder = request.folder
    check_own(folder)
    if not (folder / run_folder.CARD).is_file():
        if folder.is_dir() and not is_used(folder, may_hold=run_folder.EARLY_FILES):
            with begin(request) as start:  # stopped before its card was written
                yield start
            return
        received = f"{str(folder)!r}, without {run_folder.CARD}. Train again, without --resume"
        raise FileNotFoundError(f"--resume needs a RUN folder. Received: {received}.")
    with claim(folder, holds="run", resume=True):
        remove_unfinished(folder)
        remove_unfinished(folder / kept.FOLDER)
        run = Run.open_folder(folder)
        if (note := run.table.get("note", "")).startswith(kept.NOTE):
            way_out = "Go on from it into a new RUN: give the folder in place of a model."
            message = "--resume needs a RUN that was trained in its folder. Received: "
            raise ValueError(f"{message}{str(folder)!r}. {note} {way_out}")
        trained = (folder / "metrics.csv").is_file() and (folder / run_folder.WEIGHTS).is_file()
        if trained and not checkpoints.exist(folder):  # a new training would replace its weights
            way_out = "Go on from its weights into a new RUN: give the folder in place of a model."
            received = f"Received: {str(folder)!r}, whose checkpoints are gone. {way_out}"
            raise FileNotFoundError(f"--resume needs the checkpoints of a RUN. {received}")
        card = resumed_card(request, run, may_be_finished=may_be_finished)
        corpus = resumed_corpus(request, run)
        read = run_folder.corpus_table(corpus).items()  # it may have moved
        moved = {key: value for key, value in read if key in ("source", "pairs")}
        card = dataclasses.replace(card, trained_on={**card.trained_on, **moved})
        source = None
        if not checkpoints.exist(folder):  # a checkpoint holds the weights
            source = initial_weights.load_source(card.weights, card.config, resume=True)
        start = _prepare(request, card, recipe_of(card.recipe), corpus, source)
        del source  # frees its memory
        if not run.has_vocabulary:
            run_folder.write_vocabularies(folder, corpus)
        run_folder.write_card(folder, card)
        run_id, steps = start.progress.run, len(start.train_batches)
        restored = checkpoints.restore(folder, start.model, run_id, steps=steps)
        start.progress = restored or start.progress
        start.progress.run = identity(card)
        yield start


# --- checks


def _check_model(card: Card, config: Mapping[str, Any], corpus: Corpus | PairCorpus | str) -> None:
    """Raise `ArgumentError` unless the model can be trained as a whole, and on `corpus`."""
    if "members" in config and not initial_weights.is_gated(config):
        message = "must be a model that is trained whole, or an ensemble with a gate. Received: "
        way_out = "Train each member, then combine the RUN folders with `dualnet ensemble`."
        raise ArgumentError("name", f"{message}{card.name!r}, an ensemble. {way_out}")
    translates = card.builder == "encoder_decoder"
    if translates != isinstance(corpus, PairCorpus):
        what = "pairs of texts, from corpora.load_pairs" if translates else "a text, not pairs"
        way_out = "give --pairs FOLDER" if translates else "choose a model that translates"
        message = f"must be {what}, for the model {card.name!r}. Received: {corpus!r}."
        raise ArgumentError("corpus", f"{message} On the command line, {way_out}.")


def fit_to_corpus(
    config: Mapping[str, Any], recipe: Recipe, corpus: AnyCorpus, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `config` with the vocabulary sizes of `corpus`, and padded if batches are."""
    if isinstance(corpus, PairCorpus) != (recipe.batching == "pairs"):
        message = "must be 'pairs' for a corpus of pairs, and for no other."
        raise ArgumentError("batching", message, batching=recipe.batching)
    size = len(corpus.vocabulary)
    size_given = overrides.get("vocabulary_size")
    if size_given is not None and check_count("vocabulary_size", size_given, least=1) != size:
        message = f"must be that of the corpus, {size}."
        way_out = " Leave it out, or cut the vocabulary: corpora.load(..., vocabulary_size=...)."
        raise ArgumentError("vocabulary_size", message, way_out, vocabulary_size=size_given)
    fitted = with_vocabulary_size(config, size)
    if isinstance(corpus, PairCorpus):
        is_shared = corpus.source_vocabulary.sha256 == corpus.vocabulary.sha256
        if config.get("share_embeddings") and not is_shared:
            message = "needs one tokeniser for both sides. Received: True, and two, "
            way_out = "Load the pairs with joint=True."
            raise ArgumentError("share_embeddings", f"{message}{corpus.tokenizer!r}. {way_out}")
        return {**fitted, "source_vocabulary_size": len(corpus.source_vocabulary)}
    if recipe.batching != "sentences":
        return fitted

    def padded(arguments: Mapping[str, Any]) -> dict[str, Any]:
        if "members" in arguments:
            return with_members(arguments, padded)
        if arguments.get("padded", True) is False:
            message = "must be True with batching='sentences', whose batches are padded."
            raise ArgumentError("padded", message, " Leave it out.", padded=False)
        return {**arguments, "padded": True}

    return padded(fitted)


# --- card, batches and model


def card_for(name: StrPath, corpus: Corpus | PairCorpus | str) -> Card:
    """Return the card of model `name`: the one for `corpus` if it exists, else the default.

    A model that translates gets its card for Multi30k, of small sizes and a careful recipe, for
    all pairs that its own card does not list.

    Example:

    >>> from dualnet import training
    >>> training.card_for("dual_lstm", "wikitext-2").corpus
    'wikitext-2'
    """
    if isinstance(corpus, (str, Path)):  # the name that it has once it is loaded
        path, corpus_name = Path(corpus).expanduser(), str(corpus)
        if corpus_name not in NAMES:
            corpus_name = path.stem if path.is_file() else path.resolve().name
    else:
        corpus_name = corpus.name
    listed = zoo.card(name).corpora
    choices = (choice for choice in (corpus_name, PAIRS_OF_ONES_OWN) if choice in listed)
    return zoo.card(name, next(choices, None))


def batches_of(
    corpus: Corpus | PairCorpus, split: str, recipe: Recipe, *, seed: int | None = None
) -> Any:
    """Return the batches of `split` as `recipe` wants them.

    Args:
        corpus: `Corpus`, or `PairCorpus` for batches of pairs.
        split: "train", "valid" or "test".
        recipe: `Recipe`.
        seed: int. Draws the random lengths, shuffles and order of sentences of each epoch;
            without it, the batches are in reading order.

    Raises:
        ValueError: if the split is too short for a batch.

    Example:

    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> recipe = training.Recipe(batch_size=4, sequence_length=10)
    >>> inputs, targets = training.batches_of(corpus, "valid", recipe)[1]
    >>> inputs.shape, targets.shape
    ((4, 10), (4, 10))
    """
    order: dict[str, Any] = {"shuffle": seed is not None, "seed": seed or 0}
    if isinstance(corpus, PairCorpus):
        most = recipe.tokens_per_batch or (MOST_POSITIONS if seed is None else NO_LIMIT)
        return corpus.batches(split, batch_size=recipe.batch_size, tokens_per_batch=most, **order)
    if recipe.batching == "sentences":
        return corpus.sentence_batches(split, batch_size=recipe.batch_size, **order)
    if len(tokens := corpus.split(split)) <= recipe.batch_size:
        least = f"batch_size + 1 = {recipe.batch_size + 1} tokens"
        message = f"The split {split!r} must hold at least {least}. Received: {len(tokens)} in"
        way_out = "Choose a smaller batch_size or a longer text."
        raise ValueError(f"{message} {corpus.source!r}. {way_out}")
    random = () if seed is None else RANDOM
    settings = recipe.given(("batch_size", "sequence_length", *random))
    return corpus.batches(split, seed=seed or 0, **settings)


def _prepare(
    request: Request, card: Card, recipe: Recipe, corpus: AnyCorpus, source: LanguageModel | None
) -> Start:
    """Check the batches and build the model, with all variables that a checkpoint holds."""
    if recipe.watch == "bleu" and isinstance(corpus, PairCorpus):
        check_packages("sacrebleu", corpus.target)
    check_rows(recipe.batch_size)
    train_batches = batches_of(corpus, "train", recipe, seed=card.seed)
    valid_batches = batches_of(corpus, "valid", recipe)
    if isinstance(corpus, Corpus) and len(corpus.test) < 2:
        received = f"{len(corpus.test)} in {corpus.source!r}. Choose a longer text"
        raise ValueError(f"The split 'test' must hold at least 2 tokens. Received: {received}.")
    words = kept.num_words(corpus, recipe.keep_every, steps=len(train_batches))
    keras.utils.set_random_seed(card.seed)
    with zoo.located(card, request.overrides):
        model = compiled_model(card, recipe, corpus)
    model.check_training()
    model.optimizer.build(model.trainable_variables)
    # Now, lest JAX compile the step a second time.
    model.training_rows.resize(recipe.dropout_samples * recipe.batch_size)
    model.evaluation_rows.resize(recipe.batch_size)
    transferred = None
    if source is not None:
        transferred = initial_weights.load_start(source, model, card, goes_on=request.goes_on)
    return Start(
        request.folder, card, recipe, corpus, model, train_batches, valid_batches,
        Progress(run=identity(card)), transferred, words,
    )  # fmt: skip


def compiled_model(card: Card, recipe: Recipe, corpus: Corpus | PairCorpus) -> LanguageModel:
    """Return the model of `card`, compiled, with the vocabulary of `corpus`."""
    with dtype_policy(policy_of(recipe)):
        model = BUILDERS[card.builder](**card.config, name=card.name)
    model.vocabulary = corpus.vocabulary
    if isinstance(corpus, PairCorpus):
        model.source_vocabulary = corpus.source_vocabulary
    model.loss_reduction = recipe.loss_reduction
    model.label_smoothing = recipe.label_smoothing
    model.dropout_samples = recipe.dropout_samples
    model.compile(optimizer=recipe.make_optimizer())
    return model


def policy_of(recipe: Recipe) -> str:
    """Return the dtype policy of `recipe`, that of Keras if it names none."""
    return recipe.dtype_policy or keras.config.dtype_policy().name


# --- resuming


def resumed_card(request: Request, run: Run, *, may_be_finished: bool) -> Card:
    """Return the card of the run to resume, its recipe updated with the overrides."""
    folder, name = request.folder, request.name
    run.check_sums((run_folder.CARD, *run_folder.VOCABULARIES, run_folder.RESULTS))
    card = run.card
    if isinstance(name, Card):
        card_name = name.name
    else:  # a RUN whose weights it began with may be gone
        card_name = card.name if source_of(name) == card.weights else zoo.card(name).name
    if card_name != card.name:
        message = f"must be {card.name!r}, the model of the run in {str(folder)!r}."
        raise ArgumentError("name", message, name=card_name)
    before = {**card.recipe, **card.config, "seed": card.seed, "weights": card.weights or None}
    before |= {key: x for key, x in run.read_as.items() if x is not None or key not in before}
    options = {"seed": request.seed, "weights": request.weights or None, **request.read_as}
    options = {key: value for key, value in options.items() if value is not None}
    settings = {**with_names(request.overrides), **options}
    settings = {key: plain(value) for key, value in settings.items()}
    changes = {key: settings.pop(key) for key in RESUMABLE if key in settings}
    for key, value in settings.items():
        if key not in before or before[key] != value:
            message = f"must stay {before.get(key)!r}, as when the run started, with --resume."
            raise ArgumentError(key, message, " Leave it out, or train again.", **{key: value})
    resumed = dataclasses.replace(card, recipe={**card.recipe, **changes})
    _check_unfinished(folder, card, recipe_of(resumed.recipe), may_be_finished=may_be_finished)
    return resumed


def identity(card: Card) -> str:
    """Return the SHA-256 of all settings of a run that resuming cannot change."""
    table = run_folder.card_table(card)  # as it is read again
    recipe = {key: value for key, value in table["recipe"].items() if key not in RESUMABLE}
    parts = [card.name, card.seed, table["config"], recipe, card.trained_on["sha256"]]
    return sha256_of_data(parts)


def _check_unfinished(folder: Path, card: Card, recipe: Recipe, *, may_be_finished: bool) -> None:
    """Raise `ValueError` if `recipe` leaves nothing to do, or changes a phase that is over."""
    latest = checkpoints.peek(folder)
    history = latest.history if latest else []
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    if rounds and recipe.epochs != (epochs := recipe_of(card.recipe).epochs):
        message = f"must stay {epochs}, as when the run started: its fine-tuning has begun."
        way_out = " To train longer, set finetune_epochs, the most epochs of a round."
        raise ArgumentError("epochs", message, way_out, epochs=recipe.epochs)
    evaluated = evaluated_epochs(folder)
    finished = evaluated >= recipe.epochs
    if latest:
        finished = evaluated == len(history) and plan(recipe, history) is None
    if may_be_finished or not evaluated or not finished:
        return
    way_out = f"To continue, give more: --epochs {evaluated + 1}."
    if evaluated < recipe.epochs:
        way_out = f"To continue, give more: --set patience={2 * recipe.patience}."
    if rounds:
        way_out = "Where a round lowered the perplexity or reached its limit, "
        way_out += "finetune='until_no_gain' and finetune_epochs add more."
    elif recipe.averaging == "asgd":
        way_out += " Or fine-tune it, with --set finetune=once."
    last = f", the last in round {rounds} of fine-tuning" if rounds else ""
    message = f"is finished: it has {evaluated} epochs{last}. {way_out}"
    raise FinishedError(f"The run in {str(folder)!r} {message}")


def evaluated_epochs(folder: Path) -> int:
    """Return the number of epochs after which the run was evaluated, 0 if it never was."""
    # Of a file that is missing or damaged.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        return int(read_json(folder / run_folder.RESULTS)["epochs"])
    return 0


def resumed_corpus(request: Request, run: Run) -> Corpus | PairCorpus:
    """Return the corpus of `request` after a check that the run started with it."""
    card, vocabulary = run.card, run.vocabulary if run.has_vocabulary else None
    read_as = {**run.read_as, "lowercase": card.lowercase}
    corpus = initial_weights.load_with(vocabulary, request.corpus, read_as)
    if corpus.sha256 != card.trained_on["sha256"]:
        message = f"must be the one that the run started with, {card.corpus!r}, unchanged."
        received = f"{corpus.name!r} with another text"
        raise ArgumentError("corpus", f"{message} Received: {received}. Train without --resume.")
    source = run.source_vocabulary if run.has_vocabulary else None
    initial_weights.check_vocabulary(corpus, vocabulary, source, "the run")
    if isinstance(corpus, PairCorpus):
        most = card.trained_on["pairs"].get("max_tokens")
        if corpus.max_tokens != most:
            message = "must leave out the same pairs as when the run started. Received: "
            received = f"max_tokens={corpus.max_tokens} where it had {most}"
            raise ArgumentError("corpus", f"{message}{received}. Load it alike, or train again.")
    return corpus
