"""Record batches as the Arrow columns that Spark was promised.

The values of a batch lie in its body as one array. Where they have one length, which most streams
have, they are cut out of it all at once; nothing is done for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

from pymq.core import columns
from pymq.core.record import RecordBatch

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


def schema(*, has_headers: bool) -> StructType:
    """The columns of the source, in the order of those of Kafka's."""
    names = [name for name in FIELDS if has_headers or name != "headers"]
    return StructType([StructField(name, FIELDS[name]) for name in names])


class Columns:
    """Gathers parts of record batches until they are worth an Arrow batch."""

    def __init__(self, names: Sequence[str], schema: pa.Schema) -> None:
        self._names = names
        self._schema = schema
        self._chunks: list[list[pa.Array]] = [[] for _ in names]
        self.count = 0
        self.size = 0  # bytes of the batches that the rows came from

    def add(self, batch: RecordBatch, start: int, end: int) -> None:
        """Take those records of *batch* whose offsets are in ``range(start, end)``."""
        offsets = batch.offsets
        first, last = 0, len(offsets)
        if start > batch.base_offset or end < batch.end_offset:
            first, last = (int(at) for at in np.searchsorted(np.asarray(offsets), (start, end)))
        if first >= last:
            return
        for name, chunks in zip(self._names, self._chunks, strict=True):
            chunks.append(_MAKERS[name](batch, first, last))
        self.count += last - first
        self.size += batch.size

    def take(self) -> pa.RecordBatch:
        """What was gathered; begins anew."""
        arrays = [
            chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) for chunks in self._chunks
        ]
        self._chunks = [[] for _ in self._names]
        self.count = self.size = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for *schema*."""
    return to_arrow_schema(schema, timezone="UTC")


def _bytes(column: memoryview, count: int, first: int, last: int) -> pa.Array | None:
    """Byte strings of one length, cut out of the column; None when they are of several."""
    run = columns.find_run(column, count)
    if run is None or run.size * (last - first) >= 1 << 31:
        return None
    rows = np.frombuffer(run.data, np.uint8, count * run.stride).reshape(count, run.stride)
    data = np.ascontiguousarray(rows[first:last, run.prefix :])
    ends = np.arange(last - first + 1, dtype=np.int32) * np.int32(run.size)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), last - first, buffers)


def _value(batch: RecordBatch, first: int, last: int) -> pa.Array:
    column = batch.column(columns.VALUES)
    if column is not None:
        found = _bytes(column, len(batch), first, last)
        if found is not None:
            return found
    return pa.array(batch.values[first:last], pa.binary())


def _key(batch: RecordBatch, first: int, last: int) -> pa.Array:
    column = batch.column(columns.KEYS)
    if column is None:
        return pa.nulls(last - first, pa.binary())
    found = _bytes(column, len(batch), first, last)
    return found if found is not None else pa.array(batch.keys[first:last], pa.binary())


def _offset(batch: RecordBatch, first: int, last: int) -> pa.Array:
    offsets = batch.offsets
    if isinstance(offsets, range):
        return pa.array(np.arange(offsets[first], offsets[first] + last - first, dtype=np.int64))
    return pa.array(offsets[first:last], pa.int64())


def _timestamp(batch: RecordBatch, first: int, last: int) -> pa.Array:
    if batch.column(columns.TIMESTAMPS) is None:
        times = np.full(last - first, batch.header.first_timestamp, np.int64)
    else:
        times = np.array(batch.timestamps[first:last], np.int64)
    times *= 1000
    return pa.Array.from_buffers(TYPES["timestamp"], last - first, [None, pa.py_buffer(times)])


def _headers(batch: RecordBatch, first: int, last: int) -> pa.Array:
    if batch.column(columns.HEADERS) is None:
        return pa.nulls(last - first, TYPES["headers"])
    rows = [
        [{"key": name, "value": value} for name, value in pairs] if pairs else None
        for pairs in batch.headers[first:last]
    ]
    return pa.array(rows, TYPES["headers"])


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


_MAKERS: dict[str, Any] = {
    "key": _key,
    "value": _value,
    "topic": lambda batch, first, last: _constant(batch.topic, last - first),
    "partition": lambda batch, first, last: _constant(batch.partition, last - first),
    "offset": _offset,
    "timestamp": _timestamp,
    "headers": _headers,
}
