"""Text, with a mark where a document ends."""

import re
import reprlib
from collections.abc import Iterator

from dualnet._checks import ArgumentError

EOS, UNK = "<eos>", "<unk>"
DOCUMENTS = ("line", "blank-line", "file")  # what ends a document, and so where <eos> stands
END = "\udc00"  # the mark: a lone surrogate, which no text holds
ENDS = {"line": "\n", "blank-line": "\n\n", "file": "\n"}  # how `<eos>` is written
MORE_BLANK_LINES = "blank lines beyond the first between documents"

SURROGATE = re.compile("[\ud800-\udfff]")
BLANKS = b" \t\r\n\f\v"
BLANK_LINES = re.compile(r"\n(?:[ \t\r\f\v]*\n)+")


def words_of(text: str) -> list[str]:
    """Return the words of a marked `text`, which white space separates, `<eos>` among them."""
    return text.replace(END, f" {EOS} ").split()


def marked(text: str, documents: str = "line") -> str:
    """Return `text` with `END` in place of what ends a document."""
    if documents == "line":
        return text.replace("\n", END)
    return BLANK_LINES.sub(END, text) if documents == "blank-line" else text


def documents_of(text: str, documents: str) -> Iterator[tuple[int, int, int]]:
    """Yield where each document of `text` begins and ends, and where its end mark does."""
    begin = 0
    if documents != "file":
        for match in (re.compile("\n") if documents == "line" else BLANK_LINES).finditer(text):
            yield begin, *match.span()
            begin = match.end()
    yield begin, len(text), len(text)


def check_text(name: str, text: str) -> str:
    """Return `text` if UTF-8 can hold it, else raise `ValueError`."""
    if not isinstance(text, str):
        raise ArgumentError(name, f"must be text. Received: {reprlib.repr(text)}.")
    surrogate = None if text.isascii() else SURROGATE.search(text)
    if surrogate:
        raise ArgumentError(
            name,
            f"must be text that UTF-8 can hold. Received: {surrogate[0]!r} at character "
            f"{surrogate.start()}, half of a surrogate pair.",
            " Read the text with encoding='utf-8', on the command line with PYTHONUTF8=1.",
        )
    return text


def check_line(name: str, text: str) -> str:
    """Return `text` without its line end, else raise `ValueError` unless it is one line."""
    line = check_text(name, text).removesuffix("\n").removesuffix("\r")
    if "\n" in line:
        raise ArgumentError(
            name,
            "must be one line for a model that translates, which learns from lines. Received: "
            f"{reprlib.repr(text)}.",
            " Give its lines one by one.",
        )
    return line
