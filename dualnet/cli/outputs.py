"""The rows of large inputs in files: whole up to where a process was killed, and resumed there."""

import os
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet._checks import ArgumentError
from dualnet._files import is_full, read_json, write_whole
from dualnet.cli.console import cell, json_of
from dualnet.corpora.records import Block

if TYPE_CHECKING:
    from dualnet.scorers import TextScorer

FORMATS = (".jsonl", ".tsv")
Row = dict[str, Any]


class Output:
    """A file with a line for each row, and a file that says how far they go.

    A line is an object of JSON, or cells with tabs between; a table has no lists. What the second
    file does not count is written anew by the process that resumes the work, which finds the totals
    of the rows that it counts there.

    Args:
        path: Path of the file; its suffix is one of `FORMATS`.
        scorer: What makes the rows; its totals are restored.
        settings: What the rows depend on, as JSON.
        resume: Whether to go on, if the work was begun.
        has_head: Whether a table begins with the names of its columns.

    Attributes:
        after: int. Index of the first block that is still to be written.
    """

    def __init__(
        self, path: Path, scorer: "TextScorer", settings: Row, *, resume: bool, has_head: bool
    ) -> None:
        self.path, self.scorer, self.settings, self.has_head = path, scorer, settings, has_head
        self.is_table = path.suffix == ".tsv"
        self.names = [name for name, kind in scorer.columns.items() if not typing.get_args(kind)]
        self.after = self.size = 0
        self.read = ""
        self.progress = path.with_name(f"{path.name}.progress.json")
        is_begun = self.progress.exists()
        if resume and is_begun:
            saved = read_json(self.progress)
            self._check_same(saved["settings"])
            self.after, self.size = saved["after"], saved["size"]
            self.read = saved.get("read", "")
            scorer.restore(saved["totals"])
        elif is_begun or os.path.lexists(path):
            way_out = ", or go on with what a killed command wrote there: --resume" * (not resume)
            received = f"Received: {str(path)!r}, which exists. Choose another{way_out}."
            raise FileExistsError(f"`--output` must be new. {received}")

    def _check_same(self, begun: Row) -> None:
        """Raise `ArgumentError` unless the work was begun with the same settings."""
        for name in {**begun, **self.settings}:
            before, value = begun.get(name), self.settings.get(name)
            is_old = before is None and name == "tokenizer"  # of 0.2.0, which recorded none
            if before != value and not is_old:
                other = f"{self.path} was begun with {name} = {before!r}. Received: {value!r}."
                required = f"must go on with the same work. {other} Choose another --output."
                raise ArgumentError("--resume", required)

    def skip_written(self, blocks: Iterator[Block]) -> None:
        """Skip the last block that is written, the first of `blocks`; check the text up to it."""
        last = next(blocks, None) if self.after else None
        if self.read and (last is None or last.read != self.read):
            received = "Received: a text that differs from it. Choose another --output."
            required = f"must read the text with which {self.path} was begun. {received}"
            raise ArgumentError("--resume", required)

    def write(self, blocks: Iterable[tuple[Block, list[Row]]]) -> None:
        """Write the rows of blocks, from that of index `after` on."""
        self._save()  # a file without it is not ours
        if (size := self.path.stat().st_size if self.path.is_file() else 0) < self.size:
            received = f"Received: {str(self.path)!r}, with {size:,}. Begin anew, elsewhere."
            required = f"must find the {self.size:,} bytes written. {received}"
            raise ArgumentError("--resume", required)
        try:
            with open(self.path, "r+b" if self.size else "wb") as file:
                file.truncate(self.size)
                file.seek(self.size)
                if self.is_table and self.has_head and not self.size:
                    file.write(("\t".join(self.names) + "\n").encode())
                for block, rows in blocks:
                    file.writelines(f"{self._line(row)}\n".encode() for row in rows)
                    file.flush()
                    os.fsync(file.fileno())
                    self.after, self.read, self.size = block.index + 1, block.read, file.tell()
                    self._save()
        except OSError as error:
            if not is_full(error):
                raise
            way_out = "Free some space, then go on with the same command and --resume."
            raise OSError(f"{str(self.path)!r} is not whole: {error.strerror}. {way_out}") from None

    def _save(self) -> None:
        progress = {
            "settings": self.settings,
            "after": self.after,
            "read": self.read,  # the hash of the text of the blocks before `after`
            "size": self.size,  # in bytes
            "totals": self.scorer.state(),
        }
        write_whole(self.progress, json_of(progress) + "\n")

    def _line(self, row: Row) -> str:
        if self.is_table:
            return "\t".join([cell(row[name]) for name in self.names])
        return json_of(row)
