"""How wrong options of a source are reported by a real Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import pymq
from tests.spark.conftest import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Load = Callable[..., "DataFrame"]
Stream = Callable[..., list[list[Any]]]


@pytest.fixture
def topic(folder: str) -> str:
    """Create a topic with ten records; return the folder."""
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 10)
    return folder


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"kafka.bootstrap.servers": "b:9092"}, "name the cluster in 'url': 'zmq+tcp://host:port'"),
        ({"kafka.fetch.min.bytes": "1"}, "settings of Kafka's client have no effect here"),
        ({"groupIdPrefix": "g"}, "leave it out: offsets are in the checkpoint"),
    ],
)
def test_load_says_in_one_sentence_what_is_wrong(
    topic: str, spark: SparkSession, options: dict[str, str], sentence: str
) -> None:
    """``load`` raises the error, for tables and for streams, without a traceback."""
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="is not known") as found:
            reader.format("pymq").options(url=topic, subscribe="t", **options).load()
        lines = [line for line in str(found.value).splitlines() if line.strip()]
        assert sentence in lines[0]
        assert "Traceback" not in str(found.value)


def test_a_stream_with_a_given_schema_says_it_too(
    topic: str, spark: SparkSession, checkpoint: str
) -> None:
    """With a given schema Spark does not ask the source, so the query's start raises the error."""
    source = spark.readStream.format("pymq").schema("value binary")
    frame = source.options(url=topic, subscribe="t", startingOfsets="earliest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    with pytest.raises(Exception, match="did you mean 'startingOffsets'") as found:
        query.awaitTermination()
    assert "Traceback" not in str(found.value)


def test_offsets_after_the_end_are_reported(topic: str, load: Load, stream: Stream) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        options = {"subscribe": "t", name: '{"t": {"0": 11}}'}
        with pytest.raises(Exception, match=f"{name}.*t/0 ends at offset 10, before 11") as found:
            load(topic, **options).collect()
        assert "Traceback" not in str(found.value)
    assert load(topic, subscribe="t", startingOffsets='{"t": {"0": 10}}').collect() == []
    lenient = load(topic, failOnDataLoss="false", **options).collect()
    assert [int(row.value) for row in lenient] == list(range(10))
    with pytest.raises(Exception, match="t/0 ends at offset 10, before 11"):
        stream(topic, subscribe="t", startingOffsets='{"t": {"0": 11}}')


def test_a_table_that_ends_before_it_starts_is_reported(topic: str, load: Load) -> None:
    span = {"startingOffsets": '{"t": {"0": 7}}', "endingOffsets": '{"t": {"0": 5}}'}
    with pytest.raises(Exception, match=r"t/0 would be read from offset 7 to 5"):
        load(topic, subscribe="t", **span).collect()


@pytest.mark.slow
def test_create_table_says_what_works_instead(topic: str, spark: SparkSession) -> None:
    """Spark forgets a table's options; the way that the error recommends works."""
    options = f"OPTIONS (url '{topic}', subscribe 't')"
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW") as found:
        spark.sql(f"CREATE TABLE records USING pymq {options}")
    assert "Traceback" not in str(found.value)
    spark.sql(f"CREATE TEMPORARY VIEW records_view USING pymq {options}")
    assert spark.sql("SELECT count(*) FROM records_view").collect()[0][0] == 10
    spark.sql("CREATE TABLE records_columns (value binary) USING pymq")
    try:
        with pytest.raises(Exception, match="Spark gives none to a table of CREATE TABLE"):
            spark.sql("SELECT * FROM records_columns").collect()
        given = f"WITH (url = '{topic}', subscribe = 't')"
        assert spark.sql(f"SELECT * FROM records_columns {given}").count() == 10
    finally:
        spark.sql("DROP TABLE records_columns")
        spark.sql("DROP VIEW records_view")
