"""When batches begin, and how large they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import pymq
from tests.spark.conftest import fill
from tests.spark.read.test_source import flat, numbers, overtaken

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pymq.spark.columns import schema
from pymq.spark.options import source_options
from pymq.spark.read.admission import limit_bytes, skip_gaps
from pymq.spark.read.source import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stream = Callable[..., list[list[Any]]]

PLACE = ("t", "0")


# --- without Spark ------------------------------------------------------------------------------


def reader(folder: str, **options: Any) -> StreamReader:
    found = {"url": folder, "subscribe": "t", "startingOffsets": "earliest", **options}
    return StreamReader(source_options(found, is_stream=True), schema(has_headers=False))


def next_end(stream: StreamReader, start: dict[str, Any]) -> int:
    found: int = stream.latestOffset(start, stream.getDefaultReadLimit())["t"]["0"]
    return found


def test_batches_of_so_many_bytes(folder: str) -> None:
    """Records of 100 bytes are followed by records of 10,000; no batch is much larger than the
    limit.
    """
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        for size, count in ((100, 2_000), (10_000, 200)):
            for _ in range(20):
                with mq.producer() as producer:
                    producer.send_many("t", [bytes(size)] * (count // 20)).result()
    stream = reader(folder, maxBytesPerTrigger="100000")
    at, batches = stream.initialOffset(), list[int]()
    while (end := next_end(stream, at)) > (start := at["t"]["0"]):
        batches.append(sum(100 if offset < 2_000 else 10_000 for offset in range(start, end)))
        at = {**at, "t": {"0": end}}
    assert end == 2_200
    assert max(batches) <= 200_000
    assert len(batches) <= 50
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["t"]["0"] == 2_200


def test_a_limit_of_bytes_gives_each_partition_a_record() -> None:
    start = {("t", str(number)): 0 for number in range(5)}
    end = dict.fromkeys(start, 1000) | {PLACE: 0}
    found = limit_bytes(lambda *_: 1_000.0, start, end, 1)
    assert found == {place: (1 if place != PLACE else 0) for place in start}
    assert limit_bytes(lambda *_: 10.0, start, end, 1 << 30) == end


def test_more_partitions_than_are_looked_at_share_the_limit() -> None:
    start = {("t", str(number)): 0 for number in range(100)}
    end = dict.fromkeys(start, 1_000)
    looked: list[Any] = []

    def size_at(place: Any, offset: int, last: int) -> float:
        looked.append((place, offset, last))
        return 100.0

    found = limit_bytes(size_at, start, end, 1_000_000)
    assert sum(found.values()) == 10_000
    assert len({place for place, _, _ in looked}) == 32


def test_a_gap_ends_where_the_log_starts() -> None:
    assert skip_gaps({PLACE: 5}, {PLACE: 8}, {PLACE: 9}) == {PLACE: 8}
    assert skip_gaps({PLACE: 5}, {PLACE: 8}, {PLACE: 6}) == {PLACE: 6}  # with a fixed end
    assert skip_gaps({PLACE: 9}, {PLACE: 8}, {PLACE: 6}) == {PLACE: 9}


def test_a_batch_waits_for_enough_records(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka's source, the first batch begins at once, the next one when it has enough records
    or the delay is over.
    """
    now = [1_000.0]
    monkeypatch.setattr("pymq.spark.read.source.time.monotonic", lambda: now[0])
    with pymq.open(folder) as mq:
        mq.create_topic("t")
        fill(mq, "t", 3)
        stream = reader(folder, minOffsetsPerTrigger="100", maxTriggerDelay="30s")
        at = stream.initialOffset()
        assert next_end(stream, at) == 3
        at = {**at, "t": {"0": 3}}
        fill(mq, "t", 99, start=3)
        now[0] += 29
        assert next_end(stream, at) == 3
        fill(mq, "t", 1, start=102)
        assert next_end(stream, at) == 103
        at = {**at, "t": {"0": 103}}
        fill(mq, "t", 1, start=103)
        now[0] += 29
        assert next_end(stream, at) == 103
        now[0] += 2
        assert next_end(stream, at) == 104
        stream.prepareForTriggerAvailableNow()
        fill(mq, "t", 1, start=104)
        assert next_end(stream, {**at, "t": {"0": 103}}) == 104


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"maxTriggerDelay": "1m"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"group": "no spaces"}, "group"),
        ({"group": "g", "url": "data/"}, "group"),
    ],
)
def test_what_is_wrong_with_an_option(options: dict[str, str], name: str) -> None:
    with pytest.raises(pymq.errors.ConfigError, match=name):
        source_options({"url": "zmq+tcp://h:1", "subscribe": "t", **options}, is_stream=True)


# --- on a real Spark ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
def test_a_gap_is_skipped_at_once(folder: str, stream: Stream) -> None:
    """The limit of a batch counts existing records, not those that retention has removed."""
    with pymq.open(folder) as mq:
        mq.create_topic("t", block_bytes=4096, retention_bytes=8192)
        fill(mq, "t", 10)
        options = {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"}
        assert len(flat(stream(folder, **options))) == 10
        for number in range(40):
            fill(mq, "t", 100, start=10 + 100 * number)
        start = overtaken(mq, 10)
        left = 4_010 - start
        batches = stream(folder, maxOffsetsPerTrigger=left // 2 + 1, **options)
        assert [len(batch) for batch in batches] == [left // 2 + 1, left - left // 2 - 1]
        assert numbers(flat(batches)) == list(range(start, 4_010))


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_goes_on_without_a_deleted_topic(
    spark: SparkSession, folder: str, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``failOnDataLoss=false`` a subscribed topic may go and come back."""
    caplog.set_level(logging.WARNING)
    options = {"subscribe": "kept,gone", "startingOffsets": "earliest"}
    with pymq.open(folder) as mq:
        for name in ("kept", "gone"):
            mq.create_topic(name)
            fill(mq, name, 10)
        assert len(flat(stream(folder, **options))) == 20
        fill(mq, "kept", 5, start=10)
        fill(mq, "gone", 5, start=10)
        mq.delete_topic("gone")
        with pytest.raises(Exception, match="gone"):
            stream(folder, **options)
        lenient = {**options, "failOnDataLoss": "false"}
        assert numbers(flat(stream(folder, **lenient))) == list(range(10, 15))
        mq.create_topic("gone")
        fill(mq, "gone", 3, start=100)
        fill(mq, "kept", 1, start=200)
        assert numbers(flat(stream(folder, **lenient))) == [100, 101, 102, 200]


@pytest.mark.spark
def test_the_first_start_wants_all_topics(folder: str, stream: Stream) -> None:
    """A topic that a new query does not find counts as a mistake, not as a loss of data."""
    with pymq.open(folder) as mq:
        mq.create_topic("kept")
    with pytest.raises(Exception, match="misspelt"):
        stream(folder, subscribe="kept,misspelt", failOnDataLoss="false")
