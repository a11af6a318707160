"""Part S1: Spark reads, as a table and as a stream."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.model import At, Goal, Job, Measures, Part, Side
from benchmarks.network.pymq_side import cluster
from benchmarks.spark.engine import FILES, NEEDS, OURS, PATIENCE, rate, session, table, took

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
        count = job.whole(ROWS) // FILES * FILES
        with place(job.folder) as url, session(job.folder) as spark:
            options = {"url": url, "subscribe": TOPIC, "startingOffsets": "earliest"}

            def read() -> None:
                _aggregate(spark.read.format("pymq").options(**options).load(), count)

            def stream() -> float:
                return _stream(spark, options, job.folder / "checkpoint", count)

            return {"read": rate(job, count, read), "stream": rate(job, count, stream)}

    return run


def _stream(spark: SparkSession, options: dict[str, str], checkpoint: Path, count: int) -> float:
    """Read everything as a stream of one batch; return the seconds of the batch."""
    source = spark.readStream.format("pymq").options(**options).load()
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
        tuple(
            goal
            for side in ("pymq", "pymq folder")
            for goal in (
                Goal(At(side, "read"), (At("parquet", "read"),), at_least=0.9),
                Goal(At(side, "read"), (At("json", "read"),), at_least=1.5),
                Goal(At(side, "stream"), (At(side, "read"),), at_least=0.8),
            )
        ),
        runs_max=3,
        patience=PATIENCE,
    ),
)
