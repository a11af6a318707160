"""Values with schemas as columns, without Spark."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import attrs
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

import pymq
from pymq.errors import ConfigError, InvalidRequest, ValueNotDecoded, ValueNotEncoded
from pymq.serde import Avro, Json, Protobuf, Schema
from pymq.serde.serializer import text_of
from pymq.spark.arrays import BatchPart
from pymq.spark.columns import plain_values
from pymq.spark.options import ValueOptions
from pymq.spark.values.checked import check_rows, writing
from pymq.spark.values.codecs import codec
from pymq.spark.values.schema_types import mismatches, required, type_of
from pymq.spark.values.value_columns import Reading, ValueColumn, ValueWriter, Writing
from pymq.spark.write.rows import encode

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "int", "default": 1},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "size", "type": "Size"}]}}},
    ],
}  # fmt: skip


@attrs.frozen
class Address:
    city: str
    lines: list[str] = attrs.Factory(list)


@attrs.frozen
class Order:
    item: str
    count: int = 1
    price: decimal.Decimal | None = None
    at: datetime.datetime | None = None
    day: datetime.date | None = None
    data: bytes = b""
    tags: dict[str, int] = attrs.Factory(dict)
    to: Address | None = None


ORDER = Order(
    "teapot",
    3,
    decimal.Decimal("1.50"),
    datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 2),
    b"\0\xff",
    {"a": 1},
    Address("Xi'an", ["1", "2"]),
)

ITSELF = {"name": "n", "type": 11, "repeated": False, "required": False, "of": "a"}


def arrow(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


def decoded(format: str, text: str, data: list[bytes]) -> list[Any]:
    kind = arrow(type_of(format, text))
    made = codec(format, text, kind)
    return list(pa.array([made.decode(each) for each in data], kind).to_pylist())


def test_json_of_typed_topics_is_read_and_written() -> None:
    """Values of a typed topic become structs, and the sink writes structs as objects."""
    theirs = Json().codec(Order)
    text = theirs.schema.text
    kind = arrow(type_of("json", text))
    (row,) = decoded("json", text, [theirs.encode(ORDER)])
    assert (row["item"], row["count"], row["price"]) == ("teapot", 3, decimal.Decimal("1.5"))
    assert (row["at"], row["day"], row["data"]) == (ORDER.at, ORDER.day, ORDER.data)
    assert dict(row["tags"]) == {"a": 1}
    assert row["to"] == {"city": "Xi'an", "lines": ["1", "2"]}
    made = codec("json", text, kind)
    assert theirs.decode(made.encode(row)) == ORDER
    assert made.schema == theirs.schema
    (least,) = decoded("json", text, [b'{"item":"cup","more":1}'])
    assert least["item"] == "cup"
    assert least["count"] is None
    assert theirs.decode(made.encode(least)) == Order("cup")
    assert required("json", text) == {"item"}


def test_avro_is_read_and_written() -> None:
    theirs = Avro(AVRO).codec(dict)
    value = {
        "item": "teapot",
        "count": 2,
        "price": decimal.Decimal(7),
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "id": "12345678-1234-5678-1234-567812345678",
        "size": "L",
        "tags": {"a": 1},
        "lines": [{"size": "S"}],
    }
    (row,) = decoded("avro", theirs.schema.text, [theirs.encode(value)])
    assert {**row, "tags": dict(row["tags"])} == value
    made = codec("avro", theirs.schema.text, arrow(type_of("avro", theirs.schema.text)))
    fewer = {name: each for name, each in row.items() if name != "count"}
    again = theirs.decode(made.encode({**fewer, "at": None}))
    assert again == {**theirs.decode(theirs.encode(value)), "count": 1, "at": None}
    assert made.schema == theirs.schema
    assert required("avro", theirs.schema.text) == {"item", "price", "id", "size", "tags", "lines"}


def test_protobuf_is_read_and_written() -> None:
    """Protobuf needs only the registered table of fields, and no generated classes."""
    from google.protobuf.api_pb2 import Api, Method

    theirs = Protobuf().codec(Api)
    value = Api(name="x", methods=[Method(name="m", request_streaming=True)], version="1")
    value.source_context.file_name = "f"
    text = theirs.schema.text
    (row,) = decoded("protobuf", text, [theirs.encode(value)])
    assert (row["name"], row["version"], row["syntax"]) == ("x", "1", 0)
    assert row["source_context"] == {"file_name": "f"}
    assert row["methods"][0]["request_streaming"] is True
    made = codec("protobuf", text, arrow(type_of("protobuf", text)))
    assert theirs.decode(made.encode(row)) == value
    assert made.schema == theirs.schema


@pytest.mark.parametrize(
    ("format", "schema"),
    [
        ("json", '{"type": "object", "properties": {"a": {"anyOf": [{}, {}]}}}'),
        ("json", '{"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}'),
        ("avro", '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}'),
        ("avro", '{"type": "array", "items": ["int", "long"]}'),
        ("avro", '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "B"}]}'),
        ("avro", "a string, b int"),
        ("protobuf", "{}"),
        ("protobuf", json.dumps({"message": "a", "messages": {"a": {"1": ITSELF}}})),
    ],
)  # fmt: skip
def test_schemas_without_a_type_in_spark(format: str, schema: str) -> None:
    with pytest.raises(ConfigError):
        type_of(format, schema)


def test_a_column_must_fit_its_schema() -> None:
    wanted = type_of("json", Json().codec(Order).schema.text)
    tags = MapType(StringType(), IntegerType())
    fits = StructType().add("item", "string").add("count", IntegerType()).add("tags", tags)
    assert mismatches(fits, wanted) == []
    wrong = StructType().add("item", IntegerType()).add("other", "string")
    assert mismatches(wrong, wanted) == [
        "value.item is int, and string in the schema",
        "value.other is not in the schema",
    ]
    text = Json().codec(Order).schema.text
    with pytest.raises(ConfigError, match=r"value\.item is missing"):
        check_rows(ValueOptions("json", text), StructType().add("count", LongType()))
    with pytest.raises(ConfigError, match="it is a struct"):
        check_rows(ValueOptions("json"), StringType())
    with pytest.raises(ConfigError, match="array of structs"):
        check_rows(ValueOptions("arrow"), StructType().add("count", LongType()))
    check_rows(ValueOptions("arrow"), ArrayType(StructType().add("count", LongType())))


# --- columns ------------------------------------------------------------------------------------

KIND = pa.struct([("item", pa.string()), ("count", pa.int64())])


def part(*rows: tuple[bytes, list[tuple[str, bytes]]]) -> BatchPart:
    table = pa.table(
        {
            "value": pa.array([value for value, _ in rows], pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in headers] for _, headers in rows],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    return BatchPart(encode(table, 1_000).at("t", "0"), 0, len(rows))


def column(reading: Reading, *parts: BatchPart) -> list[Any]:
    count = sum(each.length for each in parts)
    return list(ValueColumn(reading, plain_values)(parts, count).to_pylist())


TOMBSTONE = ("pymq.tombstone", b"")


def test_a_tombstone_becomes_null() -> None:
    """Only a record with the tombstone mark becomes null; an empty value does not."""
    reading = Reading("binary", None, pa.binary(), True, False, lambda _: {})
    parts = part((b"a", []), (b"", [])), part((b"", [TOMBSTONE]), (b"b", [("h", b"")]))
    assert column(reading, *parts) == [b"a", b"", None, b"b"]
    assert column(reading, parts[0]) == [b"a", b""]


@pytest.mark.parametrize("bad", [b"{", b"[1]", b'{"count": "many"}', b"\xff"])
def test_a_bad_value_is_named_or_becomes_null(bad: bytes) -> None:
    good = b'{"item": "x", "count": 1}'
    parts = part((good, []), (b"", [TOMBSTONE])), part((good, []), (bad, []))
    reading = Reading("json", None, KIND, True, True, lambda _: {})
    found = {"item": "x", "count": 1}
    assert column(reading, *parts) == [found, None, found, None]
    with pytest.raises(ValueNotDecoded, match=r"t/0 offset 1 .*'valueMode'"):
        column(reading._replace(is_permissive=False), parts[1])


def avro_record(fields: list[dict[str, Any]]) -> Schema:
    return Schema("avro", text_of({"type": "record", "name": "A", "fields": fields}))


def test_avro_is_read_with_the_schema_it_was_written_with() -> None:
    fields: list[dict[str, Any]] = [{"name": "item", "type": "string"}]
    old = avro_record(fields)
    own = avro_record([{"name": "count", "type": "long", "default": 5}, *fields])
    asked: list[set[str]] = []

    def find(names: set[str]) -> dict[str, Schema]:
        asked.append(names)
        return {old.fingerprint: old}

    reading = Reading("avro", own.text, KIND, True, False, find)
    data = codec("avro", old.text, KIND).encode({"item": "x"})
    strange = ("pymq.schema", b"0" * 16)
    with pytest.raises(ValueNotDecoded, match="is not registered"):
        column(reading, part((data, [strange])))
    named = ("pymq.schema", old.fingerprint.encode())
    made = ValueColumn(reading, plain_values)
    for _ in range(2):
        found = made([part((data, [named]))], 1).to_pylist()
        assert found == [{"item": "x", "count": 5}]
    assert len(asked) == 2  # one request for each unknown schema


def written(options: ValueOptions, rows: dict[str, pa.Array]) -> pa.Table:
    return ValueWriter(writing(options)).encode(pa.table(rows))


def test_rows_become_values_with_the_header_of_their_schema() -> None:
    text = Json().codec(Address).schema.text
    kind = pa.struct([("city", pa.string()), ("lines", pa.list_(pa.string()))])
    rows = {"value": pa.array([{"city": "a"}, {"city": "b", "lines": ["c"]}], kind)}
    found = written(ValueOptions("json", text), rows)
    assert found["value"].to_pylist() == [b'{"city":"a"}', b'{"city":"b","lines":["c"]}']
    header = {"key": "pymq.schema", "value": Json().codec(Address).schema.fingerprint.encode()}
    assert found["headers"].to_pylist() == [[header], [header]]
    plain = written(ValueOptions("json"), rows)
    assert plain.column_names == ["value"]
    with pytest.raises(ValueNotEncoded, match="'city' is null"):
        written(ValueOptions("json", text), {"value": pa.array([{"lines": []}], kind)})


def test_a_null_value_becomes_a_tombstone() -> None:
    rows = {"key": pa.array([b"k", b"l"]), "value": pa.array([None, b"v"])}
    found = written(ValueOptions(null_tombstones=True), rows)
    assert found["value"].to_pylist() == [b"", b"v"]
    tombstone = {"key": "pymq.tombstone", "value": b""}
    assert found["headers"].to_pylist() == [[tombstone], []]
    for key in (pa.array([None, b"l"], pa.binary()), None):
        rows = {"value": rows["value"], **({} if key is None else {"key": key})}
        with pytest.raises(InvalidRequest, match="tombstone, and needs a key"):
            written(ValueOptions(null_tombstones=True), rows)


def test_arrow_values_hold_several_rows() -> None:
    kind = pa.list_(KIND)
    rows = [[{"item": "a", "count": 1}, {"item": "b", "count": None}], [], None]
    table = pa.table({"value": pa.array(rows, kind), "key": pa.array([b"k"] * 3)})
    encoded = ValueWriter(Writing("arrow", None, True)).encode(table)
    reading = Reading("arrow", None, kind, True, False, lambda _: {})
    found = ValueColumn(reading, plain_values)(
        [BatchPart(encode(encoded, 1).at("t", "0"), 0, 3)], 3
    )
    assert found.to_pylist() == rows
    wider = pa.list_(pa.struct([("count", pa.int64()), ("more", pa.string())]))
    reading = reading._replace(kind=wider)
    data = encoded["value"].to_pylist()[0]
    assert column(reading, part((data, [])))[0][0] == {"count": 1, "more": None}
    with pytest.raises(ValueNotDecoded):
        column(reading, part((data[:-9], [])))
    assert pa.ipc.open_stream(data).read_all().num_rows == 2


def test_the_registry_of_typed_topics_is_read_through_the_log(tmp_path: Any) -> None:
    from pymq.spark.options import source_options
    from pymq.spark.read.value_schema import resolve_source
    from pymq.spark.values.registered import find

    with pymq.open(str(tmp_path)) as mq:
        for topic in ("orders", "addresses", "plain"):
            mq.create_topic(topic)
        mq.topic("orders", Order, compatibility="backward").register()
        mq.topic("addresses", Address, compatibility="backward").register()
        url = {"url": str(tmp_path), "valueFormat": "json"}
        text = Json().codec(Order).schema.text
        options = resolve_source(source_options({**url, "subscribe": "orders"}, is_stream=False))
        assert options.values.schema == text
        assert (
            resolve_source(
                source_options({**url, "subscribe": "plain"}, is_stream=False)
            ).values.schema
            is None
        )
        with pytest.raises(ConfigError, match="have different schemas"):
            resolve_source(source_options({**url, "subscribePattern": ".*"}, is_stream=False))
        avro = {**url, "valueFormat": "avro", "subscribe": "orders"}
        with pytest.raises(ConfigError, match="is of the format 'json'"):
            resolve_source(source_options(avro, is_stream=False))
        own = Json().codec(Address).schema
        assert find(options, {own.fingerprint, "0" * 16}) == {own.fingerprint: own}
