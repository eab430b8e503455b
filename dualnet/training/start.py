"""Prepares a run for training: a new one with `begin`, an interrupted one with `resume`."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from dualnet import zoo
from dualnet._checks import ArgumentError, checked
from dualnet._files import claim, is_used, remove_unfinished
from dualnet.builders import BUILDERS, LanguageModel, Transfer
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.devices import check_rows
from dualnet.evaluation.translations import check_packages
from dualnet.runs import Run
from dualnet.runs.folder import (
    CARD,
    EARLY_FILES,
    corpus_table,
    write_card,
    write_vocabularies,
)
from dualnet.runs.shipped import card_of_shipped, check_own, copy_licences, source_of
from dualnet.training import checkpoints
from dualnet.training.checkpoints import Progress
from dualnet.training.initial_weights import is_gated, load_corpus, load_source, load_start
from dualnet.training.recipe import Recipe, recipe_of, split_overrides
from dualnet.training.resuming import (
    Request,
    check_seed,
    identity,
    resumed_card,
    resumed_corpus,
)

NO_LIMIT = 2**31 - 1
MOST_POSITIONS = 2**14  # of a batch of pairs to validate on, where the recipe has no limit
RANDOM = ("length_deviation", "longest_length", "partial_shuffle")  # of training batches only


@dataclasses.dataclass
class Start:
    """A run ready to train: everything is checked, and its folder is claimed."""

    folder: Path
    card: Card
    recipe: Recipe
    corpus: Corpus | PairCorpus
    model: LanguageModel  # compiled
    train_batches: Any
    valid_batches: Any
    progress: Progress
    transferred: Transfer | None  # what was copied from the model to start from


@contextlib.contextmanager
def begin(request: Request) -> Iterator[Start]:
    """Yield a new run. Its folder is claimed and written to once nothing is left to refuse."""
    name, overrides, seed = request.name, request.overrides, request.seed
    check_own(request.folder)
    weights = request.weights
    if not weights and not isinstance(name, Card) and card_of_shipped(name):
        weights = source_of(name)
    published = name if isinstance(name, Card) else card_for(name, request.corpus)
    with zoo.located(published, overrides):
        config, recipe = split_overrides(published, overrides)
        seed = check_seed(published.seed or 0) if seed is None else seed
    _check_trainable(published.name, config)
    if not isinstance(request.corpus, Corpus):
        _check_kind(published.name, published.builder, request.corpus)
    source = load_source(weights, config, resume=False)
    corpus = load_corpus(
        request.corpus, source, lowercase=published.lowercase, read_as=request.read_as
    )
    _check_kind(published.name, published.builder, corpus)
    with zoo.located(published, overrides):
        units = config.get("vocabulary_size")
        config = _fit_to_corpus(config, recipe, corpus, overrides)
        if (
            isinstance(corpus, PairCorpus)
            and published.corpus == corpus.name
            and config["vocabulary_size"] != units
        ):
            warnings.warn(
                f"The card of {published.name!r} for {corpus.name!r} has {units} units, and the "
                f"tokeniser of these pairs {config['vocabulary_size']}: the model is another one. "
                f"To have as many, give the tokeniser bpe:{units}.",
                stacklevel=2,
            )
    card = dataclasses.replace(
        published,
        note="",
        seed=seed,
        weights=weights,
        corpus=corpus.name,
        lowercase=corpus.lowercase,
        trained_on=corpus_table(corpus),
        config=config,
        recipe={**dataclasses.asdict(recipe), "dtype_policy": policy_of(recipe)},
    )
    start = _prepare(request.folder, card, recipe, corpus, source, overrides)
    del source  # frees its memory
    with claim(start.folder, holds="run", resume=False, may_hold=EARLY_FILES):
        remove_unfinished(start.folder)
        write_vocabularies(start.folder, corpus)
        write_card(start.folder, card)
        copy_licences(start.folder, filter(None, [weights]))
        yield start


@contextlib.contextmanager
def resume(request: Request, *, may_be_finished: bool) -> Iterator[Start]:
    """Yield the run in the folder of `request`, restored from its last checkpoint."""
    folder = request.folder
    check_own(folder)
    if not (folder / CARD).is_file():
        if folder.is_dir() and not is_used(folder, may_hold=EARLY_FILES):
            with begin(request) as start:  # stopped before its card was written
                yield start
            return
        raise FileNotFoundError(
            f"--resume needs a RUN folder. Received: {str(folder)!r}, without {CARD}. Train again, "
            "without --resume."
        )
    with claim(folder, holds="run", resume=True):
        remove_unfinished(folder)
        run = Run.open_folder(folder)
        card = resumed_card(request, run, may_be_finished=may_be_finished)
        corpus = resumed_corpus(request, run)
        source = None
        if not checkpoints.exist(folder):  # a checkpoint holds the weights
            source = load_source(card.weights, card.config, resume=True)
        start = _prepare(folder, card, recipe_of(card.recipe), corpus, source, request.overrides)
        del source  # frees its memory
        if not run.has_vocabulary:
            write_vocabularies(folder, corpus)
        write_card(folder, card)
        start.progress = (
            checkpoints.restore(
                folder, start.model, start.progress.run, steps=len(start.train_batches)
            )
            or start.progress
        )
        start.progress.run = identity(card)
        yield start


# --- checks


def _check_trainable(name: str, config: Mapping[str, Any]) -> None:
    if "members" in config and not is_gated(config):
        raise ArgumentError(
            "name",
            "must be a model that is trained as a whole, or an ensemble with a gate. "
            f"Received: {name!r}, an ensemble. Train each member, then combine the RUN folders "
            "with `dualnet ensemble`.",
        )


def _check_kind(name: str, builder: str, corpus: Corpus | PairCorpus | str) -> None:
    """Raise `ArgumentError` for a translator without pairs, or another model with them."""
    translates, has_pairs = builder == "encoder_decoder", isinstance(corpus, PairCorpus)
    if translates != has_pairs:
        what = "pairs of texts, from corpora.load_pairs" if translates else "a text, not pairs"
        way_out = "give --pairs FOLDER" if translates else "choose a model that translates"
        raise ArgumentError(
            "corpus",
            f"must be {what}, for the model {name!r}. Received: {corpus!r}. On the command line, "
            f"{way_out}.",
        )


def _fit_to_corpus(
    config: Mapping[str, Any],
    recipe: Recipe,
    corpus: Corpus | PairCorpus,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `config` with the vocabulary sizes of `corpus`, and padded if batches are."""
    if isinstance(corpus, PairCorpus) != (recipe.batching == "pairs"):
        raise ArgumentError(
            "batching",
            "must be 'pairs' for a corpus of pairs, and for no other. Received: "
            f"batching={recipe.batching!r}.",
        )
    size = len(corpus.vocabulary)
    if overrides.get("vocabulary_size") not in (None, size):
        raise ArgumentError(
            "vocabulary_size",
            f"must be that of the corpus, {size}. Received: vocabulary_size="
            f"{overrides['vocabulary_size']!r}. Leave it out, or cut the vocabulary with "
            "corpora.load(..., vocabulary_size=...).",
        )
    fitted = zoo.with_vocabulary_size(config, size)
    if isinstance(corpus, PairCorpus):
        if config.get("share_embeddings") and (
            corpus.source_vocabulary.sha256 != corpus.vocabulary.sha256
        ):
            raise ArgumentError(
                "share_embeddings",
                "needs one tokeniser for both sides. Received: share_embeddings=True and a corpus "
                f"with two, {corpus.tokenizer!r}. Load the pairs with joint=True.",
            )
        return {**fitted, "source_vocabulary_size": len(corpus.source_vocabulary)}
    if recipe.batching == "sentences" and fitted.setdefault("padded", True) is False:
        raise ArgumentError(
            "padded",
            "must be True with batching='sentences', whose batches are padded. Received: "
            "padded=False. Leave it out.",
        )
    return fitted


# --- card, batches and model


@checked
def card_for(name: str, corpus: Corpus | PairCorpus | str) -> Card:
    """Return the card of model `name`: the one for `corpus` if it exists, else the default.

    Example:

    >>> from dualnet import training
    >>> training.card_for("dual_lstm", "wikitext-2").corpus
    'wikitext-2'
    """
    corpus_name = corpus if isinstance(corpus, str) else corpus.name
    return zoo.card(name, corpus_name if corpus_name in zoo.card(name).corpora else None)


@checked
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
    if isinstance(corpus, PairCorpus):
        return corpus.batches(
            split,
            batch_size=recipe.batch_size,
            tokens_per_batch=recipe.tokens_per_batch
            or (MOST_POSITIONS if seed is None else NO_LIMIT),
            shuffle=seed is not None,
            seed=seed or 0,
        )
    if recipe.batching == "sentences":
        return corpus.sentence_batches(
            split, batch_size=recipe.batch_size, shuffle=seed is not None, seed=seed or 0
        )
    tokens = corpus.split(split)
    if len(tokens) <= recipe.batch_size:
        raise ValueError(
            f"The split {split!r} must hold at least batch_size + 1 = {recipe.batch_size + 1} "
            f"tokens. Received: {len(tokens)} tokens in {corpus.source!r}. Choose a smaller "
            "batch_size or a longer text."
        )
    random: dict[str, Any] = {}
    if seed is not None:
        random = {name: getattr(recipe, name) for name in RANDOM} | {"seed": seed}
    return corpus.batches(
        split, batch_size=recipe.batch_size, sequence_length=recipe.sequence_length, **random
    )


def _prepare(
    folder: Path,
    card: Card,
    recipe: Recipe,
    corpus: Corpus | PairCorpus,
    source: LanguageModel | None,
    overrides: Mapping[str, Any],
) -> Start:
    """Check the batches and build the model, with all variables that a checkpoint holds."""
    if recipe.watch == "bleu":
        check_packages("sacrebleu")
    check_rows(recipe.batch_size)
    train_batches = batches_of(corpus, "train", recipe, seed=card.seed)
    valid_batches = batches_of(corpus, "valid", recipe)
    if isinstance(corpus, Corpus) and len(corpus.test) < 2:
        raise ValueError(
            f"The split 'test' must hold at least 2 tokens. Received: {len(corpus.test)} in "
            f"{corpus.source!r}. Choose a longer text."
        )
    keras.utils.set_random_seed(card.seed)
    with zoo.located(card, overrides), _dtype_policy(policy_of(recipe)):
        model = BUILDERS[card.builder](**card.config, name=card.name)
    model.vocabulary = corpus.vocabulary
    if isinstance(corpus, PairCorpus):
        model.source_vocabulary = corpus.source_vocabulary
    model.loss_reduction = recipe.loss_reduction
    model.label_smoothing = recipe.label_smoothing
    model.compile(optimizer=recipe.make_optimizer())
    model.optimizer.build(model.trainable_variables)
    for rows in (model.training_rows, model.evaluation_rows):
        rows.resize(recipe.batch_size)  # now, lest JAX compile the step a second time
    transferred = None
    if source is not None:
        transferred = load_start(source, model, card.weights, card.config)
    progress = Progress(run=identity(card))
    return Start(
        folder, card, recipe, corpus, model, train_batches, valid_batches, progress, transferred
    )


def policy_of(recipe: Recipe) -> str:
    """Return the dtype policy of `recipe`, that of Keras if it names none."""
    return recipe.dtype_policy or keras.config.dtype_policy().name


@contextlib.contextmanager
def _dtype_policy(policy: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
