"""Reads TOML files, checks them against a schema, and locates keys for error messages."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dualnet._checks import ArgumentError, StrPath, did_you_mean, is_number
from dualnet._files import NotARegularFileError, TooLargeError, read_bounded

LARGEST = 10**6  # bytes of a file
DEEPEST = 20  # tables and lists within each other, and parts of a key
_QUOTED = re.compile(
    r""""{3}.*?"{3}|\'{3}.*?\'{3}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*""", re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}[\w-]")


def read_toml(path: StrPath, *, what: str = "A card") -> dict[str, Any]:
    """Return the contents of the TOML file `path`. Error messages call the file `what`.

    A file may have `LARGEST` bytes, nest `DEEPEST` deep and, as TOML says, hold integers of 64
    bits: beyond that, parsing it or printing its values could take for ever.
    """

    def refused(requirement: str, received: str) -> ValueError:
        return ValueError(f"{what} must {requirement}. Received: {os.fspath(path)!r}{received}.")

    try:
        data = read_bounded(path, LARGEST)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.") from None
    except NotARegularFileError:
        raise refused("be a regular file", ", which is a device or a pipe") from None
    except TooLargeError:
        raise refused(f"have at most {LARGEST:,} bytes", ", which has more") from None
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        shallow = not _LONG_KEY.search(_QUOTED.sub("q", text))  # tomllib takes quadratic time
        table = tomllib.loads(text) if shallow else {}
    except UnicodeDecodeError as error:
        place = f" with byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise refused("be UTF-8", place) from None
    except (ValueError, RecursionError) as error:
        raise refused("be TOML", f": {error}") from None
    if not shallow or _depth(table) > DEEPEST:
        raise refused(f"nest at most {DEEPEST} deep", ", which is deeper")
    for key, value in _integers(table):
        if not -(2**63) <= value < 2**63:
            place = f", line {line}" if (line := line_of(text, key)) else ""
            raise refused("hold integers of 64 bits", f"{place}, where `{key}` has more")
    return table


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, items), default=0) if isinstance(value, (dict, list)) else 0


def _integers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Yield each integer in `value`, and the key it stands below."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else ((key, item) for item in value)
        for name, item in pairs:
            yield from _integers(item, name)


# --- what a file may hold


class Kind(NamedTuple):
    """What a key may hold, where no type says it."""

    text: str  # ends the sentence "`key` must be"
    fits: Callable[[Any], bool]


OTHERS = "*"  # in a schema: all keys without an entry of their own
KINDS: dict[type, Kind] = {
    object: Kind("a value", lambda value: True),
    str: Kind("text", lambda value: type(value) is str),
    bool: Kind("true or false", lambda value: type(value) is bool),
    int: Kind("an integer", lambda value: type(value) is int),
    float: Kind("a number", is_number),
    dict: Kind("a table", lambda value: type(value) is dict),
    list: Kind("a list that is not empty", lambda value: type(value) is list and bool(value)),
}


def check_keys(
    table: Mapping[str, Any],
    schema: Mapping[str, Any],
    *,
    required: Iterable[str] = (),
    way_out: str = "",
) -> None:
    """Raise `ArgumentError` for the first key of `table` that `schema` does not allow.

    Args:
        schema: What each key may hold: a type, a `Kind`, the schema of a table, or a list with
            what each item of a list may be, text or a schema.
        required: Keys that must be there.
        way_out: Ends the error about a key that is not in `schema`.
    """
    for key in required:
        if key not in table:
            raise ArgumentError(key, "is required.")
    for key, value in table.items():
        entry = schema.get(key, schema.get(OTHERS))
        if entry is None:
            hint = did_you_mean(key, schema)
            raise ArgumentError(key, f"must be one of {', '.join(schema)}.{hint}{way_out}")
        kind = _kind_of(entry)
        if not kind.fits(value):
            raise ArgumentError(key, f"must be {kind.text}. Received: {key} = {value!r}.")
        inner = entry[0] if isinstance(entry, list) else entry
        if isinstance(inner, Mapping):
            for each in value if isinstance(entry, list) else [value]:
                check_keys(each, inner)


def _kind_of(entry: Any) -> Kind:
    if isinstance(entry, list):
        item = str if entry == [str] else dict
        text = "a list of text" if item is str else "a list of tables"
        return Kind(text, lambda x: type(x) is list and all(type(each) is item for each in x))
    if isinstance(entry, Mapping):
        return KINDS[dict]
    return entry if isinstance(entry, Kind) else KINDS[entry]


# --- where it stands


def line_of(text: str, key: str, *, table: str = "") -> int:
    """Return the line number of the first `key =` or table `[key]` in TOML text, or 0.

    With `table`, find the key in `[table]`, at the start of a line, or the table `[table.key]`.
    """
    name = rf"[\"']?{re.escape(key)}[\"']?"
    inside = not table
    pair = rf"(?:^|[{{,\s.]){name}\s*(?:\.[\w.]+\s*)?="
    header = rf"^\s*\[+(?:[\w.-]+\.)?{name}[\].]"
    if table:
        pair = rf"^\s*{name}\s*[.=]"
        header = rf"^\s*\[{re.escape(table)}\.{name}[\].]"
    # Keys in strings of several lines are none.
    text = _QUOTED.sub(lambda found: "\n" * found[0].count("\n") or found[0], text)
    for number, line in enumerate(text.split("\n"), start=1):
        if re.search(header, line) or (inside and re.search(pair, line)):
            if not line.lstrip().startswith("#"):
                return number
        elif table and line.lstrip().startswith("["):
            inside = line.split("#")[0].strip() == f"[{table}]"
    return 0


def at_line(path: StrPath, line: int) -> str:
    """Return "FILE, line N" for an error message, or the file alone if `line` is 0."""
    return f"{os.fspath(path)}{f', line {line}' if line else ''}"
