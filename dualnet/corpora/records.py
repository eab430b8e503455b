"""Texts that a command reads one after another, in blocks: a shard has those of the whole."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import Self

from dualnet._checks import ArgumentError, StrPath
from dualnet._files import sha256_of_data
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
    read: str
    """Hash of all text up to its end."""


@dataclass(frozen=True)
class Records:
    """Texts, in memory or in files, which are read anew each time.

    They are divided into blocks by where they begin, so that a shard, and a run that is resumed,
    has the blocks of the whole: the rounding of a score depends on what is read beside it.

    Attributes:
        read: Function that yields all texts.
        size: The number of bytes, packed where they are; None if that of a pipe is not known.
        paths: The files that they are read from.
        packed: Whether gzip compresses one of these.
    """

    read: Callable[[], Iterable[Line]]
    size: int | None
    paths: Sequence[StrPath] = ()
    packed: bool = False

    @classmethod
    def of_texts(cls, texts: Sequence[str], source: str) -> Self:
        """Return texts in memory, as if each was a line of the file `source`."""
        ends = [0, *itertools.accumulate(len(text.encode()) for text in texts)]
        records = [
            Line(text, source, number, *span)
            for number, (text, span) in enumerate(zip(texts, itertools.pairwise(ends)), 1)
        ]
        return cls(lambda: records, ends[-1])

    @classmethod
    def of_files(
        cls, paths: Sequence[StrPath], *, hint: str, blank: bool = True, may_be_empty: bool = False
    ) -> Self:
        """Return the lines of text files, plain or compressed by gzip.

        Args:
            paths: Their paths; "-" is standard input.
            hint: Ends the error about a file that cannot be read.
            blank: Whether a blank line is a text.
            may_be_empty: Whether there may be no text.

        Raises:
            ValueError: if a file cannot be read.
        """
        files = [path for path in map(Path, paths) if path != Path("-") and not path.is_fifo()]
        packed = False
        try:
            for path in files:  # now, rather than when a model is loaded
                with opened(path) as file:
                    packed |= isinstance(file, GzipFile)
        except OSError as error:
            raise ValueError(
                f"FILE must be a text file. Received: {str(path)!r}: {error.strerror}.{hint}"
            ) from None
        size = sum(path.stat().st_size for path in files) if len(files) == len(paths) else None

        def read() -> Iterator[Line]:
            is_empty = True
            for line in lines(*paths):
                if blank or line.text.strip():
                    is_empty = False
                    yield line
            if is_empty and not may_be_empty:
                source = ", ".join(map(source_of, paths))
                raise ValueError(f"FILE must hold text. Received: {source!r}, which is empty.")

        return cls(read, size, paths, packed)

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
        numbered, read = enumerate(self.read(), 1), ""
        for index, group in itertools.groupby(numbered, lambda item: item[1].start // BLOCK_BYTES):
            if end is not None and index >= end:
                return
            numbers, block = zip(*group)
            read = sha256_of_data([read, *(line.text for line in block)])
            if index >= begin:
                yield Block(index, numbers[0], [*block], read)

    def _unpacked_size(self) -> int:
        if self.size is None:
            raise ArgumentError(
                "--shard", "needs a FILE whose size is known. Received: a pipe. Write it to a file."
            )
        if not self.packed:
            return self.size
        return max((line.end for line in lines(*self.paths)), default=0)
