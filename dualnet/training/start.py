"""Prepares a new run for training: its card, its corpus, its batches and its model."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath, check_count
from dualnet._contexts import dtype_policy
from dualnet._files import claim, remove_unfinished, sha256_of_data
from dualnet.builders import BUILDERS, LanguageModel, Transfer
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
from dualnet.training import initial_weights, kept
from dualnet.training.checkpoints import Progress
from dualnet.training.recipe import Recipe, split_overrides
from dualnet.training.schedule import Plan, plan, watched

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
    """A run that is ready to train: everything about it is checked."""

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


@contextlib.contextmanager
def begin(training: Training) -> Iterator[None]:
    """Claim the folder of a new run, and write what is known of it."""
    folder, card = training.folder, training.card
    with claim(folder, resume=False, may_hold=run_folder.EARLY_FILES):
        remove_unfinished(folder)
        run_folder.write_vocabularies(folder, training.corpus)
        run_folder.write_card(folder, card)
        copy_licences(folder, filter(None, [card.weights]))
        yield


def prepare(
    name: StrPath | Card, corpus: AnyCorpus | str, folder: Path, *, seed: int | None,
    weights: StrPath | None, settings: Mapping[str, Any],
) -> Training:  # fmt: skip
    """Return a new run for these arguments of `train`; write nothing."""
    check_own(folder)
    read_as, overrides = initial_weights.reading(corpus, settings)
    goes_on = weights is None and not isinstance(name, Card) and bool(card_of_run(name))
    if goes_on:
        weights = str(name)
    source_name = "" if weights is None else source_of(weights)
    published = name if isinstance(name, Card) else card_for(name, corpus)
    with zoo.located(published, overrides):
        config, recipe = split_overrides(published, overrides)
        seed = check_count("seed", (published.seed or 0) if seed is None else seed, least=0)
    check_model(published, config, corpus)
    source = initial_weights.load_source(source_name, config)
    if source_name and isinstance(corpus, (str, Path)):  # its own text is divided alike
        read_as = {**Run.open(source_name).own_reading(corpus), **read_as}
    corpus = initial_weights.load_corpus(
        corpus, source, lowercase=published.lowercase, read_as=read_as,
        match_words=not goes_on and not initial_weights.is_gated(config),
    )  # fmt: skip
    with zoo.located(published, overrides):
        config = fit_to_corpus(config, recipe, corpus, overrides)
    card = dataclasses.replace(
        published, note="", seed=seed, weights=source_name, corpus=corpus.name,
        lowercase=corpus.lowercase, trained_on=run_folder.corpus_table(corpus), config=config,
        recipe={**dataclasses.asdict(recipe), "dtype_policy": policy_of(recipe)},
    )  # fmt: skip
    with zoo.located(card, overrides):
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
        received = f"{len(corpus.test)} in {corpus.source!r}. Choose a longer text"
        raise ValueError(f"The split 'test' must hold at least 2 tokens. Received: {received}.")
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
        message = "must be a model that is trained whole, or an ensemble with a gate. Received: "
        way_out = "Train each member, then combine the RUN folders with `dualnet ensemble`."
        raise ArgumentError("name", f"{message}{card.name!r}, an ensemble. {way_out}")
    if (card.builder == "encoder_decoder") == isinstance(corpus, PairCorpus):
        return
    required = "a text, not pairs"
    if card.builder == "encoder_decoder":
        required = "pairs of texts, from corpora.load_pairs or --pairs FOLDER"
    message = f"must be {required}, for the model {card.name!r}. Received: {corpus!r}."
    raise ArgumentError("corpus", message)


def fit_to_corpus(
    config: Mapping[str, Any], recipe: Recipe, corpus: AnyCorpus, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `config` with the vocabulary sizes of `corpus`, and padded if batches are."""
    if isinstance(corpus, PairCorpus) != (recipe.batching == "pairs"):
        message = "must be 'pairs' for a corpus of pairs, and for no other."
        raise ArgumentError("batching", message, batching=recipe.batching)
    size = len(corpus.vocabulary)
    if overrides.get("vocabulary_size", size) != size:
        message = f"must be that of the corpus, {size}."
        way_out = " Leave it out, or cut the vocabulary: corpora.load(..., vocabulary_size=...)."
        given = overrides["vocabulary_size"]
        raise ArgumentError("vocabulary_size", message, way_out, vocabulary_size=given)
    fitted = with_vocabulary_size(config, size)
    if isinstance(corpus, PairCorpus):
        is_shared = corpus.source_vocabulary.sha256 == corpus.vocabulary.sha256
        if config.get("share_embeddings") and not is_shared:
            message = "needs one tokeniser for both sides. Received: True, and two, "
            way_out = "Load the pairs with joint=True."
            raise ArgumentError("share_embeddings", f"{message}{corpus.tokenizer!r}. {way_out}")
        return {**fitted, "source_vocabulary_size": len(corpus.source_vocabulary)}
    return padded(fitted) if recipe.batching == "sentences" else fitted


def padded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a builder for a model, or members, that read padding."""
    if "members" in arguments:
        return with_members(arguments, padded)
    if arguments.get("padded", True) is False:
        message = "must be True with batching='sentences', whose batches are padded."
        raise ArgumentError("padded", message, " Leave it out.", padded=False)
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
        return corpus.sentence_batches(split, batch_size=size, shuffle=shuffle, seed=seed or 0)
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
