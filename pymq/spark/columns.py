"""Converts record batches to the Arrow columns of the source's schema.

A batch's body holds its values as one array. If all have the same length, as in most streams, one
operation extracts the values of the whole batch, without work per record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pymq.core.batch import columns
from pymq.core.batch.record import EncodedBatch

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(HEADER),
}
FIELDS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}
NULLABLE = frozenset({"key", "value", "headers"})  # where Spark looks for nulls in each row


def schema(*, has_headers: bool, value: DataType | None = None) -> StructType:
    """Return the columns of the source, in the order of Kafka's source.

    *value* is the type of the column of values, if that type is not binary.
    """
    fields = FIELDS if value is None else {**FIELDS, "value": value}
    names = [name for name in fields if has_headers or name != "headers"]
    return StructType([StructField(name, fields[name], name in NULLABLE) for name in names])


def schema_text(*, has_headers: bool, value: str) -> str:
    """Return :func:`schema` as Spark parses it, with the type of values as text."""
    fields = schema(has_headers=has_headers).fields
    return ", ".join(
        f"{each.name} {value if each.name == 'value' else each.dataType.simpleString()}"
        + ("" if each.nullable else " not null")
        for each in fields
    )


class BatchPart(NamedTuple):
    """A slice of a batch, by record indexes."""

    batch: EncodedBatch
    first: int
    last: int

    @property
    def length(self) -> int:
        """The number of records."""
        return self.last - self.first


Maker = Callable[[Sequence[BatchPart], int], pa.Array]  # makes a column of *count* records


class ArrowColumns:
    """Collects parts of record batches until they fill an Arrow batch."""

    def __init__(self, names: Sequence[str], schema: pa.Schema, value: Maker | None = None) -> None:
        self._makers = _MAKERS if value is None else {**_MAKERS, "value": value}
        self._names = names
        self._schema = schema
        self._parts: list[BatchPart] = []
        self.count = 0
        self.size = 0  # size of the batches that the rows came from

    def add(self, batch: EncodedBatch, start: int, end: int) -> None:
        """Add the records of *batch* with offsets in ``range(start, end)``."""
        offsets = batch.offsets
        first, last = 0, len(offsets)
        if start > batch.base_offset or end < batch.end_offset:
            first, last = (int(at) for at in np.searchsorted(np.asarray(offsets), (start, end)))
        if first >= last:
            return
        self._parts.append(BatchPart(batch, first, last))
        self.count += last - first
        self.size += batch.size

    def take(self) -> pa.RecordBatch:
        """Return the collected records as an Arrow batch and start an empty one."""
        arrays = [self._makers[name](self._parts, self.count) for name in self._names]
        self._parts = []
        self.count = self.size = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for *schema*."""
    return to_arrow_schema(schema, timezone="UTC")


# --- columns of several parts with *count* records in total -------------------------------------


def plain_values(parts: Sequence[BatchPart], count: int) -> pa.Array:
    """Return the values as byte strings."""
    found = _runs(parts, count, columns.VALUES)
    if found is not None:
        return found
    return pa.array(
        [value for batch, first, last in parts for value in batch.values[first:last]], pa.binary()
    )


def _key(parts: Sequence[BatchPart], count: int) -> pa.Array:
    if all(batch.column(columns.KEYS) is None for batch, _, _ in parts):
        return pa.nulls(count, pa.binary())
    found = _runs(parts, count, columns.KEYS)
    if found is not None:
        return found
    keys: list[bytes | None] = []
    for part in parts:
        is_there = part.batch.column(columns.KEYS) is not None
        keys += part.batch.keys[part.first : part.last] if is_there else [None] * part.length
    return pa.array(keys, pa.binary())


def _runs(parts: Sequence[BatchPart], count: int, kind: int) -> pa.Array | None:
    """Return byte strings of one length per part as a column; None if lengths differ in a part.

    A single copy extracts the strings from between their CBOR heads.
    """
    found = []
    for part in parts:
        column = part.batch.column(kind)
        run = None if column is None else columns.find_run(column, len(part.batch))
        if run is None:
            return None
        found.append((part, run))
    total = sum(part.length * run.size for part, run in found)
    if total >= 1 << 31:
        return None
    data, ends = np.empty(total, np.uint8), np.empty(count + 1, np.int32)
    ends[0] = row = at = 0
    for (batch, first, last), (view, prefix, size) in found:
        stride, rows, length = prefix + size, last - first, (last - first) * size
        cells = np.frombuffer(view, np.uint8, len(batch) * stride).reshape(len(batch), stride)
        data[at : at + length].reshape(rows, size)[:] = cells[first:last, prefix:]
        ends[row + 1 : row + rows + 1] = np.arange(at + size, at + length + 1, size) if size else at
        row, at = row + rows, at + length
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _offset(parts: Sequence[BatchPart], count: int) -> pa.Array:
    numbers = np.empty(count, np.int64)
    at = 0
    for part in parts:
        offsets = part.batch.offsets
        if isinstance(offsets, range):
            first = offsets[part.first]
            numbers[at : at + part.length] = np.arange(first, first + part.length)
        else:
            numbers[at : at + part.length] = offsets[part.first : part.last]
        at += part.length
    return pa.array(numbers)


def _timestamp(parts: Sequence[BatchPart], count: int) -> pa.Array:
    times = np.empty(count, np.int64)
    at = 0
    for batch, first, last in parts:
        is_one = batch.column(columns.TIMESTAMPS) is None
        mine = batch.header.first_timestamp if is_one else batch.timestamps[first:last]
        times[at : at + last - first] = mine
        at += last - first
    times *= 1000
    return pa.Array.from_buffers(TYPES["timestamp"], count, [None, pa.py_buffer(times)])


def _headers(parts: Sequence[BatchPart], count: int) -> pa.Array:
    if all(batch.column(columns.HEADERS) is None for batch, _, _ in parts):
        return pa.nulls(count, TYPES["headers"])
    rows = [
        [{"key": name, "value": value} for name, value in pairs] if pairs else None
        for batch, first, last in parts
        for pairs in batch.headers[first:last]
    ]
    return pa.array(rows, TYPES["headers"])


def _topic(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return _names([(part.batch.topic, part.length) for part in parts], count)


def _partition(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return _names([(part.batch.partition, part.length) for part in parts], count)


def _names(counts: Sequence[tuple[str, int]], count: int) -> pa.Array:
    """Repeat each name; a task reads one partition after the other."""
    names = {name for name, _ in counts}
    if len(names) == 1:
        return _repeated(names.pop(), count)
    return pa.concat_arrays([_repeated(name, times) for name, times in counts])


def _repeated(name: str, count: int) -> pa.Array:
    """Repeat one text *count* times, from its UTF-8 bytes."""
    data = name.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)]
    )


_MAKERS: dict[str, Maker] = {
    "key": _key,
    "value": plain_values,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "headers": _headers,
}
