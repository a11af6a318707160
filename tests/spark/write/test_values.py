"""Tombstones, and values with a schema, written and read by a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import pymq
import pymq.spark
from pymq.serde import Avro, Json, Protobuf
from tests.spark.conftest import fill
from tests.spark.write.test_sink import mq, stages, url, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["mq", "url"]  # fixtures
pytestmark = pytest.mark.spark

Load = Callable[..., "DataFrame"]
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "long"},
        {"name": "paid", "type": "boolean", "default": False},
    ],
}


@dataclass
class Order:
    item: str
    count: int = 1


def records(mq: pymq.Client, topic: str) -> list[pymq.Record]:
    with mq.consumer(topic, mode="psb") as consumer:
        return list(consumer.until_end())


def test_a_frame_that_was_read_can_be_written(
    spark: SparkSession, mq: pymq.Client, url: str, load: Load
) -> None:
    """A frame with all columns of the source can be written: rows keep key, partition, headers and
    time.
    """
    for topic in ("first", "second"):
        mq.create_topic(topic, partitions=2)
    fill(mq, "first", 20, keys=[b"%d" % n for n in range(20)])
    write(load(url, subscribe="first", includeHeaders="true"), url, topic="second")
    before, after = (
        {(r.partition, r.key, r.value, r.timestamp_ms) for r in records(mq, topic)}
        for topic in ("first", "second")
    )
    assert before == after
    with pytest.raises(Exception, match="column 'offset' cannot be written"):
        write(spark.range(1).selectExpr("'x' value", "'1' offset"), url, topic="second")


def test_tombstones_go_both_ways(
    spark: SparkSession, mq: pymq.Client, url: str, load: Load
) -> None:
    """Writing a null value deletes its key; with the option, Spark reads the tombstone as null."""
    mq.create_topic("changes")
    rows = "values ('a', 'one'), ('b', ''), ('a', null) as t(key, value)"
    frame = spark.sql(f"select * from {rows}").coalesce(1)
    with pytest.raises(Exception, match="nullTombstones"):
        write(frame, url, topic="changes")
    write(frame, url, topic="changes", nullTombstones="true")
    (gone,) = (each for each in records(mq, "changes") if each.headers)
    assert (gone.key, gone.value, gone.headers) == (b"a", b"", (("pymq.tombstone", b""),))
    for option, last in (("true", None), ("false", b"")):
        found = load(url, subscribe="changes", nullTombstones=option).orderBy("offset").collect()
        assert [row.value for row in found] == [b"one", b"", last]


def test_values_of_a_typed_topic_are_structs(
    spark: SparkSession, mq: pymq.Client, url: str, load: Load
) -> None:
    """Spark reads what Python sent with the registered schema, and the reverse."""
    mq.create_topic("orders")
    with mq.topic("orders", Order, compatibility="backward") as orders:
        orders.send(Order("teapot", 2), key=b"k")
        orders.flush()
        frame = load(url, subscribe="orders", valueFormat="json")
        assert frame.schema["value"].dataType.simpleString() == "struct<count:bigint,item:string>"
        assert [tuple(row) for row in frame.select("key", "value.*").collect()] == [
            (b"k", 2, "teapot")
        ]
        more = frame.selectExpr("struct(concat(value.item, '!') item, 7 count) value")
        write(more, url, topic="orders", valueFormat="json")
        with orders.consumer(mode="psb") as consumer:
            assert [each.value for each in consumer.until_end()] == [
                Order("teapot", 2),
                Order("teapot!", 7),
            ]
    headers = [each.headers for each in records(mq, "orders")]
    assert headers[0] == headers[1] != ()
    for wrong, complaint in (
        ("struct('x' thing, 1 count)", r"value.thing is not in the schema; value.item is missing"),
        ("struct('x' item, 'y' count)", "value.count is string, and bigint in the schema"),
        ("'text'", "with the option 'valueFormat' set to 'json' it is a struct"),
        ("struct(cast(null as string) item)", "'item' is null, and the schema requires it"),
    ):
        with pytest.raises(Exception, match=complaint):
            write(spark.range(1).selectExpr(f"{wrong} value"), url, topic="orders",
                  valueFormat="json")  # fmt: skip
    with pytest.raises(Exception, match="is of the format 'json'"):
        write(more, url, topic="orders", valueFormat="avro")
    assert len(records(mq, "orders")) == 2
    assert [each for each in stages(mq) if ".job." not in each] == []


def test_avro_and_protobuf(spark: SparkSession, mq: pymq.Client, url: str, load: Load) -> None:
    """Avro uses the registry, also for an earlier schema; protobuf uses the schema in the
    option.
    """
    from google.protobuf.type_pb2 import Option

    mq.create_topic("avro")
    older = {**AVRO, "fields": AVRO["fields"][:2]}
    for schema, value in ((older, {"item": "a", "count": 1}), (AVRO, {"item": "b", "count": 2})):
        with mq.topic("avro", dict, Avro(schema), compatibility="backward") as topic:
            topic.send(value)
            topic.flush()
    frame = spark.range(3, 4).selectExpr("struct('c' item, id count, true paid) value")
    write(frame, url, topic="avro", valueFormat="avro")
    found = load(url, subscribe="avro", valueFormat="avro").selectExpr("value.*").collect()
    assert sorted(tuple(row) for row in found) == [("a", 1, False), ("b", 2, False), ("c", 3, True)]

    mq.create_topic("protobuf")
    text = Protobuf().codec(Option).schema.text
    given = {"valueFormat": "protobuf", "valueSchema": text}
    rows = spark.range(1).selectExpr("struct('n' name) value")
    write(rows, url, topic="protobuf", **given)
    (record,) = records(mq, "protobuf")
    assert Option.FromString(record.value) == Option(name="n")
    assert load(url, subscribe="protobuf", **given).selectExpr("value.name").collect()[0][0] == "n"


def test_a_list_of_columns_and_bad_values(
    spark: SparkSession, mq: pymq.Client, url: str, load: Load
) -> None:
    mq.create_topic("columns")
    with mq.producer() as producer:
        producer.send_many("columns", [b'{"a":1,"b":{"c":"x"}}', b"{}", b"no"]).result()
    given = {"subscribe": "columns", "valueFormat": "json"}
    own = {**given, "valueSchema": "a int, b struct<c: string>"}
    with pytest.raises(Exception, match=r"columns/0 offset 2 cannot be decoded.*'valueMode'"):
        load(url, **own).collect()
    frame = load(url, **own, valueMode="PERMISSIVE").orderBy("offset")
    found = frame.selectExpr("value is null", "value.a", "value.b.c").collect()
    assert [tuple(row) for row in found] == [
        (False, 1, "x"),
        (False, None, None),
        (True, None, None),
    ]
    schema = "value struct<a: bigint>, offset long"
    good = load(url, schema=schema, **given, endingOffsets='{"columns": {"0": 2}}')
    assert [row.value.a for row in good.collect()] == [1, None]
    with pytest.raises(Exception, match="set the option 'valueSchema'"):
        load(url, **given)

    mq.create_topic("tables")
    several = spark.range(3).selectExpr("collect_list(struct(id, cast(id as string) text)) value")
    write(several, url, topic="tables", valueFormat="arrow")
    arrow = {"valueFormat": "arrow", "valueSchema": "id bigint, text string"}
    exploded = load(url, subscribe="tables", **arrow).selectExpr("inline(value)")
    assert sorted(tuple(row) for row in exploded.collect()) == [(0, "0"), (1, "1"), (2, "2")]


def test_functions_of_columns(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr(
        "if(id = 2, null, struct(cast(id as string) item, id count)) s"
    )
    text = json.dumps(AVRO)
    for format, schema in (
        ("json", "item string, count bigint"),
        ("json", Json().codec(Order).schema.text),
        ("avro", json.dumps({**AVRO, "fields": AVRO["fields"][:2]})),
    ):
        packed = frame.select(pymq.spark.to_value("s", format, schema).alias("v"))
        found = packed.select(pymq.spark.from_value("v", format, schema).alias("s"))
        rows = [row.s and row.s.asDict() for row in found.collect()]
        assert rows == [{"item": "0", "count": 0}, {"item": "1", "count": 1}, None]
    bad = spark.sql("select cast('x' as binary) v")
    with pytest.raises(Exception, match="a value cannot be decoded"):
        bad.select(pymq.spark.from_value("v", "avro", text)).collect()
    loose = bad.select(pymq.spark.from_value("v", "avro", text, mode="PERMISSIVE").alias("s"))
    assert loose.collect()[0].s is None
    with pytest.raises(pymq.errors.ConfigError, match="format='xml'"):
        pymq.spark.from_value("v", "xml", text)


def test_a_job_produces_values(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    mq.create_topic("produced-values")
    produce = pymq.spark.produce_in_arrow(
        "produced-values", url=url, job="values", valueFormat="json", nullTombstones="true"
    )
    frame = spark.sql("select 'k' key, if(id = 1, null, struct(id)) value from range(0, 2, 1, 1)")
    frame.mapInArrow(produce, pymq.spark.ACK_SCHEMA).collect()
    assert sorted((r.key, r.value) for r in records(mq, "produced-values")) == [
        (b"k", b""),
        (b"k", b'{"id":0}'),
    ]
