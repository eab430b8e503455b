"""Reads TOML files, and checks their keys against a schema."""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, Union

from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet._files import NotARegularFileError, read_regular


def read_toml(path: StrPath, *, what: str = "A card") -> dict[str, Any]:
    """Return the contents of the TOML file `path`. Error messages call the file `what`."""
    try:
        return tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.") from None
    except (NotARegularFileError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} must be TOML. Received: {os.fspath(path)!r}: {error}") from None


class Kind(NamedTuple):
    """What a key may hold, where no type says it."""

    text: str  # ends the sentence "`key` must be"
    fits: Callable[[Any], bool]


Entry: TypeAlias = Union[type, Kind, "Schema", list["Entry"]]
Schema: TypeAlias = Mapping[str, Entry]
OTHERS = "*"  # in a schema: all keys without an entry of their own
KINDS: dict[type, Kind] = {
    object: Kind("a value", lambda value: True),
    str: Kind("text", lambda value: type(value) is str),
    bool: Kind("true or false", lambda value: type(value) is bool),
    int: Kind("an integer", lambda value: type(value) is int),
    dict: Kind("a table", lambda value: type(value) is dict),
}


def check_keys(table: Mapping[str, Any], schema: Schema, *, required: Iterable[str] = ()) -> None:
    """Raise `ArgumentError` for the first key of `table` that `schema` does not allow.

    Args:
        schema: What each key may hold: a type, a `Kind`, the schema of a table, or a list with
            what each item of a list may be, text or a schema.
        required: Keys that must be there.
    """
    for key in required:
        if key not in table:
            raise ArgumentError(key, "is required.")
    for key, value in table.items():
        entry = schema.get(key, schema.get(OTHERS))
        if entry is None:
            hint = did_you_mean(key, schema)
            raise ArgumentError(key, f"must be one of {', '.join(schema)}.{hint}")
        kind = _kind_of(entry)
        if not kind.fits(value):
            raise ArgumentError(key, f"must be {kind.text}. Received: {key} = {value!r}.")
        tables = value if isinstance(entry, list) else [value]
        inner = entry[0] if isinstance(entry, list) else entry
        if isinstance(inner, Mapping):
            for inner_table in tables:
                check_keys(inner_table, inner)


def _kind_of(entry: Entry) -> Kind:
    if isinstance(entry, list):
        item, text = (str, "a list of text") if entry == [str] else (dict, "a list of tables")
        return Kind(text, lambda x: type(x) is list and all(type(value) is item for value in x))
    if isinstance(entry, Mapping):
        return KINDS[dict]
    return entry if isinstance(entry, Kind) else KINDS[entry]
