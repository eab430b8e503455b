"""Checks the arguments of evaluations; the perplexity of losses."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError, check_ids
from dualnet.builders import LanguageModel, TranslationModel, check_language_model
from dualnet.builders.batches import check_range
from dualnet.text import EOS, Tokenizer


def perplexity_of(losses: Sequence[float] | np.ndarray) -> float:
    """Return exp of the mean of `losses`, in nats, summed in float64; 1 for none.

    An empty text has probability 1, the empty product, and JSON has no nan.
    """
    return perplexity_of_mean(float(np.mean(losses, dtype=np.float64))) if len(losses) else 1.0


def perplexity_of_mean(nats: float) -> float:
    """Return exp of a mean loss; infinity where a float cannot hold it."""
    return math.inf if nats > 700 else math.exp(nats)


def check_tokens(tokens: ArrayLike, words: int, *, least: int, name: str = "tokens") -> np.ndarray:
    """Return `tokens`, the argument `name`, as an int32 vector of ids below `words`."""
    ids = check_ids(name, tokens, least=least)
    check_range(name, ids, 0, words, " Load the corpus with vocabulary=model.vocabulary.")
    return ids.astype(np.int32, copy=False)


def vocabulary_of(model: LanguageModel) -> Tokenizer:
    """Return the vocabulary of the language model `model`; raise `ValueError` without one."""
    vocabulary = getattr(model, "vocabulary", None)
    if isinstance(model, LanguageModel) or vocabulary is None:
        check_language_model("model", model)
    if vocabulary is None:
        received = "Received: one without. Set model.vocabulary, or train it on a corpus."
        raise ArgumentError("model", f"must be a LanguageModel with a vocabulary. {received}")
    return vocabulary


WITHOUT_EOS = f"Train it on a corpus with {EOS}, or use `evaluate` for a stream of ids."


def vocabulary_with_eos(
    model: LanguageModel, *, way_out: str = WITHOUT_EOS
) -> tuple[Tokenizer, int]:
    """Return the vocabulary of `model` and the id of its `<eos>`; raise `ValueError` without."""
    vocabulary = vocabulary_of(model)
    required = f"must have a vocabulary with {EOS}, after which a text begins."
    return vocabulary, vocabulary.require_eos("model", required, f" {way_out}")


def check_sentences(model: LanguageModel, name: str = "by_sentence") -> tuple[Tokenizer, int]:
    """Return the vocabulary and the id of `<eos>` of a model that can read by sentence.

    Errors call what asks for it `name`.
    """
    vocabulary, eos_id = vocabulary_with_eos(model, way_out=f"Leave `{name}` False.")
    if model.cache_size:
        raise ArgumentError(
            name,
            "must be False for a model with a cache, which each sentence would empty. Received: "
            f"{name}=True, a cache of {model.cache_size} words.",
        )
    return vocabulary, eos_id


def check_translators(models: Sequence[LanguageModel]) -> None:
    """Raise `ArgumentError` unless `models` translate into one vocabulary."""
    for model in models:
        if not isinstance(model, TranslationModel):
            raise ArgumentError(
                "model",
                f"must be a model that translates. Received: {getattr(model, 'name', model)!r} of "
                f"type {type(model).__name__}.",
                " Train one with `dualnet train encdec --pairs FOLDER`.",
            )
        if model.vocabulary is None or model.source_vocabulary is None:
            raise ArgumentError(
                "model",
                "must have `vocabulary` and `source_vocabulary`. Received: one without. Set them, "
                "or train it on a corpus of pairs.",
            )
        model.vocabulary.require_eos("model", f"must have {EOS} among the words of its target.")
    vocabularies = {model.vocabulary.sha256 for model in models}
    if len(vocabularies) != 1:
        raise ArgumentError(
            "model",
            f"must be at least one, and all of one target vocabulary. Received: {len(models)} "
            f"models of {len(vocabularies)} vocabularies.",
        )
