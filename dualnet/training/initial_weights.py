"""Starts a training from the weights of another model instead of random ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dualnet import corpora
from dualnet._checks import ArgumentError, checked
from dualnet.builders import LanguageModel, Transfer, transfer
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import load
from dualnet.runs.shipped import find_run, names_of_shipped
from dualnet.text import Tokenizer

AnyCorpus = TypeVar("AnyCorpus", bound=Corpus | PairCorpus)


def is_gated(config: Mapping[str, Any]) -> bool:
    """Return whether a model with these arguments has a gate on a frozen model."""
    return config.get("gate", "none") != "none"


def load_source(weights: str, config: Mapping[str, Any], *, resume: bool) -> LanguageModel | None:
    """Load the model to start from, or return None if `weights` is ""; a gate needs one."""
    if weights and not find_run(weights).exists():
        again = " The run has no checkpoint yet and needs it again: restore it, or train again."
        raise FileNotFoundError(
            f"`weights` must be a RUN folder or a .keras file. Received: {weights!r}, which does "
            f"not exist. {names_of_shipped()}{again * resume}"
        )
    if not weights and is_gated(config):
        raise ArgumentError(
            "weights",
            "must be given: a gate is trained on a trained model. Received: "
            f"gate={config.get('gate')!r} without `weights`. Train the model with gate='none' "
            "first, then pass its RUN folder.",
        )
    return load(weights) if weights else None


def reading(
    corpus: Any,
    tokenizer: str | os.PathLike[str] | None,
    documents: str | None,
    fractions: Sequence[float] | None,
) -> dict[str, Any]:
    """Return those arguments of `corpora.load` that are given, checked: none for a `Corpus`."""
    read_as = {
        "tokenizer": None if tokenizer is None else os.fspath(tokenizer),
        "documents": documents,
        "fractions": None if fractions is None else list(fractions),
    }
    read_as = {key: value for key, value in read_as.items() if value is not None}
    if isinstance(corpus, (Corpus, PairCorpus)) and read_as:
        name = next(iter(read_as))
        raise ArgumentError(
            name,
            f"must be None for a `{type(corpus).__name__}`, which is read already. Received: "
            f"{name}={read_as[name]!r}. Give it to the function that loads the corpus.",
        )
    return read_as


@checked
def load_corpus(
    corpus: AnyCorpus | str,
    source: LanguageModel | None,
    *,
    lowercase: bool = False,
    read_as: Mapping[str, Any] | None = None,
) -> AnyCorpus | Corpus:
    """Load `corpus` with the vocabulary of `source`, or check that it already has it.

    Args:
        corpus: `Corpus`, `PairCorpus`, or what `corpora.load` takes.
        source: the model to start from, or None.
        lowercase: bool. Whether to lower-case a text for which `source` has no vocabulary.
        read_as: other arguments of `corpora.load`; no tokeniser if `source` has one.

    Raises:
        ValueError: if `corpus` is a `Corpus` with another vocabulary.

    Example:

    >>> from dualnet import training
    >>> training.load_corpus("python-reference", None).name
    'python-reference'
    """
    vocabulary = source.vocabulary if source is not None else None
    if vocabulary is not None and read_as and "tokenizer" in read_as:
        raise ArgumentError(
            "tokenizer",
            "must be left out with `weights`, whose model reads the text with its own tokeniser, "
            f"{vocabulary.kind}. Received: tokenizer={read_as['tokenizer']!r}. Leave out one of "
            "the two.",
        )
    loaded = load_with(vocabulary, corpus, lowercase=lowercase, read_as=read_as or {})
    owner = "of the model given as `weights`, in the same order"
    check_vocabulary(
        loaded, vocabulary, owner, "model", "weights",
        source=getattr(source, "source_vocabulary", None),
    )  # fmt: skip
    return loaded


def load_with(
    vocabulary: Tokenizer | None,
    corpus: AnyCorpus | str,
    *,
    lowercase: bool,
    read_as: Mapping[str, Any],
) -> AnyCorpus | Corpus:
    """Load `corpus` with `vocabulary` if there is one, unless it is loaded already."""
    if isinstance(corpus, (Corpus, PairCorpus)):
        return corpus
    if vocabulary is None:  # bytes are read as they are, whatever a card says of words
        lowercase = lowercase and read_as.get("tokenizer") != "bytes"
        return corpora.load(corpus, lowercase=lowercase, **read_as)
    read_as = {key: value for key, value in read_as.items() if key != "tokenizer"}
    return corpora.load(corpus, lowercase=vocabulary.lowercase, vocabulary=vocabulary, **read_as)


def check_vocabulary(
    corpus: Corpus | PairCorpus,
    vocabulary: Tokenizer | None,
    which: str,
    owner: str,
    path: str,
    *,
    source: Tokenizer | None,
) -> None:
    """Raise `ValueError` if `corpus` has other words than `vocabulary`, that of `owner`.

    A corpus of pairs must have `source`, too, as the vocabulary of its source.
    """
    pairs = [(corpus.vocabulary, vocabulary)]
    way_out = f"Load it with vocabulary=dualnet.load({path}).vocabulary."
    if isinstance(corpus, PairCorpus):
        pairs.append((corpus.source_vocabulary, source))
        way_out = (
            f"Load it with tokenizer=(model.source_vocabulary, model.vocabulary), where model is "
            f"dualnet.load({path})."
        )
    for loaded, own in pairs:
        if own is not None and loaded.sha256 != own.sha256:
            raise ArgumentError(
                "corpus",
                f"must have the vocabulary {which}. Received: {loaded!r} where the {owner} has "
                f"{own!r}. {way_out}",
            )


def load_start(
    source: LanguageModel, model: LanguageModel, weights: str, config: Mapping[str, Any]
) -> Transfer:
    """Copy the weights of `source`, loaded from `weights`, to `model`; return what matched."""
    try:
        result = transfer(source, model)
    except ValueError as error:
        raise ArgumentError(
            "weights", f"must be of a model like this one. Received: {weights!r}. {error}"
        ) from None
    unmatched = [*(name for name, *_ in result.other_shape), *result.missing]
    lacking = [name for name in unmatched if not name.startswith("gate")]
    if is_gated(config) and lacking:
        raise ArgumentError(
            "weights",
            "must hold every weight of the model below the gate, in the same shape. Received: "
            f"{weights!r}, without {', '.join(lacking)}. Pass the RUN of a model that differs "
            "only in the gate.",
        )
    return result
