"""Checks of arguments, shared by the whole package."""

import contextlib
import difflib
import functools
import math
import numbers
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from importlib import resources
from typing import Any, TypeGuard, TypeVar

import numpy as np

LONG = 200  # characters of a value in an error
CLOSE = 0.65  # of two names, by difflib: "unts" and "units" have 0.89, "seed" and "tied" 0.5
StrPath = str | os.PathLike[str]
T = TypeVar("T")


class ArgumentError(ValueError):
    """An argument has an invalid value.

    Args:
        argument: str. Name of the argument.
        message: str. What is required. The text of the error is the name followed by the
            message, by what was received and by the way out. Without a message, `argument` is
            the whole text, which is how Keras re-raises errors in a layer's call.
        way_out: str. A sentence that ends the text, with a space before it.
        **received: Names and values of arguments that were received. A message without them
            says itself what was received.

    >>> raise ArgumentError("rounds", "must be at least 0.", rounds=-1)
    Traceback (most recent call last):
    dualnet._checks.ArgumentError: `rounds` must be at least 0. Received: rounds=-1.
    """

    def __init__(
        self, argument: str, message: str | None = None, way_out: str = "", /, **received: object
    ) -> None:
        text = argument if message is None else f"`{argument}` {message}"
        if received:
            values = ", ".join(f"{name}={shown(value)}" for name, value in received.items())
            text += f" Received: {values}."
        text = re.sub(rf"(\S{{{LONG}}})\S+", r"\1…", text)  # of a name or a path
        super().__init__(text + way_out)
        self.argument = "" if message is None else argument


def shown(value: object) -> str:
    """Return a value as an error shows it: on one line, and not the whole of a long one."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # of an integer of more than 4,300 digits
        text = f"a number of type {type(value).__name__}"
    return text if len(text) <= LONG else f"{text[: LONG // 2]}… ({len(text)} characters)"


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Return `value` if it is an integer of at least `least`, else raise `ValueError`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(name, f"must be an integer of at least {least}.", **{name: value})
    return int(value)


def number_check(requirement: str, fits: Callable[[float], bool]) -> Callable[[str, object], float]:
    """Return a function of a name and a value that returns the value, a number that `fits`.

    It raises `ArgumentError` for others: the value must be `requirement`.
    """

    def check(name: str, value: object) -> float:
        try:
            number = float(value) if is_number(value) else math.nan
        except OverflowError:
            number = math.inf
        if not fits(number):
            raise ArgumentError(name, f"must be {requirement}.", **{name: value})
        return number

    return check


FRACTION = "a number of at least 0 and below 1"
check_fraction = number_check(FRACTION, lambda value: 0 <= value < 1)
check_rate = number_check(f"{FRACTION} (the fraction to drop)", lambda value: 0 <= value < 1)
check_factor = number_check("a number above 0 and at most 1", lambda value: 0 < value <= 1)
check_penalty = number_check("a finite number of at least 0", lambda value: 0 <= value < math.inf)
check_positive = number_check("above 0 and finite", lambda value: 0 < value < math.inf)
check_finite = number_check("a finite number", math.isfinite)


def check_flag(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a bool."""
    if not isinstance(value, bool | np.bool_):
        way_out = " Use True or False, in TOML true or false."
        raise ArgumentError(name, "must be a truth value.", way_out, **{name: value})


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is in `choices`, else raise `ValueError` and suggest the nearest."""
    choices = sorted(choices)
    if not isinstance(value, str) or value not in choices:
        hint = did_you_mean(value, choices)
        raise ArgumentError(name, f"must be one of {choices}.", hint, **{name: value})
    return value


def check_ids(name: str, value: Any, *, least: int = 0) -> np.ndarray:
    """Return `value` as an array if it holds at least `least` ids, else raise `ValueError`."""
    required = "must be an integer array of shape (num_tokens,)."
    if hasattr(value, "vocabulary"):
        raise ArgumentError(name, required, " Give a split, as corpus.test.", **{name: value})
    try:
        ids = np.asarray(value)
    except ValueError:  # rows of several lengths, or symbols
        raise ArgumentError(name, required, **{name: value}) from None
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        received = f"Received: shape {ids.shape}, dtype {ids.dtype}."
        way_out = " The vocabulary of a model encodes text." * (ids.dtype.kind == "U")
        raise ArgumentError(name, f"{required} {received}", way_out)
    if len(ids) < least:
        raise ArgumentError(name, f"must hold at least {least} tokens. Received: {len(ids)}.")
    return ids


def as_texts(value: str | Iterable[str]) -> list[str]:
    """Return `value`, a string or a sequence of strings, as a list."""
    return [value] if isinstance(value, str) else list(value)


def did_you_mean(value: object, choices: Iterable[str], *, most: int = 1) -> str:
    """Return ` Did you mean 'x'?` for the choice nearest to `value`, or an empty string.

    What other libraries call a choice, see synonyms.toml, comes before what looks like one.

    With `most` above 1, up to so many are named: ` Did you mean one of ['x', 'y']?`.
    """
    choices = list(choices)
    same = [name for name in _synonyms().get(str(value), ()) if name in choices]
    begins = f"{value}_", f"{value}:"
    longer = [choice for choice in choices if str(value) and choice.startswith(begins)]
    near = same[:most] or longer[:most]
    near = near or difflib.get_close_matches(str(value), choices, n=most, cutoff=CLOSE)
    named = f"one of {near}" if most > 1 else "".join(map(repr, near))
    return f" Did you mean {named}?" if near else ""


@functools.cache
def _synonyms() -> dict[str, list[str]]:
    """Return our names of arguments by those of other libraries."""
    file = resources.files("dualnet") / "synonyms.toml"
    libraries = tomllib.loads(file.read_text("utf-8")).values()
    return {name: ours for names in libraries for name, ours in names.items()}


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a real number that is no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


MULTIPLES = {"G": 10**9, "M": 10**6, "K": 10**3, "": 1}


def whole_number(text: str) -> int:
    """Return the whole number that is written e.g. "24M", "1.5M", "850k" or "7"; else 0."""
    written = r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([KMG]?)\s*"
    match = re.fullmatch(written, text, re.ASCII | re.IGNORECASE)
    number = Fraction(match[1]) * MULTIPLES[match[2].upper()] if match else Fraction(0)
    return int(number) if number.denominator == 1 else 0


def finite(value: T) -> T | None:
    """Return `value`, or None for nan and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Say of a package that is missing that the extra `name` installs it.

    Args:
        name: An extra of setup.cfg.
        needs: What needs which packages, the beginning of a sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{needs} ({error}). Install with `pip install "dualnet[{name}]"`, or in a checkout '
            f"with `pip install '.[{name}]'`."
        ) from error
