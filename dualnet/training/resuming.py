"""What a resumed training begins with: its card, its corpus, and what may be given anew."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError
from dualnet.corpora import Corpus
from dualnet.runs.folder import CARD, RESULTS, WORDS, check_sums, read_card
from dualnet.text import Vocabulary
from dualnet.training import checkpoints
from dualnet.training.recipe import Recipe
from dualnet.training.schedule import is_round, plan

RESUMABLE = (  # what may be given anew with `resume`
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
    name: str | zoo.Card,
    seed: int | None,
    weights: str | os.PathLike[str] | None,
    overrides: Mapping[str, Any],
    *,
    may_be_finished: bool,
) -> dict[str, Any]:
    """Return the card that the run in `folder` goes on with, its recipe at most as `RESUMABLE`."""
    check_sums(folder, (CARD, WORDS))
    used = read_card(folder)
    card_name = (name if isinstance(name, zoo.Card) else zoo.card(name)).name
    if card_name != used["name"]:
        raise ArgumentError(
            "name",
            f"must be {used['name']!r}, with which the run in {str(folder)!r} began. "
            f"Received: name={card_name!r}.",
        )
    before_recipe = dict(used["recipe"])
    before = {**used["config"], **before_recipe, "seed": used["seed"]}
    given = dict(overrides) if seed is None else {**overrides, "seed": seed}
    if weights is not None:
        before["weights"] = used.get("weights")
        given["weights"] = absolute(weights)
    for key, value in given.items():
        if key not in RESUMABLE and (key not in before or before[key] != value):
            raise ArgumentError(
                key,
                f"must stay as the run began, {before.get(key)!r}. Received: "
                f"{key}={value!r} with --resume. Leave it out, or train anew.",
            )
    used["recipe"] |= {key: overrides[key] for key in RESUMABLE if key in overrides}
    began, recipe = Recipe(**before_recipe), Recipe(**used["recipe"])
    _check_unfinished(folder, began, recipe, may_be_finished=may_be_finished)
    return used


def _check_unfinished(
    folder: Path, before: Recipe, recipe: Recipe, *, may_be_finished: bool
) -> None:
    """Raise `ValueError` if nothing is left to do for `recipe`, or it asks for what is past."""
    kept = checkpoints.peek(folder)
    done = finished_epochs(folder)
    history = kept.history if kept else []
    rounds = len({row["phase"] for row in history if is_round(row["phase"])})
    if rounds and recipe.epochs != before.epochs:
        raise ArgumentError(
            "epochs",
            f"must stay as the run began, {before.epochs}: its fine-tuning has begun. "
            f"Received: epochs={recipe.epochs!r} with --resume. Give finetune_epochs, the most "
            "epochs of a round.",
        )
    if kept:
        finished = done == len(history) and plan(recipe, history) is None
    else:
        finished = done >= recipe.epochs
    if done and finished and not may_be_finished:
        if rounds:
            way_out = (
                f"{done} epochs, the last in round {rounds} of fine-tuning. More rounds, or longer "
                "ones, are made with finetune='until_no_gain' and finetune_epochs, where a round "
                "has lowered the perplexity, or was at its limit."
            )
        else:
            way_out = f"{done} epochs. Give more to go on, e.g. --epochs {done + 1}."
            if recipe.averaging == "asgd":
                way_out += " Or fine-tune it, with --set finetune=once."
        raise ValueError(f"The run in {str(folder)!r} is finished: it has {way_out}")


def finished_epochs(folder: Path) -> int:
    """Return after how many epochs the run was evaluated, 0 if it never was."""
    try:
        return int(json.loads((folder / RESULTS).read_text("utf-8"))["epochs"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not as it was written
        return 0


def resumed_corpus(folder: Path, used: Mapping[str, Any], corpus: Corpus | str) -> Corpus:
    """Return the corpus that the run in `folder` began with, refuse another."""
    before = used["corpus"]
    words = None
    if (folder / WORDS).is_file():
        words = Vocabulary.load(folder / WORDS, lowercase=before["lowercase"])
    if not isinstance(corpus, Corpus):
        corpus = corpora.load(corpus, lowercase=before["lowercase"], vocabulary=words)
    if corpus.sha256 != before["sha256"]:
        raise ArgumentError(
            "corpus",
            f"must be the one that the run began with, {before['name']!r}, unchanged. "
            f"Received: {corpus.name!r} with other words. Train anew without --resume.",
        )
    if words is not None and corpus.vocabulary.words != words.words:
        raise ArgumentError(
            "corpus",
            "must have the vocabulary that the run began with. Received: one of "
            f"{len(corpus.vocabulary)} words, where the run has {len(words)}. Load it with "
            "vocabulary=dualnet.load(RUN).vocabulary.",
        )
    return corpus


def absolute(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else str(Path(path).resolve())
