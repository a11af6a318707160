"""A table as a folder of Parquet files, without any other file.

Each commit is one file, which is written under a hidden name, synced and then linked to its own
name: linking is one system call, and is the commit. The footer of the file holds the positions
after its rows, so rows and positions cannot disagree. A program that lists ``*.parquet`` sees
committed rows only.

A file is named by the commits in it, ``0000000007-0000000009.parquet``. Compaction writes one file
for the commits of several files, links the new file, and unlinks the old ones. After a crash in
between, the next start removes the files whose commits are also in a larger file
(:func:`superseded`).

==============================  =============================================================
left by a crash                 what the next start does
==============================  =============================================================
a hidden file                   removes it: it was not committed
a file and those it replaces    removes the replaced ones
==============================  =============================================================
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pymq.errors import StoreError, StoreLocked
from pymq.table.format.base import ROW_GROUP, TableOrigin, TableState
from pymq.table.schema import conform, normal, union

NAME = re.compile(r"(\d{10})-(\d{10})\.parquet")
LOCK, HIDDEN = "_pymq.lock", ".writing-"
ORIGIN, POSITIONS = b"pymq.origin", b"pymq.positions"


class CommitFile(NamedTuple):
    """A file of the table, by the first and the last commit in it."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """The name in the folder; names sort in the order of the commits."""
        return f"{self.first:010}-{self.last:010}.parquet"


def superseded(files: Sequence[CommitFile]) -> tuple[list[CommitFile], list[CommitFile]]:
    """Split *files* into the table's files, in order, and files that a larger file replaces."""
    kept, gone = list[CommitFile](), list[CommitFile]()
    for file in sorted(files, key=lambda each: (each.first, -each.last)):
        contained = kept and file.last <= kept[-1].last
        (gone if contained else kept).append(file)
    return kept, gone


def to_compact(sizes: Sequence[int], file_bytes: int, files: int) -> int:
    """Return how many of the last files compaction should merge; 0 for none.

    A file is merged with the files after it only if it is not larger than all of them together, so
    each row is rewritten about log2(*file_bytes* / size of a commit) times.
    """
    count = total = 0
    for size in reversed(sizes):
        if size >= file_bytes or (count and size > 2 * total) or total + size > 2 * file_bytes:
            break
        count, total = count + 1, total + size
    return count if count >= files else 0


class ParquetTable:
    """A folder of Parquet files."""

    def __init__(self, location: str, *, file_bytes: int, compact_files: int) -> None:
        self._folder = location
        self._file_bytes = file_bytes
        self._compact_files = compact_files
        self._lock = -1
        self._files: list[CommitFile] = []
        self._origin: TableOrigin | None = None
        self._schema = pa.schema([])
        self._positions: dict[str, int] = {}

    def load(self, partitions: Sequence[str]) -> TableState | None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        self._take_lock()
        found: list[CommitFile] = []
        for name in os.listdir(self._folder):
            if (match := NAME.fullmatch(name)) is not None:
                found.append(CommitFile(int(match[1]), int(match[2])))
            elif name.startswith(HIDDEN):
                os.unlink(self._path(name))
            elif name.endswith(".parquet"):
                raise StoreError(
                    f"{self._folder} holds other files, as {name}: choose an own folder"
                )
        self._files, gone = superseded(found)
        self._remove(gone)
        for before, after in zip(self._files, self._files[1:], strict=False):
            if before.last + 1 != after.first:
                raise StoreError(f"{self._folder} lacks the commits between {before} and {after}")
        if not self._files:
            return None
        footer = pq.read_schema(self._path(self._files[-1].name))
        meta = footer.metadata or {}
        if ORIGIN not in meta or POSITIONS not in meta:
            raise StoreError(f"{self._path(self._files[-1].name)} is not of a table view")
        self._origin = TableOrigin.from_json(meta[ORIGIN], self._folder)
        self._positions = {name: int(at) for name, at in json.loads(meta[POSITIONS]).items()}
        self._schema = normal(footer.remove_metadata())
        known = {name: at for name, at in self._positions.items() if name in partitions}
        return TableState(self._origin, known, self._schema)

    def create(self, origin: TableOrigin, schema: pa.Schema) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`; the first commit makes a file."""
        self._origin, self._schema = origin, schema

    def append(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        schema = union(self._schema, rows.schema)
        number = self._files[-1].last + 1 if self._files else 1
        file = CommitFile(number, number)
        self._write(file, [conform(rows, schema)], schema, {**self._positions, **positions})
        self._files.append(file)
        self._schema, self._positions = schema, {**self._positions, **positions}

    def compact(self) -> bool:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        sizes = [os.path.getsize(self._path(file.name)) for file in self._files]
        count = to_compact(sizes, self._file_bytes, self._compact_files)
        if not count:
            return False
        old = self._files[-count:]
        new = CommitFile(old[0].first, old[-1].last)
        self._write(new, self._rows(old), self._schema, self._positions)
        self._files[-count:] = [new]
        self._remove(old)
        return True

    def close(self) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- files ----------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _take_lock(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        self._lock = os.open(self._path(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreLocked(f"another process keeps the table in {self._folder}") from None

    def _rows(self, files: Sequence[CommitFile]) -> Iterator[pa.Table]:
        """Yield the rows of some files in row groups of the usual size."""
        held: list[pa.RecordBatch] = []
        count = 0
        for file in files:
            with pq.ParquetFile(self._path(file.name)) as source:
                for batch in source.iter_batches():
                    held.append(conform(pa.table(batch), self._schema))
                    count += len(batch)
                    if count >= ROW_GROUP:
                        yield pa.concat_tables(held)
                        held, count = [], 0
        if held:
            yield pa.concat_tables(held)

    def _write(
        self,
        file: CommitFile,
        groups: Iterator[pa.Table] | list[pa.Table],
        schema: pa.Schema,
        positions: Mapping[str, int],
    ) -> None:
        """Write a file, atomically and durably."""
        assert self._origin is not None
        meta = {ORIGIN: self._origin.to_json(), POSITIONS: json.dumps(positions, sort_keys=True)}
        hidden, path = self._path(f"{HIDDEN}{file.name}.tmp"), self._path(file.name)
        whole = schema.with_metadata(meta)
        with pq.ParquetWriter(hidden, whole, compression="zstd") as writer:
            for group in groups:
                writer.write_table(group.cast(whole), row_group_size=ROW_GROUP)
        self._sync(hidden)
        try:
            os.link(hidden, path)  # The commit. Unlike rename it fails if the name is taken.
        except FileExistsError:
            raise StoreLocked(f"another process has written {path}") from None
        self._sync(self._folder)
        os.unlink(hidden)

    def _remove(self, files: Sequence[CommitFile]) -> None:
        for file in files:
            os.unlink(self._path(file.name))

    def _sync(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
