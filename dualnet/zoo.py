"""The published models: `list_models`, `card` and `build` over the cards in `zoo/`."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualnet._checks import did_you_mean
from dualnet._data import folder

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

SIZES = ("embedding_units", "recurrent_units", "dual_units")  # what `units=` replaces


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """One published model on one corpus: what its source says, and what we chose.

    Attributes:
        name: Name of the model, as in `zoo.build(name)`.
        corpus: Name of the corpus that this card is for.
        corpora: All corpora that the model has a card for, the default first.
        paper: Author, year and address of the source.
        table: Where in the paper the numbers stand.
        builder: Name of the builder, a key of `dualnet.builders.BUILDERS`.
        config: The builder's arguments: sizes, cell, connection, dropouts, penalties.
        recipe: How it is trained: the arguments of `dualnet.training.Recipe`.
        lowercase: Whether the corpus is lower-cased first.
        parameters: Exact number of weights, without carried state and seeds.
        printed: The number of parameters as the paper prints it.
        published: Perplexities of the paper, `static` and `dynamic` (with dynamic
            evaluation), each `[validation, test]`.
        measured: Our own results, a list of tables with settings and command.
        ours: Keys of config and recipe where the source is silent and we chose.
        note: What a reader should know beside the numbers.
    """

    name: str
    corpus: str
    corpora: tuple[str, ...]
    paper: str
    table: str
    builder: str
    config: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    printed: str
    published: Mapping[str, list[float]]
    lowercase: bool = False
    measured: tuple[Mapping[str, Any], ...] = ()
    ours: tuple[str, ...] = ()
    note: str = ""


def list_models(pattern: str = "*") -> list[str]:
    """Return the sorted names of the models that match `pattern`, e.g. "dual_*"."""
    return sorted(name for name in _names() if fnmatch.fnmatchcase(name, pattern))


def card(name: str, corpus: str | None = None) -> Card:
    """Return the card of model `name` for `corpus`, by default the first that it lists.

    Raises:
        ValueError: if there is no such model, or none for that corpus.
    """
    table = dict(_read(name))
    corpora = table.pop("corpora")
    if corpus is None:
        corpus = next(iter(corpora))
    if corpus not in corpora:
        raise ValueError(
            f"`corpus` must be one of {list(corpora)}, which model {name!r} was published for. "
            f"Received: corpus={corpus!r}.{did_you_mean(corpus, corpora)} For other text give "
            "vocabulary_size instead."
        )
    special = dict(corpora[corpus])
    for key in ("config", "recipe"):
        table[key] = {**table.get(key, {}), **special.pop(key, {})}
    for key in ("ours", "measured"):
        table[key] = tuple(table.get(key, ())) + tuple(special.pop(key, ()))
    return Card(name=name, corpus=corpus, corpora=tuple(corpora), **table, **special)


def build(name: str, *, corpus: str | None = None, **overrides: Any) -> LanguageModel:
    """Return model `name`, randomly initialised.

    Args:
        name: one of `list_models()`.
        corpus: the published corpus whose card is meant; default the card's first.
        **overrides: arguments of the builder that replace the card's.
            `vocabulary_size` for a corpus of your own; `units` replaces all
            sizes of the card, and a size named beside it wins.

    Raises:
        ValueError: for an unknown model, corpus or argument, or a value out of range.
    """
    from dualnet.builders import BUILDERS  # here, so that listing models needs no Keras

    found = card(name, corpus)
    config = resolve(found.config, overrides)
    builder = BUILDERS[found.builder]
    known = builder_arguments(builder)
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` must be an argument of the builder {found.builder!r}."
            f"{did_you_mean(unknown[0], known)} It takes {', '.join(sorted(known))}."
        )
    return builder(**{"name": name, **config})


def resolve(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with `overrides`; `units` among them replaces all sizes."""
    if overrides.get("units") is not None:
        config = {key: value for key, value in config.items() if key not in SIZES}
    return {**config, **overrides}


def builder_arguments(builder: Any) -> list[str]:
    """Return the names of a builder's arguments."""
    import inspect

    return list(inspect.signature(builder).parameters)


def _names() -> list[str]:
    return [
        path.name.removesuffix(".toml")
        for path in folder("zoo").iterdir()
        if path.name.endswith(".toml")
    ]


@functools.cache
def _read(name: str) -> dict[str, Any]:
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
        hint = f" Did you mean one of {near}?" if near else ""
        raise ValueError(f"Unknown model. Received: name={name!r}.{hint} `dualnet list` shows all.")
    return tomllib.loads((folder("zoo") / f"{name}.toml").read_text("utf-8"))
