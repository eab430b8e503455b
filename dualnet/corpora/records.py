"""Records, lines of text files, in blocks: the same blocks for the whole as for each shard."""

import contextlib
import dataclasses
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError, check_path
from dualnet.text.plain_text import check_line_end, text_of

BLOCK_BYTES = 1 << 17  # of text: some 30,000 tokens of BPE
GZIP = b"\x1f\x8b"  # how such a file begins
DAMAGED = (OSError, EOFError, zlib.error)  # what reading a file raises
STANDARD_INPUT = "standard input"
WHOLE = (1, 1)  # the first shard of one


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A text, and where it stands.

    Attributes:
        number: int, from 1.
        start: int. How many bytes of all files are before it.
        data: Its bytes, or the text itself.
        source: Name of its file.
        line: int. Number of its line there.
        offset: int. How many bytes of its file are before it.
    """

    number: int
    start: int
    data: bytes | str
    source: str
    line: int
    offset: int

    @property
    def place(self) -> str:
        return f"{self.source!r}, line {self.line}"

    @property
    def text(self) -> str:
        if isinstance(self.data, str):
            return self.data
        return text_of(self.data, self.source, offset=self.offset, line=self.line)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Records that are scored together; its `index` counts those of all shards."""

    index: int
    records: list[Record]


class Records:
    """Records that are read one after another, as often as asked for; none is kept.

    They are divided into blocks by where they begin, so that a shard, and a run that is resumed,
    has the blocks of the whole: the rounding of a score depends on what is read beside it.

    Attributes:
        packed: Whether a file of them is.
        paths: Of their files.
    """

    packed = False
    paths: list[Any] = []

    def read(self) -> Iterator[Record]:
        """Yield all records."""
        raise NotImplementedError

    def size(self, *, unpack: bool = True) -> int | None:
        """Return the number of bytes, None with a pipe; packed ones unless `unpack`."""
        raise NotImplementedError

    def blocks(self, shard: tuple[int, int] = WHOLE, *, after: int = 0) -> Iterator[Block]:
        """Yield the blocks of a shard, `(number, count)`, from that of index `after` on.

        The shards are contiguous: one after another, they are the whole.
        """
        begin, end = after, None
        if shard != WHOLE:
            number, count = shard
            size = self.size()
            if size is None:
                message = "needs a FILE whose size is known. Received: a pipe. Write it to a file."
                raise ArgumentError("--shard", message)
            total = -(-size // BLOCK_BYTES)
            begin = max(after, total * (number - 1) // count)
            end = total * number // count if number < count else None
        of_block = itertools.groupby(self.read(), lambda record: record.start // BLOCK_BYTES)
        for index, records in of_block:
            if end is not None and index >= end:
                return
            if index >= begin:
                yield Block(index, [*records])


class Texts(Records):
    """Texts in memory; `source` is what errors call them."""

    def __init__(self, texts: Sequence[str], source: str) -> None:
        self.texts, self.source = texts, source
        self.sizes = [len(text.encode()) for text in texts]

    def size(self, *, unpack: bool = True) -> int | None:
        return sum(self.sizes)

    def read(self) -> Iterator[Record]:
        starts = itertools.accumulate(self.sizes, initial=0)
        for number, (text, start) in enumerate(zip(self.texts, starts), 1):
            yield Record(number, start, text, self.source, number, start)


class Files(Records):
    """Text files, plain or compressed by gzip, of which each line is a record.

    Args:
        paths: Their paths; "-" is standard input.
        what: What errors say that a file must be.
        way_out: Ends the error about a file that cannot be read.
        empty: The error about a file without a record, with `{}` for its name; "" to allow it.
        blank: bool. Whether a blank line is a record.
        again: bool. Keep what a pipe holds, which can be read only once.

    Raises:
        ValueError: if one does not exist or cannot be read.
    """

    def __init__(
        self, paths: Iterable[Any], *, what: str, way_out: str, empty: str, blank: bool = True,
        again: bool = False,
    ) -> None:  # fmt: skip
        self.paths = ["-" if path == "-" else Path(check_path("pairs", path)) for path in paths]
        self.what, self.way_out, self.empty, self.blank = what, way_out, empty, blank
        self._copies = again
        self._copy = b""  # of the pipe, once it is read
        for path in self.paths:
            if isinstance(path, Path) and not path.is_fifo():  # which can be opened once only
                with self._opened(path) as file:
                    self.packed |= isinstance(file, gzip.GzipFile)
                    if self.empty and not file.peek(1):
                        raise ValueError(self.empty.format(repr(str(path))))

    def size(self, *, unpack: bool = True) -> int | None:
        total = 0
        for path in self.paths:
            if not isinstance(path, Path) or not path.is_file():
                return None
            with self._opened(path) as file:
                if unpack and isinstance(file, gzip.GzipFile):
                    try:
                        while data := file.read(BLOCK_BYTES):
                            total += len(data)
                    except DAMAGED as error:
                        raise self._unreadable(repr(str(path)), error) from None
                else:
                    total += path.stat().st_size
        return total

    def read(self) -> Iterator[Record]:
        start = number = 0
        for path in self.paths:
            source = STANDARD_INPUT if path == "-" else str(path)
            line, offset, before = 0, 0, number
            with self._opened(path) as file:
                try:
                    for line, data in enumerate(file, 1):
                        if line == 1:
                            check_line_end(data, source)
                        if self.blank or data.strip():
                            number += 1
                            yield Record(number, start + offset, data, source, line, offset)
                        offset += len(data)
                except DAMAGED as error:
                    raise self._unreadable(f"{source!r}, after line {line}", error) from None
            start += offset
            if self.empty and number == before:
                raise ValueError(self.empty.format(repr(source)))

    @contextlib.contextmanager
    def _opened(self, path: Any) -> Iterator[Any]:
        """Open a file, or standard input, to read the bytes inside."""
        with contextlib.ExitStack() as stack:
            try:
                if self._copy:
                    raw: Any = io.BytesIO(self._copy)
                elif path == "-":
                    raw = sys.stdin.buffer
                else:
                    raw = stack.enter_context(open(path, "rb"))
                if self._copies and not self._copy and (path == "-" or path.is_fifo()):
                    self._copy = raw.read()
                    raw = io.BytesIO(self._copy)
                file = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
                if file.peek(2)[:2] == GZIP:
                    file = stack.enter_context(gzip.open(file))
                    file.peek(1)
            except DAMAGED as error:
                raise self._unreadable(repr(str(path)), error) from None
            yield file

    def _unreadable(self, place: str, error: Exception) -> ValueError:
        reason = getattr(error, "strerror", None) or error
        return ValueError(f"FILE must be {self.what}. Received: {place}: {reason}.{self.way_out}")
