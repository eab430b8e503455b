"""UTF-8 text in blocks, with a mark where a document ends."""

import codecs
import os
import re
import reprlib
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from dualnet._checks import ArgumentError, StrPath
from dualnet._files import open_regular

EOS, UNK = "<eos>", "<unk>"
DOCUMENTS = ("line", "blank-line", "file")  # what ends a document, and so where <eos> stands
END = "\udc00"  # the mark: a lone surrogate, which no text holds
ENDS = {"line": "\n", "blank-line": "\n\n", "file": "\n"}  # how `<eos>` is written
BLOCK_BYTES = 1 << 16  # small enough that the words of a block stay in the processor's cache
DOCUMENT_BYTES = 1 << 20  # a longer document is read in parts, which end where a word does
WORD_BYTES = 1 << 22  # a longer word is cut
# Of a text that is not tokenised: more letters beyond ASCII in a word, for scripts without white
# space; more words that punctuation ends, which are 1 in 11 of English prose and 1 in 80 of PTB,
# whose abbreviations end in a point; more words that are unknown.
LONG, JOINED, UNKNOWN = 12, 1 / 20, 1 / 3
ENDS_IN_PUNCTUATION = re.compile(r"[^\W\d_]{2}[.,;:!?]+[^\w\s]*$")

SURROGATE = re.compile("[\ud800-\udfff]")
BLANKS = b" \t\r\n\f\v"
BLANK_LINES = re.compile(r"\n(?:[ \t\r\f\v]*\n)+")
# Blank lines before a further line: those at the end of a text are stripped.
_BLANK_LINE_BYTES = re.compile(rb"\r?\n(?:[ \t\r\f\v]*\n)+(?=[ \t\r\f\v]*[^ \t\r\n\f\v])")
_LEADING = re.compile(r"\A(?:[ \t\r\f\v]*\n)+")


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
        which = f"{surrogate[0]!r} at character {surrogate.start()}, half of a surrogate pair"
        way_out = " Read the text with encoding='utf-8'."
        raise ArgumentError(name, f"must be text that UTF-8 can hold. Received: {which}.", way_out)
    return text


def check_line(name: str, text: str) -> str:
    """Return `text` without its line end, else raise `ValueError` unless it is one line."""
    line = check_text(name, text).removesuffix("\n").removesuffix("\r")
    if "\n" in line:
        required = "must be one line for a model that translates, which learns from lines."
        way_out = " Give its lines one by one."
        raise ArgumentError(name, f"{required} Received: {reprlib.repr(text)}.", way_out)
    return line


def text_of(data: bytes, source: str, *, offset: int = 0, line: int = 0) -> str:
    """Return `data`, the bytes of the file `source` from `offset` on, as text.

    The line ends of Windows, "\\r\\n", become newlines. An error names the line if `data` is the
    whole file, or begins with the `line` of that number.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not offset or line:
            line = max(line, 1) + data.count(b"\n", 0, error.start)
        raise ValueError(
            f"A text file must be UTF-8. Received: {source!r} with byte "
            f"0x{data[error.start]:02x} at offset {offset + error.start}"
            + f", in line {line}" * bool(line)
            + ". Unpack it if it is compressed, else convert it, e.g. with iconv."
        ) from None
    text = text.replace("\r\n", "\n")
    return text if offset else text.removeprefix("\ufeff")  # the byte order mark


def check_line_ends(path: StrPath) -> None:
    """Raise `ValueError` if the lines of the file at `path` end in CR alone."""
    with open(path, "rb") as file:
        has_return = False
        while data := file.read(DOCUMENT_BYTES):
            if b"\n" in data:
                return
            has_return = has_return or b"\r" in data
    check_line_end(b"\r" * has_return, os.fspath(path))


def check_line_end(line: bytes, source: str) -> None:
    """Raise `ValueError` if `line`, the first of `source`, has CR within it and ends without LF."""
    if b"\r" in line and b"\n" not in line:
        required = "The lines of a text file must end in LF or CRLF."
        way_out = "whose lines end in CR alone. Convert it, e.g. with tr '\\r' '\\n'."
        raise ValueError(f"{required} Received: {source!r}, {way_out}")


def blocks(
    path: StrPath, *, start: int = 0, end: int | None = None, **settings: Any
) -> Iterator[str]:
    """Yield the marked text of the file at `path`, from byte `start` to `end`, in blocks.

    `settings` are `documents` and `lowercase` of `decoded`.
    """
    with open_regular(path) as file:
        file.seek(start)

        def read(size: int) -> bytes:
            return file.read(size if end is None else min(size, end - file.tell()))

        yield from decoded(read, os.fspath(path), offset=start, **settings)
        if start == 0 and end is None:
            check_line_ends(path)


def decoded(
    read: Callable[[int], bytes],
    name: str,
    *,
    offset: int = 0,
    documents: str = "line",
    lowercase: bool = False,
) -> Iterator[str]:
    """Yield the marked text that `read(size)` returns piece by piece, in blocks.

    No document of less than `DOCUMENT_BYTES` is split between blocks, and no word of less than
    `WORD_BYTES`. The last document ends with the text: `END` is added if it is missing.
    Only a newline ends a line.
    An error, of an empty text or one that is not UTF-8, calls the text `name`.
    """
    ends_with_line = documents == "line"
    first, rest, text = offset, b"", ""

    def block(data: bytes) -> str:
        text = text_of(data, name, offset=offset)
        if offset == first and not ends_with_line:
            text = _LEADING.sub("", text)
        text = marked(text, documents)
        return text.lower() if lowercase else text

    while data := read(max(BLOCK_BYTES, len(rest))):  # a long document is searched a few times
        rest += data
        if end := _document_end(rest, documents):
            text = block(rest[:end])
            yield text
            offset, rest = offset + end, rest[end:]
    if ends_with_line:
        unended = rest[-1:] != b"\n" if rest else text[-1:] not in (END, "")
        rest += b"\n" * unended
    else:
        rest = rest.rstrip(BLANKS)
    if rest or (text and not ends_with_line):
        yield block(rest) + END * (not ends_with_line)
    elif not text:
        raise ValueError(f"A text file must not be empty. Received: {name!r}.")


def _document_end(data: bytes, documents: str) -> int:
    """Return the end of the last whole document, or 0; in a long one, that of a word."""
    if documents == "line" and (end := data.rfind(b"\n") + 1):
        return end
    if documents == "blank-line":
        ends = [match.start() for match in _BLANK_LINE_BYTES.finditer(data)]
        if ends and data[: ends[-1]].removeprefix(codecs.BOM_UTF8).strip(BLANKS):
            return ends[-1]  # what ends a document begins the next block
    if len(data) < DOCUMENT_BYTES:
        return 0
    # No tokeniser joins a word and the space after it, but in an added unit that holds a space.
    # Else the units are those of the whole text.
    end = data.rfind(b" ")
    while end > 0 and data[max(0, end - 4) : end].decode(errors="ignore")[-1:].isspace():
        end = data.rfind(b" ", 0, end)
    if end > 0 or len(data) < WORD_BYTES:
        return max(end, 0)
    # No such place: at a line, or else anywhere.
    end = len(data[: max(data.rfind(b"\n"), 0)].rstrip(BLANKS)) or len(data) - 1
    while data[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return len(data[:end].rstrip(BLANKS))


def tokenisation_warning(
    words: Sequence[str], *, what: str, known: Container[str] | None = None
) -> str:
    """Return a warning if the text does not look tokenised, else "".

    Args:
        words: Words as a model reads them, `<eos>` and `<unk>` among them; or all words of the
            text, if `known` are those that the model knows. These may end in punctuation.
        what: What the warning calls the text.

    Example:

    >>> from dualnet.text.plain_text import tokenisation_warning
    >>> tokenisation_warning("the cat sat on the <unk> <eos>".split(), what="this text")
    ''
    >>> tokenisation_warning(["<unk>", "<eos>"], what="this text").split(":")[0]
    'Warning'
    """
    words = [word for word in words if word != EOS]
    if not words:
        return ""
    new = [word for word in words if word == UNK or (known is not None and word not in known)]
    spelt = [word for word in (words if known is None else new) if word != UNK]
    joined = [word for word in spelt if ENDS_IN_PUNCTUATION.search(word)]
    length = sum(c.isalpha() and not c.isascii() for word in words for c in word) / len(words)
    if len(joined) / len(words) > JOINED:
        share = len(joined) / len(words)
        finding = f"punctuation ends {share:.0%} of the words, such as {joined[0]!r}"
    elif length > LONG:
        finding = f"the words have {length:.0f} letters on average"
    elif len(new) / len(words) > UNKNOWN:
        finding = f"{len(new) / len(words):.0%} of the words are unknown"
    elif len(words) > 100 and len({*words}) < 2:
        finding = "there is only one word"
    else:
        return ""
    return (
        f"Warning: in {what}, {finding}. White space separates words. Tokenise the text first, so "
        "that punctuation is apart from words, or train on it as byte-level BPE, the default."
    )
