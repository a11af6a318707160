"""The offsets topic changes to Raft as soon as there are enough brokers."""

from __future__ import annotations

import pytest

import pymq
from pymq.core.types import OFFSETS_TOPIC, AckMode
from pymq.testing import Cluster


@pytest.mark.parametrize("seed", range(5))
def test_the_offsets_topic_goes_to_raft_when_the_third_broker_comes(seed: int) -> None:
    """In an earlier version, a topic created while one broker was alive stayed in mode leader, in
    which a commit can be lost.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        cluster.crash("broker-1")
        cluster.crash("broker-2")
        cluster.run(seconds=15)  # the cluster gives up the dead brokers
        mq = cluster.client()
        mq.create_topic("t")
        values = [b"%d" % number for number in range(40)]
        with mq.producer() as producer:
            producer.send_many("t", values[:20]).result()
        assert consume(mq, 20) == values[:20]
        modes = {part.acks for part in mq.describe_topic(OFFSETS_TOPIC).partitions}
        assert modes == {AckMode.LEADER}
        cluster.restart("broker-1")
        cluster.restart("broker-2")
        cluster.run(seconds=40)
        found = mq.describe_topic(OFFSETS_TOPIC)
        assert {part.acks for part in found.partitions} == {AckMode.RAFT}
        assert {len(part.replicas) for part in found.partitions} == {3}
        with mq.producer() as producer:
            producer.send_many("t", values[20:]).result()
        assert consume(mq, 20) == values[20:]  # earlier commits are not forgotten
        cluster.check()


def test_two_brokers_keep_the_offsets_in_mode_leader() -> None:
    """With two replicas Raft would stop the groups while either broker is away."""
    with Cluster(brokers=2, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        mq.consumer("t", group="g").close()
        cluster.run(seconds=40)
        modes = {part.acks for part in mq.describe_topic(OFFSETS_TOPIC).partitions}
        assert modes == {AckMode.LEADER}


def consume(mq: pymq.Client, count: int) -> list[bytes]:
    """The records that a group gets; the group commits all of them."""
    with mq.consumer("t", group="g") as consumer:
        got: list[bytes] = []
        while len(got) < count:
            for record in consumer.poll(timeout=10):
                got.append(record.value)
                consumer.ack(record)
        consumer.commit()
    return got
