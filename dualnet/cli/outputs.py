"""The rows of large inputs in files: whole up to where a process was killed, and resumed there."""

import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from dualnet._checks import ArgumentError
from dualnet._columns import to_arrow
from dualnet._files import UNFINISHED, flush, is_full, make_folder, read_json, write_whole
from dualnet.cli.console import cell, json_of
from dualnet.corpora.records import Block

if TYPE_CHECKING:
    from dualnet.scorers import Scorer

FORMATS = (".jsonl", ".tsv", ".parquet")
PART_BLOCKS = 32  # of a part of Parquet, 4 MB of text
Row = dict[str, Any]


class Progress(TypedDict):
    """How far the rows on disk go: `size` bytes, of all blocks before `after`, with `totals`."""

    settings: Row
    after: int
    size: int
    totals: Row


class Lines:
    """A file with a line for each row: an object of JSON, or cells with tabs between.

    A table has no lists.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any], shard: tuple[int, int]) -> None:
        self.path, self.has_head, self.is_table = path, shard[0] == 1, path.suffix == ".tsv"
        self.names = [name for name, kind in columns.items() if not typing.get_args(kind)]
        self.progress = path.with_name(f"{path.name}.progress.json")
        self.begun = [self.progress] * self.progress.exists()
        self.is_foreign = os.path.lexists(path) and not self.begun

    def open(self, size: int) -> None:
        """Keep what is there up to `size`, in bytes."""
        if (found := self.path.stat().st_size if self.path.is_file() else 0) < size:
            received = f"Received: {str(self.path)!r}, with {found:,}. Begin anew, elsewhere."
            raise ArgumentError("--resume", f"must find the {size:,} bytes written. {received}")
        self.file = open(self.path, "r+b" if size else "wb")  # noqa: SIM115
        self.file.truncate(size)
        self.file.seek(size)
        if self.is_table and self.has_head and not size:
            self._write(["\t".join(self.names)])

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        """Write the rows of a block; return whether all rows so far are on disk."""
        if self.is_table:
            self._write("\t".join([cell(row[name]) for name in self.names]) for row in rows)
        else:
            self._write(map(json_of, rows))
        os.fsync(self.file.fileno())
        return True

    def _write(self, lines: Iterable[str]) -> None:
        self.file.writelines(f"{line}\n".encode() for line in lines)
        self.file.flush()

    def size(self) -> int:
        return os.path.getsize(self.path)

    def close(self, *, whole: bool) -> None:
        """End; what is not `whole` will be written again."""
        self.file.close()


class Parts:
    """A folder of Parquet files, numbered by their first block, which counts those of all shards.

    All shards can write to one folder, which then holds the whole, in order.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any], shard: tuple[int, int]) -> None:
        self.path, self.columns = path, columns
        self.writer: Any = None
        self.schema = to_arrow([], columns).schema
        self.blocks = 0
        make_folder("--output", path)
        number, count = shard
        self.progress = path / f"_progress-{number}-of-{count}.json"
        self.begun = [*path.glob("_progress-*")]  # of all shards
        names = {file.name for file in path.iterdir()}
        ours = {file.name for file in path.glob(f"_progress-*-of-{count}.json")}
        self.is_foreign = bool(names) and (not ours or len(ours) < len(self.begun))

    def open(self, size: int) -> None:
        """Begin, or go on: the parts that are there are whole."""

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        from pyarrow import parquet

        if self.writer is None:
            self.part = self.path / f"part-{index:08}.parquet"
            self.unfinished = self.part.with_name(f"{UNFINISHED}{self.part.name}")
            self.writer = parquet.ParquetWriter(self.unfinished, self.schema)
        self.writer.write_table(to_arrow(rows, self.columns))
        self.blocks += 1
        if self.blocks % PART_BLOCKS == 0:
            self.close(whole=True)
        return self.writer is None

    def size(self) -> int:
        return 0

    def close(self, *, whole: bool) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
            flush(self.unfinished)
            self.unfinished.replace(self.part) if whole else self.unfinished.unlink()


class Output:
    """A file or folder of rows, and a file that says how far they go.

    What the last does not count is written anew by the process that resumes the work, which
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
        self, path: Path, scorer: "Scorer", settings: Row, *, shard: tuple[int, int], resume: bool
    ) -> None:
        self.path, self.scorer, self.settings = path, scorer, settings
        self.after = self.size = 0
        kind = Parts if path.suffix == ".parquet" else Lines
        self.sink: Lines | Parts = kind(path, scorer.columns, shard)
        is_begun = self.sink.progress in self.sink.begun
        if self.sink.is_foreign or (is_begun and not resume):
            way_out = ", or go on with what a killed command wrote there: --resume" * (not resume)
            received = f"Received: {str(path)!r}, which exists. Choose another{way_out}."
            raise FileExistsError(f"`--output` must be new. {received}")
        for file in self.sink.begun:
            saved: Progress = read_json(file)
            self._check_same(saved["settings"], of_shard=file == self.sink.progress)
            if file == self.sink.progress:
                self.after, self.size = saved["after"], saved["size"]
                scorer.restore(saved["totals"])

    def _check_same(self, begun: Row, *, of_shard: bool) -> None:
        """Raise `ArgumentError` unless the work was begun with the same settings."""
        for name in {**begun, **self.settings}:
            before, value = begun.get(name), self.settings.get(name)
            # 0.2.0.dev0 recorded neither the bytes of a packed file nor the order of several.
            is_old = before is None and name in ("bytes", "files")
            if before != value and not is_old and (of_shard or name != "shard"):
                other = f"{self.path} was begun with {name} = {before!r}. Received: {value!r}."
                required = f"must go on with the same work. {other} Choose another --output."
                raise ArgumentError("--resume", required)

    def write(self, blocks: Iterable[tuple[Block, list[Row]]]) -> None:
        """Write the rows of blocks, from that of index `after` on."""
        self._save()  # a file without it is not ours
        self.sink.open(self.size)
        after, whole = self.after, False
        try:
            for block, rows in blocks:
                after = block.index + 1
                if self.sink.add(block.index, rows):
                    self._save(after)
            whole = True
        except OSError as error:
            if not is_full(error):
                raise
            way_out = "Free some space, then go on with the same command and --resume."
            raise OSError(f"{str(self.path)!r} is not whole: {error.strerror}. {way_out}") from None
        finally:
            self.sink.close(whole=whole)
        self._save(after)

    def _save(self, after: int | None = None) -> None:
        if after is not None:
            self.after, self.size = after, self.sink.size()
        progress: Progress = {
            "settings": self.settings,
            "after": self.after,
            "size": self.size,
            "totals": self.scorer.state(),
        }
        write_whole(self.sink.progress, json_of(progress) + "\n")
