"""Checks what a resumed training starts with: its card, its corpus and the new settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError
from dualnet.cards import Card
from dualnet.corpora import Corpus
from dualnet.runs.folder import CARD, RESULTS, WORDS, check_sums, read_card, read_vocabulary
from dualnet.training import checkpoints
from dualnet.training.recipe import Recipe
from dualnet.training.request import Request
from dualnet.training.schedule import is_round, plan

RESUMABLE = (  # settings of the recipe that may change on resuming
    "epochs", "learning_rate", "clipnorm", "global_clipnorm", "finetune", "finetune_epochs",
    "finetune_learning_rate",
)  # fmt: skip


def resumed_card(request: Request, *, may_be_finished: bool) -> Card:
    """Return the card of the run to resume, its recipe updated with the overrides."""
    folder, name = request.folder, request.name
    check_sums(folder, (CARD, WORDS))
    card = read_card(folder)
    card_name = (name if isinstance(name, Card) else zoo.card(name)).name
    if card_name != card.name:
        raise ArgumentError(
            "name",
            f"must be {card.name!r}, the model of the run in {str(folder)!r}. "
            f"Received: name={card_name!r}.",
        )
    before = {**card.config, **card.recipe, "seed": card.seed, "weights": card.weights or None}
    settings = dict(request.overrides)
    if request.seed is not None:
        settings["seed"] = request.seed
    if request.weights:
        settings["weights"] = request.weights
    for key, value in settings.items():
        if key not in RESUMABLE and (key not in before or before[key] != value):
            raise ArgumentError(
                key,
                f"must stay {before.get(key)!r}, as when the run started. Received: "
                f"{key}={value!r} with --resume. Leave it out, or train again.",
            )
    changes = {key: value for key, value in settings.items() if key in RESUMABLE}
    resumed = dataclasses.replace(card, recipe={**card.recipe, **changes})
    _check_unfinished(folder, card, Recipe(**resumed.recipe), may_be_finished=may_be_finished)
    return resumed


def _check_unfinished(folder: Path, card: Card, recipe: Recipe, *, may_be_finished: bool) -> None:
    """Raise `ValueError` if `recipe` leaves nothing to do, or changes a phase that is over."""
    latest = checkpoints.peek(folder)
    history = latest.history if latest else []
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    epochs = Recipe(**card.recipe).epochs
    if rounds and recipe.epochs != epochs:
        raise ArgumentError(
            "epochs",
            f"must stay {epochs}, as when the run started: its fine-tuning has begun. "
            f"Received: epochs={recipe.epochs!r} with --resume. To train longer, set "
            "finetune_epochs, the maximum number of epochs per round.",
        )
    evaluated = evaluated_epochs(folder)
    if latest:
        finished = evaluated == len(history) and plan(recipe, history) is None
    else:
        finished = evaluated >= recipe.epochs
    if may_be_finished or not evaluated or not finished:
        return
    way_out = f"To continue, give more: --epochs {evaluated + 1}."
    if rounds:
        way_out = (
            "Where a round lowered the perplexity or reached its limit, finetune='until_no_gain' "
            "and finetune_epochs add more."
        )
    elif recipe.averaging == "asgd":
        way_out += " Or fine-tune it, with --set finetune=once."
    last = f", the last in round {rounds} of fine-tuning" if rounds else ""
    raise ValueError(
        f"The run in {str(folder)!r} is finished: it has {evaluated} epochs{last}. {way_out}"
    )


def evaluated_epochs(folder: Path) -> int:
    """Return after how many epochs the run was evaluated, 0 if it never was."""
    try:
        return int(json.loads((folder / RESULTS).read_text("utf-8"))["epochs"])
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
        return 0


def resumed_corpus(request: Request, card: Card) -> Corpus:
    """Return the corpus of `request` after a check that the run started with it."""
    folder, corpus = request.folder, request.corpus
    vocabulary = read_vocabulary(folder, card) if (folder / WORDS).is_file() else None
    if not isinstance(corpus, Corpus):
        corpus = corpora.load(corpus, lowercase=card.lowercase, vocabulary=vocabulary)
    if corpus.sha256 != card.trained_on["sha256"]:
        raise ArgumentError(
            "corpus",
            f"must be the one that the run started with, {card.corpus!r}, unchanged. "
            f"Received: {corpus.name!r} with another text. Train again without --resume.",
        )
    if vocabulary is not None and corpus.vocabulary.words != vocabulary.words:
        raise ArgumentError(
            "corpus",
            "must have the vocabulary that the run started with. Received: "
            f"{len(corpus.vocabulary)} words where the run has {len(vocabulary)}. Load it with "
            "vocabulary=dualnet.load(RUN).vocabulary.",
        )
    return corpus
