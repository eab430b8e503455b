"""The rows of large inputs in files: whole up to where a process was killed, and resumed there."""

import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._columns import to_arrow
from dualnet._files import UNFINISHED, flush, is_full, make_folder, read_json, write_whole
from dualnet.cli.console import as_json, cell
from dualnet.corpora.records import Block

FORMATS = (".jsonl", ".tsv", ".parquet")
PART_BLOCKS = 32  # of a part of Parquet, 4 MB of text
Row = dict[str, Any]


class Lines:
    """A file with a line for each row: an object of JSON, or cells with tabs between.

    A table has no lists.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any], *, head: bool) -> None:
        self.path, self.head, self.is_table = path, head, path.suffix == ".tsv"
        self.names = [name for name, kind in columns.items() if not typing.get_args(kind)]

    def open(self, size: int) -> None:
        """Keep what is there up to `size`, in bytes."""
        if (found := self.path.stat().st_size if self.path.is_file() else 0) < size:
            received = f"Received: {str(self.path)!r}, with {found:,}. Begin anew, elsewhere."
            raise ArgumentError("--resume", f"must find the {size:,} bytes written. {received}")
        self.file = open(self.path, "r+b" if size else "wb")  # noqa: SIM115
        self.file.truncate(size)
        self.file.seek(size)
        if self.is_table and self.head and not size:
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
        return os.path.getsize(self.path)

    def close(self, *, whole: bool) -> None:
        """End; what is not `whole` will be written again."""
        self.file.close()


class Parts:
    """A folder of Parquet files, numbered by their first block, which counts those of all shards.

    All shards can write to one folder, which then holds the whole, in order.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any]) -> None:
        self.path, self.columns = path, columns
        self.writer: Any = None
        self.schema = to_arrow([], columns).schema

    def open(self, size: int) -> None:
        self.blocks = 0

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
        self, path: Path, scorer: Any, settings: Row, *, shard: tuple[int, int], resume: bool
    ) -> None:
        self.path, self.scorer, self.settings = path, scorer, settings
        self.after = self.size = 0
        self.sink: Lines | Parts
        if path.suffix == ".parquet":
            number, count = shard
            self.sink = Parts(path, scorer.columns)
            self.progress = path / f"_progress-{number}-of-{count}.json"
            make_folder("--output", path)
            begun = [*path.glob("_progress-*")]  # of all shards
            is_used = bool([*path.glob("part-*")] and not begun) or any(
                not each.name.endswith(f"-of-{count}.json") for each in begun
            )
        else:
            self.sink = Lines(path, scorer.columns, head=shard[0] == 1)
            self.progress = path.with_name(f"{path.name}.progress.json")
            begun = [self.progress] * self.progress.exists()
            is_used = os.path.lexists(path) and not begun
        if is_used or (self.progress in begun and not resume):
            existing = str(path if os.path.lexists(path) else self.progress)
            message = f"`--output` must be new. Received: {existing!r}, which exists. Choose "
            way_out = ", or go on with what a killed command wrote there: --resume" * (not resume)
            raise FileExistsError(f"{message}another{way_out}.")
        for file in begun:
            saved = read_json(file)
            if not isinstance(saved, dict) or {"settings", "after", "size", "totals"} - {*saved}:
                message = "must find the progress that was written there. Received: "
                way_out = f"{str(file)!r}, which was altered. Choose another --output."
                raise ArgumentError("--resume", message + way_out)
            others = [] if file == self.progress else ["shard"]
            for name in [n for n in {**saved["settings"], **settings} if n not in others]:
                before, value = saved["settings"].get(name), settings.get(name)
                # 0.2.0.dev0 recorded neither the bytes of a packed file nor the order of several.
                if before != value and (name, before) not in (("bytes", None), ("files", None)):
                    other = f"{path} was begun with {name} = {before!r}. Received: {value!r}."
                    message = f"must go on with the same work. {other} Choose another --output."
                    raise ArgumentError("--resume", message)
            if file == self.progress:
                self.after, self.size = saved["after"], saved["size"]
                scorer.restore(saved["totals"])

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
        saved = {"settings": self.settings, "after": self.after, "size": self.size}
        write_whole(self.progress, as_json({**saved, "totals": self.scorer.state()}) + "\n")
