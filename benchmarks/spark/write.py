"""Parts S2 and S3: Spark writes, as a table and as a stream, and produces in its tasks."""

from __future__ import annotations

import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.kafka import jars, server
from benchmarks.model import At, Goal, Job, Measures, Part, Side
from benchmarks.network import kafka_side, limit_side
from benchmarks.network.kafka_side import Place
from benchmarks.network.pymq_side import cluster
from benchmarks.network.roles import Actor
from benchmarks.network.servers import HOST
from benchmarks.spark.engine import KAFKA, KEYS, NEEDS, OURS, PATIENCE, passes, rate, session, took

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
FILES = 2  # one file for each slot
TOPIC, PARTITIONS = "rows", 4
KAFKA_OPTIONS = {"kafka.linger.ms": "5", "kafka.batch.size": "1000000"}  # as with the C client
MADE = (
    f"encode(lpad(cast(id % {KEYS} as string), 8, '0'), 'utf-8') key",
    "encode(left(sha2(cast(id as string), 512), 100), 'utf-8') value",
)


def make_numbers(job: Job) -> None:
    """Write the rows' source as Parquet, to be read as a table and as a stream."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = job.folder / "numbers"
    folder.mkdir()
    each = job.whole(ROWS) // FILES
    for number in range(FILES):
        ids = np.arange(number * each, (number + 1) * each, dtype=np.int64)
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    return spark.read.schema("id long").parquet(str(job.folder / "numbers")).selectExpr(*MADE)


def _stream(spark: SparkSession, job: Job, kind: str, options: dict[str, str]) -> float:
    """Write everything as a stream of one batch; return the seconds of the batch."""
    source = spark.readStream.schema("id long").parquet(str(job.folder / "numbers"))
    checkpoint = job.folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    sink = source.selectExpr(*MADE).writeStream.format(kind).options(**options)
    sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return took(sink)


def parquet(job: Job) -> Measures:
    """Write with Spark's own writers."""
    count, out = job.whole(ROWS), str(job.folder / "out")

    with session(job.folder) as spark:

        def write() -> None:
            _rows(spark, job).write.mode("overwrite").parquet(out)

        def stream() -> float:
            shutil.rmtree(out, ignore_errors=True)
            return _stream(spark, job, "parquet", {"path": out})

        return {"write": rate(job, count, write), "stream": rate(job, count, stream)}


def _with_cluster(work: Callable[[SparkSession, Job, str], Measures], job: Job) -> Measures:
    """Run work with a broker, and check that each run wrote each row once."""
    import pymq

    home = job.folder / "cluster"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    job.warm(sum(passes(job)) * job.whole(ROWS) * 150)
    with cluster(home) as url, pymq.open(url) as mq, session(job.folder) as spark:
        mq.create_topic(TOPIC, PARTITIONS, acks="leader", fsync="os")
        found = work(spark, job, url)
        ends = [each.end_offset for each in mq.describe_topic(TOPIC).partitions]
        if sum(ends) % job.whole(ROWS):
            raise ValueError(f"{sum(ends)} rows are there, not so many times {job.whole(ROWS)}")
    return found


def kafka(job: Job) -> Measures:
    """Write with Spark's Kafka connector, and check that each run wrote each row."""
    home = job.folder / "kafka"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    job.warm(sum(passes(job)) * job.whole(ROWS) * 150)
    with (
        server.kafka(home) as bootstrap,
        session(job.folder, jars.paths("spark-kafka")) as spark,
    ):
        there = Place(bootstrap, (TOPIC,), PARTITIONS)
        server.make_topic(there)
        options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, **KAFKA_OPTIONS}
        found = _into(spark, job, "kafka", options)
        if (count := kafka_side.records(there)) % job.whole(ROWS):
            raise ValueError(f"{count} rows are there, not so many times {job.whole(ROWS)}")
    return found


def _write(spark: SparkSession, job: Job, url: str) -> Measures:
    return _into(spark, job, "pymq", {"url": url, "topic": TOPIC})


def _into(spark: SparkSession, job: Job, kind: str, options: dict[str, str]) -> Measures:
    """Append to a topic as a table, and then as a stream."""
    count = job.whole(ROWS)

    def write() -> None:
        _rows(spark, job).write.format(kind).options(**options).mode("append").save()

    def stream() -> float:
        return _stream(spark, job, kind, options)

    return {"write": rate(job, count, write), "stream": rate(job, count, stream)}


# --- producing in tasks -------------------------------------------------------------------------


def _produce(spark: SparkSession, job: Job, url: str) -> Measures:
    import pymq.spark

    count, number = job.whole(ROWS), itertools.count()

    def produce(**options: Any) -> None:
        function = pymq.spark.produce_in_arrow(TOPIC, url=url, **options)
        acks = _rows(spark, job).mapInArrow(function, pymq.spark.ACK_SCHEMA).collect()
        told = sum(ack.records for ack in acks)
        if told != count:
            raise ValueError(f"{told} rows were acknowledged, not {count}")

    send = pymq.spark.send_udf(TOPIC, url=url)

    def udf() -> None:
        rows = _rows(spark, job).select(send("value").alias("offset"))
        rows.selectExpr("max(offset)").collect()

    return {
        "once": rate(job, count, lambda: produce(job=f"run-{next(number)}")),
        "plain": rate(job, count, lambda: produce(delivery="at-least-once")),
        "udf": rate(job, count, udf),
    }


def prototype(job: Job) -> Measures:
    """Write Arrow columns with a checksum over ZeroMQ into a file, with an answer for each
    batch.
    """
    count = job.whole(ROWS)
    (port,) = limit_side.ports(1)
    serve = partial(limit_side.broker, is_durable=False)
    with ExitStack() as stack:
        server = stack.enter_context(Actor(serve, str(job.folder), port, ()))
        server.ready()
        server.go()
        stack.callback(limit_side.stop, port)
        spark = stack.enter_context(session(job.folder))

        def produce() -> None:
            rows = _rows(spark, job).mapInArrow(partial(_send, port), "records long")
            (told,) = rows.selectExpr("sum(records)").collect()
            if told[0] != count:
                raise ValueError(f"{told[0]} rows were acknowledged, not {count}")

        return {"plain": rate(job, count, produce)}


def _send(port: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task of the prototype."""
    import pyarrow as pa
    import zmq

    context: Any = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{HOST}:{port}")
    waiting = count = 0
    for batch in batches:
        count += len(batch)
        buffers = [each for column in batch.columns for each in column.buffers() if each]
        body = b"".join(memoryview(each) for each in buffers)
        socket.send_multipart([limit_side.PUT, zlib.crc32(body).to_bytes(4, "big"), body])
        waiting += 1
        if waiting >= limit_side.WINDOW:
            socket.recv()
            waiting -= 1
    for _ in range(waiting):
        socket.recv()
    context.destroy()
    yield pa.RecordBatch.from_pydict({"records": [count]})


PARTS = (
    Part(
        "S2-write",
        "Spark writes: 8 and 100 B, two tasks, made from Parquet of numbers",
        (
            Side("parquet", "snappy, no fsync", parquet, NEEDS, make_numbers),
            Side(
                "kafka",
                "Spark's Kafka connector 4.2, at least once, no fsync; one node",
                kafka,
                KAFKA,
                make_numbers,
            ),
            Side(
                "pymq",
                'exactly once: staged with fdatasync, then copied, fsync="os"; one broker',
                partial(_with_cluster, _write),
                OURS,
                make_numbers,
            ),
        ),
        (
            Goal(At("pymq", "write"), (At("parquet", "write"),), at_least=0.8),
            Goal(At("pymq", "stream"), (At("parquet", "stream"),), at_least=0.8),
            Goal(At("pymq", "write"), (At("kafka", "write"),), at_least=1.3),
            Goal(At("pymq", "stream"), (At("kafka", "stream"),), at_least=1.3),
        ),
        runs_max=3,
        patience=PATIENCE,
    ),
    Part(
        "S3-produce",
        "mapInArrow and a pandas UDF produce: 8 and 100 B, two tasks",
        (
            Side(
                "prototype",
                "Arrow's buffers, crc32, ZeroMQ and a file; 5 on their way",
                prototype,
                OURS,
                make_numbers,
            ),
            Side(
                "pymq",
                "once: exactly once; plain: at least once; udf: values alone, offsets back",
                partial(_with_cluster, _produce),
                OURS,
                make_numbers,
            ),
        ),
        (
            Goal(At("pymq", "plain"), (At("prototype", "plain"),), at_least=0.9),
            Goal(At("pymq", "udf"), at_least=500_000),
        ),
        runs_max=3,
        patience=PATIENCE,
    ),
)
