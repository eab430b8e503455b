"""The rows of large inputs in files: whole up to where a process was killed, and resumed there."""

import os
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


class Output:
    """A file or folder of rows, and a file that says how far they go.

    What the last does not count is written anew by the process that resumes the work, which
    finds the totals of the rows that it counts there. A subclass is a format.

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
        self.path, self.scorer, self.settings, self.shard = path, scorer, settings, shard
        self.after = self.size = 0
        self.read = ""
        self.progress, begun, is_foreign = self.find()
        if is_foreign or (self.progress in begun and not resume):
            way_out = ", or go on with what a killed command wrote there: --resume" * (not resume)
            raise FileExistsError(
                f"`--output` must be new. Received: {str(path)!r}, which exists. Choose "
                f"another{way_out}."
            )
        for file in begun:
            saved = read_json(file)
            self._check_same(saved["settings"], of_shard=file == self.progress)
            if file == self.progress:
                self.after, self.size = saved["after"], saved["size"]
                self.read = saved.get("read", "")
                scorer.restore(saved["totals"])

    def find(self) -> tuple[Path, list[Path], bool]:
        """Return the file of the progress, those that exist, and whether others wrote `path`."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin, or go on after what the progress counts."""

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        """Write the rows of a block; return whether all rows so far are on disk."""
        raise NotImplementedError

    def close(self, *, whole: bool) -> None:
        """End; what is not `whole` will be written again."""

    def _check_same(self, begun: Row, *, of_shard: bool) -> None:
        """Raise `ArgumentError` unless the work was begun with the same settings."""
        for name in begun | self.settings:
            before, value = begun.get(name), self.settings.get(name)
            # 0.2.0 recorded no tokeniser, and 0.2.0.dev0 neither the bytes of a packed file nor
            # the order of several.
            is_old = before is None and name in ("bytes", "files", "tokenizer")
            if before != value and not is_old and (of_shard or name != "shard"):
                raise ArgumentError(
                    "--resume",
                    f"must go on with the same work. {self.path} was begun with {name} = "
                    f"{before!r}. Received: {value!r}. Choose another --output.",
                )

    def skip_written(self, blocks: Iterator[Block]) -> None:
        """Skip the last block that is written, the first of `blocks`; check the text up to it."""
        last = next(blocks, None) if self.after else None
        if self.read and (last is None or last.read != self.read):
            raise ArgumentError(
                "--resume",
                f"must read the text with which {self.path} was begun. Received: a text that "
                "differs from it. Choose another --output.",
            )

    def write(self, blocks: Iterable[tuple[Block, list[Row]]]) -> None:
        """Write the rows of blocks, from that of index `after` on."""
        self._save()  # a file without it is not ours
        self.open()
        whole = False
        try:
            for block, rows in blocks:
                self.after, self.read = block.index + 1, block.read
                if self.add(block.index, rows):
                    self._save()
            whole = True
        except OSError as error:
            if not is_full(error):
                raise
            raise OSError(
                f"{str(self.path)!r} is not whole: {error.strerror}. Free some space, then go on "
                "with the same command and --resume."
            ) from None
        finally:
            self.close(whole=whole)
        self._save()

    def _save(self) -> None:
        progress = {
            "settings": self.settings,
            "after": self.after,
            "read": self.read,  # the hash of the text of the blocks before `after`
            "size": self.size,  # in bytes
            "totals": self.scorer.state(),
        }
        write_whole(self.progress, json_of(progress) + "\n")


class Lines(Output):
    """A file with a line for each row: an object of JSON, or cells with tabs between.

    A table has no lists.
    """

    def find(self) -> tuple[Path, list[Path], bool]:
        progress = self.path.with_name(f"{self.path.name}.progress.json")
        begun = [progress] * progress.exists()
        return progress, begun, os.path.lexists(self.path) and not begun

    def open(self) -> None:
        """Keep what is there up to the size that the progress counts, in bytes."""
        if (size := self.path.stat().st_size if self.path.is_file() else 0) < self.size:
            raise ArgumentError(
                "--resume",
                f"must find the {self.size:,} bytes written. Received: {str(self.path)!r}, with "
                f"{size:,}. Begin anew, elsewhere.",
            )
        self.file = open(self.path, "r+b" if self.size else "wb")  # noqa: SIM115
        self.file.truncate(self.size)
        self.file.seek(self.size)
        self.names = [
            name for name, kind in self.scorer.columns.items() if not typing.get_args(kind)
        ]
        if self.path.suffix == ".tsv" and self.shard[0] == 1 and not self.size:
            self._write(["\t".join(self.names)])

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        if self.path.suffix == ".tsv":
            self._write("\t".join([cell(row[name]) for name in self.names]) for row in rows)
        else:
            self._write(map(json_of, rows))
        os.fsync(self.file.fileno())
        return True

    def _write(self, lines: Iterable[str]) -> None:
        self.file.writelines(f"{line}\n".encode() for line in lines)
        self.file.flush()
        self.size = self.file.tell()

    def close(self, *, whole: bool) -> None:
        self.file.close()


class Parts(Output):
    """A folder of Parquet files, numbered by their first block, which counts those of all shards.

    All shards can write to one folder, which then holds the whole, in order.
    """

    writer: Any = None  # of the part that is not whole yet
    blocks = 0

    def find(self) -> tuple[Path, list[Path], bool]:
        make_folder("--output", self.path)
        # Fails now, without pyarrow, rather than after the first block.
        to_arrow([], self.scorer.columns)
        number, count = self.shard
        # Listed once: other shards may begin right now.
        there = [path for path in self.path.iterdir() if UNFINISHED not in path.name]
        begun = [path for path in there if path.match("_progress-*")]  # of all shards
        ours = [path for path in begun if path.match(f"*-of-{count}.json")]
        is_foreign = bool(there) and (not ours or len(ours) < len(begun))
        return self.path / f"_progress-{number}-of-{count}.json", begun, is_foreign

    def add(self, index: int, rows: Iterable[Row]) -> bool:
        from pyarrow import parquet

        table = to_arrow(rows, self.scorer.columns)
        if self.writer is None:
            self.part = self.path / f"part-{index:08}.parquet"
            self.unfinished = self.part.with_name(f"{UNFINISHED}{self.part.name}")
            self.writer = parquet.ParquetWriter(self.unfinished, table.schema)
        self.writer.write_table(table)
        self.blocks += 1
        if self.blocks % PART_BLOCKS == 0:
            self.close(whole=True)
        return self.writer is None

    def close(self, *, whole: bool) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
            flush(self.unfinished)
            self.unfinished.replace(self.part) if whole else self.unfinished.unlink()
