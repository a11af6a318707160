"""A broker whose disk fails to read an open block at the start needs no restart."""

from __future__ import annotations

import pytest

from pymq.client.option_types import Acks
from pymq.errors import StoreError
from pymq.testing import Cluster

RECORDS = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("acks", ["leader", "raft"])
@pytest.mark.parametrize("times", [1, 3])
def test_the_only_replica_serves_again(acks: Acks, times: int) -> None:
    """Requests wait meanwhile, and the reason is visible to all clients."""
    with Cluster(brokers=1, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks=acks)
        with mq.producer() as producer:
            for record in RECORDS:
                producer.send("t", record).result()
        cluster.crash("broker-0", "all")
        cluster.restart("broker-0")
        cluster.fail_disk("broker-0", "read", times)
        while (problem := mq.describe_topic("t").partitions[0].problem) is None:
            cluster.run(seconds=0.1)
        assert "Input/output error" in problem
        with mq.producer() as producer:
            producer.send("t", b"more").result(10)
        assert mq.describe_topic("t").partitions[0].problem is None
        with mq.consumer("t", mode="psb") as consumer:
            assert [r.value for r in consumer.until_end()] == [*RECORDS, b"more"]


def test_what_stays_unreadable_is_told_as_it_is() -> None:
    """Requests do not wait forever for a disk that an administrator has to check.

    Once the disk is repaired, the broker continues without a restart.
    """
    with Cluster(brokers=1, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"before").result()
            cluster.crash("broker-0", "all")
            cluster.restart("broker-0")
            cluster.fail_disk("broker-0", "read", 1_000)
            refused = producer.send("t", b"refused").exception(100)
            assert isinstance(refused, StoreError)
            assert "Input/output error" in str(refused)
        with (
            mq.consumer("t", mode="psb") as consumer,
            pytest.raises(StoreError, match="Input/output error"),
        ):
            list(consumer.until_end())
        cluster.brokers["broker-0"].files.failing.clear()
        cluster.run(seconds=31)
        with mq.consumer("t", mode="psb") as consumer:
            assert [r.value for r in consumer.until_end()] == [b"before"]


@pytest.mark.parametrize("acks", ["leader", "raft"])
@pytest.mark.parametrize("leads", [False, True])
def test_one_of_several_is_in_sync_again(acks: Acks, leads: bool) -> None:
    with Cluster(brokers=3, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)
        with mq.producer() as producer:
            for record in RECORDS:
                producer.send("t", record).result()
            leader = mq.describe_topic("t").partitions[0].leader
            name = next(name for name in cluster.brokers if (name == leader) == leads)
            cluster.crash(name, "all")
            cluster.restart(name)
            cluster.fail_disk(name, "read", 2)
            producer.send("t", b"more").result()
            cluster.run(seconds=15)
            part = mq.describe_topic("t").partitions[0]
            assert part.problem is None
            assert set(part.in_sync) == set(cluster.brokers)
            # This broker's records are enough to continue when another broker fails.
            other = next(broker for broker in cluster.brokers if broker != name)
            cluster.crash(other, "all")
            producer.send("t", b"end").result(30)
            cluster.run(seconds=5)
        with mq.consumer("t", mode="psb") as consumer:
            assert [r.value for r in consumer.until_end()] == [*RECORDS, b"more", b"end"]
