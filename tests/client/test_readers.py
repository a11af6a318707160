"""Consumers without a group (PSB): positions, seeking, blocks, retention, compaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from tests.client.helpers import WAIT_S, opened, wait_until


@pytest.fixture(params=["memory", "folder", "zmq"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pymq.Client]:
    with opened(request.param, tmp_path) as client:
        client.create_topic("t")
        yield client


def fill(mq: pymq.Client, start: int, end: int, topic: str = "t") -> None:
    with mq.producer(batch_bytes=2_000) as producer:
        for number in range(start, end):
            producer.send(topic, b"%0100d" % number, timestamp_ms=1_000 + number)


def numbers(consumer: pymq.Consumer) -> list[int]:
    return [int(record.value) for record in consumer.until_end()]


def test_each_reads_on_its_own(mq: pymq.Client) -> None:
    """Readers can start at the beginning, an offset or the end.

    Readers do not take records from each other.
    """
    fill(mq, 0, 100)
    with (
        mq.consumer("t", mode="psb") as first,
        mq.consumer("t", mode="psb", partition="0", offset=60) as middle,
        mq.consumer("t", mode="psb", partition=0, offset="end") as last,
    ):
        fill(mq, 100, 110)
        assert numbers(first) == list(range(110))
        assert numbers(middle) == list(range(60, 110))
        assert numbers(last) == list(range(100, 110))
        assert first.position("0") == 110
        assert first.lag() == {"0": 0}


def test_a_large_batch_is_polled_record_by_record(mq: pymq.Client) -> None:
    sent = [b"%d" % i for i in range(1_500)]
    with mq.producer() as producer:
        producer.send_many("t", sent)
    with mq.consumer("t", mode="psb") as consumer:
        found = [record.value for _ in sent for record in consumer.poll(1, WAIT_S)]
    assert found == sent


def test_seeking(mq: pymq.Client) -> None:
    """A reader seeks exactly by offset, by name and by time."""
    fill(mq, 0, 200)
    with mq.consumer("t", mode="psb") as consumer:
        assert len(numbers(consumer)) == 200
        consumer.seek("0", 42)
        assert consumer.position("0") == 42
        assert numbers(consumer)[0] == 42
        consumer.seek_to_time("0", 1_137)
        assert numbers(consumer)[0] == 137
        consumer.seek_to_time("0", 5_000)
        assert numbers(consumer) == []
        consumer.seek("0", "begin")
        assert numbers(consumer)[0] == 0
        assert consumer.offset_at("0", 1_150) == 150
        with pytest.raises(pymq.errors.UnknownPartition):
            consumer.seek("7", 0)


def test_blocks_do_not_show(mq: pymq.Client) -> None:
    """Over many rolls the offsets have no gaps, and every way of reading crosses block borders."""
    mq.create_topic("small", block_bytes=4096)
    fill(mq, 0, 2_000, "small")
    description = mq.describe_topic("small").partitions[0]
    assert len(description.blocks) > 5
    assert [b.start_offset for b in description.blocks[1:]] == [
        b.end_offset for b in description.blocks[:-1]
    ]
    with mq.consumer("small", mode="psb") as consumer:
        records = list(consumer.until_end())
        assert [record.offset for record in records] == list(range(2_000))
        consumer.seek_to_time("0", 2_234)
        assert numbers(consumer)[0] == 1_234


def test_retention_by_size(mq: pymq.Client) -> None:
    """Retention removes old blocks, and a reader whose position was removed gets an error."""
    mq.create_topic("short", block_bytes=4096, retention_bytes=20_000)
    with mq.consumer("short", mode="psb") as behind:
        fill(mq, 0, 2_000, "short")
        start = mq.describe_topic("short").partitions[0].start_offset
        assert 0 < start < 2_000
        behind.seek("0", 0)
        with pytest.raises(pymq.errors.OffsetOutOfRange) as caught:
            behind.poll(1)
        place = {name: caught.value.details[name] for name in ("topic", "partition", "offset")}
        assert place == {"topic": "short", "partition": "0", "offset": 0}
        found: list[int] = []
        while not found:  # retention may remove further blocks while the last rolls finish
            with contextlib.suppress(pymq.errors.OffsetOutOfRange):
                behind.seek("0", "begin")
                found = numbers(behind)
        assert found == list(range(found[0], 2_000))
        assert found[0] >= start


def test_compaction_keeps_the_last_of_each_key(mq: pymq.Client) -> None:
    """Compaction of sealed blocks keeps positions valid and the newest value of each key."""
    mq.create_topic("table", block_bytes=4096, cleanup_policy="compact")
    with mq.producer(batch_bytes=1_000) as producer:
        for number in range(3_000):
            producer.send("table", b"%0100d" % number, key=b"%d" % (number % 10))
    with mq.consumer("table", mode="psb") as consumer:
        latest = {record.key: int(record.value) for record in consumer.until_end()}
    assert latest == {b"%d" % key: 2_990 + key for key in range(10)}


def test_a_time_is_found_behind_blocks_that_have_lost_their_newest_record(tmp_path: Path) -> None:
    """A search by time works even if compaction has removed the record with the block's newest
    time.
    """
    with pymq.open(tmp_path) as mq, mq.producer() as producer:
        mq.create_topic("table", acks="leader", cleanup_policy="compact")
        raft, leader = pymq.AckMode.RAFT, pymq.AckMode.LEADER
        for acks, sent in (
            (raft, ((b"a", 9_000), (b"b", 1_000))),
            (leader, ((b"a", 2_000), (b"c", 3_000))),
            (raft, ((b"d", 4_000),)),
        ):
            for key, time in sent:
                producer.send("table", b"", key=key, timestamp_ms=time)
            producer.flush()
            mq.set_partition_state("table", "0", acks=acks)  # another mode opens another block
        with mq.consumer("table", mode="psb") as consumer:

            def is_compacted() -> bool:
                consumer.seek("0", 0)
                return [record.offset for record in consumer.until_end()] == [1, 2, 3, 4]

            wait_until(is_compacted)
            times = (500, 1_500, 2_500, 3_500, 4_500)
            assert [consumer.offset_at("0", time) for time in times] == [1, 2, 3, 4, 5]


def test_pausing(mq: pymq.Client) -> None:
    """A paused partition delivers nothing, is listed as paused, and resumes at its position."""
    fill(mq, 0, 10)
    with mq.consumer("t", mode="psb") as consumer:
        consumer.pause("0")
        fill(mq, 10, 20)
        list(consumer.poll(100, timeout=0.05))
        assert consumer.poll(timeout=0.05) == []
        assert consumer.status().idle == "all its partitions are paused"
        consumer.resume("0")
        consumer.seek("0", 0)
        assert numbers(consumer) == list(range(20))


def test_a_deleted_topic_is_told(mq: pymq.Client) -> None:
    """If the topic is deleted, a reader's poll raises."""
    with mq.consumer("t", mode="psb") as consumer:
        mq.delete_topic("t")
        with pytest.raises(pymq.errors.UnknownTopic):
            consumer.poll(timeout=5)
        with pytest.raises(pymq.errors.UnknownTopic):
            mq.consumer("t", mode="psb")


@pytest.mark.parametrize("credit", [1, 100])
def test_credit_bounds_what_a_reader_that_pushes_has_at_hand(credit: int) -> None:
    """If a handler is slow, no more records are prefetched than its credit."""
    is_called, may_go_on = threading.Event(), threading.Event()

    def handle(record: pymq.Record) -> None:
        is_called.set()
        may_go_on.wait()

    with pymq.open("memory:") as mq:
        mq.create_topic("t", 2)
        batch = 50
        with mq.producer(linger_ms=0) as producer:
            for number in range(80):
                values = [bytes(1000)] * batch
                producer.send_many("t", values, partition=number % 2).result()
        reader = mq.consumer("t", mode="psb", delivery="push", on_record=handle, credit=credit)
        try:
            assert is_called.wait(30)
            reader.begin_offsets()  # The earlier request has been answered.
            assert reader.status().buffered <= 2 * credit + 2 * batch
        finally:
            may_go_on.set()
            reader.close()
