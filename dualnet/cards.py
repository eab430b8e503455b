"""Cards: what is known about a model, as a frozen dataclass and as TOML files with bases."""

import contextlib
import copy
import dataclasses
import fnmatch
import functools
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dualnet._checks import ArgumentError, StrPath, did_you_mean, is_number
from dualnet._data import folder, list_tables
from dualnet._toml import OTHERS, Kind, Schema, check_keys, read_toml

Table: TypeAlias = Mapping[str, Any]  # of TOML
Arguments: TypeAlias = Mapping[str, Any]  # of a builder, by name

# What Keras and TensorFlow accept as the name of a model.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def _are_bases(value: Any) -> bool:
    return all(isinstance(base, str) for base in (value if isinstance(value, list) else [value]))


PAIR = Kind("a pair of numbers, [validation, test], with nan for none", _is_pair)
PAIR_OR_TEXT = Kind(PAIR.text, lambda value: isinstance(value, str) or _is_pair(value))
# What a card may hold, also in a table of `corpora`.
SCHEMA: Schema = {
    "name": Kind(
        "ASCII letters, digits, '.', '_' and '-', the first a letter or digit",
        lambda value: isinstance(value, str) and NAME.fullmatch(value) is not None,
    ),
    "builder": str, "paper": str, "table": str, "note": str, "printed": str, "lowercase": bool,
    "parameters": int, "ours": [str], "config": dict, "recipe": dict, "evaluation": dict,
    "published": {OTHERS: PAIR}, "also_published": [{OTHERS: PAIR_OR_TEXT}],
    "measured": [{OTHERS: object}],
}  # fmt: skip
# And only once. Only the card of a RUN folder has `corpus`, `seed`, `weights`, and `parts`: the
# modules of parts of your own, by the names that Keras knows them by.
CARD_SCHEMA: Schema = {
    **SCHEMA,
    "base": Kind("a model of the zoo, the path of a card, or a list of these", _are_bases),
    "without": [str], "corpora": {OTHERS: SCHEMA}, "corpus": dict, "seed": int, "weights": str,
    "parts": {OTHERS: str},
}  # fmt: skip
SIZES = ("embedding_units", "recurrent_units", "dual_units", "latent_units")  # set by `units`
PARTS = ("config", "recipe", "evaluation")
# What describes one model alone, and is not passed on to cards that have it as their base.
NOT_INHERITED = (
    "name", "table", "note", "parameters", "printed", "published", "also_published", "measured",
    "seed",
)  # fmt: skip
# Of a card file, not of `Card`.
NO_VALUES = ("base", "without", "corpora", "corpus", "weights", "parts")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """One published model on one corpus: what its source states, and what we chose.

    Attributes:
        name: Name of the model, as in `zoo.build(name)`.
        corpus: Name of the corpus that this card is for.
        corpora: All corpora that the model has a card for, the default first.
        paper: Author, year and address of the source.
        table: Where the paper states the numbers.
        builder: Name of the builder, a key of `dualnet.builders.BUILDERS`.
        config: The builder's arguments: sizes, cell, connection, dropouts, penalties;
            or the `members` of an ensemble, names or paths of cards.
        recipe: How the model is trained: arguments of `dualnet.training.Recipe`.
        evaluation: Settings of the published evaluations: of the cache, named `cache_...`, and
            of dynamic evaluation, arguments of `dualnet.dynamic_evaluation`.
        lowercase: Whether the corpus is lower-cased first.
        parameters: Exact number of weights, without stream states and seeds.
        printed: The number of parameters as the paper prints it.
        published: Perplexities of the paper, each `[validation, test]`, nan where it
            has none: `static`; `finetuned`, once; `refinetuned`, until no gain;
            `samples`, averaged over samples of dropout; `cache`; `dynamic`, with
            dynamic evaluation. Of models that translate, `bleu`, or `rouge_1`, `rouge_2` and
            `rouge_l` (F1), all in percent.
        also_published: Further published results, a list of tables: `source`, `table`,
            `settings` that differ from the card's, perplexities as in `published`, their
            `deviation` over seeds, and the coefficient of `variation` of the experts.
        measured: Our own results, a list of tables: `settings`, `parameters`,
            `command`, and figures as in `published`; of models that translate also
            `perplexity`, and `bleu_multi30k`, the BLEU of lower-cased Moses tokens.
        ours: Settings that we chose because the source is silent, e.g. "recipe.beta_1". A file
            may give patterns, "recipe.*"; here are the keys of this card that they match.
        note: What a reader should know besides the numbers.
        seed: The seed of a run, in the card of its RUN folder; else None.
        weights: Path of the model whose weights a run started from; "" for none.
        trained_on: Corpus of a run: `name`, `source`, `lowercase` and `sha256`, the table
            `[corpus]` of its file; else {}.
        file: The file of a card of your own; "" for one of the zoo.

    Example:

    >>> from dualnet import zoo
    >>> card = zoo.card("dual_mdlstm")
    >>> card.corpora, card.parameters, card.ours[0]
    (('ptb', 'wikitext-2'), 22879450, 'config.embedding_units')
    """

    name: str
    corpus: str = ""
    corpora: tuple[str, ...] = ()
    paper: str = ""
    table: str = ""
    builder: str
    config: Table
    recipe: Table
    evaluation: Table = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    printed: str = ""
    published: Mapping[str, list[float]] = dataclasses.field(default_factory=dict)
    also_published: tuple[Table, ...] = ()
    lowercase: bool = False
    measured: tuple[Table, ...] = ()
    ours: tuple[str, ...] = ()
    note: str = ""
    seed: int | None = None
    weights: str = ""
    trained_on: Table = dataclasses.field(default_factory=dict)
    file: str = ""

    def __repr__(self) -> str:
        shown = {"corpus": self.corpus, "parameters": self.parameters, "paper": self.paper}
        values = [f"{name}={value!r}" for name, value in shown.items() if value]
        return f"Card({', '.join([repr(self.name), *values])})"


@contextlib.contextmanager
def located(card: Card, overrides: Iterable[str] = ()) -> Iterator[None]:
    """Prefix an `ArgumentError` about a key of a card of your own with its file.

    An error about one of `overrides` is left as it is.
    """
    try:
        yield
    except ArgumentError as error:
        if not card.file or error.argument in overrides:
            raise
        raise ValueError(f"{card.file}: {error}") from None


def is_file(name: StrPath) -> bool:
    """Tell the path of a card of your own, which ends in ".toml", from the name of a model."""
    return os.fspath(name).lower().endswith(".toml")


def bases_of(name: str, table: Table) -> list[str]:
    """Return the bases of card `name`, whose table is given, as names and paths.

    A path is relative to the folder of the card.
    """
    bases = table.get("base", [])
    bases = bases if isinstance(bases, list) else [bases]
    parent = os.path.dirname(name)
    return [os.path.normpath(os.path.join(parent, b)) if is_file(b) else b for b in bases]


def read_card_file(path: Path) -> dict[str, Any]:
    """Return the tables of a card of your own, after a check of its keys and their kinds."""
    table = read_toml(path)
    try:
        check_keys(table, CARD_SCHEMA)
    except ArgumentError as error:
        raise ValueError(f"{path}: {error}") from None
    return table


# --- a card and its bases


def name_of(source: str) -> str:
    """Return the name of a card that does not say it: that of its file, as Keras accepts it."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(source).stem)
    return name if NAME.fullmatch(name) else f"card{name}"


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((folder("zoo") / f"{name}.toml").read_text("utf-8"))


def tables_of(source: str, heirs: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the tables of the card `source` and of its bases, the most basic first.

    `heirs` are the cards that it is a base of.
    """
    table = read_card_file(Path(source)) if is_file(source) else _read(source)
    heirs, names = (*heirs, source), list_tables("zoo")
    tables = []
    try:
        for base in bases_of(source, table):
            if base in heirs:
                circle = " -> ".join([*heirs[heirs.index(base) :], base])
                raise ArgumentError(
                    "base", f"must not lead back to the card itself. Received: {circle}."
                )
            if base not in names and not (is_file(base) and os.path.isfile(base)):
                message = "must be a model of the zoo or the path of a card, relative to this one."
                hint = did_you_mean(base, names)
                raise ArgumentError("base", f"{message} Received: {base!r}.{hint}")
            tables += tables_of(base, heirs)
    except ArgumentError as error:  # about the `base` of this card
        file = Path(source) if is_file(source) else folder("zoo") / f"{source}.toml"
        raise ValueError(f"{file}: {error}") from None
    return [*tables, copy.deepcopy(table)]


def override(bases: Table, table: Table, corpus: str) -> dict[str, Any]:
    """Return the values of `bases`, extended and replaced by what `table` says on `corpus`."""
    special = table.get("corpora", {}).get(corpus, {})
    patterns = table.get("without", ())

    def is_kept(value: str) -> bool:
        return not any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)

    values = {key: bases[key] for key in bases if key not in NOT_INHERITED}
    values["ours"] = tuple(filter(is_kept, bases.get("ours", ())))
    if "corpus" in table:  # the card of a RUN folder
        values["lowercase"] = table["corpus"].get("lowercase") is True
    own = table | special
    values |= {key: own[key] for key in own if key not in NO_VALUES}
    for part in PARTS:
        replacements = table.get(part, {}) | special.get(part, {})
        inherited = {k: v for k, v in bases.get(part, {}).items() if is_kept(f"{part}.{k}")}
        values[part] = replace_values(inherited, replacements)
    for key in {"ours", "also_published", "measured"} & own.keys():
        values[key] = (*table.get(key, ()), *special.get(key, ()))
    return values


def replace_values(config: Table, overrides: Table) -> dict[str, Any]:
    """Return `config` with `overrides`, of which `units` and `initializer` replace others too."""
    dropped = {*SIZES, "lower_units"} if overrides.get("units") is not None else set()
    if "initializer" in overrides:
        dropped.add("initializer_range")
    return {**{key: config[key] for key in config if key not in dropped}, **overrides}


def with_vocabulary_size(arguments: Arguments, size: int) -> dict[str, Any]:
    """Return the builder's `arguments` with this `vocabulary_size`, for every member too."""
    if "members" not in arguments:
        return {**arguments, "vocabulary_size": size}
    return with_members(arguments, lambda own: with_vocabulary_size(own, size))


def with_members(arguments: Arguments, change: Callable[..., Any]) -> dict[str, Any]:
    """Return a builder's `arguments`, with those of its members, if any, changed by `change`."""
    members = [
        {**member, "arguments": change(member["arguments"])}
        for member in arguments.get("members", ())
    ]
    return {**arguments, **({"members": members} if members else {})}


def all_arguments(arguments: Arguments) -> Iterator[Arguments]:
    """Yield the arguments of a builder, and those of all its members."""
    yield arguments
    for member in arguments.get("members", ()):
        yield from all_arguments(member["arguments"])
