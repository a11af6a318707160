"""A Spark query that reads flights from one topic, and writes the results of each airport and hour
to another.

spark_pipeline.py starts this program, kills it and starts it again. The query stops when its input
ends; after a line ``finish`` it first reads all existing records.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession, functions

import pymq.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = "timestamp_ms long, origin string, dep_delay int"
# A flight's record is sent when the flight leaves, at most 22 hours after its scheduled hour; the
# topic's partitions may be a day apart.
WATERMARK = "2 days"
HOUR = (
    "origin key",
    "to_json(struct(unix_millis(window.start) hour, origin, flights, cancelled, delay)) value",
)
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts sooner
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark's usual manager starts a process for each file that it writes.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}


def main() -> None:
    """Start the query, report the start, and wait."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="zmq+tcp://HOST:PORT of zkservers")
    parser.add_argument("--checkpoint", required=True, help="a folder")
    parser.add_argument("--source", default="flights", help="a topic (%(default)s)")
    parser.add_argument("--sink", default="hours", help="a topic (%(default)s)")
    parser.add_argument("--most", default=20_000, type=int, help="flights a batch (%(default)s)")
    args = parser.parse_args()

    spark = session()
    pymq.spark.register(spark)
    flights = (
        spark.readStream.format("pymq")
        .options(url=args.url, subscribe=args.source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", args.most)
        .load()
    )
    query = (
        hours(flights)
        .writeStream.format("pymq")
        .options(url=args.url, topic=args.sink, checkpointLocation=args.checkpoint)
        # write the result of an hour once no more flights of that hour can come
        .outputMode("append")
        .start()
    )
    print("running", flush=True)
    wait(query)
    spark.stop()


def hours(records: DataFrame) -> DataFrame:
    """Count flights and their delay, by hour and airport."""
    return (
        records.selectExpr(f"from_json(cast(value as string), '{FLIGHT}') flight")
        .selectExpr("flight.*", "timestamp_millis(flight.timestamp_ms) scheduled")
        .withWatermark("scheduled", WATERMARK)
        .selectExpr("window(scheduled, '1 hour') window", "origin", "dep_delay")
        .groupBy("window", "origin")
        .agg(
            functions.expr("count(*) flights"),
            functions.expr("count_if(dep_delay is null) cancelled"),
            functions.expr("coalesce(sum(dep_delay), 0) delay"),
        )
        .selectExpr(*HOUR)
    )


def session() -> SparkSession:
    """Start Spark on this machine, with two slots."""
    # otherwise Spark's workers use the default python3
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("pymq")
    for name, setting in SETTINGS.items():
        builder = builder.config(name, setting)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def wait(query: StreamingQuery) -> None:
    """Wait for the end of the query, of its input, or for the line ``finish``."""
    while query.isActive and not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    if query.isActive and sys.stdin.readline().strip() == "finish":
        query.processAllAvailable()
    if query.isActive:
        query.stop()
    else:
        query.awaitTermination()  # raises the query's error


if __name__ == "__main__":
    main()
