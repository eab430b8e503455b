"""What `train` was asked for, and its checks where a run is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_count
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import Run
from dualnet.runs.folder import (
    CARD,
    RESULTS,
    VOCABULARIES,
    card_table,
)
from dualnet.training import checkpoints
from dualnet.training.initial_weights import check_vocabulary, load_with
from dualnet.training.recipe import Recipe, recipe_of
from dualnet.training.schedule import is_round, plan

RESUMABLE = (  # settings of the recipe that may change on resuming
    "epochs", "learning_rate", "clipnorm", "global_clipnorm", "finetune", "finetune_epochs",
    "finetune_learning_rate", "patience",
)  # fmt: skip


class FinishedError(ValueError):
    """A run to resume is finished: nothing is left to do."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `train` that describe a run."""

    folder: Path
    name: str | Card
    corpus: Corpus | PairCorpus | str
    seed: int | None
    weights: str  # an absolute path, the name of a shipped model, or ""
    overrides: Mapping[str, Any]
    read_as: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # see `corpora.load`

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)


def check_seed(seed: int) -> int:
    """Return `seed` if it is an integer from 0 to 2**32 - 1, else raise `ValueError`."""
    check_count("seed", seed, least=0)
    if seed >= 2**32:
        raise ArgumentError("seed", f"must be below 2**32. Received: seed={seed}.")
    return seed


def resumed_card(request: Request, run: Run, *, may_be_finished: bool) -> Card:
    """Return the card of the run to resume, its recipe updated with the overrides."""
    folder, name = request.folder, request.name
    run.check_sums((CARD, *VOCABULARIES, RESULTS))
    card = run.card
    card_name = (name if isinstance(name, Card) else zoo.card(name)).name
    if card_name != card.name:
        raise ArgumentError(
            "name",
            f"must be {card.name!r}, the model of the run in {str(folder)!r}. "
            f"Received: name={card_name!r}.",
        )
    before = {**card.config, **card.recipe, "seed": card.seed, "weights": card.weights or None}
    before |= run.read_as
    options = {"seed": request.seed, "weights": request.weights or None, **request.read_as}
    options = {key: value for key, value in options.items() if value is not None}
    settings = {**request.overrides, **options}
    for key, value in settings.items():
        as_before = before.get(key) == (list(value) if isinstance(value, tuple) else value)
        if key not in RESUMABLE and (key not in before or not as_before):
            raise ArgumentError(
                key,
                f"must stay {before.get(key)!r}, as when the run started. Received: "
                f"{key}={value!r} with --resume. Leave it out, or train again.",
            )
    changes = {key: value for key, value in settings.items() if key in RESUMABLE}
    resumed = dataclasses.replace(card, recipe={**card.recipe, **changes})
    _check_unfinished(folder, card, recipe_of(resumed.recipe), may_be_finished=may_be_finished)
    return resumed


def identity(card: Card) -> str:
    """Return the SHA-256 of all settings of a run that resuming cannot change."""
    table = card_table(card)  # as it is read again
    recipe = {key: value for key, value in table["recipe"].items() if key not in RESUMABLE}
    parts = [card.name, card.seed, table["config"], recipe, card.trained_on["sha256"]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _check_unfinished(folder: Path, card: Card, recipe: Recipe, *, may_be_finished: bool) -> None:
    """Raise `ValueError` if `recipe` leaves nothing to do, or changes a phase that is over."""
    latest = checkpoints.peek(folder)
    history = latest.history if latest else []
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    epochs = recipe_of(card.recipe).epochs
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
    if evaluated < recipe.epochs:
        way_out = f"To continue, give more: --set patience={2 * recipe.patience}."
    if rounds:
        way_out = (
            "Where a round lowered the perplexity or reached its limit, finetune='until_no_gain' "
            "and finetune_epochs add more."
        )
    elif recipe.averaging == "asgd":
        way_out += " Or fine-tune it, with --set finetune=once."
    last = f", the last in round {rounds} of fine-tuning" if rounds else ""
    raise FinishedError(
        f"The run in {str(folder)!r} is finished: it has {evaluated} epochs{last}. {way_out}"
    )


def evaluated_epochs(folder: Path) -> int:
    """Return after how many epochs the run was evaluated, 0 if it never was."""
    if not (folder / RESULTS).is_file():
        return 0
    try:
        return int(json.loads((folder / RESULTS).read_text("utf-8"))["epochs"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):  # damaged
        return 0


def resumed_corpus(request: Request, run: Run) -> Corpus | PairCorpus:
    """Return the corpus of `request` after a check that the run started with it."""
    card, vocabulary = run.card, run.vocabulary if run.has_vocabulary else None
    read_as = {key: value for key, value in run.read_as.items() if key in run.trained_on}
    corpus = load_with(vocabulary, request.corpus, lowercase=card.lowercase, read_as=read_as)
    if corpus.sha256 != card.trained_on["sha256"]:
        raise ArgumentError(
            "corpus",
            f"must be the one that the run started with, {card.corpus!r}, unchanged. "
            f"Received: {corpus.name!r} with another text. Train again without --resume.",
        )
    source = run.source_vocabulary if run.has_vocabulary else None
    check_vocabulary(corpus, vocabulary, "that the run started with", "run", "RUN", source=source)
    if isinstance(corpus, PairCorpus):
        most = card.trained_on["pairs"].get("max_tokens")
        if corpus.max_tokens != most:
            raise ArgumentError(
                "corpus",
                f"must leave out the same pairs as when the run started, max_tokens={most}. "
                f"Received: max_tokens={corpus.max_tokens}. Load it with the same, or train again.",
            )
    return corpus
