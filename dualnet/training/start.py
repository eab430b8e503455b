"""Begins a training with the weights of another model instead of random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualnet import corpora
from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel, Transfer, transfer
from dualnet.corpora import Corpus
from dualnet.runs import load


def is_gated(config: Mapping[str, Any]) -> bool:
    """Return whether a model with these arguments has a gate on weights that do not change."""
    return config.get("gate", "none") != "none"


def load_source(weights: str, config: Mapping[str, Any], *, resume: bool) -> LanguageModel | None:
    """Return the model to begin with, None if `weights` is "".

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is no language model, or a model with a gate has none to begin with.
    """
    if weights:
        if not Path(weights).exists():
            raise FileNotFoundError(
                f"`weights` must be a RUN folder or a .keras file. Received: {weights!r}, which "
                "does not exist." + " The run has no checkpoint yet and begins with it again: put "
                "it back, or train anew." * resume
            )
        return load(weights)
    if is_gated(config):
        raise ArgumentError(
            "weights",
            "must be given: a gate is trained on a model that is trained already. "
            f"Received: gate={config.get('gate')!r} without them. Train the model with gate='none' "
            "first, and give its RUN folder.",
        )
    return None


def load_corpus(
    corpus: Corpus | str, source: LanguageModel | None, *, lowercase: bool = False
) -> Corpus:
    """Return `corpus`, whose ids mean the words of `source`."""
    words = source.vocabulary if source is not None else None
    if not isinstance(corpus, Corpus):
        lowercase = lowercase if words is None else words.lowercase
        return corpora.load(corpus, lowercase=lowercase, vocabulary=words)
    if words is not None and corpus.vocabulary.words != words.words:
        raise ArgumentError(
            "corpus",
            "must have the vocabulary of the model that `weights` are of. Received: one "
            f"of {len(corpus.vocabulary)} words, where the model has {len(words)}, not the same or "
            "in another order. Load it with vocabulary=dualnet.load(weights).vocabulary.",
        )
    return corpus


def load_start(
    source: LanguageModel, model: LanguageModel, weights: str, config: Mapping[str, Any]
) -> Transfer:
    """Give `model` the weights of `source`, which were read from `weights`; return what matched.

    Raises:
        ValueError: if none does, or one does not that a gate of `config` is trained on.
    """
    try:
        found = transfer(source, model)
    except ValueError as error:
        raise ArgumentError(
            "weights", f"must be of a model like this one. Received: {weights!r}. {error}"
        ) from None
    left = [*(name for name, *_ in found.other_shape), *found.missing]
    lacking = [name for name in left if not name.startswith("gate")]
    if is_gated(config) and lacking:
        raise ArgumentError(
            "weights",
            "must hold all that a gate is trained on, in the same sizes. Received: "
            f"{weights!r}, without {', '.join(lacking)}. Give the RUN of a model that differs in "
            "the gate alone.",
        )
    return found
