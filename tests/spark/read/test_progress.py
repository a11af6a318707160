"""The lag of a query, as groups, metrics and the listener show it to operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")

import pymq
import pymq.spark
from tests.simulator.processes import ProcessCluster
from tests.spark.conftest import ROOT, TOO_SLOW, TRIES, fill, run, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ProcessCluster(folder, ROOT / "examples", brokers=1, zkservers=1, zookeepers=0) as made:
        yield made


def query(spark: SparkSession, url: str, checkpoint: str, **options: Any) -> DataStreamWriter:
    source = spark.readStream.format("pymq").options(url=url, startingOffsets="earliest", **options)
    sink = source.load().writeStream.format("noop").queryName("copying")
    return sink.option("checkpointLocation", checkpoint)


@pytest.mark.slow
def test_a_group_shows_the_progress_of_a_query(
    spark: SparkSession, cluster: ProcessCluster, checkpoint: str
) -> None:
    """The group has no members; the query reads from the offsets in its checkpoint, not from the
    group's.
    """
    with pymq.open(cluster.url) as mq:
        mq.create_topic("watched", partitions=2)
        for partition in range(2):
            fill(mq, "watched", 30, partition=partition)
        make = query(spark, cluster.url, checkpoint, subscribe="watched", group="spark-copying")
        run(make.trigger(availableNow=True))
        found = mq.describe_group("spark-copying")
        assert found.members == ()
        assert found.committed == {("watched", "0"): 30, ("watched", "1"): 30}
        assert set(found.lag.values()) == {0}
        fill(mq, "watched", 5, partition=1)
        assert mq.describe_group("spark-copying").lag == {("watched", "0"): 0, ("watched", "1"): 5}
        mq.reset_group("spark-copying", "watched", 0)
        make = query(spark, cluster.url, checkpoint, subscribe="watched", group="spark-copying")
        rows = started(make)
        try:
            assert sum(each.numInputRows for each in rows.recentProgress) == 5
        finally:
            rows.stop()


def first_batch(
    writer: DataStreamWriter, cluster: ProcessCluster, listener: pymq.spark.ProgressListener
) -> StreamingQuery:
    """Start a query; returns it when the listener knows of its first batch."""
    for _ in range(TRIES):  # A busy machine may take longer to start Python than Spark waits.
        query = writer.start()
        cluster.wait_for(
            lambda: bool(len(listener.metrics())) or not query.isActive,  # noqa: B023 # in the loop
            "the first batch has ended",
            180,
        )
        if query.isActive:
            break
        assert TOO_SLOW in str(query.exception())
    return query


def test_a_listener_puts_the_lag_into_metrics(
    spark: SparkSession, cluster: ProcessCluster, checkpoint: str
) -> None:
    with pymq.open(cluster.url) as mq:
        mq.create_topic("measured", partitions=2)
        with mq.producer() as producer:
            producer.send_many("measured", [bytes(100)] * 50, partition=0).result()
        listener = pymq.spark.ProgressListener(mq)
        spark.streams.addListener(listener)
        options = {"subscribe": "measured", "maxOffsetsPerTrigger": "10"}
        writer = query(spark, cluster.url, checkpoint, **options)
        writer = writer.trigger(processingTime="1 hour")  # This query runs one batch only.
        running = first_batch(writer, cluster, listener)
        try:
            metrics = mq.metrics()
            lag = {
                stat: metrics.value("pymq_spark_offsets_behind_latest", query="copying", stat=stat)
                for stat in ("min", "max", "avg")
            }
            assert lag == {"min": 0, "max": 40, "avg": 20}
            size = metrics.value("pymq_spark_bytes_behind_latest", source="pymq[measured]")
            assert 40 * 100 <= size <= 40 * 150
            assert pymq.spark.describe(running) == ["pymq[measured]"]
        finally:
            running.stop()
        cluster.wait_for(lambda: not len(listener.metrics()), "the query is forgotten")
        spark.streams.removeListener(listener)
