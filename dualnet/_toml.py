"""Reads TOML files and locates keys in them for error messages."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

KINDS: dict[type, str] = {
    str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list",
    dict: "a table",
}  # fmt: skip


def read_toml(path: str | os.PathLike[str], *, what: str = "A card") -> dict[str, Any]:
    """Return the contents of the TOML file `path`. Error messages call the file `what`."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} must be UTF-8. Received: {os.fspath(path)!r} with byte "
            f"0x{error.object[error.start]:02x} at offset {error.start}."
        ) from None
    except (ValueError, RecursionError) as error:  # ValueError: also of an integer's digits
        raise ValueError(f"{what} must be TOML. Received: {os.fspath(path)!r}: {error}.") from None


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
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(header, line) or (inside and re.search(pair, line)):
            if not line.lstrip().startswith("#"):
                return number
        elif table and line.lstrip().startswith("["):
            inside = line.split("#")[0].strip() == f"[{table}]"
    return 0


def at_line(path: str | os.PathLike[str], line: int) -> str:
    """Return "FILE, line N" for an error message, or the file alone if `line` is 0."""
    return f"{os.fspath(path)}{f', line {line}' if line else ''}"
