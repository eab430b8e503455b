"""Cards: what is known about a model, as a frozen dataclass and as a TOML file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError, did_you_mean
from dualnet._toml import KINDS, at_line, line_of, read_toml

# What a card may hold, and of what kind; [corpus], seed and weights stand in the card of a RUN
# folder.
KEYS: dict[str, type] = {
    "name": str, "builder": str, "paper": str, "table": str, "note": str, "printed": str,
    "weights": str, "lowercase": bool, "parameters": int, "seed": int, "ours": list,
    "measured": list, "config": dict, "recipe": dict, "evaluation": dict, "published": dict,
    "corpora": dict,
    "corpus": dict,
}  # fmt: skip


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
        config: The builder's arguments: sizes, cell, connection, dropouts, penalties;
            or the `members` of an ensemble, names or paths of cards.
        recipe: How it is trained: the arguments of `dualnet.training.Recipe`.
        evaluation: How it is evaluated: the cache of the results with one.
        lowercase: Whether the corpus is lower-cased first.
        parameters: Exact number of weights, without carried state and seeds.
        printed: The number of parameters as the paper prints it.
        published: Perplexities of the paper, each `[validation, test]`, nan where it
            has none: `static`; `finetuned`, once; `refinetuned`, until no gain;
            `samples`, averaged over samples of dropout; `cache`; `dynamic`, with
            dynamic evaluation.
        measured: Our own results, a list of tables: `settings`, `parameters`,
            `command`, and perplexities as in `published`.
        ours: Keys of config, recipe and evaluation where the source is silent and we
            chose.
        note: What a reader should know beside the numbers.
        seed: Seed of a run, in the card of its RUN folder; else None.
        weights: Path of the model whose weights a run started from; "" for none.
        trained_on: Corpus of a run: `name`, `source`, `lowercase` and `sha256`, the table
            `[corpus]` of its file; else {}.
        file: The file of a card of your own; "" for one of the zoo.
    """

    name: str
    corpus: str = ""
    corpora: tuple[str, ...] = ()
    paper: str = ""
    table: str = ""
    builder: str
    config: Mapping[str, Any]
    recipe: Mapping[str, Any]
    evaluation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    printed: str = ""
    published: Mapping[str, list[float]] = dataclasses.field(default_factory=dict)
    lowercase: bool = False
    measured: tuple[Mapping[str, Any], ...] = ()
    ours: tuple[str, ...] = ()
    note: str = ""
    seed: int | None = None
    weights: str = ""
    trained_on: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: str = ""


@contextlib.contextmanager
def located(card: Card, overrides: Iterable[str] = ()) -> Iterator[None]:
    """Prefix an `ArgumentError` about a key of a card of your own with its file and line."""
    try:
        yield
    except ArgumentError as error:
        if not card.file or error.argument in overrides:
            raise
        line = line_of(Path(card.file).read_text("utf-8"), error.argument)
        raise ValueError(f"{at_line(card.file, line)}: {error}") from None


def is_file(name: str | os.PathLike[str]) -> bool:
    """Return whether `name` means a card of your own: a path that ends in ".toml"."""
    return os.fspath(name).endswith(".toml")


def read_card_file(path: Path) -> dict[str, Any]:
    """Return the tables of a card of your own, its keys and their kinds checked."""
    table = read_toml(path)

    def check(found: Mapping[str, Any], known: Mapping[str, type]) -> None:
        for key, value in found.items():
            expected = known.get(key)
            if expected is None:
                way_out = f"must be one of {', '.join(known)}.{did_you_mean(key, known)}"
            elif type(value) is not expected:
                way_out = f"must be {KINDS[expected]}. Received: {key} = {value!r}."
            else:
                continue
            line = line_of(path.read_text("utf-8"), key)
            raise ValueError(f"{at_line(path, line)}: `{key}` {way_out}")

    check(table, KEYS)
    for special in table.get("corpora", {}).values():
        check({"corpora": special}, KEYS)
        of_runs = ("corpus", "seed", "weights")
        check(special, {key: KEYS[key] for key in KEYS if key not in ("corpora", *of_runs)})
    return table
