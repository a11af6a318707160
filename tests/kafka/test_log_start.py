"""DeleteRecords moves the start of the log, and OffsetForLeaderEpoch says where epochs end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.kafka.codes import Code
from pymq.kafka.wire import messages as m
from tests.kafka.test_gate import Bench, batch, fetch, produce, read

pytest.importorskip("crc32c", reason="crc32c is not installed")


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    found.mq.create_topic("t")
    yield found
    assert found.failures == []
    found.mq.close()


def fill(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.ask("Produce", 9, produce(batch(b"%d" % number)))


def delete(offset: int, topic: str = "t", index: int = 0) -> m.DeleteRecordsRequest:
    part = m.DeleteRecordsRequestDeleteRecordsPartition(index, offset)
    return m.DeleteRecordsRequest([m.DeleteRecordsRequestDeleteRecordsTopic(topic, [part])], 5_000)


def deleted(answer: Any) -> tuple[int, int]:
    part = answer.topics[0].partitions[0]
    return part.error_code, part.low_watermark


def ask_delete(bench: Bench, request: m.DeleteRecordsRequest) -> tuple[int, int]:
    """Send a request, and let time pass until its answer is there."""
    bench.send(bench.frame("DeleteRecords", 2, request))
    while not bench.connection.out:
        with bench.mq.driver as loop:
            loop.touch("kafka-0")
    (answer,) = bench.answers(("DeleteRecords", 2))
    return deleted(answer)


def test_records_are_deleted_inside_a_block(bench: Bench) -> None:
    fill(bench, 10)
    assert ask_delete(bench, delete(4)) == (0, 4)
    assert read(bench.ask("Fetch", 12, fetch(3))).error_code == Code.OFFSET_OUT_OF_RANGE
    part = read(bench.ask("Fetch", 12, fetch(4)))
    assert (part.error_code, part.log_start_offset, part.high_watermark) == (0, 4, 10)
    with bench.mq.consumer("t", mode="reader") as consumer:
        assert [record.offset for record in consumer.until_end()] == list(range(4, 10))
    with bench.mq.consumer("t", group="g") as group:
        assert [record.offset for record in group.until_end()] == list(range(4, 10))
    described = bench.mq.describe_topic("t").partitions[0]
    assert (described.start_offset, described.end_offset) == (4, 10)
    assert ask_delete(bench, delete(2)) == (0, 4)  # deleted already
    assert ask_delete(bench, delete(-1)) == (0, 10)  # all of them
    fill(bench, 1)
    assert read(bench.ask("Fetch", 12, fetch(10))).error_code == 0


def test_what_cannot_be_deleted(bench: Bench) -> None:
    bench.mq.create_topic("kept", cleanup_policy="compact")
    fill(bench, 3)
    for request, code in (
        (delete(4), Code.OFFSET_OUT_OF_RANGE),
        (delete(-2), Code.OFFSET_OUT_OF_RANGE),
        (delete(0, "none"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (delete(0, index=7), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (delete(0, "kept"), Code.POLICY_VIOLATION),
    ):
        assert ask_delete(bench, request) == (code, -1)


def list_offset(bench: Bench, time: int) -> tuple[int, int]:
    part = m.ListOffsetsRequestListOffsetsPartition(0, timestamp=time)
    topic = m.ListOffsetsRequestListOffsetsTopic("t", [part])
    (found,) = bench.ask("ListOffsets", 7, m.ListOffsetsRequest(-1, 0, [topic])).topics
    return found.partitions[0].error_code, found.partitions[0].offset


def test_offsets_begin_at_the_new_start(bench: Bench) -> None:
    fill(bench, 5)
    assert ask_delete(bench, delete(3)) == (0, 3)
    assert list_offset(bench, -2) == (0, 3)
    assert list_offset(bench, 0) == (0, 3)
    assert list_offset(bench, -1) == (0, 5)


def test_the_start_survives_a_restart_and_whole_blocks_go(tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    from confluent_kafka.admin import AdminClient

    folder = tmp_path / "queue"
    with pymq.open(folder) as mq, mq.kafka() as kafka:
        mq.create_topic("t", block_bytes=1 << 16, retention_ms=None)
        with mq.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number + bytes(4_000)).result(20)
        before = mq.describe_topic("t").partitions[0]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        wanted = confluent.TopicPartition("t", 0, 70)
        (found,) = admin.delete_records([wanted]).values()
        assert found.result(20).low_watermark == 70
    assert len(before.blocks) > 3
    with pymq.open(folder) as mq:
        with mq.consumer("t", mode="reader") as consumer:
            assert [record.offset for record in consumer.until_end()] == list(range(70, 100))
        after = mq.describe_topic("t").partitions[0]
        assert after.start_offset == 70
        assert all(b.end_offset is None or b.end_offset > 70 for b in after.blocks)


# --- epochs -------------------------------------------------------------------------------------


def epoch_end(bench: Bench, epoch: int, topic: str = "t") -> tuple[int, int, int]:
    part = m.OffsetForLeaderEpochRequestOffsetForLeaderPartition(0, -1, epoch)
    asked = m.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic, [part])
    answer = bench.ask("OffsetForLeaderEpoch", 4, m.OffsetForLeaderEpochRequest(-1, [asked]))
    found = answer.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def test_epochs_end_where_the_next_one_begins(bench: Bench) -> None:
    """A roll begins a new epoch."""
    fill(bench, 3)
    first = bench.mq.describe_topic("t").partitions[0].epoch
    bench.mq.set_partition_state("t", "0", acks="raft")
    second = bench.mq.describe_topic("t").partitions[0].epoch
    assert second > first
    fill(bench, 2)
    assert epoch_end(bench, first) == (0, first, 3)
    end = epoch_end(bench, second)
    assert end[:2] == (0, second)
    assert end[2] >= 5
    assert epoch_end(bench, second + 9) == end
    assert epoch_end(bench, first - 1) == (0, first - 1, 0)
    unknown = epoch_end(bench, 1, "none")
    assert unknown == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
