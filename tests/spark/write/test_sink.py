"""A cluster of processes, read and written by a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pymq
from pymq.hash.partitioner import key_partition
from tests.nodes.processes import processes
from tests.spark.conftest import fill, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Load = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def url(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a cluster with one broker."""
    pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")
    with processes(tmp_path_factory.mktemp("cluster"), brokers=1) as cluster:
        yield cluster.url


@pytest.fixture
def mq(url: str) -> Iterator[pymq.Client]:
    with pymq.open(url) as client:
        yield client


def values(mq: pymq.Client, topic: str) -> list[int]:
    """Return the content of a topic, as sorted numbers."""
    with mq.consumer(topic, mode="psb") as consumer:
        return sorted(int(record.value) for record in consumer.until_end())


def stages(mq: pymq.Client) -> list[str]:
    """Return the staged records; a task that is still running after its job was aborted may leave
    some.
    """
    found = [name for name in mq.topics() if name.startswith("pymq-spark.")]
    return [name for name in found if name != "pymq-spark.decisions"]


def write(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("pymq").options(url=url, **options).mode("append").save()


def test_a_table_goes_in_and_comes_out(
    spark: SparkSession, mq: pymq.Client, url: str, load: Load
) -> None:
    """The sink puts keys into the same partitions as the plain client, and leaves no staged
    record.
    """
    mq.create_topic("table", partitions=3)
    frame = spark.range(3000).selectExpr(
        "cast(id as string) value",
        "cast(id % 7 as string) key",
        "array(struct('n' as key, cast('x' as binary) as value)) headers",
        "timestamp_millis(1000 * id) timestamp",
    )
    write(frame.repartition(3), url, topic="table")
    rows = load(url, subscribe="table", includeHeaders="true", minPartitions=4).collect()
    assert sorted(int(row.value) for row in rows) == list(range(3000))
    for row in rows:
        assert int(row.partition) == key_partition(row.key, 3)
        assert round(row.timestamp.timestamp()) == int(row.value)
        assert [tuple(pair) for pair in row.headers] == [("n", b"x")]
    assert stages(mq) == []


def test_a_task_that_fails_once(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    """The second attempt of a task counts, and the first one leaves nothing."""
    from pyspark import TaskContext

    mq.create_topic("retried")

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if context is not None and context.attemptNumber() == 0 and number:
                raise RuntimeError("this attempt dies with most of its rows staged")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = spark.range(0, 3000, 1, 2).selectExpr("cast(id as string) value")
        write(frame.mapInArrow(fail_once, "value string"), url, topic="retried")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(mq, "retried") == list(range(3000))


def test_what_is_aborted_leaves_nothing(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    """An aborted job leaves no record, even if most rows are staged before the last,
    invalid one.
    """
    mq.create_topic("aborted")
    frame = spark.range(0, 4000, 1, 1).selectExpr(
        "if(id = 3999, cast(null as string), lpad(cast(id as string), 1000, '0')) value"
    )
    before = stages(mq)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        with pytest.raises(Exception, match="a row has no value"):
            write(frame, url, topic="aborted")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(mq, "aborted") == []
    assert stages(mq) == before


def test_a_table_with_a_version_is_written_once(
    spark: SparkSession, mq: pymq.Client, url: str
) -> None:
    mq.create_topic("versions")
    frame = spark.range(100).selectExpr("cast(id as string) value")
    for version in (1, 1, 2):
        write(frame, url, topic="versions", txnAppId="loader", txnVersion=version)
    assert values(mq, "versions") == sorted([*range(100)] * 2)
    with pytest.raises(Exception, match="has written batch 2"):
        write(frame, url, topic="versions", txnAppId="loader", txnVersion=1)


def test_plain_appends(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    mq.create_topic("plain", partitions=2)
    frame = spark.range(100).selectExpr("cast(id as string) value", "cast(id % 2 as int) partition")
    write(frame, url, topic="plain", delivery="at-least-once")
    assert values(mq, "plain") == list(range(100))


@pytest.mark.parametrize(
    ("column", "options", "complaint"),
    [
        ("id", {"topic": "bad"}, "column 'id' cannot be written"),
        ("id value", {"topic": "bad"}, "column 'value' cannot be written as bigint"),
        ("'x' key", {"topic": "bad"}, "a column 'value' is needed"),
        ("'x' value", {}, "option 'topic' is missing"),
        ("'x' value", {"topic": "bad", "delivery": "twice"}, "option 'delivery'"),
        ("'x' value", {"topic": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, url: str, column: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        write(spark.range(1).selectExpr(column), url, **options)


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.slow), {"txnAppId": "large", "txnVersion": "1"}],
)
def test_records_as_large_as_their_topic_allows(
    spark: SparkSession, mq: pymq.Client, url: str, options: dict[str, str]
) -> None:
    """The staging topic accepts records as large as the target topic does, and the error names the
    target topic.
    """
    topic = f"large-{len(options)}"
    mq.create_topic(topic, max_record_bytes=16 << 20)
    frame = spark.range(0, 3, 1, 1).selectExpr("repeat('x', 5 * 1024 * 1024) value")
    write(frame, url, topic=topic, **options)
    with mq.consumer(topic, mode="psb") as consumer:
        assert [len(record.value) for record in consumer.until_end()] == [5 << 20] * 3
    with pytest.raises(Exception, match=f"max_record_bytes=.*{topic}"):
        write(spark.range(1).selectExpr("repeat('x', 17 * 1024 * 1024) value"), url, topic=topic)


def test_a_header_without_a_key_is_refused(spark: SparkSession, mq: pymq.Client, url: str) -> None:
    mq.create_topic("headless")
    fill(mq, "headless", 1)
    headers = "array(named_struct('key', cast(null as string), 'value', cast('a' as binary)))"
    with pytest.raises(Exception, match="a header has no key"):
        write(spark.range(1).selectExpr("'x' value", f"{headers} headers"), url, topic="headless")
    assert values(mq, "headless") == [0]


def test_a_folder_cannot_be_written(spark: SparkSession, folder: str) -> None:
    with pytest.raises(Exception, match="start a cluster"):
        write(spark.range(1).selectExpr("'x' value"), folder, topic="t")


def test_a_stream_is_written_once_though_spark_forgets(
    spark: SparkSession, mq: pymq.Client, url: str, checkpoint: str
) -> None:
    """Spark repeats a batch whose commit it has lost, and the sink detects the repetition."""
    mq.create_topic("in", partitions=2)
    mq.create_topic("out", partitions=2)
    options = {"url": url, "subscribe": "in", "startingOffsets": "earliest"}

    def copy() -> None:
        source = spark.readStream.format("pymq").options(**options, maxOffsetsPerTrigger=200)
        frame = source.load().selectExpr("value", "key").repartition(2)
        sink = frame.writeStream.format("pymq").options(url=url, topic="out")
        run(sink.option("checkpointLocation", checkpoint).trigger(availableNow=True))

    fill(mq, "in", 600, keys=[b"%d" % n for n in range(600)])
    copy()
    assert values(mq, "out") == list(range(600))
    last = max(int(file.name) for file in Path(checkpoint, "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        Path(checkpoint, "commits", name).unlink(missing_ok=True)
    fill(mq, "in", 100, start=600)
    copy()
    assert values(mq, "out") == list(range(700))
    assert [name for name in stages(mq) if ".job." not in name] == []


def test_the_complete_mode_is_refused(spark: SparkSession, url: str, checkpoint: str) -> None:
    frame = spark.readStream.format("rate").load().groupBy("value").count()
    sink = frame.selectExpr("cast(value as string) value").writeStream.format("pymq")
    options = {"url": url, "topic": "out", "checkpointLocation": checkpoint}
    sink = sink.options(**options).outputMode("complete").trigger(availableNow=True)
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        run(sink)
