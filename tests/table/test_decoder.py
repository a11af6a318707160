"""Values become typed columns; Arrow's fast reader and plain Python give the same columns."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.errors import ConfigError
from pymq.serde import Json
from pymq.table.rows import Value
from pymq.table.values.columns import avro_columns, json_columns, plain_columns, schema_of
from pymq.table.values.decoder import Decoder, load_json


@attrs.frozen
class Inside:
    x: int
    at: datetime.datetime


@attrs.frozen
class Everything:
    number: int
    maybe: float | None
    kind: str
    at: datetime.datetime
    day: datetime.date
    data: bytes
    tags: list[str]
    prices: dict[str, float]
    either: int | str
    inside: Inside
    children: list[Everything]


KINDS = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.int32()),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
        ("o", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("at", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("raw", pa.binary()),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.sampled_from(
        ["2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "aGk=", "1", "\ud800"]
    ),
)
ITEMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=2),
    ),
    max_leaves=4,
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1),
        "s": st.integers(-(2**31), 2**31 - 1),
        "f": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9)),
        "t": st.text(max_size=3),
        "b": st.booleans(),
        "l": st.lists(st.integers(0, 9), max_size=2),
        "o": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "y": st.text(max_size=2)}),
        "at": st.datetimes(timezones=st.just(datetime.UTC)).map(datetime.datetime.isoformat),
        "d": st.dates().map(datetime.date.isoformat),
        "raw": st.binary(max_size=3).map(lambda data: base64.b64encode(data).decode()),
        "unknown": st.integers(),
    },
)
BAD = st.dictionaries(st.sampled_from([*KINDS.names, "unknown"]), ITEMS, max_size=4)
BROKEN = st.sampled_from(
    [b"", b"{}{}", b"[]", b"5", b"null", b'{"t":"a\nb"}', b'{"t":"\xff"}', b'{"i":1', b" {} ",
     b'{"i":1,"i":2}', b'{"i":1.0}', b'{"i":1e2}', b"{\n}", b'{"t":"}', b'{","i":1}', b'{"f":NaN}']
)  # fmt: skip


def load_as_python(value: Value) -> Any:
    """Decode as :func:`load_json` does; the decoder has no fast way for this other function."""
    return load_json(value)


def encoded(found: Any) -> bytes:
    # Lone surrogates are sent as escapes, as other languages do.
    return json.dumps(found, ensure_ascii=True).encode()


VALUES = st.lists(
    st.one_of(st.none(), GOOD.map(encoded), BAD.map(encoded), BROKEN), min_size=1, max_size=4
)


@settings(max_examples=150)
@given(VALUES)
def test_both_ways_agree(values: list[bytes | None]) -> None:
    """If Arrow's reader accepts a batch, Python decodes the batch to the same values."""
    decoder = Decoder(plain_columns(KINDS), load_json)
    plain = Decoder(plain_columns(KINDS), load_as_python)
    assert plain._is_fast is False
    given = [None if each is None else Value(each, None) for each in values]
    found, good = decoder(given)
    wanted, wanted_good = plain(given)
    assert good == wanted_good
    assert found.schema == wanted.schema == KINDS
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())  # NaN is not equal to itself


@settings(max_examples=50)
@given(st.lists(GOOD, min_size=1, max_size=5))
def test_what_is_of_the_schema_takes_the_fast_way(found: list[dict[str, Any]]) -> None:
    decoder = Decoder(plain_columns(KINDS), load_json)
    rows, good = decoder([Value(encoded(each), None) for each in found])
    assert good == [True] * len(found)
    assert decoder._fast([Value(encoded(each), None) for each in found]) is not None
    for row, each in zip(rows.to_pylist(), found, strict=True):
        assert (row["i"], row["t"], row["b"]) == (each.get("i"), each.get("t"), each.get("b"))
        at = each.get("at")
        assert row["at"] == (at and datetime.datetime.fromisoformat(at))
        raw = each.get("raw")
        assert row["raw"] == (raw if raw is None else base64.b64decode(raw))


def test_a_bad_value_spoils_no_other() -> None:
    decoder = Decoder(plain_columns(pa.schema([("i", pa.int64()), ("d", pa.date32())])), load_json)
    values = [b'{"i":1}', b'{"i":1.5}', b'{"i":2,"d":"today"}', b"x", None, b'{"i":true}']
    rows, good = decoder([None if each is None else Value(each, None) for each in values])
    assert good == [True, False, False, False, True, False]
    assert [row["i"] for row in rows.to_pylist()] == [1, None, None, None, None, None]


def test_columns_of_json_schemas() -> None:
    """Columns are those of the table in pymq/table/values/columns.py; recursion and unions become
    text.
    """
    schema = Json().codec(Everything).schema.text
    found = schema_of(json_columns(schema))
    assert {field.name: str(field.type) for field in found} == {
        "number": "int64",
        "maybe": "double",
        "kind": "string",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "data": "binary",
        "tags": "list<item: string>",
        "prices": "map<string, double>",
        "either": "string",
        "inside": "struct<at: string, x: int64>",
        "children": "list<item: string>",
    }
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    value = Everything(
        1, 2.5, "a", at, at.date(), b"hi", ["t"], {"p": 1.0}, "x", Inside(1, at), []
    )  # fmt: skip
    data = Json().codec(Everything).encode(value)
    rows, good = Decoder(json_columns(schema), load_json)([Value(data, None)])
    assert good == [True]
    (row,) = rows.to_pylist()
    assert row["prices"] == [("p", 1.0)]
    assert row["either"] == '"x"'
    assert row["inside"] == {"x": 1, "at": "2026-01-02T00:00:00+00:00"}
    assert (row["data"], row["day"]) == (b"hi", datetime.date(2026, 1, 2))


def test_a_schema_that_is_no_object_has_one_column() -> None:
    columns = json_columns(Json().codec(list[int]).schema.text)
    rows, good = Decoder(columns, load_json)([Value(b"[1,2]", None), Value(b"{}", None)])
    assert good == [True, False]
    assert rows.to_pylist() == [{"value": [1, 2]}, {"value": None}]


def test_columns_of_avro_schemas() -> None:
    decimal = {"logicalType": "decimal", "precision": 9, "scale": 2}
    fields: list[dict[str, Any]] = [
        {"name": "i", "type": "int"},
        {"name": "n", "type": ["null", "double"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "e2", "type": "E"},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "a", "type": {"type": "array", "items": "bytes"}},
        {"name": "p", "type": {"type": "bytes", **decimal}},
        {"name": "r", "type": ["null", "R"]},
        {"name": "u", "type": ["int", "string"]},
    ]  # fmt: skip
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    assert [str(field.type) for field in schema_of(avro_columns(schema))] == [
        "int32", "double", "string", "string", "map<string, int64>", "list<item: binary>",
        "decimal128(9, 2)", "string", "string",
    ]  # fmt: skip


def test_a_type_that_json_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'x': JSON has no uint8"):
        plain_columns(pa.schema([("x", pa.uint8())]))
    with pytest.raises(ConfigError, match="JSON has no binary inside of a list or object"):
        plain_columns(pa.schema([("x", pa.list_(pa.binary()))]))
