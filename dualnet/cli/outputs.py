"""The rows of large inputs in files: whole up to where a process was killed, and resumed there."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._files import read_json, write_whole
from dualnet.cli.console import as_json, cell
from dualnet.corpora.records import Block

FORMATS = (".jsonl", ".tsv")
Row = dict[str, Any]


def check_output(name: str, value: str) -> None:
    """Raise `ArgumentError` unless the suffix of the path `value` names a format."""
    if Path(value).suffix not in FORMATS:
        required = f"must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, which says the format."
        raise ArgumentError(name, required, **{name: value})


class Lines:
    """A file with a line for each row: an object of JSON, or cells with tabs between.

    A table has no lists.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any], size: int, *, head: bool) -> None:
        self.is_table = path.suffix == ".tsv"
        self.names = [name for name, kind in columns.items() if not typing.get_args(kind)]
        self.file = open(path, "r+b" if size else "wb")  # noqa: SIM115
        self.file.truncate(size)
        self.file.seek(size)
        if self.is_table and head and not size:
            self._write(["\t".join(self.names)])

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        """Write the rows of a block; return whether all rows so far are on disk."""
        if self.is_table:
            self._write("\t".join([cell(row[name]) for name in self.names]) for row in rows)
        else:
            self._write(map(as_json, rows))
        os.fsync(self.file.fileno())
        return True

    def _write(self, lines: Iterable[str]) -> None:
        self.file.writelines(f"{line}\n".encode() for line in lines)
        self.file.flush()

    def size(self) -> int:
        return self.file.tell()

    def close(self, *, whole: bool) -> None:
        self.file.close()


class Output:
    """A file of rows, and beside it one that says how far they go.

    What the second does not count is written anew by the process that resumes the work, which
    finds the totals of the rows that it counts there.

    Args:
        path: Path of the file.
        scorer: What makes the rows; its totals are restored.
        settings: What the rows depend on, as JSON.
        shard: The number of a shard, and how many there are.
        resume: Whether to go on, if the work was begun.

    Attributes:
        after: int. Index of the first block that is still to be written.
    """

    def __init__(
        self, path: Path, scorer: Any, settings: Row, *, shard: tuple[int, int], resume: bool
    ) -> None:
        self.path, self.scorer, self.settings, self.head = path, scorer, settings, shard[0] == 1
        self.progress = path.with_name(f"{path.name}.progress.json")
        self.after = self.size = 0
        if resume and self.progress.exists():
            saved = read_json(self.progress)
            self._check_same(saved["settings"])
            self.after, self.size = saved["after"], saved["size"]
            scorer.restore(saved["totals"])
        elif self.progress.exists() or os.path.lexists(path):
            message = f"`--output` must be new. Received: {str(path)!r}, which exists. Choose "
            way_out = "another, or go on with what a killed command wrote there: --resume."
            raise FileExistsError(f"{message}{way_out}")

    def _check_same(self, saved: Row) -> None:
        for name, value in self.settings.items():
            if saved.get(name) != value:
                message = f"must go on with the same work. {self.path} was begun with {name} = "
                way_out = f"{saved.get(name)!r}. Received: {value!r}. Choose another --output."
                raise ArgumentError("--resume", message + way_out)

    def write(self, blocks: Iterable[tuple[Block, list[Row]]]) -> None:
        """Write the rows of blocks, from that of index `after` on."""
        self._save()  # a file without it is not ours
        sink, whole = Lines(self.path, self.scorer.columns, self.size, head=self.head), False
        try:
            for block, rows in blocks:
                if sink.add(block.index, rows):
                    self.after, self.size = block.index + 1, sink.size()
                    self._save()
            whole = True
        finally:
            sink.close(whole=whole)

    def _save(self) -> None:
        saved = {"settings": self.settings, "after": self.after, "size": self.size}
        write_whole(self.progress, as_json({**saved, "totals": self.scorer.state()}) + "\n")
