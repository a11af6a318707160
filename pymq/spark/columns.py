"""Converts record batches to the Arrow columns of the source's schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from pymq.spark import arrays
from pymq.spark.arrays import BatchPart

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": arrays.HEADERS,
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


Maker = Callable[[Sequence[BatchPart], int], pa.Array]  # of a column of *count* records


class ArrowColumns:
    """Collects parts of record batches until they fill an Arrow batch."""

    def __init__(self, names: Sequence[str], schema: pa.Schema, value: Maker | None = None) -> None:
        self._makers = _MAKERS if value is None else {**_MAKERS, "value": value}
        self._names = names
        self._schema = schema
        self._parts: list[BatchPart] = []
        self.count = 0
        self.size = 0  # decompressed bytes of the batches that the rows came from

    def add(self, batch: EncodedBatch, start: int, end: int) -> None:
        """Add the records of *batch* with offsets in ``range(start, end)``."""
        first, last = 0, len(batch)
        if start > batch.base_offset or end < batch.end_offset:
            offsets = arrays.record_offsets(batch)
            first, last = (int(at) for at in np.searchsorted(offsets, (start, end)))
        if first >= last:
            return
        self._parts.append(BatchPart(batch, first, last))
        self.count += last - first
        self.size += max(batch.size, batch.header.raw_length)

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
    return arrays.byte_strings(parts, columns.VALUES)


def _key(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return arrays.byte_strings(parts, columns.KEYS)


def _offset(parts: Sequence[BatchPart], count: int) -> pa.Array:
    numbers = np.empty(count, np.int64)
    at = 0
    for batch, first, last in parts:
        numbers[at : at + last - first] = arrays.record_offsets(batch)[first:last]
        at += last - first
    return pa.array(numbers)


def _timestamp(parts: Sequence[BatchPart], count: int) -> pa.Array:
    times = np.empty(count, np.int64)
    at = 0
    for batch, first, last in parts:
        found = arrays.record_times(batch)
        times[at : at + last - first] = found if isinstance(found, int) else found[first:last]
        at += last - first
    times *= 1000
    return pa.Array.from_buffers(TYPES["timestamp"], count, [None, pa.py_buffer(times)])


def _headers(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return arrays.headers(parts)


def _topic(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return _names([(part.batch.topic, part.length) for part in parts], count)


def _partition(parts: Sequence[BatchPart], count: int) -> pa.Array:
    return _names([(part.batch.partition, part.length) for part in parts], count)


def _names(counts: Sequence[tuple[str, int]], count: int) -> pa.Array:
    """Repeat each name; a task reads one partition after the other."""
    names = {name for name, _ in counts}
    if len(names) == 1:
        return arrays.repeated(names.pop(), count)
    return pa.concat_arrays([arrays.repeated(name, times) for name, times in counts])


_MAKERS: dict[str, Maker] = {
    "key": _key,
    "value": plain_values,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "headers": _headers,
}
