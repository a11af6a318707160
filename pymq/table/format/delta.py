"""A table of Delta Lake, by the package deltalake.

The positions are transaction identifiers of the protocol: each partition has one, whose version is
the offset of the next record. The identifiers are in the same commit as the rows, and survive
checkpoints and the clean-up of the table's log. Delta refuses a commit if another writer has set
one of these identifiers since this process read the table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pymq.errors import MissingExtra, StoreError, StoreLocked
from pymq.table.format.base import TableOrigin, TableState
from pymq.table.schema import conform, normal, union

try:
    from deltalake import (
        CommitProperties,
        DeltaTable,
        Transaction,
        WriterProperties,
        write_deltalake,
    )
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
except ImportError as error:
    raise MissingExtra.of(f"{error.name} is missing", "delta") from error

ORIGIN = "pymq.origin"
VACUUM_S = 3600.0  # seconds between two searches for files that no version needs


class DeltaView:
    """A table of Delta Lake at a path or URL."""

    def __init__(
        self,
        location: str,
        *,
        file_bytes: int,
        compact_files: int,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        self._location = location
        self._file_bytes = file_bytes
        self._compact_files = compact_files
        self._storage = dict(storage_options) if storage_options else None
        self._table: DeltaTable | None = None
        self._origin: TableOrigin | None = None
        self._schema = pa.schema([])
        self._positions: dict[str, int] = {}
        self._vacuumed_at = 0.0

    def load(self, partitions: Sequence[str]) -> TableState | None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        try:
            self._table = DeltaTable(self._location, storage_options=self._storage)
        except TableNotFoundError:
            return None
        found = self._table.metadata().configuration.get(ORIGIN)
        if found is None:
            raise StoreError(f"{self._location} is a Delta table, but not of a table view")
        self._origin = TableOrigin.from_json(found, self._location)
        self._schema = normal(pa.schema(self._table.schema().to_arrow()))
        self._positions = self._read_positions(partitions)
        return TableState(self._origin, self._positions, self._schema)

    def create(self, origin: TableOrigin, schema: pa.Schema) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        self._origin, self._schema = origin, schema
        try:
            self._table = DeltaTable.create(
                self._location,
                schema,
                name=origin.topic,
                description=f"the records of the pymq topic {origin.topic}",
                configuration={ORIGIN: origin.to_json()},
                storage_options=self._storage,
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:
            if not DeltaTable.is_deltatable(self._location, self._storage):
                raise
            raise StoreLocked(f"another process has created {self._location}") from error

    def append(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        assert self._table is not None
        schema = union(self._schema, rows.schema)
        self._table.update_incremental()
        # Check the positions of all partitions, even of those that this process has not appended
        # yet: another process may have appended their rows.
        if self._read_positions([*positions]) != self._positions:
            raise StoreLocked(f"another process has appended to {self._location}")
        changed = {name: at for name, at in positions.items() if at != self._positions.get(name)}
        marks = [Transaction(self._id(name), at) for name, at in changed.items()]
        try:
            write_deltalake(
                self._table,
                conform(rows, schema),
                mode="append",
                schema_mode="merge",
                target_file_size=self._file_bytes,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(app_transactions=marks),
            )
        except CommitFailedError as error:
            raise StoreLocked(f"another process appends to {self._location}: {error}") from error
        self._schema = schema
        self._positions = {**self._positions, **positions}

    def compact(self) -> bool:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        assert self._table is not None
        sizes = pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
        if sum(size < self._file_bytes // 2 for size in sizes) < self._compact_files:
            return False
        self._table.optimize.compact(target_size=self._file_bytes)
        if time.monotonic() - self._vacuumed_at > VACUUM_S or not self._vacuumed_at:
            self._vacuumed_at = time.monotonic()
            self._table.vacuum(dry_run=False)  # keeps files for the table's retention, a week
        return True

    def close(self) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        self._table = None

    def _id(self, partition: str) -> str:
        assert self._origin is not None
        return f"pymq/{self._origin.topic_id}/{partition}"

    def _read_positions(self, partitions: Sequence[str]) -> dict[str, int]:
        assert self._table is not None
        found = {name: self._table.transaction_version(self._id(name)) for name in partitions}
        return {name: at for name, at in found.items() if at is not None}
