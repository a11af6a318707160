"""If a broker finds a damaged sealed copy when it starts, the rest of the partition works."""

from __future__ import annotations

from random import Random

import pytest

from pymq.client.option_types import Acks
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import HEADER_SIZE
from pymq.errors import CorruptBlock
from pymq.testing import Cluster

RECORDS = [b"%03d" % number + bytes(900) for number in range(20)]


def begin(cluster: Cluster, replicas: int, acks: Acks) -> None:
    """Make a topic with a partition of several blocks."""
    mq = cluster.client()
    mq.create_topic("t", replicas=replicas, acks=acks, block_bytes=4096)
    with mq.producer(linger_ms=0) as producer:
        for record in RECORDS:
            producer.send("t", record).result()
    cluster.run(seconds=3)


def damage(cluster: Cluster, name: str) -> str:
    """Start a broker with a damaged second block that is not marked as sealed."""
    cluster.crash(name, "all")
    disk = cluster.brokers[name].disk
    topics = {block.split("/")[3] for block in disk.paths() if block.endswith("00000003.block")}
    (path,) = (p for p in disk.paths() if p.split("/")[3:4] == [*topics] and "01.block" in p)
    disk.unlink(path.replace(".block", ".index"))
    assert cluster.flip(name, Random(6), path) is not None
    cluster.restart(name)
    cluster.run(seconds=5)
    return path


@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_the_only_copy_is_missed_by_its_readers_alone(acks: Acks) -> None:
    """In an earlier version the whole partition failed, or the records after the damage were
    truncated.
    """
    with Cluster(brokers=1, seed=3) as cluster:
        begin(cluster, 1, acks)
        path = damage(cluster, "broker-0")
        mq = cluster.client()
        with mq.producer() as producer:
            assert producer.send("t", b"more").result().offset == len(RECORDS)
        found = mq.describe_topic("t").partitions[0]
        assert path in (found.problem or "")
        blocks = found.blocks
        with mq.consumer("t", mode="psb") as consumer:
            with pytest.raises(CorruptBlock) as caught:
                list(consumer.until_end())
            assert caught.value.details["file"] == path
            end = blocks[1].end_offset
            assert end is not None
            consumer.seek("0", end)
            assert [r.value for r in consumer.until_end()] == [*RECORDS[end:], b"more"]


@pytest.mark.parametrize("acks", ["leader", "raft"])
@pytest.mark.parametrize("leads", [False, True])
def test_a_copy_is_repaired_from_another_broker(acks: Acks, leads: bool) -> None:
    """Meanwhile the broker leads or follows as usual."""
    with Cluster(brokers=3, seed=3) as cluster:
        begin(cluster, 3, acks)
        mq = cluster.client()
        leader = mq.describe_topic("t").partitions[0].leader
        name = next(name for name in cluster.brokers if (name == leader) == leads)
        topic = damage(cluster, name).split("/")[3]
        found = mq.describe_topic("t").partitions[0]
        assert found.problem is None
        with mq.producer() as producer:
            producer.send("t", b"more").result()
        block = found.blocks[1]
        assert block.end_offset is not None
        contents = []
        for host in cluster.brokers.values():
            assert host.store is not None
            (id,) = (id for id in host.store.blocks() if (id.topic_id, id.number) == (topic, 1))
            data = host.store.read(id, block.start_offset, block.end_offset, 1 << 20)
            contents.append([r for batch in split(data) for r in batch.verify().records()])
        assert contents[0] == contents[1] == contents[2]
        with mq.consumer("t", mode="psb") as consumer:
            assert [r.value for r in consumer.until_end()] == [*RECORDS, b"more"]


def test_damage_in_the_open_block_is_found_by_a_reader_and_another_broker_leads() -> None:
    """The leader fails permanently, and its readers continue at the next leader."""
    with Cluster(brokers=3, seed=3, handles=2) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer(linger_ms=0) as producer:
            for record in RECORDS:
                producer.send("t", record).result()
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        disk = cluster.brokers[leader].disk
        (path,) = (name for name in disk.paths() if name.endswith(".block"))
        in_header = disk.data(path).index(RECORDS[10]) - HEADER_SIZE // 2
        assert disk.flip(Random(1), path, in_header) is not None
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert [r.value for r in consumer.until_end()] == RECORDS
        assert mq.describe_topic("t").partitions[0].leader != leader
