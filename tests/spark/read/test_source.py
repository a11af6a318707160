"""Tables and streams of a queue in a folder, on a real Spark."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pymq
import pymq.spark
from tests.spark.conftest import fill, run, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Load = Callable[..., "DataFrame"]
Stream = Callable[..., list[list[Any]]]


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(row.value) for row in rows)


def flat(batches: list[list[Any]]) -> list[Any]:
    return [row for batch in batches for row in batch]


# --- tables -------------------------------------------------------------------------------------


def test_a_table_has_every_record_while_its_owner_writes_on(folder: str, load: Load) -> None:
    """A table has all records of sealed and open blocks while another process has the
    folder open.
    """
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=3, block_bytes=4096)
        fill(mq, "t", 6000, keys=[b"%d" % (n % 7) for n in range(6000)])
        for options in ({}, {"minPartitions": "7"}, {"maxTasks": "1"}):
            rows = load(folder, subscribe="t", **options).collect()
            assert numbers(rows) == list(range(6000)), options
        fill(mq, "t", 10, start=6000)
        rows = load(folder, subscribe="t").collect()
        assert numbers(rows) == list(range(6010))
        with mq.consumer("t", mode="psb") as consumer:
            expected = {(r.partition, r.offset): r for r in consumer.until_end()}
        for row in rows:
            record = expected[row.partition, row.offset]
            assert (row.topic, row.key, row.value) == ("t", record.key, record.value)
            assert round(row.timestamp.timestamp() * 1000) == record.timestamp_ms


def test_a_table_has_what_kafkas_clients_have_produced(folder: str, load: Load) -> None:
    ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with pymq.open(folder) as mq, mq.kafka() as kafka:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            options = {"bootstrap.servers": kafka.bootstrap, "compression.type": codec}
            producer = ck.Producer(options | {"linger.ms": 5})
            for number in range(200):
                producer.produce("t", b"%d" % number, key=codec.encode(), headers={"h": b"1"})
            assert producer.flush(20) == 0
        fill(mq, "t", 100)
    rows = load(folder, subscribe="t", includeHeaders="true").collect()
    assert sorted(row.offset for row in rows) == list(range(1_100))
    theirs = [row for row in rows if row.key is not None]
    assert {(bytes(row.key), int(row.value)) for row in theirs} == {
        (codec, number)
        for codec in (b"none", b"gzip", b"snappy", b"lz4", b"zstd")
        for number in range(200)
    }
    assert [(each.key, bytes(each.value)) for each in theirs[0].headers] == [("h", b"1")]


@pytest.mark.slow
def test_minimum_partitions_and_longest_tasks(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 1000)
    assert load(folder, subscribe="t", minPartitions=5).rdd.getNumPartitions() == 5
    assert load(folder, subscribe="t", maxRecordsPerPartition=300).rdd.getNumPartitions() == 4


@pytest.mark.slow
def test_short_partitions_share_tasks_as_many_as_there_are_slots(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=5)
        for partition in range(5):
            fill(mq, "t", 10, start=partition * 10, partition=partition)
    for options, count in (({}, 2), ({"maxTasks": 3}, 3), ({"maxRecordsPerPartition": 10}, 5)):
        table = load(folder, subscribe="t", **options)
        assert table.rdd.getNumPartitions() == count, options
        assert numbers(table.collect()) == list(range(50))


def test_some_columns_in_another_order(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 3)
    frame = load(folder, schema="offset long, value binary", subscribe="t")
    assert [tuple(row) for row in frame.collect()] == [(n, b"%08d" % n) for n in range(3)]
    with pytest.raises(Exception, match="there is no column 'size'"):
        load(folder, schema="size long", subscribe="t").collect()
    with pytest.raises(Exception, match="column 'offset' is bigint, not string"):
        load(folder, schema="offset string", subscribe="t").collect()


@pytest.mark.slow
def test_what_is_never_null_is_declared_so(folder: str, load: Load, stream: Stream) -> None:
    """Columns are declared not null, so Spark skips the checks; a user's schema may differ."""
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=2)
        fill(mq, "t", 10)
    found = load(folder, subscribe="t", includeHeaders="true")
    nullable = [field.name for field in found.schema.fields if field.nullable]
    assert nullable == ["key", "value", "headers"]
    theirs = load(folder, schema="value binary, offset long, topic string", subscribe="t")
    mixed = load(folder, schema="value binary, offset long not null, topic string", subscribe="t")
    assert all(field.nullable for field in theirs.schema.fields)
    assert [field.nullable for field in mixed.schema.fields] == [True, False, True]
    united = found.select("value", "offset", "topic").union(theirs).union(mixed)
    assert all(field.nullable for field in united.schema.fields)
    assert numbers(united.collect()) == sorted(3 * list(range(10)))
    joined = found.filter("offset is not null and topic is not null").join(
        theirs.select("value", "topic"), ["value", "topic"], "full_outer"
    )
    assert numbers(joined.collect()) == list(range(10))
    assert numbers(flat(stream(folder, subscribe="t", startingOffsets="earliest"))) == list(
        range(10)
    )


@pytest.mark.parametrize(
    ("name", "type_"),
    [("key", "binary"), ("value", "binary"), ("headers", "array<struct<key:string,value:binary>>")],
)
def test_a_column_that_may_be_null_cannot_be_declared_otherwise(
    folder: str, load: Load, name: str, type_: str
) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 3)
    with pytest.raises(Exception, match=f"column '{name}' may hold nulls"):
        load(folder, schema=f"offset long, {name} {type_} not null", subscribe="t").collect()


def test_headers_and_missing_keys(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq, mq.producer() as producer:
        mq.create_topic("t")
        producer.send("t", b"a", headers=[("h", b"1"), ("h", b"2")])
        producer.send("t", b"b", key=b"k").result()
    rows = load(folder, subscribe="t", includeHeaders="true").collect()
    found = [(row.value, row.key, [tuple(h) for h in row.headers or ()]) for row in rows]
    assert found == [(b"a", None, [("h", b"1"), ("h", b"2")]), (b"b", b"k", [])]


def test_topics_by_pattern_and_partitions_by_name(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq:
        for topic in ("a1", "a2", "b1"):
            mq.create_topic(topic, partitions=2)
            for partition in range(2):
                fill(mq, topic, 5, start=5 * partition, partition=partition)
    rows = load(folder, subscribePattern="a.").collect()
    assert {row.topic for row in rows} == {"a1", "a2"}
    assert len(rows) == 20
    rows = load(folder, assign='{"b1": [1]}').collect()
    assert [(row.partition, int(row.value)) for row in rows] == [("1", n) for n in range(5, 10)]
    assert load(folder, subscribe="a1,b1").count() == 20


def test_offsets_and_times(folder: str, load: Load) -> None:
    with pymq.open(folder) as mq, mq.producer() as producer:
        mq.create_topic("t")
        for number in range(100):
            producer.send("t", b"%d" % number, timestamp_ms=1_000_000 + 10 * number)
            if number % 10 == 9:
                producer.flush()
    cases: list[tuple[dict[str, str], range]] = [
        ({"startingOffsets": '{"t": {"0": 7}}', "endingOffsets": '{"t": {"0": 9}}'}, range(7, 9)),
        ({"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": "latest"}, range(100)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingTimestamp": "1000501"}, range(51, 100)),
        ({"endingTimestamp": "1000500"}, range(50)),
        (
            {
                "startingOffsetsByTimestamp": '{"t": {"0": 1000100}}',
                "endingOffsetsByTimestamp": '{"t": {"0": 1000120}}',
            },
            range(10, 12),
        ),
    ]
    for options, expected in cases:
        assert numbers(load(folder, subscribe="t", **options).collect()) == list(expected), options
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy"):
        load(folder, subscribe="t", startingTimestamp="2000000").collect()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert load(folder, subscribe="t", startingTimestamp="2000000", **strategy).count() == 0


def test_an_empty_topic(folder: str, load: Load, stream: Stream) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=3)
    assert load(folder, subscribe="t").collect() == []
    assert flat(stream(folder, subscribe="t", startingOffsets="earliest")) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "'subscribe', 'subscribePattern' and 'assign'"),
        ({"subscribe": "t", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "nobody"}, "nobody"),
        ({"assign": '{"t": [7]}'}, "option 'assign': topic 't' has no partition '7'"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"9": 1}}'}, "option 'startingOffsets'"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "option 'maxOffsetsPerTrigger'"),
    ],
)
def test_a_bad_option_is_named(
    folder: str, load: Load, options: dict[str, str], complaint: str
) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t")
    with pytest.raises(Exception, match=complaint):
        load(folder, **options).collect()


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_is_limited_and_goes_on_after_a_restart(folder: str, stream: Stream) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=2)
        for partition in range(2):
            fill(mq, "t", 50, start=50 * partition, partition=partition)
        options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
        batches = stream(folder, **options)
        assert [len(batch) for batch in batches] == [40, 40, 20]
        assert numbers(flat(batches)) == list(range(100))
        assert flat(stream(folder, **options)) == []
        fill(mq, "t", 10, start=100)
        assert numbers(flat(stream(folder, **options))) == list(range(100, 110))


@pytest.mark.slow
def test_state_of_columns_that_were_nullable_is_taken_over(
    spark: SparkSession, folder: str, checkpoint: str
) -> None:
    """A query continues with state of nullable columns, from earlier versions or a user's
    schema.
    """
    rows: list[Any] = []

    def count(*schema: str) -> dict[str, tuple[int, int]]:
        source = spark.readStream.format("pymq").options(url=folder, subscribe="t")
        source = source.option("startingOffsets", "earliest")
        for each in schema:
            source = source.schema(each)
        totals = (
            source.load()
            .dropDuplicates(["partition", "offset"])
            .groupBy("topic", "partition")
            .agg({"offset": "max", "timestamp": "count"})
        )
        sink = totals.writeStream.outputMode("complete")
        sink = sink.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        run(sink.option("checkpointLocation", checkpoint).trigger(availableNow=True))
        found = {row.partition: (row["max(offset)"], row["count(timestamp)"]) for row in rows}
        rows.clear()
        return found

    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=2)
        for partition in range(2):
            fill(mq, "t", 10, partition=partition)
        nullable = "topic string, partition string, offset long, timestamp timestamp"
        assert count(nullable) == {"0": (9, 10), "1": (9, 10)}
        fill(mq, "t", 5, partition=1)
        assert count() == {"0": (9, 10), "1": (14, 15)}


def test_a_batch_without_its_commit_is_read_again(
    folder: str, stream: Stream, checkpoint: str
) -> None:
    """After a crash between a batch and its commit the same rows are read again, and no others."""
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 30)
        options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
        assert len(stream(folder, **options)) == 3
        for name in ("2", ".2.crc"):
            Path(checkpoint, "commits", name).unlink(missing_ok=True)
        fill(mq, "t", 5, start=30)
        again, new = stream(folder, **options)
        assert numbers(again) == list(range(20, 30))
        assert numbers(new) == list(range(30, 35))


@pytest.mark.slow
def test_partitions_and_topics_come_while_a_query_lives(folder: str, stream: Stream) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("a1")
        fill(mq, "a1", 10)
        options = {"subscribePattern": "a.", "startingOffsets": "latest"}
        assert flat(stream(folder, **options)) == []
        mq.create_partition("a1", "more")
        fill(mq, "a1", 5, partition="more")
        mq.create_topic("a2")
        fill(mq, "a2", 7)
        rows = flat(stream(folder, **options))
        assert {(row.topic, row.partition) for row in rows} == {("a1", "more"), ("a2", "0")}
        assert len(rows) == 12


def test_a_topic_grows_under_a_running_query(
    spark: SparkSession, folder: str, checkpoint: str
) -> None:
    """A query reads new records of a growing topic, and reports its lag."""
    rows: list[Any] = []
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 10)
        source = spark.readStream.format("pymq").options(url=folder, subscribe="t")
        source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=6)
        sink = source.load().writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        query = started(sink.option("checkpointLocation", checkpoint))
        try:
            assert numbers(rows) == list(range(10))
            behind = [pymq.spark.lag(each) for each in query.recentProgress if each.numInputRows]
            assert behind == [{"t": {"0": 4}}, {"t": {"0": 0}}]
            mq.create_partition("t", "more")
            fill(mq, "t", 5, start=10, partition="more")
            query.processAllAvailable()
            assert numbers(rows) == list(range(15))
            assert pymq.spark.lag(query) == {"t": {"0": 0, "more": 0}}
        finally:
            query.stop()


@pytest.mark.slow
def test_a_topic_that_was_made_again(folder: str, stream: Stream) -> None:
    """Offsets of a recreated topic are new, even if the topic has more records than the old one."""
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 10)
        options = {"subscribe": "t", "startingOffsets": "earliest"}
        assert len(flat(stream(folder, **options))) == 10
        mq.delete_topic("t")
        mq.create_topic("t")
        fill(mq, "t", 20, start=100)
        with pytest.raises(Exception, match="was deleted and created again"):
            stream(folder, **options)
        rows = flat(stream(folder, failOnDataLoss="false", **options))
        assert numbers(rows) == list(range(100, 120))
        assert flat(stream(folder, **options)) == []


@pytest.mark.slow
def test_retention_overtakes_a_query(folder: str, stream: Stream) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t", block_bytes=4096, retention_bytes=8192)
        fill(mq, "t", 10)
        options = {"subscribe": "t", "startingOffsets": "earliest"}
        assert len(flat(stream(folder, **options))) == 10
        for number in range(40):
            fill(mq, "t", 100, start=10 + 100 * number)
        start = overtaken(mq, 10)
        with pytest.raises(Exception, match="failOnDataLoss"):
            stream(folder, **options)
        rows = flat(stream(folder, failOnDataLoss="false", **options))
        assert numbers(rows) == list(range(start, 4010))


def overtaken(mq: pymq.Client, offset: int) -> int:
    """Wait until retention has removed *offset* and more; returns the log start."""
    import time

    until = time.monotonic() + 30
    last = -1
    while time.monotonic() < until:
        start = mq.describe_topic("t").partitions[0].start_offset
        if start > offset and start == last:
            return start
        last = start
        time.sleep(0.3)
    raise AssertionError("retention took nothing")


def test_offsets_in_the_checkpoint_are_always_the_same_text(
    folder: str, stream: Stream, checkpoint: str
) -> None:
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=12)
        fill(mq, "t", 24, keys=[b"%d" % n for n in range(24)])
        stream(folder, subscribe="t", startingOffsets="earliest")
    text = Path(checkpoint, "offsets", "0").read_text().splitlines()[-1]
    found = json.loads(text)
    assert list(found) == ["@", "t"]
    assert list(found["t"]) == [str(number) for number in range(12)]


def test_a_plan_has_positions_and_no_records(folder: str, java: None) -> None:
    """The serialized task of a long topic is as small as that of a short one."""
    from pymq.spark.columns import schema
    from pymq.spark.options import source_options
    from pymq.spark.read.source import TableReader

    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=2)
        fill(mq, "t", 100_000)
        reader = TableReader(
            source_options({"url": folder, "subscribe": "t"}, is_stream=False),
            schema(has_headers=False),
        )
        tasks = reader.partitions()
        assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 100_000
        assert len(pickle.dumps((reader, tasks))) < 5000


def test_what_is_no_folder(tmp_path: Path, load: Load, spark: SparkSession) -> None:
    with pytest.raises(Exception, match="is no pymq folder"):
        load(str(tmp_path), subscribe="t").collect()
    with pytest.raises(Exception, match="what is in memory"):
        load("memory:", subscribe="t").collect()
    shutil.rmtree(tmp_path)
