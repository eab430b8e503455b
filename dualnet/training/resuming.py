"""Resumes a run from its last checkpoint, with the settings that it started with."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath
from dualnet._files import claim, is_used, read_json, remove_unfinished
from dualnet.builders.parts import with_names
from dualnet.cards import Card
from dualnet.corpora import PairCorpus
from dualnet.runs import Run
from dualnet.runs import folder as run_folder
from dualnet.runs.shipped import check_own, source_of
from dualnet.training import checkpoints, initial_weights, kept
from dualnet.training.recipe import Recipe, plain, recipe_of
from dualnet.training.schedule import is_round, plan
from dualnet.training.start import RESUMABLE, AnyCorpus, Training, identity, ready


class FinishedError(ValueError):
    """A run to resume is finished: nothing is left to do."""


def has_begun(folder: Path) -> bool:
    """Tell a RUN folder from one whose training was stopped before its card was written."""
    if (folder / run_folder.CARD).is_file():
        return True
    if not folder.is_dir() or is_used(folder, may_hold=run_folder.EARLY_FILES):
        received = f"{str(folder)!r}, without {run_folder.CARD}. Train again, without --resume"
        raise FileNotFoundError(f"--resume needs a RUN folder. Received: {received}.")
    return False


@contextlib.contextmanager
def resume(
    name: StrPath | Card, corpus: AnyCorpus | str, folder: Path, *, seed: int | None,
    weights: StrPath | None, settings: Mapping[str, Any], may_be_finished: bool,
) -> Iterator[Training]:  # fmt: skip
    """Yield the run in `folder`, restored; the other arguments are those of `train`."""
    check_own(folder)
    with claim(folder, resume=True):
        remove_unfinished(folder)
        remove_unfinished(folder / kept.FOLDER)
        run = Run.open_folder(folder)
        has_checkpoint = checkpoints.exist(folder)
        _check_resumable(run, has_checkpoint)
        read_as, overrides = initial_weights.reading(corpus, settings)
        changes = {**with_names(overrides), **read_as}
        if seed is not None:
            changes["seed"] = seed
        if weights is not None:
            changes["weights"] = source_of(weights)
        card = _resumed_card(run, name, changes, may_be_finished=may_be_finished)
        corpus = _resumed_corpus(run, corpus)
        read = run_folder.corpus_table(corpus).items()  # it may have moved
        moved = {key: value for key, value in read if key in ("source", "pairs")}
        card = dataclasses.replace(card, trained_on={**card.trained_on, **moved})
        source = None
        if not has_checkpoint:  # it would hold the weights
            hint = " The run has no checkpoint yet and needs it again: restore it, or train again."
            source = initial_weights.load_source(card.weights, card.config, hint)
        with zoo.located(card, overrides):
            training = ready(folder, card, recipe_of(card.recipe), corpus)
        if source is not None:
            initial_weights.load_start(source, training.model, card)
            del source  # frees its memory
        if not run.has_vocabulary:
            run_folder.write_vocabularies(folder, corpus)
        run_folder.write_card(folder, card)
        model, run_id, steps = training.model, training.progress.run, training.steps
        if restored := checkpoints.restore(folder, model, run_id, steps=steps):
            training.progress = restored
        training.progress.run = identity(card)
        yield training


def _check_resumable(run: Run, has_checkpoint: bool) -> None:
    """Raise for a RUN that was kept by another, and for one whose checkpoints are gone."""
    folder = str(run.path)
    way_out = "into a new RUN: give the folder in place of a model."
    if (note := run.table.get("note", "")).startswith(kept.NOTE):
        message = "--resume needs a RUN that was trained in its folder. Received: "
        raise ValueError(f"{message}{folder!r}. {note} Go on from it {way_out}")
    files = ("metrics.csv", run_folder.WEIGHTS)
    is_trained = all((run.path / name).is_file() for name in files)
    if is_trained and not has_checkpoint:  # a new training would replace its weights
        received = f"Received: {folder!r}, whose checkpoints are gone. Go on from its weights"
        raise FileNotFoundError(f"--resume needs the checkpoints of a RUN. {received} {way_out}")


def _resumed_card(
    run: Run, name: StrPath | Card, changes: dict[str, Any], *, may_be_finished: bool
) -> Card:
    """Return the card of the run to resume, its recipe updated with `changes`."""
    run.check_sums((run_folder.CARD, *run_folder.VOCABULARIES, run_folder.RESULTS))
    card = run.card
    card_name = name.name if isinstance(name, Card) else card.name
    if not isinstance(name, Card) and source_of(name) != card.weights:
        card_name = zoo.card(name).name  # else it began with this RUN, which may be gone
    if card_name != card.name:
        message = f"must be {card.name!r}, the model of the run in {str(run.path)!r}."
        raise ArgumentError("name", message, name=card_name)
    before = {**card.recipe, **card.config, "seed": card.seed, "weights": card.weights or None}
    before |= {key: x for key, x in run.read_as.items() if x is not None or key not in before}
    recipe = dict(card.recipe)
    for key, value in changes.items():
        value = plain(value)
        if key in RESUMABLE:
            recipe[key] = value
        elif key not in before or before[key] != value:
            message = f"must stay {before.get(key)!r}, as when the run started, with --resume."
            raise ArgumentError(key, message, " Leave it out, or train again.", **{key: value})
    _check_unfinished(run.path, card, recipe_of(recipe), may_be_finished=may_be_finished)
    return dataclasses.replace(card, recipe=recipe)


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
    last = f", the last in round {rounds} of fine-tuning" if rounds else ""
    way_out = f"give more --epochs (such as {evaluated + 1}) or patience, or set finetune"
    message = f"is finished: it has {evaluated} epochs{last}. To continue, {way_out}."
    raise FinishedError(f"The run in {str(folder)!r} {message}")


def evaluated_epochs(folder: Path) -> int:
    """Return the number of epochs after which the run was evaluated, 0 if it never was."""
    # Of a file that is missing or damaged.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        return int(read_json(folder / run_folder.RESULTS)["epochs"])
    return 0


def _resumed_corpus(run: Run, corpus: AnyCorpus | str) -> AnyCorpus:
    """Return `corpus`, loaded, after a check that the run started with it."""
    card, vocabulary, source = run.card, None, None
    if run.has_vocabulary:
        vocabulary, source = run.vocabulary, run.source_vocabulary
    read_as = {**run.read_as, "lowercase": card.lowercase}
    corpus = initial_weights.load_with(vocabulary, corpus, read_as)
    if corpus.sha256 != card.trained_on["sha256"]:
        message = f"must be the one that the run started with, {card.corpus!r}, unchanged."
        received = f"{corpus.name!r} with another text"
        raise ArgumentError("corpus", f"{message} Received: {received}. Train without --resume.")
    initial_weights.check_vocabulary(corpus, vocabulary, source, "the run")
    if isinstance(corpus, PairCorpus):
        most = card.trained_on["pairs"].get("max_tokens")
        if corpus.max_tokens != most:
            message = "must leave out the same pairs as when the run started. Received: "
            received = f"max_tokens={corpus.max_tokens} where it had {most}"
            raise ArgumentError("corpus", f"{message}{received}. Load it alike, or train again.")
    return corpus
