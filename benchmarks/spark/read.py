"""Part S1: Spark reads, as a table and as a stream."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kafka import jars, server
from benchmarks.model import At, Goal, Job, Measures, Part, Side
from benchmarks.network import kafka_side
from benchmarks.network.kafka_side import Place
from benchmarks.network.pymq_side import cluster
from benchmarks.spark.engine import FILES, KAFKA, NEEDS, OURS, PATIENCE, rate, session, table, took

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
TOPIC = "rows"
SCHEMA = (
    "key binary, value binary, topic string, partition string, offset long, timestamp timestamp"
)
AGGREGATE = (
    "count(1)",
    "sum(length(key))",
    "sum(length(value))",
    "max(topic)",
    "max(partition)",
    "sum(offset)",
    "max(timestamp)",
)
# A poll gives as much as there is: by default 500 records, and 1 MiB of a partition.
KAFKA_OPTIONS = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
Load = Callable[["SparkSession"], "DataFrame"]


# --- what there is to read ----------------------------------------------------------------------


def make_parquet(job: Job) -> None:
    """Write the rows as Parquet, with snappy, Spark's default."""
    import pyarrow.parquet as pq

    folder = job.folder / TOPIC
    folder.mkdir()
    each = job.whole(ROWS) // FILES
    for number in range(FILES):
        pq.write_table(table(number * each, each), folder / f"{number}.parquet")


def make_json(job: Job) -> None:
    """Write the rows as lines of JSON; bytes as base64, as Spark writes and reads them."""
    from base64 import b64encode

    folder = job.folder / TOPIC
    folder.mkdir()
    each = job.whole(ROWS) // FILES
    for number in range(FILES):
        rows = table(number * each, each)
        text = rows["timestamp"].cast("timestamp[us]").cast("string").to_pylist()
        columns = (rows[name].to_pylist() for name in ("key", "value", "offset"))
        with (folder / f"{number}.json").open("w", encoding="ascii") as file:
            for key, value, offset, when in zip(*columns, text, strict=True):
                file.write(
                    f'{{"key":"{b64encode(key).decode()}","value":"{b64encode(value).decode()}",'
                    f'"topic":"{TOPIC}","partition":"0","offset":{offset},"timestamp":"{when}Z"}}\n'
                )


def make_folder(job: Job) -> None:
    """Send the rows to an embedded queue."""
    import pymq

    with pymq.open(str(job.folder / "queue")) as mq:
        _fill(mq, job)


def make_cluster(job: Job) -> None:
    """Send the rows to a broker."""
    import pymq

    with cluster(job.folder) as url, pymq.open(url) as mq:
        _fill(mq, job)


def _fill(mq: Any, job: Job) -> None:
    mq.create_topic(TOPIC, partitions=FILES)
    each = job.whole(ROWS) // FILES
    with mq.producer(delivery_timeout_s=300) as producer:
        for number in range(FILES):
            rows = table(number * each, each)
            for part in rows.to_batches(10_000):
                values, keys = part["value"].to_pylist(), part["key"].to_pylist()
                producer.send_many(TOPIC, values, keys, partition=number)


def make_kafka(job: Job) -> None:
    """Send the rows to a Kafka."""
    from confluent_kafka import Producer

    with server.kafka(job.folder) as bootstrap:
        there = Place(bootstrap, (TOPIC,), FILES)
        server.make_topic(there)
        settings = {**kafka_side.ROOM, **kafka_side.BATCHES, "log_level": 0}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        each = job.whole(ROWS) // FILES
        for number in range(FILES):
            rows = table(number * each, each)
            values, keys = rows["value"].to_pylist(), rows["key"].to_pylist()
            for value, key in zip(values, keys, strict=True):
                producer.produce(TOPIC, value, key, number)
            if producer.flush(300):
                raise TimeoutError("Kafka did not acknowledge all rows")


# --- reading ------------------------------------------------------------------------------------


def _aggregate(frame: DataFrame, count: int) -> None:
    (found,) = frame.selectExpr(*AGGREGATE).collect()
    if found[0] != count:
        raise ValueError(f"{found[0]} rows were read, not {count}")


def _read(job: Job, load: Load) -> Measures:
    count = job.whole(ROWS) // FILES * FILES
    with session(job.folder) as spark:
        return {"read": rate(job, count, lambda: _aggregate(load(spark), count))}


def parquet(job: Job) -> Measures:
    """Read with Spark's own reader."""
    return _read(job, lambda spark: spark.read.schema(SCHEMA).parquet(str(job.folder / TOPIC)))


def json(job: Job) -> Measures:
    """Read with Spark's own reader, which is given the schema."""
    return _read(job, lambda spark: spark.read.schema(SCHEMA).json(str(job.folder / TOPIC)))


def ours(place: Callable[[Path], AbstractContextManager[str]]) -> Callable[[Job], Measures]:
    """Read a table and a stream of a cluster, or of a folder."""

    def run(job: Job) -> Measures:
        with place(job.folder) as url, session(job.folder) as spark:
            return _both(job, spark, "pymq", {"url": url})

    return run


def kafka(job: Job) -> Measures:
    """Read a table and a stream of a Kafka, by Spark's connector."""
    with (
        server.kafka(job.folder) as bootstrap,
        session(job.folder, jars.paths("spark-kafka")) as spark,
    ):
        return _both(job, spark, "kafka", {"kafka.bootstrap.servers": bootstrap, **KAFKA_OPTIONS})


def _both(job: Job, spark: SparkSession, kind: str, place: dict[str, str]) -> Measures:
    """Read a topic as a table, and then as a stream."""
    options = {**place, "subscribe": TOPIC, "startingOffsets": "earliest"}
    count = job.whole(ROWS) // FILES * FILES
    checkpoint = job.folder / "checkpoint"

    def read() -> None:
        _aggregate(spark.read.format(kind).options(**options).load(), count)

    def stream() -> float:
        source = spark.readStream.format(kind).options(**options).load()
        return _stream(source, checkpoint, count)

    return {"read": rate(job, count, read), "stream": rate(job, count, stream)}


def _stream(source: DataFrame, checkpoint: Path, count: int) -> float:
    """Read everything as a stream of one batch; returns the seconds of the batch."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    sink = source.writeStream.foreachBatch(lambda frame, number: _aggregate(frame, count))
    sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return took(sink)


PARTS = (
    Part(
        "S1-read",
        "Spark reads: 8 and 100 B, four partitions, into an aggregate of all columns",
        (
            Side("parquet", "snappy", parquet, NEEDS, make_parquet, is_kept=True),
            Side("json", "base64, schema given", json, NEEDS, make_json, is_kept=True),
            Side(
                "kafka",
                "Spark's Kafka connector 4.2; stream: AvailableNow, time of its batch",
                kafka,
                KAFKA,
                make_kafka,
                is_kept=True,
            ),
            Side(
                "pymq",
                "a broker in a process of its own; stream: AvailableNow, time of its batch",
                ours(cluster),
                OURS,
                make_cluster,
                is_kept=True,
            ),
            Side(
                "pymq folder",
                "block files; stream: AvailableNow, time of its batch",
                ours(lambda folder: nullcontext(str(folder / "queue"))),
                NEEDS,
                make_folder,
                is_kept=True,
            ),
        ),
        (
            *(
                goal
                for side in ("pymq", "pymq folder")
                for goal in (
                    Goal(At(side, "read"), (At("parquet", "read"),), at_least=0.9),
                    Goal(At(side, "read"), (At("json", "read"),), at_least=1.5),
                    Goal(At(side, "stream"), (At(side, "read"),), at_least=0.8),
                )
            ),
            Goal(At("pymq", "read"), (At("kafka", "read"),), at_least=3),
            Goal(At("pymq", "stream"), (At("kafka", "stream"),), at_least=2.5),
        ),
        runs_max=3,
        patience=PATIENCE,
    ),
)
