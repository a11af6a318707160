"""A Spark query that joins flights with the weather at their airport in their hour.

weather_pipeline.py starts the query, kills it and starts it again. The query ends when all records
that existed at its start are joined.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pymq.spark
from examples.spark_query import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT = "id long, origin string, scheduled long, carrier string, dep_delay int"
WEATHER = "origin string, hour long, temp double, wind_speed double, precip double"
JOINED = ("id", "origin", "scheduled", "carrier", "dep_delay", "temp", "wind_speed", "precip")
# Both topics are in the order of time; the partitions of a topic may be apart by a part of a batch.
WATERMARK = "2 days"


def main() -> None:
    """Run the query to the present end of both topics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="zmq+tcp://HOST:PORT of zkservers")
    parser.add_argument("--checkpoint", required=True, help="a folder")
    parser.add_argument("--flights", default="flights", help="a topic (%(default)s)")
    parser.add_argument("--weather", default="weather", help="a topic (%(default)s)")
    parser.add_argument("--sink", default="enriched", help="a topic (%(default)s)")
    parser.add_argument("--most", default=20_000, type=int, help="flights a batch (%(default)s)")
    args = parser.parse_args()

    spark = session()
    pymq.spark.register(spark)
    query = (
        enriched(
            stream(spark, args.url, args.flights, args.most),
            # There are 13 times as many flights as hours of weather at three airports. With this
            # limit both streams advance equally fast.
            stream(spark, args.url, args.weather, -(-args.most // 13)),
        )
        .writeStream.format("pymq")
        .options(url=args.url, topic=args.sink, checkpointLocation=args.checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    print("running", flush=True)
    query.awaitTermination()
    spark.stop()


def stream(spark: SparkSession, url: str, topic: str, most: int) -> DataFrame:
    """Read a topic from its first record on, at most *most* records per batch."""
    return (
        spark.readStream.format("pymq")
        .options(url=url, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=most)
        .load()
    )


def enriched(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Join each flight with the weather of its hour; a flight without weather stays."""
    left = (
        flights.selectExpr(f"from_json(cast(value as string), '{FLIGHT}') flight")
        .selectExpr("flight.*")
        .selectExpr("*", "date_trunc('hour', timestamp_millis(scheduled)) left_hour")
        .withWatermark("left_hour", WATERMARK)
        .alias("f")
    )
    right = (
        weather.selectExpr(f"from_json(cast(value as string), '{WEATHER}') weather")
        .selectExpr(
            "weather.origin at",
            "timestamp_millis(weather.hour) hour",
            "weather.temp",
            "weather.wind_speed",
            "weather.precip",
        )
        .withWatermark("hour", WATERMARK)
        .alias("w")
    )
    # The join is on equal hours and both sides have a watermark, so Spark drops records that cannot
    # match any more.
    return left.join(
        right, on=(left.origin == right["at"]) & (left.left_hour == right.hour), how="left"
    ).selectExpr(
        "f.origin key",
        f"to_json(struct({', '.join(JOINED)})) value",
    )


if __name__ == "__main__":
    main()
