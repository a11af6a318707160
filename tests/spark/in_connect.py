"""The program of test_connect.py, in a session of Spark Connect; prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import pymq.spark
from tests.spark.conftest import SETTINGS


def main(url: str, checkpoint: str) -> None:
    """Write running totals in output mode ``update``, twice with one checkpoint."""
    builder = SparkSession.builder.remote("local[2]")
    for name, setting in SETTINGS.items():
        builder = builder.config(name, setting)
    spark = builder.getOrCreate()
    pymq.spark.register(spark)
    found: dict[str, Any] = {}

    def run(sink: str | None) -> None:
        source = spark.readStream.format("pymq").options(
            url=url, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=10
        )
        totals = source.load().groupBy("key").count()
        rows = totals.selectExpr("key", "cast(count as string) value")
        write = pymq.spark.foreach_batch("totals", url=url, sink=sink)
        writer = rows.writeStream.outputMode("update").foreachBatch(write)
        where = f"{checkpoint}/{sink}"
        writer = writer.option("checkpointLocation", where).trigger(availableNow=True)
        writer.start().awaitTermination()

    run("totals")
    found["rows"] = spark.read.format("pymq").options(url=url, subscribe="totals").load().count()
    run("totals")
    found["again"] = spark.read.format("pymq").options(url=url, subscribe="totals").load().count()
    try:
        run(None)
    except Exception as error:
        found["error"] = str(error)
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
