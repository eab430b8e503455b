"""Text files, read line by line or in blocks of marked text: several gigabytes in little memory."""

import codecs
import contextlib
import csv
import gzip
import io
import os
import re
import sys
import typing
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dualnet._checks import StrPath, extra
from dualnet._files import open_regular
from dualnet.text.plain_text import BLANKS, END, marked

TABLE = re.compile(r"\.([ct]sv(\.gz)?|parquet)$", re.IGNORECASE)  # how its name ends
STANDARD_INPUT = "standard input"
GZIP = b"\x1f\x8b"  # how such a file begins
BLOCK_BYTES = 1 << 16  # small enough that the words of a block stay in the processor's cache
DOCUMENT_BYTES = 1 << 20  # a longer document is read in parts, which end where a word does
WORD_BYTES = 1 << 22  # a longer word is cut
# Blank lines before a further line: those at the end of a text are stripped.
_BLANK_LINES = re.compile(rb"\r?\n(?:[ \t\r\f\v]*\n)+(?=[ \t\r\f\v]*[^ \t\r\n\f\v])")
_LEADING = re.compile(r"\A(?:[ \t\r\f\v]*\n)+")


class Line(NamedTuple):
    """A line of a file, with its newline, or a text in memory; and where it stands."""

    text: str
    source: str
    """Name of its file."""
    number: int
    """Its number there, from 1."""
    start: int
    """How many bytes are before it, in all files that are read."""
    end: int

    @property
    def place(self) -> str:
        return f"{self.source!r}, line {self.number}"


def lines(*paths: StrPath) -> Iterator[Line]:
    """Yield the lines of files one after another; "-" is standard input, and gzip is unpacked.

    Only a newline ends a line, and "\\r\\n" becomes one.

    Raises:
        ValueError: if a file is not UTF-8, or its compression is damaged.
    """
    start = 0
    for path in paths:
        source, number, offset = source_of(path), 0, 0
        try:
            with opened(path) as file:
                for number, data in enumerate(file, 1):
                    if number == 1:
                        check_line_end(data, source)
                    text = text_of(data, source, offset=offset, line=number)
                    end = offset + len(data)
                    yield Line(text, source, number, start + offset, start + end)
                    offset = end
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"A file compressed by gzip must be intact. Received: {source!r}, after line "
                f"{number}: {error}."
            ) from None
        start += offset


@contextlib.contextmanager
def opened(path: StrPath) -> Iterator[io.BufferedIOBase]:
    """Open a file, or standard input for "-", to read the bytes inside; gzip is unpacked."""
    with contextlib.ExitStack() as stack:
        if path == "-":
            file = typing.cast(io.BufferedReader, sys.stdin.buffer)
            file = file if hasattr(file, "peek") else io.BufferedReader(file)
        else:
            file = stack.enter_context(open(path, "rb"))
        is_packed = file.peek(2)[:2] == GZIP
        yield stack.enter_context(gzip.open(file)) if is_packed else file


def source_of(path: StrPath) -> str:
    """Return the name of the file at `path` in error messages."""
    return STANDARD_INPUT if path == "-" else os.fspath(path)


def text_of(data: bytes, source: str, *, offset: int = 0, line: int = 0) -> str:
    """Return `data`, the bytes of the file `source` from `offset` on, as text.

    The line ends of Windows, "\\r\\n", become newlines. An error names the line if `data` is the
    whole file, or begins with the `line` of that number.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        place = f"byte 0x{data[error.start]:02x} at offset {offset + error.start}"
        if not offset or line:
            line = max(line, 1) + data.count(b"\n", 0, error.start)
            place += f", in line {line}"
        raise ValueError(
            f"A text file must be UTF-8. Received: {source!r} with {place}. Unpack it if it is "
            "compressed, else convert it, e.g. with iconv."
        ) from None
    text = text.replace("\r\n", "\n")
    return text if offset else text.removeprefix("\ufeff")  # the byte order mark


def check_line_end(line: bytes, source: str) -> None:
    """Raise `ValueError` if `line`, the first of `source`, has CR within it and ends without LF."""
    if b"\r" in line and b"\n" not in line:
        required = "The lines of a text file must end in LF or CRLF."
        way_out = "whose lines end in CR alone. Convert it, e.g. with tr '\\r' '\\n'."
        raise ValueError(f"{required} Received: {source!r}, {way_out}")


def read_table(path: str) -> dict[str, Sequence[Any]]:
    """Return the columns of Parquet, or of text with tabs, in .tsv, or commas between its cells."""
    name = path.lower()
    if name.endswith(".parquet"):
        with extra("parquet", "Tables of Parquet need pyarrow"):
            from pyarrow import parquet
        return parquet.read_table(path).to_pydict()
    delimiter = "\t" if ".tsv" in name else ","
    # Strict: a quotation mark that nothing closes would take many rows for one cell.
    rows = csv.reader((line.text for line in lines(path)), delimiter=delimiter, strict=True)
    cells = []
    try:
        names = next(rows, [])
        for row in filter(None, rows):
            if len(row) != len({*names}):
                raise csv.Error(f"{len(row)} cells")
            cells.append(row)
    except csv.Error as error:
        raise ValueError(
            f"A table must have a cell in each row for each of its different names {names}. "
            f"Received: {path!r}, line {rows.line_num}: {error}."
        ) from None
    return dict(zip(names, zip(*cells)))


def blocks(
    path: StrPath, start: int = 0, end: int | None = None, *, documents: str = "line"
) -> Iterator[str]:
    """Yield the marked text of the file at `path`, from byte `start` to `end`, see `decoded`."""
    with open_regular(path) as file:
        check_line_end(file.readline(DOCUMENT_BYTES), os.fspath(path))
        file.seek(start)

        def read(size: int) -> bytes:
            return file.read(size if end is None else min(size, end - file.tell()))

        yield from decoded(read, os.fspath(path), offset=start, documents=documents)


def decoded(
    read: Callable[[int], bytes], name: str, *, offset: int = 0, documents: str = "line"
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
        return marked(text, documents)

    while data := read(max(BLOCK_BYTES, len(rest))):  # a long document is searched a few times
        rest += data
        if end := _document_end(rest, documents):
            text = block(rest[:end])
            yield text
            offset, rest = offset + end, rest[end:]
    rest = rest if ends_with_line else rest.rstrip(BLANKS)
    if not (text or rest):
        raise ValueError(f"A text file must not be empty. Received: {name!r}.")
    if not ends_with_line:
        yield block(rest) + END
    elif rest or not text.endswith(END):
        yield block(rest + b"\n")


def _document_end(data: bytes, documents: str) -> int:
    """Return the end of the last whole document, or 0; in a long one, that of a word."""
    if documents == "line" and (end := data.rfind(b"\n") + 1):
        return end
    if documents == "blank-line":
        ends = [match.start() for match in _BLANK_LINES.finditer(data)]
        if ends and data[: ends[-1]].removeprefix(codecs.BOM_UTF8).strip(BLANKS):
            return ends[-1]  # what ends a document begins the next block
    if len(data) < DOCUMENT_BYTES:
        return 0
    # No tokeniser joins a word and the space after it, but in an added token that holds a space.
    # Else the tokens are those of the whole text.
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
