"""The published models: `list_models`, `card` and `build` over the cards in `zoo/`.

A card of your own, a `.toml` file, stands wherever the name of a model does.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet._checks import ArgumentError, check_choice, did_you_mean
from dualnet._data import folder
from dualnet.cards import Card, is_file, located, read_card_file

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

# What `units=` replaces.
SIZES = ("embedding_units", "recurrent_units", "dual_units", "latent_units")


def list_models(pattern: str = "*") -> list[str]:
    """Return the sorted names of the models that match `pattern`, e.g. "dual_*"."""
    return sorted(name for name in _names() if fnmatch.fnmatchcase(name, pattern))


def card(name: str | os.PathLike[str], corpus: str | None = None) -> Card:
    """Return the card of model `name` for `corpus`, by default the first that it lists.

    Args:
        name: one of `list_models()`, or the path of a card, which ends in ".toml":
            `builder`, a table `[config]` of the builder's arguments and a table
            `[recipe]`; `[evaluation]` if it has a cache. The `card.toml` of a RUN folder is one.
        corpus: name of a corpus that the card lists.

    Raises:
        ValueError: if there is no such model, none for that corpus, or a card of
            your own is not TOML or has an unknown key or a value of another kind.
        FileNotFoundError: if there is no such file.
    """
    own = is_file(name)
    table = read_card_file(Path(name)) if own else dict(_read(str(name)))
    corpora = table.pop("corpora", {})
    trained_on = table.pop("corpus", {})
    table.pop("weights", None)
    if corpus is None:
        corpus = next(iter(corpora), "")
    elif corpus not in corpora:
        raise ArgumentError(
            "corpus",
            f"must be one of {list(corpora)}, which model {str(name)!r} was published "
            f"for. Received: corpus={corpus!r}.{did_you_mean(corpus, corpora)} For other text give "
            "vocabulary_size instead.",
        )
    special = dict(corpora.get(corpus, {"lowercase": trained_on.get("lowercase") is True}))
    for key in ("config", "recipe", "evaluation"):
        table[key] = {**table.get(key, {}), **special.pop(key, {})}
    for key in ("ours", "measured"):
        table[key] = tuple(table.get(key, ())) + tuple(special.pop(key, ()))
    table = {"name": Path(name).stem, "builder": "language_model", **special, **table}
    return Card(corpus=corpus, corpora=tuple(corpora), file=str(name) if own else "", **table)


def build(
    name: str | os.PathLike[str], *, corpus: str | None = None, **overrides: Any
) -> LanguageModel:
    """Return model `name`, randomly initialised.

    Args:
        name: one of `list_models()`, or the path of a card, as for `card`.
        corpus: the published corpus whose card is meant; default the card's first.
        **overrides: arguments of the builder that replace the card's.
            `vocabulary_size` for a corpus of your own; `units` replaces all
            sizes of the card, and a size named beside it wins. Those of an ensemble
            that its builder does not take go to each of its members.

    Raises:
        ValueError: for an unknown model, corpus or argument, or a value out of range.
    """
    from dualnet.builders import BUILDERS  # here, so that listing models needs no Keras

    found = card(name, corpus)
    with located(found, overrides):
        arguments = arguments_of(found, overrides)
        if vocabulary_size_of(arguments) is None:
            raise ArgumentError("vocabulary_size", "must be given, by the card or as an argument.")
        return BUILDERS[found.builder](**{"name": found.name, **arguments})


def arguments_of(found: Card, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the builder of card `found`, with `overrides`.

    The `members` of an ensemble come as the builder takes them, each a table of
    `builder` and `arguments`, by its own card for the corpus of `found`. The card of an
    ensemble of your own finds the cards beside it. An override goes to the ensemble
    where its builder takes it, else to every member: a member's own gate and cache stay.

    Raises:
        ValueError: for an unknown argument or member, or members of different
            vocabulary sizes.
    """
    return _arguments(found, overrides, ())


def with_vocabulary_size(arguments: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return `arguments` of a builder with this `vocabulary_size`, in every member."""
    if "members" not in arguments:
        return {**arguments, "vocabulary_size": size}
    members = [
        {**member, "arguments": with_vocabulary_size(member["arguments"], size)}
        for member in arguments["members"]
    ]
    return {**arguments, "members": members}


def vocabulary_size_of(arguments: Mapping[str, Any]) -> int | None:
    """Return the `vocabulary_size` among `arguments` of a builder, or those of its members."""
    while "members" in arguments:  # all of one size
        arguments = arguments["members"][0]["arguments"]
    return arguments.get("vocabulary_size")


def known_arguments(found: Card) -> list[str]:
    """Return the names of what can replace arguments of card `found`, or of its members."""
    from dualnet.builders import BUILDERS

    own = builder_arguments(BUILDERS[check_choice("builder", found.builder, BUILDERS)])
    others = BUILDERS.values() if "members" in own else ()
    return list(dict.fromkeys([*own, *(key for each in others for key in builder_arguments(each))]))


def _arguments(found: Card, overrides: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    from dualnet.builders import BUILDERS

    check_choice("builder", found.builder, BUILDERS)
    own, known = builder_arguments(BUILDERS[found.builder]), known_arguments(found)
    ensemble = "members" in own
    here = {key: overrides[key] for key in overrides if key in own or not ensemble}
    below = {key: overrides[key] for key in overrides if key not in here}
    config = resolve(found.config, here)
    unknown = sorted(config.keys() - {*own} | below.keys() - {*known})
    if unknown:
        raise ArgumentError(
            unknown[0],
            f"must be an argument of the builder {found.builder!r}"
            f"{' or of its members' * ensemble}.{did_you_mean(unknown[0], known)} It takes "
            f"{', '.join(sorted(known))}.",
        )
    if ensemble:
        cards = _members(found, config.get("members"), above)
        config["members"] = _built(found, cards, below, above)
    return config


def _members(found: Card, members: Any, above: tuple[str, ...]) -> list[Card]:
    """Return the cards of the `members` of `found`, for its corpus."""
    if not isinstance(members, (list, tuple)) or not members:
        raise ArgumentError(
            "members",
            "must be a list of models, each the name or the path of a card. Received: "
            f"members={members!r}.",
        )
    return [_member(found, member, above) for member in members]


def _member(found: Card, member: Any, above: tuple[str, ...]) -> Card:
    if isinstance(member, Mapping):  # in the card of a RUN folder
        if {*member} != {"builder", "arguments"}:
            raise ArgumentError(
                "members",
                "must be names or paths of cards, or tables of `builder` and "
                f"`arguments`. Received: {dict(member)!r}.",
            )
        return Card(
            name=found.name, builder=member["builder"], config=member["arguments"], recipe={}
        )
    if not isinstance(member, (str, os.PathLike)):
        raise ArgumentError(
            "members", f"must be names or paths of cards. Received: {member!r} among them."
        )
    path = os.path.join(os.path.dirname(found.file), member) if is_file(member) else str(member)
    if path in (*above, found.file or found.name):
        raise ArgumentError(
            "members",
            f"of {found.name!r} must be other models. Received: {path!r}, of which it is "
            "a member itself.",
        )
    try:
        corpora = card(path).corpora
        return card(path, found.corpus if found.corpus and corpora else None)
    except ValueError as error:
        raise ArgumentError("members", f"of {found.name!r}: {error}") from None


def _built(
    found: Card, cards: list[Card], overrides: Mapping[str, Any], above: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return each member as its builder's name and arguments."""
    members = []
    sizes: dict[int, str] = {}
    for member in cards:
        with located(member, overrides):
            known = known_arguments(member)
            taken = {key: overrides[key] for key in overrides if key in known}
            arguments = _arguments(member, taken, (*above, found.file or found.name))
        members.append({"builder": member.builder, "arguments": arguments})
        size = vocabulary_size_of(arguments)
        if size is not None:
            sizes.setdefault(size, member.name)
    if len(sizes) > 1:
        each = ", ".join(f"{size} of {name!r}" for size, name in sizes.items())
        raise ArgumentError(
            "members",
            f"of {found.name!r} must have one vocabulary. Received: sizes {each}. Give "
            "vocabulary_size, which all of them take.",
        )
    return members


def resolve(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with `overrides`.

    `units` among them replaces all sizes, another `cell` the arguments of the cell
    that it does not take, another `initializer` its range.
    """
    left_out: set[str] = set()
    if overrides.get("units") is not None:
        left_out |= set(SIZES)
    if "cell" in overrides:
        from dualnet.builders.cells import CELLS, options_of

        before, cell = config.get("cell", "lstm"), overrides["cell"]
        if cell in CELLS and before in CELLS:  # the builder refuses others
            # The builder has an internal dropout of its own, between layers of any cell.
            left_out |= {*options_of(before)} - {*options_of(cell)} - {"internal_dropout"}
    if "initializer" in overrides:
        left_out.add("initializer_range")
    return {**{key: config[key] for key in config if key not in left_out}, **overrides}


def builder_arguments(builder: Any) -> list[str]:
    """Return the names of a builder's arguments, those of its cells too where it has any."""
    import inspect

    from dualnet.builders.cells import all_options

    named = inspect.signature(builder).parameters.values()
    own = [each.name for each in named if each.kind is not each.VAR_KEYWORD]
    options = all_options() if len(own) < len(named) else ()
    return list(dict.fromkeys([*own, *options]))


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
