"""High watermarks survive a full stop: a restarted replica knows which records were committed."""

from __future__ import annotations

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.testing import Cluster


def put(mq: pymq.Client, *numbers: int) -> None:
    with mq.producer(linger_ms=1) as producer:
        producer.send_many("t", [b"%d" % number for number in numbers], partition=0).result()


def shown(mq: pymq.Client) -> tuple[str | None, int]:
    found = mq.describe_topic("t").partitions[0]
    return found.leader, found.high_watermark


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_the_high_watermark_is_shown_again_after_a_full_stop(acks: Acks) -> None:
    """A single restarted replica of three, without a leader, shows its last high watermark."""
    with Cluster(brokers=3, seed=21) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)
        put(mq, *range(10))
        cluster.run(seconds=1)
        leader, before = shown(mq)
        assert before >= 10
        others = [name for name in cluster.brokers if name != leader]
        for name in (*others, leader):
            assert name is not None
            cluster.stop(name)
        cluster.run(seconds=3)
        cluster.restart(others[1])
        cluster.run(seconds=4)
        assert shown(mq)[1] >= before - 2  # the last offsets are pymq's own batches
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            found: list[int] = []
            while len(found) < 10:
                found += [int(record.value) for record in consumer.poll(timeout=2.0)]
            assert found == list(range(10))


def test_it_is_no_more_than_what_is_there() -> None:
    """The high watermark does not cover records that a power cut has removed."""
    with Cluster(brokers=1, seed=22) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="leader", fsync="os")
        put(mq, *range(10))
        cluster.stop("broker-0")
        cluster.restart("broker-0")
        cluster.run(seconds=1)
        put(mq, *range(10, 20))
        cluster.crash("broker-0", "none")
        cluster.restart("broker-0")
        cluster.run(seconds=2)
        assert shown(mq)[1] == 10
