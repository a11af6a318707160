"""A topic as a table: an append-only table that has each record exactly once.

A view reads records from the positions that the table holds, and appends rows and the next
positions in one atomic commit. If the process is killed, the table has both or neither, and the
next process continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

import pymq
from pymq.core.values import value
from pymq.errors import ConfigError, UnknownTopic
from pymq.table.format.base import TableFormat, TableOrigin, TableState
from pymq.table.rows import RowMaker, check_names, fingerprints, fixed_schema
from pymq.table.schema import conform, normal, parse_columns, union
from pymq.table.source import TopicSource
from pymq.table.values.registry import SCHEMA_HEADER, GivenValues, RegisteredValues

if TYPE_CHECKING:
    from pymq.client.client import Client

FORMATS = ("parquet", "delta", "iceberg")
POLL_S = 0.25  # longest delay of a stop

Format = Literal["parquet", "delta", "iceberg"]
Values = GivenValues | RegisteredValues


@value
class TableProgress:
    """The progress of a view since it was opened."""

    rows: int
    commits: int
    compactions: int
    undecoded: int
    """Values that do not fit the schema; their bytes are in the column ``undecoded``."""
    positions: Mapping[str, int]
    """By partition: the offset after the last record in the table."""


@value
class ViewOptions:
    """The checked options of a view."""

    schema: pa.Schema | str | None
    headers: bool
    prefix: str
    commit_s: float
    commit_bytes: int
    skips_gaps: bool


class TableView:
    """Keeps a table of a topic; made by :func:`pymq.spark.table_view`."""

    def __init__(
        self,
        topic: str,
        url: str | Client,
        table: TableFormat,
        options: ViewOptions,
        **connect: Any,
    ) -> None:
        self.topic = topic
        self._url = url
        self._connect = connect
        self._options = options
        self._table = table
        self._client: Client | None = None
        self._source: TopicSource | None = None
        self._maker: RowMaker | None = None
        self._values: Values | None = None
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._due = 0.0  # when to commit the collected rows
        self._rows = self._commits = self._compactions = 0
        self._committed: dict[str, int] = {}

    # --- use ------------------------------------------------------------------------------------

    def sync(self, on_commit: Callable[[TableProgress], object] | None = None) -> TableProgress:
        """Append all records that exist now, and return.

        Raises:
            StoreLocked: another process keeps the table.
            OffsetOutOfRange: retention has removed records that the table lacks.
            SchemaIncompatible: a column would change its type.
            PymqError: the topic cannot be read; committed rows stay, and a later call continues.
        """
        with self._reading() as source:
            ends = source.ends()
            while not source.has_reached(ends):
                self._step(on_commit)
            self._commit(on_commit)
        return self.progress()

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        on_commit: Callable[[TableProgress], object] | None = None,
    ) -> TableProgress:
        """Append records as they come, until *stop* returns true; the view calls *stop* four times
        a second.

        The rows since the last commit are committed before this returns. Errors are those of
        :meth:`sync`.
        """
        with self._reading():
            while not stop():
                self._step(on_commit)
            self._commit(on_commit)
        return self.progress()

    def progress(self) -> TableProgress:
        """Return the progress since the view was opened."""
        undecoded = 0 if self._maker is None else self._maker.undecoded
        return TableProgress(
            self._rows, self._commits, self._compactions, undecoded, dict(self._committed)
        )

    def close(self) -> None:
        """Release the table; rows that were not committed are read again by the next view."""
        if self._source is not None:
            self._source.close()
        if self._client is not None and self._client is not self._url:
            self._client.close()
        self._table.close()
        self._source = self._client = None
        self._gathered, self._gathered_bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- opening --------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[TopicSource]:
        """Yield the source. After an error, the next call begins at the positions in the table."""
        try:
            yield self._begin() if self._source is None else self._source
        except BaseException:
            self.close()
            raise

    def _begin(self) -> TopicSource:
        client = pymq.open(self._url, **self._connect) if isinstance(self._url, str) else self._url
        self._client = client
        about = client.questions.topic_metadata(self.topic)
        state = self._table.load([each.partition for each in about.partitions])
        origin = self._origin(about.topic_id, state)
        schema = fixed_schema(
            origin.prefix, has_headers=origin.has_headers, is_typed=origin.is_typed
        )
        if self._values is not None:
            check_names(schema, self._values.schema)
        if state is None:
            whole = schema if self._values is None else union(schema, self._values.schema)
            self._table.create(origin, whole)
        self._maker = RowMaker(
            schema,
            origin.prefix,
            has_headers=origin.has_headers,
            decode=None if self._values is None else self._decode,
        )
        positions = {} if state is None else state.positions
        self._committed = dict(positions)
        self._source = TopicSource(
            client, self.topic, positions, skips_gaps=self._options.skips_gaps
        )
        return self._source

    def _origin(self, topic_id: str, state: TableState | None) -> TableOrigin:
        """Return the topic and the options of the table, and choose the decoder of values.

        Raises:
            ConfigError: the table is of another topic, or was created with other options.
            UnknownTopic: the topic was deleted and created again since.
        """
        assert self._client is not None
        options = self._options
        given = options.schema
        if isinstance(given, pa.Schema):
            self._values = GivenValues(normal(given))
        elif given != "raw" and (state is None or state.origin.is_typed):
            registered = RegisteredValues(self._client, self.topic)
            # A table that has typed columns keeps them.
            self._values = registered if registered.is_registered or state is not None else None
        wanted = TableOrigin(
            self.topic, topic_id, self._values is not None, options.prefix, options.headers
        )
        if state is None or state.origin == wanted:
            return wanted
        found = state.origin
        if found.topic != self.topic:
            raise ConfigError(f"the table is of topic {found.topic!r}, not {self.topic!r}")
        if found.topic_id != topic_id:
            raise UnknownTopic(
                f"topic {self.topic!r} was deleted and created again since the table was created; "
                "begin a new table at another location"
            )
        raise ConfigError(
            "schema, prefix and headers are fixed when a table is created; it has "
            f"{'typed columns' if found.is_typed else 'raw values'}, prefix={found.prefix!r}, "
            f"headers={found.has_headers}"
        )

    def _decode(self, values: Any) -> tuple[pa.Table, list[bool]]:
        assert self._values is not None
        return self._values.decode(values)

    # --- work -----------------------------------------------------------------------------------

    def _step(self, on_commit: Callable[[TableProgress], object] | None) -> None:
        """Read some records. Commit the collected rows if there are many, or the oldest has waited
        long.
        """
        assert self._source is not None
        assert self._maker is not None
        now = time.monotonic()
        wait = POLL_S if not self._gathered else max(0.0, min(POLL_S, self._due - now))
        views = [view for view in self._source.poll(wait) if len(view)]
        if views:
            if self._values is not None:
                self._values.learn(fingerprints(views, SCHEMA_HEADER))
            if not self._gathered:
                self._due = time.monotonic() + self._options.commit_s
            rows = self._maker.rows(views)
            self._gathered.append(rows)
            self._gathered_bytes += rows.nbytes
        is_full = self._gathered_bytes >= self._options.commit_bytes
        if is_full or (self._gathered and time.monotonic() >= self._due):
            self._commit(on_commit)

    def _commit(self, on_commit: Callable[[TableProgress], object] | None) -> None:
        if not self._gathered:
            return
        assert self._source is not None
        schema = self._gathered[0].schema
        for each in self._gathered[1:]:
            schema = union(schema, each.schema)
        rows = pa.concat_tables([conform(each, schema) for each in self._gathered])
        self._table.append(_in_order(rows, self._options.prefix), self._source.positions)
        self._gathered, self._gathered_bytes = [], 0
        self._rows += len(rows)
        self._commits += 1
        self._committed = dict(self._source.positions)
        self._compactions += self._table.compact()
        if on_commit is not None:
            on_commit(self.progress())


def _in_order(rows: pa.Table, prefix: str) -> pa.Table:
    """Sort rows by partition and offset, so that readers skip row groups by their statistics."""
    names = rows.column(prefix + "partition").unique()
    if len(names) == 1:
        return rows  # Rows of one partition are already in the order of their offsets.
    return rows.sort_by([(prefix + "partition", "ascending"), (prefix + "offset", "ascending")])


def table_view(
    topic: str,
    location: str,
    format: Format = "parquet",
    *,
    url: str | Client,
    schema: pa.Schema | str | None = None,
    headers: bool = False,
    prefix: str = "",
    commit_s: float = 60.0,
    commit_bytes: int = 64 << 20,
    file_bytes: int = 128 << 20,
    compact_files: int = 8,
    on_gap: Literal["error", "continue"] = "error",
    catalog: Any = None,
    storage_options: Mapping[str, str] | None = None,
    curve_dir: str | None = None,
    principal: str | None = None,
) -> TableView:
    """Return a view that keeps an append-only table of a topic, each record exactly once.

    It needs no Spark: one process reads record batches and commits files. Spark and every other
    program that reads the format can read the table.

    Args:
        topic: the topic, with all its partitions.
        location: a folder; for Delta also a URL, as ``s3://bucket/flights``; for Iceberg with
            *catalog* ``NAMESPACE.TABLE``.
        format: ``"parquet"`` for a folder of Parquet files, ``"delta"``, ``"iceberg"``.
        url: of the cluster, a folder, or a client.
        schema: typed columns: None for those of the topic's registered schemas, if it has any;
            ``"raw"`` for the bytes of the values; or columns of JSON objects, as a pyarrow schema
            or as ``"carrier string, delay long"``.
        headers: keep the headers of records.
        prefix: put before the table's own columns, if the values have fields of the same names.
        commit_s: commit rows after this many seconds at the latest.
        commit_bytes: commit rows as soon as this much Arrow data has been collected in memory.
        file_bytes: approximate size of a file after compaction.
        compact_files: how many small files are merged at a time.
        on_gap: what to do if retention has removed records that the table lacks.
        catalog: for Iceberg: a catalog of pyiceberg, or its name in pyiceberg's configuration;
            None: a catalog in SQLite, in the folder.
        storage_options: for Delta: options of the object store.
        curve_dir, principal: as in :func:`pymq.open`.

    Raises:
        ConfigError: an option is out of range, or does not belong to the format.
        MissingExtra: the package of the format is not installed.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if on_gap not in ("error", "continue"):
        raise ConfigError(f"on_gap={on_gap!r} is neither 'error' nor 'continue'")
    for name, number, low in (
        ("commit_s", commit_s, 0),
        ("commit_bytes", commit_bytes, 1),
        ("file_bytes", file_bytes, 1),
        ("compact_files", compact_files, 2),
    ):
        if not number >= low:
            raise ConfigError(f"{name}={number!r} must be at least {low}")
    if catalog is not None and format != "iceberg":
        raise ConfigError(f"catalog= is for format='iceberg', not {format!r}")
    if storage_options is not None and format != "delta":
        raise ConfigError(f"storage_options= is for format='delta', not {format!r}")
    if isinstance(schema, str) and schema != "raw":
        schema = parse_columns(schema)
    table: TableFormat
    if format == "parquet":
        from pymq.table.format.parquet import ParquetTable

        table = ParquetTable(location, file_bytes=file_bytes, compact_files=compact_files)
    elif format == "delta":
        from pymq.table.format.delta import DeltaView

        table = DeltaView(
            location,
            file_bytes=file_bytes,
            compact_files=compact_files,
            storage_options=storage_options,
        )
    else:
        from pymq.table.format.iceberg import IcebergView

        table = IcebergView(
            location, file_bytes=file_bytes, compact_files=compact_files, catalog=catalog
        )
    options = ViewOptions(schema, headers, prefix, commit_s, commit_bytes, on_gap == "continue")
    return TableView(topic, url, table, options, curve_dir=curve_dir, principal=principal)
