"""Sequences of batches with an unknown outcome: the producer requests them and never guesses."""

from __future__ import annotations

import pytest

import pymq
from pymq.testing import Cluster

SEEDS = range(6)


def leader(mq: pymq.Client) -> str:
    found = mq.describe_topic("t").partitions[0].leader
    assert found is not None
    return found


def read(mq: pymq.Client) -> list[bytes]:
    with mq.consumer("t", mode="psb", partition=0) as consumer:
        return [record.value for record in consumer.until_end()]


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_failing_disk_leaves_open_is_written_once(seed: int, lost: int) -> None:
    """The next leader writes a batch once, even if an earlier leader with a failing disk may have
    written it.

    The producer sends the batch under the same sequence to the next leader. With two batches in
    flight, that leader must not refuse the first and accept the second.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer(linger_ms=0, batch_bytes=1) as producer:
            producer.send("t", b"0").result()
            victim = leader(mq)
            cluster.fail_disk(victim, "sync", 1)
            doubtful = [producer.send("t", b"%d" % i) for i in range(1, 1 + lost)]
            offsets = [delivery.result(timeout=30).offset for delivery in doubtful]
            assert leader(mq) != victim, "its disk did not fail"
            cluster.crash(victim)
            cluster.run(seconds=3)
            sent = [producer.send("t", b"%d" % i) for i in range(10, 18)]
            offsets += [delivery.result(timeout=30).offset for delivery in sent]
        assert offsets == sorted(set(offsets))
        assert [int(value) for value in read(mq)] == [0, *range(1, 1 + lost), *range(10, 18)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_committed_is_not_told_of(seed: int) -> None:
    """The next sequence counts only committed records, since a producer would not send counted ones
    again.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        first, mq = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        producer = first.producer(linger_ms=0, producer_id="p")
        producer.send("t", b"0").result()
        heir = mq.producer(producer_id="p")
        victim = leader(mq)
        cluster.cut(victim, {name for name in cluster.brokers if name != victim})
        producer.send("t", b"1")
        cluster.run(seconds=0.02)
        cluster.cut(first.name)
        told = heir.next_sequence("t", 0)
        cluster.crash(victim, disk="none")
        cluster.run(seconds=5)
        assert len(read(mq)) == told == 1
