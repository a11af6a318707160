"""The column of values: decodes records to structs, and encodes rows to records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pymq.client.typed.values import SCHEMA_HEADER
from pymq.core.batch import columns
from pymq.core.batch.columns import Headers
from pymq.core.values import value
from pymq.errors import InvalidRequest, ValueNotDecoded, ValueNotEncoded
from pymq.serde.serializer import Schema
from pymq.spark.arrays import HEADER, BatchPart
from pymq.spark.values.codecs import ValueCodec, codec
from pymq.store.block.compaction import TOMBSTONE

FindSchemas = Callable[[set[str]], Mapping[str, Schema]]


class Reading(NamedTuple):
    """How values become a column."""

    format: str
    schema: str | None
    kind: pa.DataType
    null_tombstones: bool
    is_permissive: bool
    find: FindSchemas


class ValueColumn:
    """Makes the column of values of parts of record batches."""

    def __init__(self, reading: Reading, plain: Callable[..., pa.Array]) -> None:
        self._reading = reading
        self._plain = plain
        self._codec: ValueCodec | None = None
        self._decoders: dict[bytes, Callable[[bytes], Any] | None] = {}
        if reading.format not in ("binary", "arrow"):
            self._codec = codec(reading.format, reading.schema, reading.kind)

    def __call__(self, parts: Sequence[BatchPart], count: int) -> pa.Array:
        """Return the values of all *parts* as one column."""
        reading = self._reading
        gone = _tombstones(parts, count) if reading.null_tombstones else None
        if reading.format == "binary":
            found = self._plain(parts, count)
            return found if gone is None else pc.if_else(pa.array(gone), None, found)
        made = []
        at = 0
        for part in parts:
            mask = None if gone is None else gone[at : at + part.length]
            at += part.length
            made.append(self._part(part, mask))
        return pa.concat_arrays(made)

    def _part(self, part: BatchPart, gone: Any) -> pa.Array:
        data = part.batch.values[part.first : part.last]
        decoders = self._decoders_of(part)
        items: list[Any] = []
        for index, each in enumerate(data):
            if gone is not None and gone[index]:
                items.append(None)
                continue
            try:
                items.append(decoders[index](each))
            except Exception as error:
                self._check_bad(part, index, error)
                items.append(None)
        try:
            return pa.array(items, self._reading.kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
            return pa.concat_arrays([self._one(part, *each) for each in enumerate(items)])

    def _one(self, part: BatchPart, index: int, item: Any) -> pa.Array:
        try:
            return pa.array([item], self._reading.kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
            self._check_bad(part, index, error)
            return pa.nulls(1, self._reading.kind)

    def _check_bad(self, part: BatchPart, index: int, error: Exception) -> None:
        """Raise the error of a value that cannot be decoded, unless such values become null."""
        if self._reading.is_permissive:
            return
        batch = part.batch
        offset = batch.offsets[part.first + index]
        raise ValueNotDecoded(
            f"the value of {batch.topic}/{batch.partition} offset {offset} cannot be decoded: "
            f"{error}. With the option 'valueMode' set to 'PERMISSIVE' it becomes null",
            topic=batch.topic,
            partition=batch.partition,
            offset=offset,
        ) from error

    def _decoders_of(self, part: BatchPart) -> Sequence[Callable[[bytes], Any]]:
        """Return the decoder of each record: for Avro, that of the schema which the writer used."""
        made = self._codec
        if made is None:
            return [self._arrow] * part.length
        if made.decoder_for is None or part.batch.column(columns.HEADERS) is None:
            return [made.decode] * part.length
        written = [_fingerprint(each) for each in part.batch.headers[part.first : part.last]]
        self._learn({each for each in written if each is not None})
        return [
            made.decode if each is None else (self._decoders[each] or _unknown(each))
            for each in written
        ]

    def _learn(self, fingerprints: set[bytes]) -> None:
        made = self._codec
        assert made is not None
        assert made.decoder_for is not None
        new = {each.decode(errors="replace"): each for each in fingerprints - set(self._decoders)}
        if made.schema is not None and (own := new.pop(made.schema.fingerprint, None)) is not None:
            self._decoders[own] = made.decode
        if not new:
            return
        found = self._reading.find(set(new))
        for name, each in new.items():
            there = found.get(name)
            is_same = there is not None and there.format == self._reading.format
            self._decoders[each] = made.decoder_for(there) if there and is_same else None

    def _arrow(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of an Arrow stream, with the fields of the column's type."""
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        table.validate(full=True)
        wanted = self._reading.kind.value_type
        arrays = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.chunked_array([pa.nulls(len(table), field.type)])
            for field in wanted
        ]
        rows: list[dict[str, Any]] = pa.table(arrays, schema=pa.schema(list(wanted))).to_pylist()
        return rows


def _unknown(fingerprint: bytes) -> Callable[[bytes], Any]:
    def fail(data: bytes) -> Any:
        raise LookupError(f"its schema {fingerprint.decode(errors='replace')} is not registered")

    return fail


def _fingerprint(headers: Headers) -> bytes | None:
    return next((found for name, found in headers if name == SCHEMA_HEADER), None)


def _tombstones(parts: Sequence[BatchPart], count: int) -> Any:
    """Return which records are tombstones; None if none is."""
    found, at = None, 0
    for part in parts:
        if part.batch.column(columns.HEADERS) is not None:
            some = [TOMBSTONE in each for each in part.batch.headers[part.first : part.last]]
            if any(some):
                found = np.zeros(count, bool) if found is None else found
                found[at : at + part.length] = some
        at += part.length
    return found


# --- rows that are written ----------------------------------------------------------------------


@value
class Writing:
    """How rows become values; pickled with the tasks of a sink."""

    format: str
    schema: str | None
    null_tombstones: bool
    required: frozenset[str] = frozenset()


class ValueWriter:
    """Encodes the rows of a task as values, with their headers."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._codec: ValueCodec | None = None
        self._kind: pa.DataType | None = None

    def encode(self, rows: pa.Table) -> pa.Table:
        """Return *rows* with values of bytes.

        Raises:
            ValueNotEncoded: a row does not fit the schema.
            InvalidRequest: a row has neither value nor key.
        """
        writing, column = self._writing, rows["value"]
        gone = np.asarray(column.is_null())
        has_gone = writing.null_tombstones and bool(gone.any())
        header: tuple[str, bytes] | None = None
        if writing.format != "binary":
            data = self._encoded(column, gone)
            made = self._codec
            if made is not None and made.schema is not None:
                header = (SCHEMA_HEADER, made.schema.fingerprint.encode())
            rows = rows.set_column(rows.column_names.index("value"), "value", [data])
        if has_gone:
            self._check_keys(rows, gone)
            data = pc.fill_null(rows["value"].cast(pa.binary()), b"")
            rows = rows.set_column(rows.column_names.index("value"), "value", data)
        if header is None and not has_gone:
            return rows
        return _with_headers(rows, header, gone if has_gone else None)

    def _check_keys(self, rows: pa.Table, gone: Any) -> None:
        if "key" not in rows.column_names or (gone & np.asarray(rows["key"].is_null())).any():
            raise InvalidRequest("a row with a null value is a tombstone, and needs a key")

    def _encoded(self, column: pa.ChunkedArray, gone: Any) -> pa.Array:
        format = self._writing.format
        encode: Callable[[Any], bytes] = _arrow_stream
        if format != "arrow":
            if self._codec is None or self._kind != column.type:
                self._codec = codec(format, self._writing.schema, column.type)
                self._kind = column.type
            encode = self._codec.encode
        if format == "arrow":
            items: Sequence[Any] = [
                None if is_gone else each.values
                for each, is_gone in zip(column, gone.tolist(), strict=True)
            ]
        else:
            items = column.to_pylist()
        needed, made = self._writing.required, list[bytes | None]()
        for number, item in enumerate(items):
            if item is None:
                made.append(None)
                continue
            try:
                if needed and (missing := [each for each in needed if item.get(each) is None]):
                    raise ValueError(f"{min(missing)!r} is null, and the schema requires it")
                made.append(encode(item))
            except Exception as error:
                raise ValueNotEncoded(
                    f"the value of row {number} of a task's batch is no {format}: {error}"
                ) from error
        return pa.array(made, pa.binary())


def _arrow_stream(rows: pa.StructArray) -> bytes:
    """Return the rows of one value as an Arrow stream."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_struct_array(rows)
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _with_headers(rows: pa.Table, header: tuple[str, bytes] | None, gone: Any) -> pa.Table:
    """Add *header* to each row that has a value, and the header of a tombstone to the rows in
    *gone*.
    """
    there = rows["headers"].to_pylist() if "headers" in rows.column_names else [None] * len(rows)
    mine = [] if header is None else [_pair(header)]
    dead = [_pair(TOMBSTONE)]
    is_gone = gone.tolist() if gone is not None else [False] * len(rows)
    made = [
        (found or []) + (dead if one else mine) for found, one in zip(there, is_gone, strict=True)
    ]
    if "headers" in rows.column_names:
        rows = rows.drop_columns("headers")
    return rows.append_column("headers", pa.array(made, pa.list_(HEADER)))


def _pair(header: tuple[str, bytes]) -> dict[str, Any]:
    return {"key": header[0], "value": header[1]}
