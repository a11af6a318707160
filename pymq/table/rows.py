"""Record batches as rows of a table: the fixed columns, and the values.

==============  ==========================================================================
column
==============  ==========================================================================
``topic``       text
``partition``   text: partitions have names
``offset``      int64; (topic, partition, offset) identifies a row
``timestamp``   of the record, in milliseconds resolution, UTC
``key``         bytes or null
``tombstone``   whether the record deletes its key
``headers``     list of (key, value), if the view keeps headers
==============  ==========================================================================

A table of bytes also has the column ``value``, null in a tombstone. A typed table also has the
columns of its schema, and ``undecoded``: the bytes of a value that does not fit the schema, else
null. So every record is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from pymq.core.batch import columns
from pymq.core.batch.view import RecordBatch
from pymq.errors import ConfigError

TOMBSTONE = "pymq.tombstone"
TIME = pa.timestamp("us", "UTC")
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
FIXED: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": TIME,
    "key": pa.binary(),
    "tombstone": pa.bool_(),
    "headers": pa.list_(HEADER),
}
VALUE, UNDECODED = "value", "undecoded"


class Value(NamedTuple):
    """A value to decode."""

    data: bytes
    fingerprint: bytes | None  # fingerprint of the writer's schema, if the record names one


Decode = Callable[[Sequence[Value | None]], tuple[pa.Table, list[bool]]]
"""Decodes values, None for a tombstone; returns typed columns, and whether each value was decoded.
"""


def fixed_schema(prefix: str, *, has_headers: bool, is_typed: bool) -> pa.Schema:
    """Return the columns that every record has, and the column for bytes."""
    names = [name for name in FIXED if has_headers or name != "headers"]
    fields = [(prefix + name, FIXED[name]) for name in names]
    return pa.schema([*fields, (prefix + (UNDECODED if is_typed else VALUE), pa.binary())])


def check_names(fixed: pa.Schema, typed: pa.Schema) -> None:
    """Check that a schema has no column with the name of a fixed one.

    Raises:
        ConfigError: the schema has such a column.
    """
    # Engines that ignore the case of names also read Delta Lake and Iceberg tables.
    taken = {name.lower() for name in fixed.names}
    both = [name for name in typed.names if name.lower() in taken]
    if both:
        raise ConfigError(
            f"the values have a field {both[0]!r}, which is also a column of the table; put a "
            "prefix before the table's own columns: prefix='_'"
        )


class RowMaker:
    """Makes rows of views of one topic."""

    def __init__(
        self, fixed: pa.Schema, prefix: str, *, has_headers: bool, decode: Decode | None
    ) -> None:
        self._fixed = fixed
        self._prefix = prefix
        self._has_headers = has_headers
        self._decode = decode
        self.undecoded = 0  # undecoded values so far

    def rows(self, views: Sequence[RecordBatch]) -> pa.Table:
        """Return the records of some views as a table."""
        tables = [self._view(view) for view in views if len(view)]
        if self._decode is None:
            return pa.concat_tables([*tables, self._fixed.empty_table()])
        values = [each for view in views for each in _values(view)]
        typed, is_decoded = self._decode(values)
        kept = [
            None if done or each is None else each.data
            for each, done in zip(values, is_decoded, strict=True)
        ]
        self.undecoded += sum(each is not None for each in kept)
        rows = pa.concat_tables([*tables, self._fixed_columns().empty_table()])
        rows = rows.append_column(self._prefix + UNDECODED, [pa.array(kept, pa.binary())])
        for name in typed.column_names:
            rows = rows.append_column(typed.schema.field(name), typed.column(name))
        return rows

    def _fixed_columns(self) -> pa.Schema:
        return self._fixed if self._decode is None else self._fixed.remove(len(self._fixed) - 1)

    def _view(self, view: RecordBatch) -> pa.Table:
        count, batch = len(view), view.batch
        has_headers = batch.column(columns.HEADERS) is not None
        made = [_repeated(view.topic, count), _repeated(view.partition, count)]
        made += [pa.array(view.offsets, pa.int64()), _times(view)]
        has_keys = batch.column(columns.KEYS) is not None
        made.append(pa.array(view.keys, pa.binary()) if has_keys else pa.nulls(count, pa.binary()))
        dead = [_is_tombstone(each) for each in view.headers] if has_headers else None
        made.append(pa.repeat(pa.scalar(False), count) if dead is None else pa.array(dead))
        if self._has_headers:
            made.append(_headers(view) if has_headers else pa.nulls(count, FIXED["headers"]))
        if self._decode is None:
            made.append(pa.array(view.values, pa.binary(), mask=dead and pa.array(dead)))
        return pa.Table.from_arrays(made, schema=self._fixed_columns())


def fingerprints(views: Sequence[RecordBatch], header: str) -> set[bytes]:
    """Return the different values of a header."""
    return {
        found
        for view in views
        if view.batch.column(columns.HEADERS) is not None
        for pairs in view.headers
        for name, found in pairs
        if name == header
    }


def _values(view: RecordBatch) -> list[Value | None]:
    if view.batch.column(columns.HEADERS) is None:
        return [Value(each, None) for each in view.values]
    return [
        None if _is_tombstone(pairs) else Value(each, dict(pairs).get("pymq.schema"))
        for each, pairs in zip(view.values, view.headers, strict=True)
    ]


def _is_tombstone(pairs: columns.Headers) -> bool:
    return any(name == TOMBSTONE for name, _ in pairs)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _times(view: RecordBatch) -> pa.Array:
    """Return the timestamps; most batches have one for all records."""
    milliseconds = pa.timestamp("ms", "UTC")
    if view.batch.column(columns.TIMESTAMPS) is None:
        at = pa.scalar(view.batch.header.first_timestamp, milliseconds)
        return pa.repeat(at.cast(TIME), len(view))
    return pa.array(view.timestamps, milliseconds).cast(TIME)


def _headers(view: RecordBatch) -> pa.Array:
    rows = [[{"key": name, "value": found} for name, found in pairs] for pairs in view.headers]
    return pa.array(rows, FIXED["headers"])
