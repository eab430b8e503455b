"""Texts that a command reads one after another, in blocks: a shard has those of the whole."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path

from dualnet._checks import ArgumentError, StrPath
from dualnet.text.files import Line, lines, opened, source_of

BLOCK_BYTES = 1 << 17  # of text: some 30,000 tokens of BPE
WHOLE = (1, 1)  # the first shard of one


@dataclass(frozen=True)
class Block:
    """Texts that are scored together."""

    index: int
    """Counts the blocks of all shards."""
    first: int
    """Number of the first text, from 1."""
    lines: list[Line]


class Records:
    """Texts in memory, as if each was a line of the file `source`.

    They are divided into blocks by where they begin, so that a shard, and a run that is resumed,
    has the blocks of the whole: the rounding of a score depends on what is read beside it.

    Attributes:
        paths: The files that they are read from.
        packed: Whether gzip compresses one of these.
        size: The number of bytes, packed where they are; None if that of a pipe is not known.
    """

    paths: Sequence[StrPath] = ()
    packed = False
    size: int | None

    def __init__(self, texts: Iterable[str], source: str) -> None:
        self._lines: list[Line] = []
        end = 0
        for number, text in enumerate(texts, 1):
            start, end = end, end + len(text.encode())
            self._lines.append(Line(text, source, number, start, end))
        self.size = end

    def read(self) -> Iterator[Line]:
        """Yield all texts."""
        return iter(self._lines)

    def blocks(self, shard: tuple[int, int] = WHOLE, *, after: int = 0) -> Iterator[Block]:
        """Yield the blocks of a shard, `(number, count)`, from that of index `after` on.

        The shards are contiguous: one after another, they are the whole.
        """
        begin, end = after, None
        if shard != WHOLE:
            number, count = shard
            total = -(-self._unpacked_size() // BLOCK_BYTES)
            begin = max(after, total * (number - 1) // count)
            end = total * number // count if number < count else None
        numbered = enumerate(self.read(), 1)
        for index, group in itertools.groupby(numbered, lambda item: item[1].start // BLOCK_BYTES):
            if end is not None and index >= end:
                return
            if index >= begin:
                numbers, block = zip(*group)
                yield Block(index, numbers[0], [*block])

    def _unpacked_size(self) -> int:
        if self.size is None:
            message = "needs a FILE whose size is known. Received: a pipe. Write it to a file."
            raise ArgumentError("--shard", message)
        if not self.packed:
            return self.size
        return max((line.end for line in lines(*self.paths)), default=0)


class Files(Records):
    """The lines of text files, plain or compressed by gzip, read anew each time.

    Args:
        paths: Their paths; "-" is standard input.
        hint: Ends the error about a file that cannot be read.
        blank: bool. Whether a blank line is a text.
        may_be_empty: bool. Whether there may be no text.

    Raises:
        ValueError: if a file cannot be read.
    """

    def __init__(
        self,
        paths: Iterable[StrPath],
        *,
        hint: str,
        blank: bool = True,
        may_be_empty: bool = False,
    ) -> None:
        self.paths = [path if path == "-" else Path(path) for path in paths]
        self.blank, self.may_be_empty = blank, may_be_empty
        files = [path for path in self.paths if isinstance(path, Path) and not path.is_fifo()]
        try:
            for path in files:  # now, rather than when a model is loaded
                with opened(path) as file:
                    self.packed |= isinstance(file, GzipFile)
        except OSError as error:
            received = f"Received: {str(path)!r}: {error.strerror}."
            raise ValueError(f"FILE must be a text file. {received}{hint}") from None
        is_known = len(files) == len(self.paths)
        self.size = sum(path.stat().st_size for path in files) if is_known else None

    def read(self) -> Iterator[Line]:
        is_empty = True
        for line in lines(*self.paths):
            if self.blank or line.text.strip():
                is_empty = False
                yield line
        if is_empty and not self.may_be_empty:
            source = ", ".join(map(source_of, self.paths))
            raise ValueError(f"FILE must hold text. Received: {source!r}, which is empty.")
