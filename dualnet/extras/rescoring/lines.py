"""The lines of files of lists and trees, their words and their numbers."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from dualnet._checks import ArgumentError, StrPath

SPACES = " \t\n\v\f\r"  # of ASCII alone, as in EVALB: others may be part of a word
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
Line = tuple[int, str]


def numbered_lines(path: StrPath, malformed: Callable[..., ArgumentError]) -> Iterator[Line]:
    """Read the numbered lines of a file; `malformed` makes an error of file, line and reason."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and b"\r" in line and b"\n" not in line:
                raise malformed(path, number, "its lines end in CR alone; they must end in LF")
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise malformed(path, number, "the text is not UTF-8") from None


def words_of(text: str) -> list[str]:
    """Return the words of `text`, which white space of ASCII separates."""
    return re.findall(f"[^{SPACES}]+", text)


def finite_number(value: Any) -> float:
    """Return a number, or the one that a text spells; raise `ValueError` unless it is finite."""
    if not _NUMBER.fullmatch(text := str(value)) or not math.isfinite(number := float(text)):
        raise ValueError(f"{value!r} must be a finite number")
    return number
