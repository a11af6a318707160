"""If a leader's disk is full for a while, its partition continues, on that broker or on another
one.
"""

from __future__ import annotations

import pytest

from pymq import Client
from pymq.client.option_types import Acks
from pymq.testing import Cluster


@pytest.mark.parametrize("acks", ["leader", "raft"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_partition_goes_on_after_its_leaders_disk_was_full(acks: Acks, replicas: int) -> None:
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=replicas, acks=acks)
        with mq.producer(delivery_timeout_s=60.0) as producer:
            producer.send("t", b"before").result()
            leader = mq.describe_topic("t").partitions[0].leader
            assert leader is not None
            cluster.fill_disk(leader)
            delivery = producer.send("t", b"x" * 100_000)
            cluster.run(seconds=3)
            cluster.free_disk(leader)
            cluster.run(seconds=10)
            if delivery.done() and delivery.exception() is not None:
                producer.send("t", b"x" * 100_000).result(30)
            delivery.exception()
        with mq.consumer("t", mode="psb") as consumer:
            assert [len(r.value) for r in consumer.until_end()][:2] == [6, 100_000]


@pytest.mark.parametrize("has_led", [False, True])
def test_a_short_copy_on_a_full_disk_is_not_taken_for_all_there_is(has_led: bool) -> None:
    """The leader dies, and the zkserver reaches only one other replica, whose disk is full.

    The third broker had the acknowledged records, too, for some seconds.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="leader")
        with mq.producer(linger_ms=0, delivery_timeout_s=60.0) as producer:
            producer.send("t", b"before").result()
            first = leader_of(mq)
            full = first if has_led else next(name for name in cluster.brokers if name != first)
            cluster.fill_disk(full)
            producer.send("t", b"meanwhile").result()
            cluster.run(seconds=3)
            leader = leader_of(mq)
            assert leader != full
            (third,) = {*cluster.brokers} - {leader, full}
            sent = []
            for number in range(200):
                sent.append(producer.send("t", b"%d" % number))
                cluster.run(seconds=0.01)
            offsets = [delivery.result().offset for delivery in sent]
            cluster.cut(third, list(cluster.zkservers))
            cluster.crash(leader, "all")
            cluster.run(seconds=2.6)
            cluster.heal()
            cluster.free_disk(full)
            cluster.run(seconds=5)
            assert leader_of(mq) == third
            cluster.restart(leader)
            cluster.run(seconds=5)
            part = mq.describe_topic("t").partitions[0]
            assert set(part.in_sync) == set(cluster.brokers)
        with mq.consumer("t", mode="psb") as consumer:
            found = {record.offset: record.value for record in consumer.until_end()}
        assert [found[offset] for offset in offsets] == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_a_block_that_is_rolled_while_a_disk_is_full_becomes_whole_there(acks: Acks) -> None:
    """A write of the replica had failed, and the replica was about to retry a moment later."""
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)
        with mq.producer(linger_ms=0, delivery_timeout_s=60.0) as producer:
            producer.send("t", b"before").result()
            leader = leader_of(mq)
            full = next(name for name in cluster.brokers if name != leader)
            cluster.fill_disk(full)
            for _ in range(20):
                producer.send("t", b"meanwhile").result()
                cluster.run(seconds=0.1)
            mq.set_partition_state("t", "0", acks="raft" if acks == "leader" else "leader")
            producer.send("t", b"after").result()
            cluster.run(seconds=1)
            cluster.free_disk(full)
            cluster.run(seconds=5)
        blocks = mq.describe_topic("t").partitions[0].blocks
        assert all(set(block.in_sync) == set(block.replicas) for block in blocks)
        # the blocks between these were created without that broker
        for block in (blocks[0], blocks[-1]):
            assert set(block.in_sync) == set(cluster.brokers)


def leader_of(mq: Client) -> str:
    name = mq.describe_topic("t").partitions[0].leader
    assert name is not None
    return name
