"""Checks what a resumed training starts with: its card, its corpus and the new settings."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError
from dualnet.cards import Card
from dualnet.corpora import Corpus
from dualnet.runs.folder import CARD, RESULTS, WORDS, check_sums, read_card, read_vocabulary
from dualnet.training import checkpoints
from dualnet.training.recipe import Recipe
from dualnet.training.schedule import is_round, plan

RESUMABLE = (  # settings of the recipe that may change on resuming
    "epochs",
    "learning_rate",
    "clipnorm",
    "global_clipnorm",
    "finetune",
    "finetune_epochs",
    "finetune_learning_rate",
)


def resumed_card(
    folder: Path,
    name: str | Card,
    seed: int | None,
    weights: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any],
    *,
    may_be_finished: bool,
) -> Card:
    """Return the card of the run in `folder`, its recipe updated with `overrides`.

    Raises:
        ValueError: if an argument differs from the run's and is not in `RESUMABLE`, or
            nothing is left to do.
    """
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
    settings = dict(overrides)
    if seed is not None:
        settings["seed"] = seed
    if weights is not None:
        settings["weights"] = absolute(weights)
    for key, value in settings.items():
        if key not in RESUMABLE and (key not in before or before[key] != value):
            raise ArgumentError(
                key,
                f"must stay {before.get(key)!r}, as when the run started. Received: "
                f"{key}={value!r} with --resume. Leave it out, or train again.",
            )
    changes = {key: overrides[key] for key in RESUMABLE if key in overrides}
    resumed = dataclasses.replace(card, recipe={**card.recipe, **changes})
    _check_unfinished(
        folder, Recipe(**card.recipe), Recipe(**resumed.recipe), may_be_finished=may_be_finished
    )
    return resumed


def _check_unfinished(
    folder: Path, before: Recipe, recipe: Recipe, *, may_be_finished: bool
) -> None:
    """Raise `ValueError` if `recipe` leaves nothing to do, or changes a phase that is over."""
    latest = checkpoints.peek(folder)
    history = latest.history if latest else []
    evaluated = evaluated_epochs(folder)
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    if rounds and recipe.epochs != before.epochs:
        raise ArgumentError(
            "epochs",
            f"must stay {before.epochs}, as when the run started: its fine-tuning has begun. "
            f"Received: epochs={recipe.epochs!r} with --resume. To train longer, set "
            "finetune_epochs, the maximum number of epochs per round.",
        )
    if latest:
        finished = evaluated == len(history) and plan(recipe, history) is None
    else:
        finished = evaluated >= recipe.epochs
    if evaluated and finished and not may_be_finished:
        if rounds:
            way_out = (
                f"{evaluated} epochs, the last in round {rounds} of fine-tuning. Where a round "
                "lowered the perplexity or reached its limit, finetune='until_no_gain' and "
                "finetune_epochs add more."
            )
        else:
            way_out = f"{evaluated} epochs. To continue, give more: --epochs {evaluated + 1}."
            if recipe.averaging == "asgd":
                way_out += " Or fine-tune it, with --set finetune=once."
        raise ValueError(f"The run in {str(folder)!r} is finished: it has {way_out}")


def evaluated_epochs(folder: Path) -> int:
    """Return after how many epochs the run was evaluated, 0 if it never was."""
    try:
        return int(json.loads((folder / RESULTS).read_text("utf-8"))["epochs"])
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
        return 0


def resumed_corpus(folder: Path, card: Card, corpus: Corpus | str) -> Corpus:
    """Return `corpus` if it is the one that the run in `folder` started with.

    Raises:
        ValueError: if its text or its vocabulary differs.
    """
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


def absolute(path: str | os.PathLike[str] | None) -> str:
    """Return the absolute path as a string, "" for None."""
    return "" if path is None else str(Path(path).resolve())
