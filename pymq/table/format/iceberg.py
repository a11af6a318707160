"""A table of Iceberg, by the package pyiceberg.

The positions are a property of the table, set in the same commit as the snapshot of the rows. So
the positions survive the expiry of snapshots and the commits of other programs. The commit requires
that the current snapshot is the one that this process has seen (``assert-ref-snapshot-id``), and
pyiceberg must not retry the commit on another snapshot: the property ``commit.retry.num-retries``
is 0.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pymq.errors import ConfigError, MissingExtra, StoreError, StoreLocked
from pymq.table.format.base import TableOrigin, TableState
from pymq.table.schema import conform, normal, union

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
except ImportError as error:
    raise MissingExtra.of(f"{error.name} is missing", "iceberg") from error

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

ORIGIN, POSITIONS = "pymq.origin", "pymq.positions"
NAMESPACE, CATALOG_FILE = "pymq", "catalog.db"
COMPACTED_ROWS = 4_000_000  # rows in memory at a time
PROPERTIES = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.parquet.compression-codec": "zstd",
}


class IcebergView:
    """A table of an Iceberg catalog; by default one in SQLite, in the folder of the table."""

    def __init__(
        self, location: str, *, file_bytes: int, compact_files: int, catalog: str | Catalog | None
    ) -> None:
        self._location = location
        self._file_bytes = file_bytes
        self._compact_files = compact_files
        self._given = catalog
        self._catalog: Catalog | None = None
        self._name: tuple[str, ...] = ()
        self._table: Table | None = None
        self._schema = pa.schema([])
        self._positions: dict[str, int] = {}

    def load(self, partitions: Sequence[str]) -> TableState | None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        self._catalog = self._open()
        try:
            self._table = self._find(self._catalog)
        except NoSuchTableError:
            return None
        found = self._table.properties.get(ORIGIN)
        if found is None:
            raise StoreError(f"{self._location} is an Iceberg table, but not of a table view")
        self._schema = normal(schema_to_pyarrow(self._table.schema()))
        self._positions = self._read_positions()
        known = {name: at for name, at in self._positions.items() if name in partitions}
        return TableState(TableOrigin.from_json(found, self._location), known, self._schema)

    def create(self, origin: TableOrigin, schema: pa.Schema) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        assert self._catalog is not None
        name = self._name or (NAMESPACE, re.sub(r"\W", "_", origin.topic))
        self._catalog.create_namespace_if_not_exists(name[:-1])
        given = {**PROPERTIES, ORIGIN: origin.to_json(), POSITIONS: "{}"}
        try:
            self._table = self._catalog.create_table(name, schema, properties=given)
        except TableAlreadyExistsError as error:
            raise StoreLocked(f"another process has created {self._location}") from error
        self._schema = schema

    def append(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        table = self._current()
        schema = union(self._schema, rows.schema)
        after = {**self._positions, **positions}
        try:
            with table.transaction() as transaction:
                if schema != self._schema:
                    with transaction.update_schema() as change:
                        change.union_by_name(schema)
                transaction.append(conform(rows, schema))
                transaction.set_properties({POSITIONS: json.dumps(after, sort_keys=True)})
        except CommitFailedException as error:
            raise self._taken() from error
        self._schema, self._positions = schema, after

    def compact(self) -> bool:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        table = self._current()
        tasks = sorted(table.scan().plan_files(), key=lambda task: task.file.file_size_in_bytes)
        chosen = self._smallest(tasks)
        if len(chosen) < self._compact_files:
            return False
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        rows = scan.to_table(chosen).sort_by([(name, "ascending") for name in self._order()])
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot().overwrite() as change,
            ):
                for task in chosen:
                    change.delete_data_file(task.file)
                for file in _dataframe_to_data_files(
                    transaction.table_metadata, rows, table.io, change.commit_uuid
                ):
                    change.append_data_file(file)
        except CommitFailedException:
            return False  # Another engine has changed the table: try again after the next commit.
        return True

    def close(self) -> None:
        """See :class:`~pymq.table.format.base.TableFormat`."""
        if self._catalog is not None and self._given is not self._catalog:
            self._catalog.close()
        self._catalog = self._table = None

    def _smallest(self, tasks: list[FileScanTask]) -> list[FileScanTask]:
        """Return the small files, from the smallest on, whose rows fit into one file and memory."""
        chosen = []
        size = count = 0
        for task in tasks:
            size, count = size + task.file.file_size_in_bytes, count + task.file.record_count
            is_small = task.file.file_size_in_bytes < self._file_bytes // 2
            if not is_small or size > self._file_bytes or count > COMPACTED_ROWS:
                break
            chosen.append(task)
        return chosen

    # --- the catalog ----------------------------------------------------------------------------

    def _open(self) -> Catalog:
        if isinstance(self._given, Catalog):
            self._name = tuple(self._location.split("."))
            return self._given
        if self._given is not None:
            self._name = tuple(self._location.split("."))
            return load_catalog(self._given)
        os.makedirs(self._location, exist_ok=True)
        folder = Path(self._location).resolve()
        return load_catalog(
            "pymq",
            type="sql",
            uri=f"sqlite:///{folder / CATALOG_FILE}",
            warehouse=f"file://{folder}",
        )

    def _find(self, catalog: Catalog) -> Table:
        if self._name:
            if len(self._name) < 2:
                raise ConfigError(
                    f"location {self._location!r}: in a catalog it is NAMESPACE.TABLE"
                )
            return catalog.load_table(self._name)
        names = catalog.list_tables(NAMESPACE) if catalog.namespace_exists(NAMESPACE) else []
        if not names:
            raise NoSuchTableError(self._location)
        return catalog.load_table(names[0])

    def _current(self) -> Table:
        """Return the current table, if its positions are those that this process has set."""
        assert self._table is not None
        self._table.refresh()
        if self._read_positions() != self._positions:
            raise self._taken()
        return self._table

    def _read_positions(self) -> dict[str, int]:
        assert self._table is not None
        found: dict[str, int] = json.loads(self._table.properties[POSITIONS])
        return found

    def _taken(self) -> StoreLocked:
        return StoreLocked(f"another process appends to {self._location}")

    def _order(self) -> list[str]:
        assert self._table is not None
        prefix = TableOrigin.from_json(self._table.properties[ORIGIN], self._location).prefix
        return [prefix + "partition", prefix + "offset"]
