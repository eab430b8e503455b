"""Numerals and English number words: a corpus of pairs that needs no files."""

import hashlib

LANGUAGES = ("digits", "words")
SIZES = {"train": 4000, "valid": 500, "test": 500}
LIMIT = 10_000  # the numbers are below it

_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(number: int) -> str:
    """Return `number`, from 0 to 9,999, in English words without hyphens.

    Example:

    >>> from dualnet.corpora.number_words import number_words
    >>> number_words(1034)
    'one thousand thirty four'
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        name, rest = _TENS[number // 10 - 2], number % 10
    else:
        size, unit = (1000, "thousand") if number >= 1000 else (100, "hundred")
        name, rest = f"{_ONES[number // size]} {unit}", number % size
    return f"{name} {number_words(rest)}" if rest else name


def number_lines(source: str, target: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the lines of source and target of each split; no number is in two splits."""
    # Hashes shuffle the numbers in the same way everywhere.
    numbers = sorted(range(LIMIT), key=lambda n: hashlib.sha256(str(n).encode()).digest())
    lines = {}
    for split, size in SIZES.items():
        chosen, numbers = numbers[:size], numbers[size:]
        digits = [" ".join(str(number)) for number in chosen]
        sides = {"digits": digits, "words": [number_words(number) for number in chosen]}
        lines[split] = (sides[source], sides[target])
    return lines
