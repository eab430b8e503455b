"""RUN folders made of others: a gate over one, several in one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dualnet import builders, zoo
from dualnet._checks import ArgumentError
from dualnet._files import claim
from dualnet.corpora import Corpus
from dualnet.runs.folder import BEGUN, CARD, put_words, read_card, write_card
from dualnet.runs.loading import load, put_weights
from dualnet.training.loop import Run, train

GATED = "zaremba_medium_iog"  # whose recipe, that of Takase et al., and gate are taken


def train_gate(
    run: str | os.PathLike[str],
    corpus: Corpus | str,
    *,
    output: str | os.PathLike[str],
    **settings: Any,
) -> Run:
    """Train an input-to-output gate on the logits of the model in the RUN folder `run`.

    The model itself stands still. Recipe and gate are those of Takase et al.

    Args:
        run: RUN folder of a model without a gate, or of an ensemble.
        corpus: `Corpus`, or what `corpora.load` takes.
        output: folder, new or empty unless `resume`.
        **settings: other arguments of `train`, and arguments of the gate and of `Recipe`
            in place of the published: `gate`, `gate_units`, `gate_dropout`, `epochs`, ...

    Raises:
        ValueError: if the model has a gate; and as `train` does.
        FileNotFoundError: if there is no RUN folder at `run`.

    Reference: Takase et al., 2017, https://arxiv.org/abs/1709.08907
    """
    used = read_card(run)
    if used["config"].get("gate", "none") != "none":
        raise ArgumentError(
            "run",
            f"must be of a model without a gate. Received: {os.fspath(run)!r}, which has "
            f"gate={used['config']['gate']!r}. Go on with its training with --resume.",
        )
    if settings.get("resume"):  # with the settings that it began with
        return train(str(Path(run) / CARD), corpus, output=output, weights=run, **settings)
    published = zoo.card(GATED)
    gate = {key: value for key, value in published.config.items() if key.startswith("gate")}
    recipe = dict(published.recipe)
    if used["recipe"].get("batching") == "sentences":
        recipe["batching"] = "sentences"
    base = zoo.card(str(Path(run) / CARD))
    # A card, and no overrides: some have the name of an argument of a cell, too, and what a
    # run began with stays with `resume`.
    card = dataclasses.replace(base, config={**base.config, **gate}, recipe=recipe, seed=None)
    return train(card, corpus, output=output, weights=run, **settings)


def combine_runs(runs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Write a RUN folder of the ensemble of the models in the RUN folders `runs`.

    Raises:
        ValueError: for fewer than two, or models with different vocabularies.
        FileNotFoundError: if one is not there.
        FileExistsError: if `output` holds files.
        OSError: if it cannot be written to.
    """
    if len(runs) < 2:
        raise ArgumentError(
            "runs", f"must be at least two RUN folders. Received: {[str(run) for run in runs]}."
        )
    cards = [read_card(run) for run in runs]
    model = builders.ensemble([load(run) for run in runs])
    assert model.vocabulary is not None  # every RUN has one
    folder = Path(output)
    with claim(folder, holds="run", resume=False, may_hold=BEGUN):
        put_words(folder, model.vocabulary)
        put_weights(folder, model)
        write_card(
            folder,
            {
                "name": model.name,
                "builder": model.builder,
                "paper": "",
                "note": "Members: " + ", ".join(str(Path(run).resolve()) for run in runs),
                "seed": 0,
                "corpus": cards[0]["corpus"],
                "config": model.arguments,
                "recipe": cards[0]["recipe"],
            },
        )
    return folder
