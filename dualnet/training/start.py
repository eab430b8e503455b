"""Prepares a run for training, a new one or one to resume: card, corpus, batches and model."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath, check_count
from dualnet._contexts import dtype_policy
from dualnet._files import claim, is_used, remove_unfinished, sha256_of_data
from dualnet.builders import BUILDERS, LanguageModel, Transfer
from dualnet.builders.parts import with_names
from dualnet.cards import Card, with_members, with_vocabulary_size
from dualnet.corpora import NAMES, Corpus, PairCorpus
from dualnet.corpora.pair_batches import PairBatches
from dualnet.corpora.sentence_batches import SentenceBatches
from dualnet.corpora.token_batches import TokenBatches
from dualnet.devices import check_rows
from dualnet.evaluation.translations import check_packages
from dualnet.runs import Run
from dualnet.runs import folder as run_folder
from dualnet.runs.shipped import card_of_run, check_own, copy_licences, source_of
from dualnet.training import checkpoints, initial_weights, kept
from dualnet.training.checkpoints import Progress
from dualnet.training.optimizers import Weights, optimizer_of
from dualnet.training.recipe import Recipe, plain, recipe_of, split_overrides
from dualnet.training.schedule import Plan, is_round, plan, watched

AnyCorpus = Corpus | PairCorpus
Batches = TokenBatches | SentenceBatches | PairBatches
NO_LIMIT = 2**31 - 1
PAIRS_OF_ONES_OWN = "multi30k"  # whose card suits any pairs
MOST_POSITIONS = 2**14  # of a batch of pairs to validate on, where the recipe has no limit
RANDOM = ("length_deviation", "longest_length", "partial_shuffle")  # of training batches only
RESUMABLE = (  # settings of the recipe that may change on resuming
    "epochs", "learning_rate", "clipnorm", "global_clipnorm", "finetune", "finetune_epochs",
    "finetune_learning_rate", "patience", "keep_every",
)  # fmt: skip


@dataclasses.dataclass
class Training:
    """A run that is ready to train; all its settings are checked."""

    folder: Path
    card: Card
    recipe: Recipe
    corpus: AnyCorpus
    model: LanguageModel  # compiled
    batches: Batches
    valid_batches: Batches
    words: int  # of the training text; 0 if nothing is to be kept after some
    progress: Progress
    transferred: Transfer | None = None  # what was copied from the model to start from
    stream_state: list[keras.KerasTensor] = dataclasses.field(default_factory=list)  # on resuming

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return len(self.batches)

    @property
    def steps_read(self) -> int:
        return self.steps * len(self.progress.history) + self.progress.step

    @property
    def tokens_read(self) -> int:
        """About how many tokens of the epoch have been read; at its end it is exact."""
        return self.batches.num_tokens * self.progress.step // self.steps

    def words_read(self, steps: int) -> int:
        return steps * self.words // self.steps

    @property
    def is_two_tailed(self) -> bool:
        return self.recipe.averaging == "two_tailed"

    @property
    def best_epoch(self) -> int:
        """The number of the best epoch, the first of equals, 0 for none."""
        history = self.progress.history
        return history.index(min(history, key=watched)) + 1 if history else 0

    def next_plan(self) -> Plan | None:
        """Return the plan of the next epoch, or of that under way; None after the last."""
        progress = self.progress
        return plan(self.recipe, progress.history, restarts=len(progress.restarts))

    @property
    def plan(self) -> Plan:
        """The plan of the epoch under way."""
        plan = self.next_plan()
        assert plan is not None
        return plan

    @property
    def averages(self) -> Weights:
        """The averages that take the place of the weights in this epoch."""
        if self.is_two_tailed or not self.plan.averaged:
            return None
        return optimizer_of(self.model).averages


class Stage(keras.callbacks.Callback):
    """A callback of one training; on JAX, reading its `model` synchronizes the variables."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training
        self.set_model(training.model)


@contextlib.contextmanager
def begin(training: Training) -> Iterator[None]:
    """Claim the folder of a new run; write its card, vocabulary and licences."""
    folder, card = training.folder, training.card
    with claim(folder, resume=False, may_hold=run_folder.EARLY_FILES):
        remove_unfinished(folder)
        run_folder.write_vocabularies(folder, training.corpus)
        run_folder.write_card(folder, card)
        copy_licences(folder, card.weights)
        run_folder.write_words(folder, card.weights, corpus=training.corpus)
        yield


def prepare(
    name: StrPath | Card,
    corpus: AnyCorpus | str,
    folder: Path,
    *,
    seed: int | None,
    weights: StrPath | None,
    settings: Mapping[str, Any],
) -> Training:
    """Return a new run for these arguments of `train`; write nothing."""
    if not isinstance(name, str | os.PathLike | Card):
        raise ArgumentError(
            "name",
            "must be a model of the zoo, a RUN folder or a card.",
            " A model itself has compile and fit.",
            name=name,
        )
    if not isinstance(corpus, str | os.PathLike | Corpus | PairCorpus):
        raise ArgumentError(
            "corpus",
            "must be a corpus, the name of one, a folder or a file.",
            " Write texts into a file.",
            corpus=corpus,
        )
    check_own(folder)
    read_as, overrides = initial_weights.reading(corpus, settings)
    goes_on = weights is None and not isinstance(name, Card) and bool(card_of_run(name))
    if goes_on:
        weights = str(name)
    source_name = "" if weights is None else source_of(weights)
    published = name if isinstance(name, Card) else card_for(name, corpus)
    with zoo.located(published, {*settings, "name", "corpus", "tokens", "weights"}):
        config, recipe = split_overrides(published, overrides)
        seed = check_count("seed", (published.seed or 0) if seed is None else seed, least=0)
        check_model(published, config, corpus)
        source = initial_weights.load_source(source_name, config)
        if source_name and isinstance(corpus, str | Path):  # its own text is divided alike
            read_as = Run.open(source_name).own_reading(corpus) | read_as
        corpus = initial_weights.load_corpus(
            corpus,
            source,
            lowercase=published.lowercase,
            read_as=read_as,
            match_words=not goes_on and not initial_weights.is_gated(config),
        )
        card = dataclasses.replace(
            published,
            note="",
            seed=seed,
            weights=source_name,
            corpus=corpus.name,
            lowercase=corpus.lowercase,
            trained_on=run_folder.corpus_table(corpus),
            config=fit_to_corpus(config, recipe, corpus, overrides),
            recipe={**recipe.arguments(), "dtype_policy": policy_of(recipe)},
        )
        training = ready(folder, card, recipe, corpus)
        if source is not None:
            training.transferred = initial_weights.load_start(
                source, training.model, card, goes_on=goes_on
            )
    return training


def ready(folder: Path, card: Card, recipe: Recipe, corpus: AnyCorpus) -> Training:
    """Check the batches and build the model, with all variables that a checkpoint holds."""
    if recipe.watch == "bleu" and isinstance(corpus, PairCorpus):
        check_packages("sacrebleu", corpus.target)
    check_rows(recipe.batch_size)
    batches = batches_of(corpus, "train", recipe, seed=card.seed)
    valid_batches = batches_of(corpus, "valid", recipe)
    if isinstance(corpus, Corpus) and len(corpus.test) < 2:
        raise ValueError(
            f"The split 'test' must hold at least 2 tokens. Received: {len(corpus.test)} in "
            f"{corpus.source!r}. Choose a longer text."
        )
    words = kept.num_words(corpus, recipe.keep_every, steps=len(batches))
    keras.utils.set_random_seed(card.seed)
    model = compiled_model(card, recipe, corpus)
    model.check_training()
    model.optimizer.build(model.trainable_variables)
    # Now, lest JAX compile the step a second time.
    model.training_rows.resize(recipe.dropout_samples * recipe.batch_size)
    model.evaluation_rows.resize(recipe.batch_size)
    progress = Progress(run=identity(card))
    return Training(folder, card, recipe, corpus, model, batches, valid_batches, words, progress)


# --- checks


def check_model(card: Card, config: Mapping[str, Any], corpus: AnyCorpus | str) -> None:
    """Raise `ArgumentError` unless the model can be trained as a whole, and on `corpus`."""
    if "members" in config and not initial_weights.is_gated(config):
        raise ArgumentError(
            "name",
            "must be a model that is trained whole, or an ensemble with a gate.",
            " Train each member, then combine the RUN folders with `dualnet ensemble`.",
            name=card.name,
        )
    translates = card.builder == "encoder_decoder"
    if translates != isinstance(corpus, PairCorpus):
        way_out = " Load pairs with corpora.load_pairs, or --pairs FOLDER." * translates
        raise ArgumentError(
            "corpus",
            f"must be {'pairs' if translates else 'a text'} for the model {card.name!r}.",
            way_out,
            corpus=corpus,
        )


def fit_to_corpus(
    config: Mapping[str, Any], recipe: Recipe, corpus: AnyCorpus, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `config` with the vocabulary sizes of `corpus`, and padded if batches are."""
    if isinstance(corpus, PairCorpus) != (recipe.batching == "pairs"):
        raise ArgumentError(
            "batching",
            "must be 'pairs' for a corpus of pairs, and for no other.",
            batching=recipe.batching,
        )
    size = len(corpus.vocabulary)
    if overrides.get("vocabulary_size", size) != size:
        message = f"must be that of the corpus, {size}."
        way_out = " Leave it out, or cut the vocabulary: corpora.load(..., vocabulary_size=...)."
        asked = overrides["vocabulary_size"]
        raise ArgumentError("vocabulary_size", message, way_out, vocabulary_size=asked)
    fitted = with_vocabulary_size(config, size)
    if isinstance(corpus, PairCorpus):
        is_shared = corpus.source_vocabulary.sha256 == corpus.vocabulary.sha256
        if config.get("share_embeddings") and not is_shared:
            raise ArgumentError(
                "share_embeddings",
                "needs one tokeniser for both sides. Received: True, and two, "
                f"{corpus.tokenizer!r}. Load the pairs with joint=True.",
            )
        return {**fitted, "source_vocabulary_size": len(corpus.source_vocabulary)}
    return padded(fitted) if recipe.batching == "sentences" else fitted


def padded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a builder for a model, or members, that read padding."""
    if "members" in arguments:
        return with_members(arguments, padded)
    if arguments.get("padded", True) is False:
        raise ArgumentError(
            "padded",
            "must be True with batching='sentences', whose batches are padded.",
            " Leave it out.",
            padded=False,
        )
    return {**arguments, "padded": True}


# --- card, batches and model


def card_for(name: StrPath, corpus: AnyCorpus | str) -> Card:
    """Return the card of model `name`: the one for `corpus` if it exists, else the default.

    A model that translates gets its card for Multi30k, of small sizes and a careful recipe, for
    all pairs that its own card does not list.

    Example:

    >>> from dualnet import training
    >>> training.card_for("dual_lstm", "wikitext-2").corpus
    'wikitext-2'
    """
    if isinstance(corpus, str | Path):  # the name that it has once it is loaded
        path, corpus_name = Path(corpus).expanduser(), str(corpus)
        if corpus_name not in NAMES:
            corpus_name = path.stem if path.is_file() else path.resolve().name
    else:
        corpus_name = corpus.name
    listed = zoo.card(name).corpora
    choices = (choice for choice in (corpus_name, PAIRS_OF_ONES_OWN) if choice in listed)
    return zoo.card(name, next(choices, None))


def batches_of(
    corpus: AnyCorpus, split: str, recipe: Recipe, *, seed: int | None = None
) -> Batches:
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
    shuffle, size = seed is not None, recipe.batch_size
    if isinstance(corpus, PairCorpus):
        most = recipe.tokens_per_batch or (NO_LIMIT if shuffle else MOST_POSITIONS)
        return corpus.batches(
            split, batch_size=size, tokens_per_batch=most, shuffle=shuffle, seed=seed or 0
        )
    if recipe.batching == "sentences":
        grouped = recipe.group_by_length
        return corpus.sentence_batches(
            split, batch_size=size, group_by_length=grouped, shuffle=shuffle, seed=seed or 0
        )
    settings = recipe.given(("batch_size", "sequence_length", *(RANDOM if shuffle else ())))
    return corpus.batches(split, seed=seed or 0, **settings)


def compiled_model(card: Card, recipe: Recipe, corpus: AnyCorpus) -> LanguageModel:
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


def identity(card: Card) -> str:
    """Return the SHA-256 of all settings of a run that resuming cannot change."""
    table = run_folder.card_table(card)  # as it is read again
    recipe = {key: value for key, value in table["recipe"].items() if key not in RESUMABLE}
    parts = [card.name, card.seed, table["config"], recipe, card.trained_on["sha256"]]
    return sha256_of_data(parts)


# --- a run to resume, with the settings that it started with


class FinishedError(ValueError):
    """A run to resume is finished: nothing is left to do."""


def has_begun(folder: Path) -> bool:
    """Tell a RUN folder from one whose training was stopped before its card was written."""
    if (folder / run_folder.CARD).is_file():
        return True
    if not folder.is_dir() or is_used(folder, may_hold=run_folder.EARLY_FILES):
        raise FileNotFoundError(
            f"--resume needs a RUN folder. Received: {str(folder)!r}, without {run_folder.CARD}. "
            "Train again, without --resume."
        )
    return False


@contextlib.contextmanager
def resumed(
    name: StrPath | Card,
    corpus: AnyCorpus | str,
    folder: Path,
    *,
    seed: int | None,
    weights: StrPath | None,
    settings: Mapping[str, Any],
    may_be_finished: bool,
) -> Iterator[Training]:
    """Yield the run in `folder`, restored; the other arguments are those of `train`."""
    check_own(folder)
    with claim(folder, resume=True):
        remove_unfinished(folder)
        remove_unfinished(folder / kept.FOLDER)
        run = Run.open_folder(folder)
        has_checkpoint = bool(checkpoints.newest_first(folder))
        _check_resumable(run, has_checkpoint)
        read_as, overrides = initial_weights.reading(corpus, settings)
        changes = with_names(overrides) | read_as
        if seed is not None:
            changes["seed"] = seed
        if weights is not None:
            changes["weights"] = source_of(weights)
        card = _resumed_card(run, name, changes, may_be_finished=may_be_finished)
        corpus = _resumed_corpus(run, corpus)
        table = run_folder.corpus_table(corpus)
        moved = {key: table[key] for key in table.keys() & {"source", "pairs"}}
        card = dataclasses.replace(card, trained_on={**card.trained_on, **moved})
        source = None
        if not has_checkpoint:  # it would hold the weights
            source = initial_weights.load_source(card.weights, card.config)
        with zoo.located(card, overrides):
            training = ready(folder, card, recipe_of(card.recipe), corpus)
        if source is not None:
            initial_weights.load_start(source, training.model, card)
            del source  # frees its memory
        run_folder.write_card(folder, card)
        restored = checkpoints.restore(folder, training.model, training.progress.run)
        if restored is not None:
            training.progress = restored
        training.progress.run = identity(card)
        yield training


def _check_resumable(run: Run, has_checkpoint: bool) -> None:
    """Raise for a RUN whose weights a new training would replace: of no checkpoint."""
    note = run.table.get("note", "")
    is_trained = note.startswith(kept.NOTE) or (run.path / "metrics.csv").is_file()
    if is_trained and not has_checkpoint:
        raise FileNotFoundError(
            f"--resume needs the checkpoints of a RUN. Received: {str(run.path)!r}, without any. "
            f"{note} Fine-tune it into a new RUN: give the folder in place of a model."
        )


def _resumed_card(
    run: Run, name: StrPath | Card, changes: dict[str, Any], *, may_be_finished: bool
) -> Card:
    """Return the card of the run to resume, its recipe updated with `changes`."""
    run.check_sums((run_folder.CARD, *run_folder.VOCABULARIES))
    card = run.card
    card_name = name.name if isinstance(name, Card) else card.name
    if not isinstance(name, Card) and source_of(name) != card.weights:
        card_name = zoo.card(name).name  # else it began with this RUN, which may be gone
    if card_name != card.name:
        raise ArgumentError(
            "name",
            f"must be {card.name!r}, the model of the run in {str(run.path)!r}.",
            name=card_name,
        )
    before = {**card.recipe, **card.config, "seed": card.seed, "weights": card.weights or None}
    before |= {key: x for key, x in run.read_as.items() if x is not None or key not in before}
    recipe = dict(card.recipe)
    for key, value in changes.items():
        value = plain(value)
        if key in RESUMABLE:
            recipe[key] = value
        elif key not in before or before[key] != value:
            raise ArgumentError(
                key,
                f"must stay {before.get(key)!r}, as when the run started, with --resume.",
                " Leave it out, or train again.",
                **{key: value},
            )
    _check_unfinished(run, recipe_of(recipe), may_be_finished=may_be_finished)
    return dataclasses.replace(card, recipe=recipe)


def _check_unfinished(run: Run, recipe: Recipe, *, may_be_finished: bool) -> None:
    """Raise `ValueError` if `recipe` leaves nothing to do, or changes a phase that is over."""
    latest = checkpoints.peek(run.path)
    history = latest.history if latest else []
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    epochs = recipe_of(run.card.recipe).epochs
    if rounds and recipe.epochs != epochs:
        raise ArgumentError(
            "epochs",
            f"must stay {epochs}, as when the run started: its fine-tuning has begun.",
            " To train longer, set finetune_epochs, the most epochs of a round.",
            epochs=recipe.epochs,
        )
    evaluated = run.results.get("epochs")
    if may_be_finished or evaluated != len(history) or plan(recipe, history) is not None:
        return
    last, way_out = "", f"--epochs (such as {evaluated + 1}) or patience, or set finetune"
    if rounds:
        last = f", the last in round {rounds} of fine-tuning"
        way_out = "finetune_epochs, or set finetune='until_no_gain'"
    raise FinishedError(
        f"The run in {str(run.path)!r} is finished: it has {evaluated} epochs{last}. To continue, "
        f"give more {way_out}."
    )


def _resumed_corpus(run: Run, corpus: AnyCorpus | str) -> AnyCorpus:
    """Return `corpus`, loaded, after a check that the run started with it."""
    card = run.card
    read_as = {**run.read_as, "lowercase": card.lowercase}
    corpus = initial_weights.load_with(run.vocabulary, corpus, read_as)
    if corpus.sha256 != card.trained_on["sha256"]:
        raise ArgumentError(
            "corpus",
            f"must be the one that the run started with, {card.corpus!r}, unchanged. Received: "
            f"{corpus.name!r} with another text. Train without --resume.",
        )
    initial_weights.check_vocabulary(corpus, run, "the run")
    if isinstance(corpus, PairCorpus):
        most = card.trained_on["pairs"].get("max_tokens")
        if corpus.max_tokens != most:
            raise ArgumentError(
                "corpus",
                "must leave out the same pairs as when the run started. Received: "
                f"max_tokens={corpus.max_tokens} where it had {most}. Load it alike, or train "
                "again.",
            )
    return corpus
