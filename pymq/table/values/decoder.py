"""Decodes values to typed columns, a batch at a time.

Values of JSON go through Arrow's JSON reader as one text. If the reader refuses a batch, Python
decodes value by value, and finds those that do not fit the schema. Both ways give the same columns
(``tests/table/test_decoder.py``).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pymq.table.rows import Value
from pymq.table.values.columns import TIME, WRAPPED, Column
from pymq.table.values.strict import check_for

Load = Callable[[Value], Any]
"""Decodes one value; may raise any exception."""

# Arrow's exceptions for a value of another type
NOT_OF_TYPE = (pa.ArrowException, ValueError, TypeError, OverflowError)


def load_json(value: Value) -> Any:
    """Decode one value of JSON."""
    return json.loads(str(value.data, "utf-8"))


class Decoder:
    """Decodes the values of one schema."""

    def __init__(self, columns: Sequence[Column], load: Load) -> None:
        self._columns = columns
        self._load = load
        self._plain = pa.struct([(each.name, each.plain) for each in columns])
        self._is_wrapped = [each.name for each in columns] == [WRAPPED]
        self._checks = [(each, check_for(each.plain)) for each in columns]
        self._is_fast = load is load_json and not any(each.prepare for each in columns)

    def __call__(self, values: Sequence[Value | None]) -> tuple[pa.Table, list[bool]]:
        """Decode values; None is a tombstone. A value that cannot be decoded has null in all
        columns.
        """
        found = self._fast(values) if self._is_fast else None
        rows, good = (found, [True] * len(values)) if found is not None else self._slow(values)
        arrays = []
        for column, array in zip(self._columns, rows.flatten(), strict=True):
            if column.kind != column.plain:
                array, bad = from_text(array, column.kind)  # noqa: PLW2901 -- the same column
                for index in bad:
                    good[index] = False
            arrays.append(array)
        if not all(good):
            mask = pa.array(good)
            arrays = [pc.if_else(mask, each, pa.scalar(None, each.type)) for each in arrays]
        schema = pa.schema([(column.name, column.kind) for column in self._columns])
        return pa.Table.from_arrays(arrays, schema=schema), good

    def _fast(self, values: Sequence[Value | None]) -> pa.StructArray | None:
        """Decode all values at once; None if Python's decoder might give another result."""
        texts = [b"{}" if each is None else each.data for each in values]
        # If there are as many objects as lines, each value is one object on one line: a line break
        # inside a value would have to follow "}" and precede "{", which is never valid JSON.
        if not all(text[:1] == b"{" and text[-1:] == b"}" for text in texts):
            return None
        data = b"\n".join(texts)
        if not data or data.count(b"\n") != len(texts) - 1:
            return None
        try:
            data.decode()  # Arrow does not check UTF-8.
            table = pyarrow.json.read_json(
                io.BytesIO(data),
                pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                pyarrow.json.ParseOptions(
                    explicit_schema=pa.schema(list(self._plain)),
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore",
                ),
            )
        except NOT_OF_TYPE:
            return None
        if len(table) != len(texts):
            return None
        columns = [table.column(each.name).combine_chunks() for each in self._columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._plain))

    def _slow(self, values: Sequence[Value | None]) -> tuple[pa.StructArray, list[bool]]:
        rows: list[dict[str, Any]] = []
        good = [True] * len(values)
        for index, each in enumerate(values):
            try:
                rows.append({} if each is None else self._row(each))
            except Exception:  # A codec may raise anything for a bad value.
                rows.append({})
                good[index] = False
        try:
            return pa.array(rows, self._plain), good
        except NOT_OF_TYPE:
            pass
        for index, row in enumerate(rows):
            try:
                pa.array([row], self._plain)
            except NOT_OF_TYPE:
                rows[index], good[index] = {}, False
        return pa.array(rows, self._plain), good

    def _row(self, value: Value) -> dict[str, Any]:
        found = self._load(value)
        if self._is_wrapped:
            found = {WRAPPED: found}
        if type(found) is not dict:
            raise TypeError("it is no object")
        row = {}
        for (name, _, _, prepare), check in self._checks:
            each = found.get(name)
            row[name] = check(each if prepare is None else prepare(each))
        return row


def from_text(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Convert texts to *kind*; returns the column, and the indexes of texts that cannot be
    converted.
    """
    if kind == TIME or kind == pa.date32():
        try:
            return texts.cast(kind), []
        except pa.ArrowInvalid:
            pass  # Arrow requires a zone in each text.
    convert = _FROM_TEXT[kind]
    found: list[Any] = []
    bad: list[int] = []
    for index, text in enumerate(texts.to_pylist()):
        try:
            found.append(None if text is None else convert(text))
        except ValueError:
            found.append(None)
            bad.append(index)
    return pa.array(found, kind), bad


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_FROM_TEXT: dict[pa.DataType, Callable[[str], Any]] = {
    TIME: _time,
    pa.date32(): date.fromisoformat,
    pa.binary(): _bytes,
}
