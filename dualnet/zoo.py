"""The model zoo: `list_models`, `card` and `build` over the cards in `zoo/`.

A card of your own, a `.toml` file, may stand wherever the name of a model does.
"""

import fnmatch
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from dualnet import cards
from dualnet._checks import ArgumentError, StrPath, check_choice, did_you_mean
from dualnet._data import list_tables
from dualnet.cards import Arguments, Card, is_file, located

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel
    from dualnet.builders.arguments import Overrides


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Return the sorted names of the models that match `pattern`.

    With `pretrained`, these are the trained models that are shipped with dualnet, named
    MODEL.TEXT, e.g. "dual_lstm.wikitext-2"; `dualnet.load` takes such a name.

    Example:

    >>> from dualnet import zoo
    >>> zoo.list_models("dual_*lstm")
    ['dual_dlstm', 'dual_lstm', 'dual_mdlstm', 'dual_mogrifier_rlstm']
    """
    if pretrained:
        from dualnet.runs.shipped import list_shipped

        return [name for name in list_shipped() if fnmatch.fnmatchcase(name, pattern)]
    names = (name for name in list_tables("zoo") if not name.startswith("_"))
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def card(name: StrPath, corpus: str | None = None) -> Card:
    """Return the card of model `name` for `corpus`.

    A card with a `base`, one or a list of names and paths, takes the keys of its base and
    replaces or adds its own: tables are merged, lists replaced; `units` replaces all sizes.
    What describes the base itself (table, note, counts, results) is not taken. `without`
    lists patterns of what is left out of the base, e.g. "config.*dropout", and `ours` patterns
    of what its source leaves open. If the card lists corpora, it has only those.

    Args:
        name: One of `list_models()`, or the path of a card, which ends in ".toml" and has
            a `base`, or `builder`, `[config]` (its arguments) and `[recipe]`. The
            `card.toml` of a RUN folder is one; the folder itself, or the name of a shipped
            model, stands for it.
        corpus: Name of a corpus that the card lists. Defaults to the first.

    Raises:
        ValueError: if the model or its base is unknown, the card does not list `corpus`, or
            a card of your own is not TOML or has an unknown key or a value of the wrong kind.
        FileNotFoundError: if there is no such file.

    Example:

    >>> from dualnet import zoo
    >>> card = zoo.card("dual_mdlstm", "wikitext-2")
    >>> card.config["rank"], card.published["dynamic"]
    (100, [53.48, 50.71])
    """
    from dualnet.runs.shipped import card_of_run, list_shipped

    source = card_of_run(name) or os.fspath(name)
    if not is_file(source) and source not in list_models():
        hint = did_you_mean(source, [*list_models(), *list_shipped()], most=3)
        message = f"Unknown model. Received: name={source!r}.{hint} `dualnet list` shows all."
        if (exists := os.path.exists(source)) or os.sep in source:
            required = "must be a model of the zoo, a RUN folder or a card, FILE.toml."
            fault = "is none of these" if exists else "does not exist"
            raise ArgumentError("name", f"{required} Received: {source!r}, which {fault}.")
        raise ValueError(message)
    tables = cards.tables_of(source)
    corpora: Arguments = next(
        (table["corpora"] for table in reversed(tables) if table.get("corpora")), {}
    )
    if corpus is None:
        corpus = next(iter(corpora), "")
    elif corpus not in corpora:
        raise ArgumentError(
            "corpus",
            f"must be one of {list(corpora)}, which model {source!r} was published for.",
            f"{did_you_mean(corpus, corpora)} For other text, give vocabulary_size instead.",
            corpus=corpus,
        )
    values: dict[str, Any] = {}
    for table in tables:
        values = cards.override(values, table, corpus)
    settings = [f"{part}.{key}" for part in cards.PARTS for key in values[part]]
    values["ours"] = tuple(
        key for key in settings if any(fnmatch.fnmatchcase(key, own) for own in values["ours"])
    )
    return Card(
        **{"name": cards.name_of(source), "builder": "language_model", **values},
        corpus=corpus,
        corpora=tuple(corpora),
        file=source if is_file(source) else "",
    )


def build(
    name: StrPath,
    *,
    corpus: str | None = None,
    weights: str | None = None,
    **overrides: "Unpack[Overrides]",
) -> "LanguageModel":
    """Return model `name`, randomly initialised, or with trained weights.

    Args:
        name: One of `list_models()`, or the path of a card, as for `card`. With the name of a
            shipped model, "dual_lstm.wikitext-2", or a RUN folder, its weights are loaded.
        corpus: The published corpus whose card is meant. Defaults to the card's first.
        weights: Name of the text whose shipped weights are loaded: "wikitext-2" for those of
            "dual_lstm.wikitext-2". The model then has the sizes of the shipped one, not those of
            the card, and its vocabulary. Not with `corpus`.
        **overrides: Arguments of the builder that replace the card's, e.g.
            `vocabulary_size` for a corpus of your own. `units` replaces all sizes of the
            card, except those given beside it. What the builder of an ensemble does not
            take goes to each of its members.

    Raises:
        ValueError: for an unknown model, corpus or argument, or a value out of range; or if
            the trained weights do not fit `overrides`.

    Example:

    >>> from dualnet import zoo
    >>> model = zoo.build("dual_lstm", vocabulary_size=20, units=8)
    >>> model.count_params()
    840
    """
    from dualnet.builders import BUILDERS  # here, so that listing models needs no Keras
    from dualnet.runs.shipped import card_of_run

    run = name if weights is None else _shipped(os.fspath(name), weights)
    if card_of_run(run):
        if corpus is not None:
            message = "cannot be combined with trained weights, which bring their vocabulary."
            raise ArgumentError("corpus", f"{message} Received: {corpus!r}. Leave it out.")
        return _build_trained(run, overrides)
    model_card = card(name, corpus)
    with located(model_card, overrides):
        arguments = arguments_of(model_card, overrides)
        *_, last = cards.all_arguments(arguments)  # all members have the same vocabulary
        if last.get("vocabulary_size") is None:
            raise ArgumentError("vocabulary_size", "must be given, by the card or as an argument.")
        return BUILDERS[model_card.builder](**{"name": model_card.name, **arguments})


def _shipped(model_name: str, weights: Any) -> StrPath:
    """Return the folder of the shipped model of `weights`."""
    from dualnet.runs.shipped import folder_of_shipped, list_shipped, names_of_shipped

    name = f"{model_name}.{str(weights).removeprefix(f'{model_name}.')}"
    if name not in list_shipped():
        raise ArgumentError(
            "weights",
            f"must be the text of a shipped model, TEXT of MODEL.TEXT. Received: {weights!r} for "
            f"the model {model_name!r}. {names_of_shipped()} To load a RUN folder or a .keras "
            "file, use dualnet.load.",
        )
    return folder_of_shipped() / name


def _build_trained(path: StrPath, overrides: Arguments) -> "LanguageModel":
    """Return the model of a RUN, built with `overrides`, which must fit its weights."""
    from dualnet import builders
    from dualnet.runs import Run

    run = Run.open_folder(path)
    trained = run.model()
    if not overrides:
        return trained
    arguments = arguments_of(run.card, overrides)
    model = builders.BUILDERS[trained.builder](**{"name": trained.name, **arguments})
    changes = ", ".join(f"{key}={value!r}" for key, value in overrides.items())
    try:
        result = builders.transfer(trained, model)
        reason = "" if not (result.other_shape or result.missing or result.unused) else str(result)
    except ArgumentError as error:
        reason = str(error)
    if reason:
        raise ArgumentError(
            "weights",
            f"must fit the model. Received: {run.source!r} with {changes}. Leave out what changes "
            f"sizes or layers, or build without `weights`. {' '.join(reason.split())}",
        )
    model.loss_reduction = trained.loss_reduction
    if run.translates:
        model.source_vocabulary = trained.source_vocabulary
    return model


# --- the arguments of the builder


def arguments_of(
    card: Card, overrides: Arguments, *, ensembles: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the arguments of the builder of `card`, with `overrides`.

    Each of the `members` of an ensemble becomes a table of `builder` and `arguments`, from
    its card for the corpus of the ensemble. Paths are relative to the ensemble's card. An
    override that the builder of the ensemble takes goes to it, any other to every member: a
    member keeps its own gate and cache. `ensembles` are those that `card` is a member of.
    """
    from dualnet.builders import BUILDERS
    from dualnet.builders.parts import with_names

    known = known_arguments(card, overrides)
    names = builder_arguments(BUILDERS[card.builder], {**card.config, **overrides})
    is_ensemble = "members" in names
    to_builder = {k: v for k, v in overrides.items() if k in names or not is_ensemble}
    to_members = {k: v for k, v in overrides.items() if k not in to_builder}
    arguments = with_names(resolve(card.config, to_builder))
    unknown = sorted((arguments.keys() - {*names}) | (to_members.keys() - {*known}))
    if unknown:
        name = unknown[0]
        lists = f" help(dualnet.builders.{card.builder}) lists them."
        way_out = did_you_mean(name, known) or lists
        message = f"must be an argument of the builder {card.builder!r}"
        message += " or of its members" * is_ensemble
        received = {name: (arguments | to_members)[name]}
        raise ArgumentError(name, f"{message}.", way_out, **received)
    if is_ensemble:
        members = arguments.get("members")
        if not isinstance(members, list | tuple) or not members:
            raise ArgumentError(
                "members",
                "must be a list of models, each the name or the path of a card.",
                members=members,
            )
        ensembles = (*ensembles, card.file or card.name)
        members = [_member_card(card, member, ensembles) for member in members]
        arguments["members"] = _member_arguments(members, to_members, ensembles)
    return arguments


def known_arguments(card: Card, overrides: Arguments = MappingProxyType({})) -> list[str]:
    """Return the names of the arguments of the builder of `card`, and of its members'."""
    from dualnet.builders import BUILDERS

    config = {**card.config, **overrides}
    names = builder_arguments(BUILDERS[check_choice("builder", card.builder, BUILDERS)], config)
    if "members" in names:
        names += [
            name for builder in BUILDERS.values() for name in builder_arguments(builder, config)
        ]
    return list(dict.fromkeys(names))


def resolve(config: Arguments, overrides: Arguments) -> dict[str, Any]:
    """Return `config` with `overrides`, without the values that they make meaningless.

    `units` replaces all sizes, another `initializer` the range of the old one, another `cell`,
    `connection` or `output` the arguments that it does not take.
    """
    from dualnet.builders.parts import CHOICES, part_options

    if overrides.keys() & CHOICES:
        before, after = part_options(config), part_options({**config, **overrides})
        # `internal_dropout` is also the builder's own, between layers of any cell.
        dropped = before - after - {"internal_dropout"}
        config = {key: config[key] for key in config if key not in dropped}
    return cards.replace_values(config, overrides)


def builder_arguments(builder: Any, config: Arguments = MappingProxyType({})) -> list[str]:
    """Return the names of a builder's arguments, with those of its cells if it takes them.

    So it is with those of parts of your own that `config` names.
    """
    import inspect

    from dualnet.builders.cells import all_options
    from dualnet.builders.parts import part_options

    parameters = inspect.signature(builder).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]
    options = [*all_options(), *sorted(part_options(config))]
    return list(dict.fromkeys(names + options * (len(names) < len(parameters))))


def _member_card(ensemble: Card, member: Any, ensembles: tuple[str, ...]) -> Card:
    if isinstance(member, Mapping) and {*member} == {"builder", "arguments"}:  # of a RUN folder
        builder, config = member["builder"], member["arguments"]
        return Card(name=ensemble.name, builder=builder, config=config, recipe={})
    if not isinstance(member, str | os.PathLike):
        message = "must be names or paths of cards, or tables of `builder` and `arguments`."
        raise ArgumentError("members", f"{message} Received: {member!r} among them.")
    source = str(member)
    if is_file(member):
        source = os.path.normpath(os.path.join(os.path.dirname(ensemble.file), member))
    if source in ensembles:
        message = f"of {ensemble.name!r} must be other models. Received: {source!r}, of which it is"
        raise ArgumentError("members", f"{message} a member itself.")
    try:
        has_corpora = bool(ensemble.corpus and card(source).corpora)
        return card(source, ensemble.corpus if has_corpora else None)
    except ValueError as error:
        raise ArgumentError("members", f"of {ensemble.name!r}: {error}") from None


def _member_arguments(
    members: list[Card], overrides: Arguments, ensembles: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return a table of `builder` and `arguments` for each of `members`."""
    tables = []
    for member in members:
        with located(member, overrides):
            known = known_arguments(member, overrides)
            accepted = {key: overrides[key] for key in overrides if key in known}
            arguments = arguments_of(member, accepted, ensembles=ensembles)
        tables.append({"builder": member.builder, "arguments": arguments})
    return tables
