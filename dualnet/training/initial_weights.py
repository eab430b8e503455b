"""Starts a training from the weights of another model instead of random ones."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from dualnet import corpora
from dualnet._checks import ArgumentError
from dualnet.builders import LanguageModel, Transfer, transfer
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.requests import ReadingCorpus
from dualnet.runs import Run
from dualnet.runs.folder import LEARNT
from dualnet.text import Tokenizer

AnyCorpus = TypeVar("AnyCorpus", bound=Corpus | PairCorpus)


def is_gated(config: Mapping[str, Any]) -> bool:
    """Return True if a model with these arguments has a gate on a frozen model."""
    return config.get("gate", "none") != "none"


def load_source(weights: str, config: Mapping[str, Any]) -> LanguageModel | None:
    """Load the model to start from, or return None if `weights` is ""; a gate needs one."""
    if not weights and is_gated(config):
        raise ArgumentError(
            "weights",
            "must be given: a gate is trained on a trained model.",
            " Train the model with gate='none' first, then pass its RUN folder.",
            gate=config["gate"],
        )
    return Run.open(weights, name="weights").model() if weights else None


def reading(corpus: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `settings` into those of reading a corpus (none for a `Corpus`) and the others."""
    asked = ReadingCorpus.fields_of(settings)
    others = {name: value for name, value in settings.items() if name not in asked}
    read_as = ReadingCorpus(**asked).changed()
    if isinstance(corpus, Corpus | PairCorpus):
        if "vocabulary_size" in read_as:  # an argument of the builder
            others["vocabulary_size"] = read_as.pop("vocabulary_size")
        for name, value in read_as.items():
            raise ArgumentError(
                name,
                f"must be None for a `{type(corpus).__name__}`, which is read already.",
                **{name: value},
            )
    if "tokenizer" in read_as:  # as a card holds it
        read_as["tokenizer"] = os.fspath(read_as["tokenizer"])
    if "fractions" in read_as:
        read_as["fractions"] = list(read_as["fractions"])
    return read_as, others


def load_corpus(
    corpus: AnyCorpus | str,
    source: LanguageModel | None,
    *,
    lowercase: bool = False,
    read_as: Mapping[str, Any] | None = None,
    match_words: bool = False,
) -> AnyCorpus | Corpus:
    """Load `corpus` with the vocabulary of `source`, or check that it already has it.

    Args:
        corpus: `Corpus`, `PairCorpus`, or what `corpora.load` takes.
        source: the model to start from, or None.
        lowercase: bool. Whether to lower-case a text for which `source` has no vocabulary.
        read_as: other arguments of `corpora.load`; no tokeniser if `source` has one.
        match_words: bool. Whether a `Corpus` may have another vocabulary, and `read_as` name
            another tokeniser.

    Raises:
        ValueError: if `corpus` is a `Corpus` with another vocabulary, unless `match_words`.

    Example:

    >>> from dualnet import training
    >>> training.load_corpus("python-reference", None).name
    'python-reference'
    """
    vocabulary, read_as = getattr(source, "vocabulary", None), read_as or {}
    if vocabulary is not None and (learnt := LEARNT & read_as.keys()):
        if not match_words:
            key = min(learnt)
            raise ArgumentError(
                key,
                f"must be left out: the model to start from reads text as {vocabulary.kind}.",
                " For other words, train a model of the zoo with `weights`.",
                **{key: read_as[key]},
            )
        vocabulary = None
    loaded = load_with(vocabulary, corpus, {"lowercase": lowercase, **read_as})
    if source is not None and not match_words:
        check_vocabulary(loaded, source, "the model to start from")
    return loaded


def load_with(
    vocabulary: Tokenizer | None, corpus: AnyCorpus | str, read_as: Mapping[str, Any]
) -> AnyCorpus | Corpus:
    """Load `corpus` with `vocabulary` if there is one, unless it is loaded already.

    `read_as` are further arguments of `corpora.load`.
    """
    if isinstance(corpus, Corpus | PairCorpus):
        return corpus
    settings = dict(read_as)
    if vocabulary is not None:
        settings = {key: value for key, value in settings.items() if key not in LEARNT}
        settings |= {"vocabulary": vocabulary, "lowercase": vocabulary.lowercase}
    elif settings.get("tokenizer") == "bytes":  # read as they are, whatever a card says of words
        settings["lowercase"] = False
    return corpora.load(corpus, **settings)


def check_vocabulary(
    corpus: Corpus | PairCorpus, owner: LanguageModel | Run, description: str
) -> None:
    """Raise `ValueError` if `corpus` has other words than the model or RUN `owner`."""
    for side in ("vocabulary", "source_vocabulary"):
        loaded, own = getattr(corpus, side, None), getattr(owner, side, None)
        if loaded and own and loaded != own:
            message = f"must have the vocabulary of {description}, in the same order. Received: "
            way_out = "Load it with vocabulary=model.vocabulary, or pairs with "
            way_out += "tokenizer=(model.source_vocabulary, model.vocabulary)."
            raise ArgumentError("corpus", f"{message}{loaded!r}, not {own!r}. {way_out}")


def load_start(
    source: LanguageModel, model: LanguageModel, card: Card, *, goes_on: bool = False
) -> Transfer:
    """Copy the weights of `source`, that the `card` names, to `model`; return what matched.

    If training `goes_on` from a RUN, no weight may have another shape.
    """
    weights = card.weights
    try:
        result = transfer(source, model, match="words" if source.vocabulary else "ids")
    except ValueError as error:
        raise ArgumentError(
            "weights", f"must be of a model like this one. Received: {weights!r}. {error}"
        ) from None
    for name, before, shape in result.other_shape if goes_on else ():
        raise ValueError(
            f"Settings must keep the sizes of {weights!r}. Received: settings that give {name} "
            f"the shape {shape}, where it has {before}. Leave out those that change sizes, or "
            "train a model of the zoo with `weights`."
        )
    unmatched = [*(name for name, *_ in result.other_shape), *result.missing]
    lacking = [name for name in unmatched if not name.startswith("gate")]
    if is_gated(card.config) and lacking:
        raise ArgumentError(
            "weights",
            "must hold every weight of the model below the gate, in the same shape. Received: "
            f"{weights!r}, without {', '.join(lacking)}. Pass the RUN of a model that differs "
            "only in the gate.",
        )
    return result
