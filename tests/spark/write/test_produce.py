"""Producers in Spark's code: Spark may run the code several times, and each record is produced
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pymq
import pymq.spark
from pymq.errors import ConfigError
from tests.spark.conftest import fill, run
from tests.spark.write.test_sink import mq, stages, url, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mq", "url"]  # fixtures
pytestmark = pytest.mark.spark


def test_two_actions_and_a_retry_produce_once(
    spark: SparkSession, mq: pymq.Client, url: str
) -> None:
    from pyspark import TaskContext

    mq.create_topic("udf", partitions=2)
    produce = pymq.spark.produce_in_arrow("udf", url=url, job="load-1")

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from produce(batches)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("this attempt dies when it has produced all")

    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) value", "'k' key")
    acks = frame.mapInArrow(fail_once, pymq.spark.ACK_SCHEMA)
    first = acks.collect()
    again = acks.collect()
    assert sum(row.records for row in first) == sum(row.records for row in again) == 1000
    assert {(row.task, row.is_new) for row in first} == {(0, True), (1, False)}
    assert not any(row.is_new for row in again)
    assert values(mq, "udf") == list(range(1000))
    assert [name for name in stages(mq) if ".job." not in name] == []


@pytest.mark.slow
def test_a_job_is_not_run_again_in_another_number_of_tasks(
    spark: SparkSession, mq: pymq.Client, url: str
) -> None:
    mq.create_topic("recut")

    def run_in(count: int, tasks: int | None, rows: int = 100) -> None:
        produce = pymq.spark.produce_in_arrow("recut", url=url, job="recut", tasks=tasks)
        frame = spark.range(0, rows, 1, count).selectExpr("cast(id as string) value")
        frame.mapInArrow(produce, pymq.spark.ACK_SCHEMA).collect()

    run_in(2, 2)
    run_in(2, 2)
    for count, tasks, rows, complaint in (
        (1, None, 100, "has written 50 records, and is now given 100"),
        # the first two tasks are the same as before
        (3, 2, 150, "was to have tasks=2, and this is number 3"),
        (4, 4, 100, "Run it in as many"),  # whichever task comes first
    ):
        with pytest.raises(Exception, match=complaint):
            run_in(count, tasks, rows)
    assert values(mq, "recut") == list(range(100))


@pytest.mark.slow
def test_without_a_name_it_is_refused(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    mq.create_topic("nameless")
    produce = pymq.spark.produce_in_arrow("nameless", url=url)
    frame = spark.range(10).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="give job="):
        frame.mapInArrow(produce, pymq.spark.ACK_SCHEMA).collect()
    plain = pymq.spark.produce_in_arrow("nameless", url=url, delivery="at-least-once")
    acks = frame.mapInArrow(plain, pymq.spark.ACK_SCHEMA).collect()
    assert sum(ack.records for ack in acks) == 10
    assert values(mq, "nameless") == list(range(10))
    with pytest.raises(ConfigError, match="'delivery'"):
        pymq.spark.produce_in_arrow("nameless", url=url, delivery="twice")


@pytest.mark.slow
def test_pandas_rows_and_a_udf(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    for topic in ("pandas", "rows", "sent"):
        mq.create_topic(topic)
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value")
    produce = pymq.spark.produce_in_pandas("pandas", url=url, job="a")
    frame.mapInPandas(produce, pymq.spark.ACK_SCHEMA).collect()
    assert values(mq, "pandas") == list(range(100))
    frame.foreachPartition(pymq.spark.foreach_partition("rows", url=url, job="b"))
    assert values(mq, "rows") == list(range(100))
    send = pymq.spark.send_udf("sent", url=url)
    found = frame.select("value", send("value").alias("offset")).collect()
    with mq.consumer("sent", mode="psb") as consumer:
        expected = {record.offset: record.value.decode() for record in consumer.until_end()}
    assert {row.offset: row.value for row in found} == expected


def test_updates_are_written_once(
    spark: SparkSession, mq: pymq.Client, url: str, checkpoint: str
) -> None:
    """Each update of output mode ``update`` is written once by foreachBatch."""
    mq.create_topic("clicks")
    mq.create_topic("totals")
    fill(mq, "clicks", 20)
    source = spark.readStream.format("pymq").options(
        url=url, subscribe="clicks", startingOffsets="earliest", maxOffsetsPerTrigger=10
    )
    counts = source.load().groupBy("topic").count().selectExpr("cast(count as string) value")
    write = pymq.spark.foreach_batch("totals", url=url)
    sink = counts.writeStream.outputMode("update").foreachBatch(write)
    run(sink.option("checkpointLocation", checkpoint).trigger(availableNow=True))
    assert values(mq, "totals") == [10, 20]
