"""The programs of test_faults.py for a Spark with separate executors; each program prints JSON.

Spark's driver can receive no more than 64 KiB of results, and send no more than 1 MiB.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import pymq.spark
from tests.spark.conftest import SETTINGS

WAIT_S = 120.0
KILL_S = 15.0  # time between the deaths of two executors during queries
MORE = {
    "spark.driver.maxResultSize": "64k",
    "spark.rpc.message.maxSize": "1",  # MiB
    "spark.executor.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.quantile": "0.5",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "20",  # a dead executor counts as a failure of its task
}


QUERIES = 4
BATCH = 50  # records of a batch of a query


def main(what: str, url: str, package: str, folder: str) -> None:
    """Run the program *what*, with executors that load pymq from *package*, as with
    ``--py-files``.
    """
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, setting in (SETTINGS | MORE | {"spark.submit.pyFiles": package}).items():
        builder = builder.config(name, setting)
    spark = builder.getOrCreate()
    pymq.spark.register(spark)
    programs = {"writes": writes, "queries": queries, "reads": reads, "endure": endure}
    found = programs[what](spark, url, folder)
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


def queries(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Copy topic ``big`` in several queries at once, in small batches, while executors die."""
    source = spark.readStream.format("pymq").options(url=url, subscribe="big")
    source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=BATCH)
    running = []
    for number in range(QUERIES):
        sink = source.load().select("key", "value").writeStream.format("pymq")
        sink = sink.options(url=url, topic=f"out-{number}")
        sink = sink.option("checkpointLocation", f"{folder}/checkpoint-{number}")
        running.append(sink.trigger(availableNow=True).start())
    killed, until = 0, time.monotonic() + KILL_S
    while any(query.isActive for query in running):
        if time.monotonic() > until:
            killed += kill_an_executor(str(spark.sparkContext.applicationId), killed)
            until = time.monotonic() + KILL_S
        running[0].awaitTermination(1)
    return {
        "killed": killed,
        "batches": [max(each["batchId"] for each in query.recentProgress) for query in running],
        "errors": [str(query.exception()) for query in running if query.exception()],
    }


def endure(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Copy topic ``in`` in four queries, two of them with pymq's sink, until ``stop`` exists."""
    source = spark.readStream.format("pymq").options(url=url, subscribe="in")
    rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=5_000).load()
    frame = rows.select("key", "value")
    by_batch = frame.writeStream.foreachBatch(pymq.spark.foreach_batch("out-2", url=url))
    writers = [
        frame.writeStream.format("pymq").options(url=url, topic="out-0"),
        frame.writeStream.format("pymq").options(url=url, topic="out-1"),
        by_batch,
        frame.writeStream.format("parquet").option("path", f"{folder}/out-3"),
    ]
    running = [
        writer.option("checkpointLocation", f"{folder}/checkpoint-{number}").start()
        for number, writer in enumerate(writers)
    ]
    with open(f"{folder}/application", "w", encoding="utf-8") as file:
        file.write(str(spark.sparkContext.applicationId))
    while all(query.isActive for query in running) and not os.path.exists(f"{folder}/stop"):
        running[0].awaitTermination(1)
    errors = [str(query.exception()) for query in running if query.exception()]
    if not errors:
        for query in running:
            query.processAllAvailable()
    found = [
        max((each["batchId"] for each in query.recentProgress), default=0) for query in running
    ]
    for query in running:
        query.stop()
    return {"batches": found, "errors": errors}


def reads(spark: SparkSession, url: str, _: str) -> dict[str, Any]:
    """Read a partition that is cut into four tasks; the executor of one dies in mid-read."""
    source = spark.read.format("pymq").options(url=url, subscribe="long", maxTasks="4").load()
    rows = source.select("offset").mapInArrow(kill_within, "offset long, attempt int")
    found = rows.selectExpr(
        "count(1) rows",
        "sum(offset) sum",
        "min(offset) first",
        "max(offset) last",
        "max(attempt) attempts",
    )
    return {"tasks": source.rdd.getNumPartitions(), **found.collect()[0].asDict()}


def kill_an_executor(app: str, turn: int) -> int:
    """Kill one of this application's executors; Spark starts another."""
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{each}/cmdline", encoding="utf-8", errors="replace") as file:
                line = file.read()
        except OSError:
            continue  # The process has ended.
        if "CoarseGrainedExecutorBackend" in line and app in line:
            found.append(int(each))
    if not found:
        return 0
    os.kill(sorted(found)[turn % len(found)], signal.SIGKILL)
    return 1


def writes(spark: SparkSession, url: str, _: str) -> dict[str, Any]:
    """Copy a topic, then write with a task that hangs, and last with an executor that dies."""
    source = spark.read.format("pymq").options(url=url, subscribe="big").load()
    found: dict[str, Any] = {"read": source.agg({"value": "count"}).collect()[0][0]}
    found["from"] = spark.sparkContext.range(4, numSlices=4).map(where_pymq_is).collect()
    write(source.select("key", "value"), url, "copied")
    try:
        source.collect()
    except Exception as error:
        found["collect"] = str(error)
    rows = spark.range(0, 8000, 1, 4).selectExpr("cast(id as string) value")
    write(rows.mapInArrow(hang_once, "value string"), url, "hung")
    produce = pymq.spark.produce_in_arrow("produced", url=url, job="hung")
    acks = rows.mapInArrow(hang_once, "value string").mapInArrow(produce, pymq.spark.ACK_SCHEMA)
    found["acknowledged"] = sum(ack.records for ack in acks.collect())
    write(rows.mapInArrow(kill_once, "value string"), url, "killed")
    return found


def write(frame: DataFrame, url: str, topic: str) -> None:
    frame.write.format("pymq").options(url=url, topic=topic).mode("append").save()


def where_pymq_is(_: int) -> str:
    """Return the file from which a task has imported pymq."""
    import pymq

    return str(pymq.__file__)


def is_first() -> bool:
    """Return whether this is the first attempt of task 3."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId() == 3 and context.attemptNumber() == 0


def hang_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield all rows, and then hang until another attempt has succeeded."""
    yield from batches
    until = time.monotonic() + WAIT_S
    while is_first() and time.monotonic() < until:
        time.sleep(0.1)  # Spark ends this process during the loop.


def kill_within(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield some batches with the number of the attempt, and then kill the executor."""
    import pyarrow as pa

    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        attempt = pa.array([context.attemptNumber()] * len(batch), pa.int32())
        yield pa.RecordBatch.from_arrays([batch["offset"], attempt], ["offset", "attempt"])
        if number == 2 and is_first():
            kill_this_executor()


def kill_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield all rows, and then kill the executor."""
    yield from batches
    if is_first():
        kill_this_executor()


def kill_this_executor() -> None:
    with open(f"/proc/{os.getppid()}/stat", encoding="ascii") as file:
        executor = int(file.read().rpartition(")")[2].split()[1])  # the parent of the daemon
    os.kill(executor, signal.SIGKILL)
    time.sleep(WAIT_S)  # A task without an executor ends.


if __name__ == "__main__":
    main(*sys.argv[1:])
